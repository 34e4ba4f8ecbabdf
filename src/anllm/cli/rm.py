"""`anllm rm`: remove a model from the cache."""

from __future__ import annotations

import click

from anllm.cli.model_names import removable_models


@click.command()
@click.argument("model", shell_complete=removable_models)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def rm(model: str, yes: bool) -> None:
    """Remove MODEL, a name as `anllm list` has it, from anllm's cache or the hub's."""
    from anllm.cli.format import size
    from anllm.store.inventory import find_stored, remove, stored_models

    found = find_stored(model, stored_models())
    if not yes:
        click.confirm(f"Remove {found.name} ({size(found.size_bytes)}, {found.path})?", abort=True)
    remove(found)
    click.echo(f"Removed {found.name}: {size(found.size_bytes)} are free.")
