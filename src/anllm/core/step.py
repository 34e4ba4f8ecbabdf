"""One step between scheduler and runner: the StepPlan, the StepResult, and the Runner protocol.

A plan is plain data, so it can be sent to other ranks. Who runs, on which tokens, in which slots is all decided in it;
the runner only computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anllm.core.events import EngineInfo, MemoryUse, TokenLogprobs
from anllm.core.request import SamplingParams

# Beside decode rows, prompts come in pieces that make one of few numbers of tokens of a step: below 128, below 256 and
# above, multiples of these. A GPU's libraries look for the best way to multiply at each new number, which holds up a
# step by 3 to 6 ms (docs/log.md).
_SIZE_UNITS = ((128, 8), (256, 16), (0, 64))

# Stands for the token that the step before this one sampled for the same sequence, where nobody has read it yet.
PENDING = -1


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A row of K/V: row `index` of the slab whose rows hold `capacity` tokens."""

    capacity: int
    index: int


@dataclass(frozen=True, slots=True)
class SlabResize:
    """Make the slab of this capacity `num_slots` rows high. Rows that stay keep their contents."""

    capacity: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Copy the K/V of tokens [0, num_tokens) from one slot to another (a sequence outgrew its row)."""

    source: Slot
    target: Slot
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Compute `token_ids` at positions [start, start + len(token_ids)) of the sequence in `slot`.

    If `sample` is set, the logits after the last of them give token number `token_index` of the output.
    The first num_prompt_tokens positions of the sequence are prompt, the rest output. banned_token_ids can't be drawn.
    One token with `sample` set is a decode row; anything else is a chunk of prefill. The last token may be PENDING.
    scored_token_ids: the tokens that follow the first so many of token_ids in the prompt; the logits there are to tell
    what the model thinks of them.
    reused_token_ids: where a sequence begins in its slot with tokens whose K/V is there already, [0, start): these, for
    those with penalties only.
    """

    request_id: int
    slot: Slot
    start: int
    token_ids: tuple[int, ...]
    sample: bool
    token_index: int
    params: SamplingParams
    num_prompt_tokens: int = 0
    banned_token_ids: tuple[int, ...] = ()
    scored_token_ids: tuple[int, ...] = ()
    reused_token_ids: tuple[int, ...] = ()

    @property
    def logit_positions(self) -> list[int]:
        """Of token_ids, those after which logits are wanted: of the scored ones, then of the sampled one."""
        scored = list(range(len(self.scored_token_ids)))
        return [*scored, len(self.token_ids) - 1] if self.sample else scored

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def is_decode(self) -> bool:
        return self.sample and len(self.token_ids) == 1

    @property
    def needs_mask(self) -> bool:
        """Whether what may be drawn depends on the tokens before."""
        return self.sample and self.params.grammar != ""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. `resizes`, then `copies`, come before the computing.

    Decode rows stand first in `scheduled`; they, and the prefill chunks behind them, ascend by slot.
    """

    scheduled: tuple[ScheduledSequence, ...]
    resizes: tuple[SlabResize, ...] = ()
    copies: tuple[SlotCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.scheduled)

    @property
    def needs_masks(self) -> bool:
        return any(s.needs_mask for s in self.scheduled)


# Request id -> a bit for each token that may be drawn: bit i % 8 of byte i // 8 for token i.
Masks = Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The sampled token of each entry of the plan that has `sample` set, in the plan's order.

    logprobs: one for each of them, None for those that don't ask; empty if none asks.
    prompt_logprobs: for each entry of the plan that has scored_token_ids one for each of those; empty if none has.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None] = ()
    prompt_logprobs: Sequence[tuple[TokenLogprobs, ...]] = ()


class InFlight(Protocol):
    """A step that was submitted."""

    def draw(self, masks: Masks) -> None:
        """For a plan that needs masks, and for no other: let its tokens be drawn. Called once, before result(), when
        the steps before it have been read, since that is what masks depend on; the model computes meanwhile. A row
        that needs a mask and has none may get any token. Raises what the step raised."""
        ...

    def result(self) -> StepResult:
        """Wait for it. Called once, in the order of submission. Raises what the step raised."""
        ...


class Runner(Protocol):
    """Executes plans. Built and used in one thread (MLX streams belong to the thread that made them)."""

    @property
    def runs_ahead(self) -> bool:
        """Whether a plan may be submitted before the one before it has been read, with PENDING tokens in it."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What was found while loading; constant."""
        ...

    def submit(self, plan: StepPlan) -> InFlight:
        """Begin a forward pass. On an exception, here or in result(), the K/V of the scheduled sequences is undefined,
        each resize may have been done or not, and all else is as before."""
        ...

    def memory(self) -> MemoryUse:
        """What its arrays take now. Waits for nothing."""
        ...

    def release(self) -> None:
        """Give memory that is only kept for reuse back to the system; called when idle."""
        ...

    def close(self) -> None:
        """The end: give everything back. Nothing may be called afterwards."""
        ...


def nearest_step_size(num_tokens: int) -> int:
    """Of the usual numbers of tokens of a step that decodes and has prompts, the one nearest to this."""
    unit = next(unit for below, unit in _SIZE_UNITS if num_tokens < below or not below)
    return max((num_tokens + unit // 2) // unit, 1) * unit


def step_sizes(most: int) -> list[int]:
    """All of these numbers up to `most`."""
    return [size for size in range(1, most + 1) if nearest_step_size(size) == size]
