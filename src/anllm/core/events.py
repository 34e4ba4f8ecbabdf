"""What crosses between front and engine: Add and Abort inward, one StepEvents a step outward.

Plain frozen dataclasses, so that any transport can carry them (engine/transport.py sends them as msgpack).
"""

from __future__ import annotations

from dataclasses import dataclass

from anllm.core.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Add:
    """Queue this request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget these requests; unknown ids are ignored, since an end and an abort may cross."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Forget what rows hold, so that prompts are computed from their start; running sequences go on."""


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence's first token is there: comes with it, before it. num_cached_tokens: of its prompt, those that were
    not computed again."""

    request_id: int
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model itself thought of a token: its log probability (natural, at temperature 1, before any change), and
    the most likely tokens with theirs, the likeliest first.

    rank: of a prompt's token: 1 for the most likely one. 0 where it was not looked for.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What the model thought of the next tokens of a prompt, in order, from the second token on. All of them come
    before the sequence's first Tokens; none where the prompt has but one token."""

    request_id: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of a sequence, in order. An end token is among them if one was sampled. logprobs: one for each token
    if the request asks for them, else empty."""

    request_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence ended; nothing follows for it."""

    request_id: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    """The sequence can't go on; nothing follows for it. `error` is the name of a class in anllm.errors."""

    request_id: int
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The sequence got a row, for the first time. queue_s: how long after it came to the front."""

    request_id: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the runner's arrays: in use, the most that were, and those kept for reuse beside them."""

    active_bytes: int
    peak_bytes: int
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Of a step that was computed. num_decodes: sequences that got their next token from their last one alone;
    num_prefills: pieces of prompts, with num_prefill_tokens tokens in all."""

    duration_s: float
    num_decodes: int
    num_prefills: int
    num_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """How the engine stands, and what happened since the figures before these.

    num_running, num_waiting: sequences with a row and without one; num_deferred: of the waiting ones, those whose
        grammar is being compiled.
    kv_used_bytes: rows of running sequences; kv_kept_bytes: rows kept for prompts that begin alike.
    num_preemptions, num_evicted_rows: since the figures before.
    num_queried_tokens, num_hit_tokens: of prompts that were looked up in the prefix cache since then, and of those the
        ones found.
    step: None where none was computed. memory: None where it was not looked at; once a second is enough.
    """

    num_running: int
    num_waiting: int
    num_deferred: int
    kv_used_bytes: int
    kv_kept_bytes: int
    num_preemptions: int = 0
    num_evicted_rows: int = 0
    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    admitted: tuple[Admitted, ...] = ()
    step: StepFigures | None = None
    memory: MemoryUse | None = None


@dataclass(frozen=True, slots=True)
class StepEvents:
    """All events of one step, in the order in which they are to be taken: prompts, starts, tokens, then ends. figures:
    of the engine after it, with each step, and whenever it comes to rest. computing: of a step that is about to begin,
    and comes alone: the requests whose prompts are in it."""

    tokens: tuple[Tokens, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()
    prompts: tuple[PromptLogprobs, ...] = ()
    started: tuple[Started, ...] = ()
    figures: EngineFigures | None = None
    computing: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tokens or self.finished or self.failed or self.prompts or self.started or self.computing)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine found out while it loaded; sent once, before anything else.

    backend: "cpu", "cuda" or "metal"; blas: which BLAS does the matrix work, "" where that is no question.
    kv_budget_bytes: memory that K/V may take; kv_bytes_per_token: what one token takes of it, and kv_row_bytes what a
    sequence takes whatever its length (recurrent state).
    max_model_len: longest prompt + answer in tokens; vocab_size: width of the logits.
    execution: "flattened", "compatible" or "sequential" (see runner/forward.py); weights: their dtype in memory.
    eos_token_ids: the model's end tokens.
    prefill_tokens: of prompts, in one step where nobody decodes, if the config does not say.
    reuses_prefixes: whether K/V of earlier requests is used again; not for models whose layers keep more than that, or
        where it is switched off.
    token_s: what a token of a short prompt takes; 0 is unknown.
    grown_slab_bytes: slabs larger than this don't grow only to keep K/V that nobody uses now; None is no limit.
    """

    backend: str
    blas: str
    kv_budget_bytes: int
    kv_bytes_per_token: int
    max_model_len: int
    vocab_size: int
    execution: str
    weights: str
    eos_token_ids: tuple[int, ...]
    kv_row_bytes: int = 0
    prefill_tokens: int = 1024
    reuses_prefixes: bool = True
    grown_slab_bytes: int | None = None
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far loading is; sent while it goes on. `done` of `total` in the stage's own unit; total 0 is unknown."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The engine could not be made; the last that it sends. `message` is one sentence for a person."""

    message: str
