"""Requests, made before anything is measured: random words, or the lines of a file.

Random words can't be found in any cache. How many words make how many tokens is asked of the server, with two short
requests, so that no tokenizer is needed; what was really sent stands in the server's own usage.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anllm.bench.load import Endpoint, Load
from anllm.client.plain import PlainClient
from anllm.errors import ConfigError, RemoteError

WORDS = re.findall(
    r"\w+",
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour",
)
PROBES = (40, 240)  # words

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WordLength:
    """A prompt of n words has overhead + n * tokens_per_word tokens: the template's, and the words'."""

    overhead: float
    tokens_per_word: float

    def num_words(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self.overhead) / self.tokens_per_word))


def measure_words(client: PlainClient, load: Load, model: str) -> WordLength:
    """By asking the server. Raises RemoteError if it does not tell its usage."""
    counts = []
    for number in PROBES:
        text = " ".join(random.Random(number).choice(WORDS) for _ in range(number))
        usage = client.post(load.endpoint.path, body_of(load, model, text, 1, streams=False)).get("usage")
        if not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens"), int):
            raise RemoteError(f"{client.address.url} tells no usage, without which tokens can't be counted.")
        counts.append(usage["prompt_tokens"])
    slope = max((counts[1] - counts[0]) / (PROBES[1] - PROBES[0]), 0.01)
    return WordLength(counts[0] - slope * PROBES[0], slope)


def random_requests(load: Load, model: str, number: int, words: WordLength, seed: int) -> list[Body]:
    """So many requests, the same for the same seed."""
    draw = random.Random(f"{load.seed} {seed}")
    prefix = _words(random.Random(load.seed), words.num_words(load.prefix_tokens)) if load.prefix_tokens else ""
    made = []
    for _ in range(number):
        num_tokens = _length(draw, load.prompt_tokens, load.range_ratio) - load.prefix_tokens
        overhead = WordLength(0, words.tokens_per_word) if load.prefix_tokens else words
        text = f"{prefix} {_words(draw, overhead.num_words(max(num_tokens, 1)))}".strip()
        made.append(body_of(load, model, text, _length(draw, load.output_tokens, load.range_ratio)))
    return made


def _words(draw: random.Random, number: int) -> str:
    return " ".join(draw.choices(WORDS, k=number))


def _length(draw: random.Random, mean: int, ratio: float) -> int:
    return max(1, round(draw.uniform(mean * (1 - ratio), mean * (1 + ratio)))) if ratio else mean


def body_of(load: Load, model: str, prompt: str | list[Body], max_tokens: int, *, streams: bool = True) -> Body:
    """prompt: a text, or the messages of a chat."""
    body: Body = {"model": model, "max_tokens": max_tokens, "temperature": load.temperature}
    if load.endpoint is Endpoint.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    else:
        body["prompt"] = prompt if isinstance(prompt, str) else "\n".join(str(m["content"]) for m in prompt)
    if load.ignore_eos:
        body["ignore_eos"] = True
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return {**body, **load.extra}


def dataset_requests(load: Load, model: str, number: int) -> list[Body]:
    """The first requests of the file, from its start again where it has fewer. Raises ConfigError."""
    assert load.dataset is not None
    entries = read_dataset(Path(load.dataset))
    chosen = [entries[i % len(entries)] for i in range(number)]
    return [body_of(load, model, prompt, max_tokens or load.output_tokens) for prompt, max_tokens in chosen]


def read_dataset(path: Path) -> list[tuple[str | list[Body], int | None]]:
    """Prompts, and the max_tokens of those that say it.

    .jsonl: an object a line with "prompt" or "messages", and perhaps "max_tokens"; .json: a list of such objects, or
    ShareGPT's, whose first human turn counts; .txt: a prompt a line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"dataset: {str(path)!r} can't be read ({error}).") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if path.suffix == ".txt":
        entries: list[tuple[str | list[Body], int | None]] = [(line, None) for line in lines]
    else:
        try:
            objects = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in lines]
        except ValueError as error:
            raise ConfigError(f"dataset: {str(path)!r} is no JSON ({error}); .jsonl has an object a line.") from None
        entries = [_entry(path, number, value) for number, value in enumerate(objects, 1)]
    if not entries:
        raise ConfigError(f"dataset: {str(path)!r} holds no prompts.")
    return entries


def _entry(path: Path, number: int, value: object) -> tuple[str | list[Body], int | None]:
    if isinstance(value, dict):
        max_tokens = value.get("max_tokens")
        limit = max_tokens if isinstance(max_tokens, int) and max_tokens > 0 else None
        if isinstance(value.get("prompt"), str):
            return value["prompt"], limit
        if isinstance(value.get("messages"), list):
            return value["messages"], limit
        for turn in value.get("conversations") or ():
            if isinstance(turn, dict) and turn.get("from") in ("human", "user") and isinstance(turn.get("value"), str):
                return turn["value"], limit
    raise ConfigError(
        f'dataset: entry {number} of {str(path)!r} has none of "prompt" (a text), "messages" (a list) and '
        '"conversations" (of ShareGPT).'
    )
