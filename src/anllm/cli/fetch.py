"""`anllm fetch`: download and convert a model without serving it, so that later starts need no network."""

from __future__ import annotations

import sys

import click

from anllm.errors import AnllmError


@click.command()
@click.argument("model", required=False)
def fetch(model: str | None) -> None:
    """Download MODEL (a hub id; default: the embedded model) or convert a .gguf file; prints its folder."""
    from anllm.cli.console import TerminalConsole
    from anllm.store.resolve import fetch as fetch_model
    from anllm.store.resolve import parse_source

    try:
        with TerminalConsole() as console:
            folder = fetch_model(parse_source(model), console)
    except AnllmError as error:
        click.echo(f"Error: {error.message}", err=True)
        sys.exit(1)
    click.echo(str(folder))
