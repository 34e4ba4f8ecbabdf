"""`anllm list`: the models on this machine."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of objects.")
def list_models(as_json: bool) -> None:
    """The models in anllm's cache and in the hub's cache, the one used last first."""
    from anllm.store.inventory import StoredModel, stored_models

    def fields(model: StoredModel) -> dict[str, object]:
        used = datetime.fromtimestamp(model.last_used_s, UTC).isoformat(timespec="seconds")
        return {
            "name": model.name,
            "kind": model.kind.value,
            "architecture": model.architecture or None,
            "weights": model.weights or None,
            "size_bytes": model.size_bytes,
            "last_used": used,
            "is_whole": model.is_whole,
            "path": str(model.folder or model.path),
        }

    models = stored_models()
    if as_json:
        click.echo(json.dumps([fields(model) for model in models], indent=2))
        return
    if not models:
        click.echo("No models yet. Get the default one: anllm pull", err=True)
        return
    from anllm.cli.format import ago, size
    from anllm.cli.tables import print_table

    print_table(
        ("model", "from", "type", "size", "used"),
        [
            (
                model.name,
                {"embedded": "default", "gguf": "GGUF", "hub": "hub"}[model.kind.value],
                f"{model.architecture} · {model.weights}" if model.is_whole else "not whole",
                size(model.size_bytes),
                ago(time.time() - model.last_used_s),
            )
            for model in models
        ],
        right=("size",),
    )
