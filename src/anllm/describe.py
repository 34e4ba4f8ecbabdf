"""What `anllm info` tells: a model's files, its sizes, how it would be called here, and the memory that it needs.

A composition root like launch.py: asks each room for its part. Downloads nothing that is there already, and holds no
weights in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anllm.config import ModelConfig
from anllm.core.inspection import Inspection
from anllm.core.request import SamplingDefaults
from anllm.kvcache.pool import size_classes
from anllm.launch import output_format
from anllm.parsers.choose import OutputFormat
from anllm.parsers.reasoning.table import HARMONY_NAME
from anllm.runner.build import inspect_model
from anllm.runner.kernel_cache import kernels_kept
from anllm.store.cache import cache_folder
from anllm.store.inventory import stored_weights
from anllm.store.progress import Progress
from anllm.store.resolve import ModelSource, fetch
from anllm.text.chat_template import load_chat_template
from anllm.text.generation_config import load_sampling_defaults
from anllm.text.special_tokens import read_json_object
from anllm.text.tokenizer import load_tokenizer

MIN_WORKING_BYTES = 256 << 20  # the least that a runner keeps for its work; the rest shows when it runs


@dataclass(frozen=True, slots=True)
class Need:
    """Memory for num_streams sequences of num_tokens each, prompt and answer together.

    row_tokens: tokens that a row holds; rows come in size classes. working_bytes: at least.
    """

    num_streams: int
    num_tokens: int
    row_tokens: int
    kv_bytes: int
    weight_bytes: int
    working_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.weight_bytes + self.working_bytes


@dataclass(frozen=True, slots=True)
class Description:
    """disk_bytes: of the folder. stored_weights: their form in it. tools, reasoning: vLLM's names of the formats that
    would be used, None where there are none. sampling: of requests that don't say."""

    name: str
    folder: Path
    disk_bytes: int
    architecture: str
    stored_weights: str
    vocab_size: int
    has_chat_template: bool
    tools: str | None
    reasoning: str | None
    sampling: SamplingDefaults
    inspection: Inspection

    def need(self, num_streams: int, num_tokens: int) -> Need:
        """Memory for so many streams of so many tokens, cut to the model's context."""
        found = self.inspection
        num_tokens = min(num_tokens, found.context_length)
        row_tokens = next(size for size in size_classes(found.context_length) if size >= num_tokens)
        row_bytes = row_tokens * found.kv_bytes_per_token + found.kv_row_bytes
        return Need(num_streams, num_tokens, row_tokens, num_streams * row_bytes, found.weight_bytes, MIN_WORKING_BYTES)


def describe(source: ModelSource, config: ModelConfig, progress: Progress) -> Description:
    """Fetches the model if it is not there. Raises AnllmError if it can't be served."""
    folder = fetch(source, progress)
    tokenizer = load_tokenizer(folder)
    template = load_chat_template(folder)
    form = output_format(folder, template, tokenizer, config)
    model_config = read_json_object(folder, "config.json")
    return Description(
        name=source.name,
        folder=folder,
        disk_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        architecture=str(model_config["model_type"]),
        stored_weights=stored_weights(folder, model_config),
        vocab_size=tokenizer.vocab_size,
        has_chat_template=template is not None,
        tools=form.tools.name if template is not None else None,
        reasoning=_reasoning_name(form),
        sampling=load_sampling_defaults(folder),
        inspection=_inspect(folder, config, cache_folder(None)),
    )


def _inspect(folder: Path, config: ModelConfig, cache: Path) -> Inspection:
    with kernels_kept(cache):
        return inspect_model(folder, config, cache)


def _reasoning_name(form: OutputFormat) -> str | None:
    if form.response_template is not None:
        return "response_template"
    if form.reasoning is not None:
        return form.reasoning.name
    return HARMONY_NAME if form.splits_answers else None
