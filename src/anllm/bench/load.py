"""What is asked for: how many requests, of which lengths, when, and how their times are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from anllm.errors import ConfigError

GOODPUT_NAMES = ("ttft", "tpot", "itl", "e2el")


class Endpoint(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep. concurrency: most requests at the same time, None without a limit; rate: requests a second
    at random moments, None sends as soon as concurrency allows.

    burstiness: shape of the gamma distribution of the gaps; 1 is a Poisson process, less is burstier.
    """

    concurrency: int | None
    rate: float | None = None
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, got {self.concurrency}.")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ConfigError(f"rate must be above 0 and finite, got {self.rate}.")
        if not 0 < self.burstiness < math.inf:
            raise ConfigError(f"burstiness must be above 0 and finite, got {self.burstiness}.")

    @property
    def label(self) -> str:
        if self.rate is None:
            return f"{self.concurrency} stream{'s' if self.concurrency != 1 else ''}"
        limit = "" if self.concurrency is None else f", at most {self.concurrency} at a time"
        return f"{self.rate:g} requests/s{limit}"


@dataclass(frozen=True, slots=True)
class Load:
    """What each request is like.

    prompt_tokens, output_tokens: mean lengths; range_ratio r spreads them evenly over [mean * (1 - r), mean * (1 + r)].
    prefix_tokens: of the prompt, shared by all requests. dataset: path of a file with prompts, in place of random ones.
    ignore_eos: answers have exactly output_tokens; servers of other makers may refuse that.
    extra: further fields of each request. goodput_ms: the most that "ttft", "tpot", "itl" (mean) and "e2el" may be.
    """

    endpoint: Endpoint = Endpoint.CHAT
    prompt_tokens: int = 128
    output_tokens: int = 128
    range_ratio: float = 0.0
    prefix_tokens: int = 0
    dataset: str | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    goodput_ms: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def label(self) -> str:
        """For a title."""
        if self.dataset is not None:
            return f"prompts of {Path(self.dataset).name}"
        spread = f" ± {self.range_ratio:.0%}" if self.range_ratio else ""
        return f"{self.prompt_tokens} tokens in, {self.output_tokens} out{spread}"

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"range_ratio must be at least 0 and below 1, got {self.range_ratio}.")
        if not 0 <= self.prefix_tokens < self.prompt_tokens:
            raise ConfigError(f"prefix_tokens must be from 0 to below prompt_tokens, got {self.prefix_tokens}.")
        for name, limit in self.goodput_ms.items():
            if name not in GOODPUT_NAMES or not limit > 0:
                raise ConfigError(
                    f"goodput: {name}:{limit:g} is none; give a name of {', '.join(GOODPUT_NAMES)} and milliseconds "
                    "above 0, such as ttft:500."
                )
