"""`anllm pull`: download and convert a model without serving it, so that later starts need no network."""

from __future__ import annotations

import click


@click.command()
@click.argument("model", required=False)
def pull(model: str | None) -> None:
    """Download MODEL (a hub id; default: the embedded model) or convert a .gguf file; prints its folder.

    What is there already is not fetched again, and needs no network.
    """
    from anllm.cli.console import TerminalConsole
    from anllm.store.resolve import fetch, parse_source

    with TerminalConsole() as console:
        folder = fetch(parse_source(model), console)
    click.echo(str(folder))
