"""What was asked: SamplingParams and Request, frozen and already valid.

Knows nothing of HTTP, text or arrays. Made by the front, read by the engine; crosses between them as plain data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

MAX_SEED = 2**64
MAX_PRIORITY = 1_000_000


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to generate.

    temperature: 0 is greedy; otherwise logits are divided by it. At least 0.
    top_p: nucleus sampling, [0, 1]; 0 keeps the most likely token only.
    max_tokens: most tokens to generate; None is up to the context length. At least 1.
    seed: any integer; the same seed gives the same draws whatever else runs. None draws one at submission.
    n: how many answers. Applied by whoever submits (one sequence each); the engine itself takes n=1 only.
    stop: strings that end the text. Applied where tokens become text; the engine itself knows tokens only.
    include_stop_str_in_output: the stop string that ended the text is part of it. Applied there too, as is
    skip_special_tokens: special tokens give no text; else they are written out. End tokens never are.
    stop_token_ids: tokens that end the sequence, besides the model's own end tokens.
    ignore_eos: go on past the model's own end tokens.
    top_k: draw among this many most likely tokens only; 0 is all of them.
    min_p: draw among tokens at least this share as likely as the most likely one only, [0, 1].
    repetition_penalty: logits of tokens in prompt or output are divided by it if positive, multiplied if negative
        (Keskar et al., arXiv:1909.05858); above 0.
    presence_penalty, frequency_penalty: taken off the logit of a token in the output, once, and each time it occurs.
    logit_bias: (token id, what is added to its logit), each token at most once.
    allowed_token_ids: draw among these only; empty is all.
    min_tokens: no end token before so many tokens.
    grammar: what the output must be, as text that anllm.structured made; "" is anything. No end token comes before
        it is whole, and nothing behind it. Goes before min_tokens, and in place of allowed_token_ids.
    logprobs: tell for each token its log probability, and those of this many most likely ones; None tells nothing. They
        are those of the model itself: before penalties, bias, temperature and all filters.
    prompt_logprobs: the same for each token of the prompt but the first, which the model says nothing about.
    priority: a lower one runs earlier, from -MAX_PRIORITY to MAX_PRIORITY. Waiting makes up for it, so that nobody
        waits for ever.
    cache_salt: what earlier requests computed is used only where they had the same one.

    Raises ValueError with the name, the rule and the value for anything out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    grammar: str = ""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        _require(self.temperature >= 0 and math.isfinite(self.temperature), "temperature", ">= 0", self.temperature)
        _require(0 <= self.top_p <= 1, "top_p", "from 0 to 1", self.top_p)
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", ">= 1", self.max_tokens)
        _require(self.n >= 1, "n", ">= 1", self.n)
        _require(all(self.stop), "stop", "free of empty strings", self.stop)
        _require(self.top_k >= 0, "top_k", ">= 0", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p", "from 0 to 1", self.min_p)
        for name in ("presence_penalty", "frequency_penalty"):
            _require(math.isfinite(getattr(self, name)), name, "finite", getattr(self, name))
        _require(0 < self.repetition_penalty < math.inf, "repetition_penalty", "> 0", self.repetition_penalty)
        _require(all(math.isfinite(bias) for _, bias in self.logit_bias), "logit_bias", "finite", self.logit_bias)
        _require(self.min_tokens >= 0, "min_tokens", ">= 0", self.min_tokens)
        _require(
            abs(self.priority) <= MAX_PRIORITY, "priority", f"from {-MAX_PRIORITY} to {MAX_PRIORITY}", self.priority
        )
        for name in ("logprobs", "prompt_logprobs"):
            number = getattr(self, name)
            _require(number is None or number >= 0, name, ">= 0", number)

    @property
    def has_penalties(self) -> bool:
        """Whether drawing needs to know which tokens there are already."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def for_choice(self, index: int, seed: int) -> SamplingParams:
        """The parameters of answer `index` of n, for the engine: one sequence, tokens only, a seed of its own.

        `seed` is the request's seed; answer 0 gets it as it is, so that n=1 and the first of n=3 agree.
        """
        return replace(self, n=1, stop=(), seed=_mix(seed, index))


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds for requests that don't say; the fields are those of SamplingParams. Without a value: neutral."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate, as the engine gets it.

    request_id: chosen by the front, unique among open requests.
    prompt_token_ids: at least one token.
    params: with n=1, no stop strings, and a seed.
    arrival_time_s: clock of the front, for queue times. It is the engine's clock too: that of the machine.
    client: who shares the engine with others as one: the same for all requests with one API key.
    log_id: how the front calls it in its log; several may share one.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time_s: float = 0.0
    client: str = ""
    log_id: str = ""


def _require(holds: bool, name: str, rule: str, given: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {given!r}")


def _mix(seed: int, index: int) -> int:
    """Independent seeds for the answers of one request."""
    return (seed + index * 0x9E3779B97F4A7C15) % MAX_SEED
