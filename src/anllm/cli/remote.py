"""What commands share that talk to a server: its address and key, or a server started for a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from anllm.client.address import Address

url_option = click.option("--url", help="A running server.  [default: http://127.0.0.1:8000, if no MODEL is named]")
api_key_option = click.option(
    "--api-key", envvar="ANLLM_API_KEY", show_envvar=True, help="Key of the server, if it asks for one."
)


@contextmanager
def target(model: str | None, url: str | None, api_key: str | None) -> Iterator[Address]:
    """The running server at `url`; or, for a model, one that is started here and ended with the block."""
    from anllm.client.address import DEFAULT_URL, Address
    from anllm.client.local import local_server

    if model is not None and url is not None:
        raise click.UsageError("MODEL starts a server, and --url names one that runs: give one of the two.")
    if model is None:
        yield Address.parse(url or DEFAULT_URL, api_key)
        return
    with local_server(model, api_key=api_key) as address:
        yield address
