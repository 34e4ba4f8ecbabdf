"""`anllm info`: what a model is, and the memory it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from anllm.cli.model_names import servable_models
from anllm.config import CacheConfig, Weights
from anllm.core.request import SamplingDefaults

if TYPE_CHECKING:
    from anllm.describe import Description, Need


@click.command(context_settings={"show_default": True})
@click.argument("model", required=False, shell_complete=servable_models)
@click.option("--streams", type=click.IntRange(1), default=32, help="Requests at the same time.")
@click.option("--tokens", type=click.IntRange(1), default=2048, help="Tokens of each, prompt and answer together.")
@click.option(
    "--weights",
    type=click.Choice([w.value for w in Weights]),
    default=Weights.AUTO.value,
    help="Form of the weights in memory, as for serve.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(model: str | None, streams: int, tokens: int, weights: str, as_json: bool) -> None:
    """Tell what MODEL is, how it would be served on this machine, and the memory that it needs.

    MODEL is named as for serve; what is not there yet is fetched. Its weights are not loaded: their names, shapes and
    types are read, and a few layers are run.
    """
    from anllm.cli.console import TerminalConsole
    from anllm.config import ModelConfig
    from anllm.describe import describe
    from anllm.logs import LogFormat, configure
    from anllm.store.resolve import parse_source

    configure("error", LogFormat.TEXT, "info")
    with TerminalConsole() as console:
        source = parse_source(model)
        found = describe(source, ModelConfig(model=model, weights=Weights(weights)), console)
    need = found.need(streams, tokens)
    if as_json:
        click.echo(
            json.dumps({**as_fields(found), "need": {**asdict(need), "total_bytes": need.total_bytes}}, indent=2)
        )
        return
    from anllm.cli.tables import print_pairs

    print_pairs(lines(found, need))


def as_fields(found: Description) -> dict[str, object]:
    """Like the object, with what it holds of the runner beside the rest."""
    fields = {**asdict(found), "folder": str(found.folder)}
    return {**{k: v for k, v in fields.items() if k != "inspection"}, **asdict(found.inspection)}


def lines(found: Description, need: Need) -> Iterator[tuple[str, str]]:
    """What is printed: a name and a text each."""
    from anllm.cli.format import size

    inner = found.inspection
    yield "model", found.name
    yield "folder", f"{found.folder} ({size(found.disk_bytes)})"
    yield "architecture", f"{found.architecture}, {inner.num_parameters / 1e6:,.0f} million parameters"
    yield "context", f"{inner.context_length:,} tokens, vocabulary {found.vocab_size:,}"
    yield "chat template", "yes" if found.has_chat_template else "none: a base model, for completions"
    yield "tool calls", found.tools or "none"
    yield "reasoning", found.reasoning or "none"
    given = dict(asdict(found.sampling).items() - asdict(SamplingDefaults()).items())
    yield "sampling", ", ".join(f"{name} {value:g}" for name, value in given.items()) or "nothing suggested"
    yield "backend", inner.backend
    stored = f" (stored as {found.stored_weights})" if found.stored_weights != inner.weights else ""
    yield "weights", f"{inner.weights}{stored}, {size(inner.weight_bytes)} in memory"
    yield "execution", f"{inner.execution} batching" if inner.execution else f"shows at a start: {inner.why_unknown}"
    row = f" and {size(inner.kv_row_bytes)} for each sequence" if inner.kv_row_bytes else ""
    yield "K/V", f"{size(inner.kv_bytes_per_token)} for each token{row}"
    streams = f"{need.num_streams} stream{'s' if need.num_streams > 1 else ''} of {need.num_tokens:,} tokens"
    parts = f"weights {size(need.weight_bytes)}, K/V {size(need.kv_bytes)}, work from {size(need.working_bytes)} on"
    yield f"memory for {streams}", f"{size(need.total_bytes)}: {parts}"
    share = CacheConfig().memory_fraction
    yield "memory here", f"{size(inner.memory_bytes)} free; serve takes {share:.0%} of it (--memory-fraction)"
