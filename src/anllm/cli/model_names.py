"""What a shell completes where a command wants a model."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def removable_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the caches."""
    from anllm.store.inventory import stored_models

    return [CompletionItem(model.name) for model in stored_models() if model.name.startswith(incomplete)]


def servable_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the caches, but for what was made of a .gguf file, which is named by that; and folders and files."""
    from anllm.store.inventory import stored_models
    from anllm.store.resolve import SourceKind

    names = [model.name for model in stored_models() if model.kind is not SourceKind.GGUF]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]
