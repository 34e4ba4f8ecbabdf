"""A deterministic model without weights, which checks every plan that it is given.

It keeps, per slot, the tokens whose K/V would be there, and derives each new token from nothing else. So a sequence
that is given another one's slot, a position twice, or a stale row answers differently than it does alone.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from anllm.core.events import EngineInfo, MemoryUse, TokenLogprobs
from anllm.core.step import PENDING, Masks, ScheduledSequence, Slot, StepPlan, StepResult

Model = Callable[[tuple[int, ...]], int]
LETTERS = b"abcdefghijklmnopqrstuvwxyz      "


def letters(token_ids: tuple[int, ...]) -> int:
    """The next token after these: a small letter or a space, by a hash of them all."""
    return LETTERS[crc32(repr(token_ids).encode()) % len(LETTERS)]


def scripted(answers: dict[tuple[int, ...], tuple[int, ...]], default: Model = letters) -> Model:
    """A model that answers given prompts with given tokens, one after the other, and others by `default`."""

    def model(token_ids: tuple[int, ...]) -> int:
        for prompt, answer in answers.items():
            position = len(token_ids) - len(prompt)
            if token_ids[: len(prompt)] == prompt and 0 <= position < len(answer):
                return answer[position]
        return default(token_ids)

    return model


def _logprobs(scheduled: ScheduledSequence, token: int) -> TokenLogprobs | None:
    """Made up: the sampled token first, each further one less likely by 1 in logarithm."""
    number = scheduled.params.logprobs
    if number is None:
        return None
    top = tuple(((token + i) % 256, -0.5 - i) for i in range(number))
    return TokenLogprobs(-0.5, top)


def _prompt_logprobs(scheduled: ScheduledSequence) -> tuple[TokenLogprobs, ...]:
    """Made up: by the token that comes before, the second most likely one, with the most likely ones in front."""
    number = scheduled.params.prompt_logprobs or 0
    return tuple(
        TokenLogprobs(-1 - before % 64, tuple(((token + 1 - i) % 256, -i - before % 64) for i in range(number)), 2)
        for before, token in zip(scheduled.token_ids, scheduled.scored_token_ids, strict=False)
    )


def _allowed(token_id: int, mask: bytes) -> int:
    """The token, or if the mask forbids it one that it allows, which one the token says."""
    allowed = [i for i in range(8 * len(mask)) if mask[i // 8] >> i % 8 & 1]
    return token_id if token_id in allowed or not allowed else allowed[token_id % len(allowed)]


class FakeStep:
    """A step of a FakeRunner, which is done when it is submitted, or when its masks are known."""

    def __init__(self, run: Callable[[Masks], StepResult], *, needs_masks: bool) -> None:
        self._run = run
        self._result = None if needs_masks else run({})

    def draw(self, masks: Masks) -> None:
        assert self._result is None, "drawn twice, or without need"
        self._result = self._run(masks)

    def result(self) -> StepResult:
        assert self._result is not None, "read before it was drawn"
        return self._result


class FakeRunner:
    """A Runner (core/step.py). `before_run` sees each plan first, and may raise, wait, or turn a clock."""

    def __init__(
        self,
        model: Model = letters,
        *,
        max_model_len: int = 4096,
        kv_budget_tokens: int = 1 << 20,
        vocab_size: int = 257,
        eos_token_ids: tuple[int, ...] = (256,),
        before_run: Callable[[StepPlan], None] = lambda plan: None,
        runs_ahead: bool = False,
    ) -> None:
        self.runs_ahead = runs_ahead
        self._sampled: dict[int, int] = {}  # by request, in the last step
        self.info = EngineInfo(
            backend="fake",
            blas="",
            kv_budget_bytes=kv_budget_tokens,
            kv_bytes_per_token=1,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            execution="fake",
            weights="none",
            eos_token_ids=eos_token_ids,
        )
        self.plans: list[StepPlan] = []
        self._model = model
        self._before_run = before_run
        self._num_slots: dict[int, int] = {}
        self._rows: dict[Slot, tuple[int, ...]] = {}

    def submit(self, plan: StepPlan) -> FakeStep:
        return FakeStep(lambda masks: self.run(plan, masks), needs_masks=plan.needs_masks)

    def run(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Submit and read."""
        masks = masks or {}
        self._before_run(plan)
        self.plans.append(plan)
        self._resize(plan)
        for copy in plan.copies:
            row = self._rows[copy.source]
            assert len(row) >= copy.num_tokens
            self._write(copy.target, 0, row[: copy.num_tokens])
        slots = [s.slot for s in plan.scheduled]
        assert len(slots) == len(set(slots)), "a slot twice in one step"
        assert {copy.target for copy in plan.copies} <= set(slots), "a row copied for nobody"
        computed = [(s.request_id, token) for s in plan.scheduled if (token := self._compute(s, masks)) is not None]
        self._sampled = dict(computed)
        told = [
            _logprobs(s, token) for s, (_, token) in zip((s for s in plan.scheduled if s.sample), computed, strict=True)
        ]
        scored = [_prompt_logprobs(s) for s in plan.scheduled if s.scored_token_ids]
        return StepResult([token for _, token in computed], told if any(told) else (), scored)

    def memory(self) -> MemoryUse:
        """Made up: a byte a token of its rows."""
        active = sum(map(len, self._rows.values()))
        return MemoryUse(active, active, 0)

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _resize(self, plan: StepPlan) -> None:
        for resize in plan.resizes:
            self._num_slots[resize.capacity] = resize.num_slots
        self._rows = {slot: row for slot, row in self._rows.items() if slot.index < self._num_slots[slot.capacity]}
        used = sum(capacity * number for capacity, number in self._num_slots.items())
        assert used <= self.info.kv_budget_bytes, "over the K/V budget"

    def _write(self, slot: Slot, start: int, token_ids: tuple[int, ...]) -> None:
        assert slot.index < self._num_slots[slot.capacity], "a slot outside its slab"
        assert start + len(token_ids) <= slot.capacity, "more tokens than the slot holds"
        row = self._rows.get(slot, ())
        assert start <= len(row), "a gap in the row"
        self._rows[slot] = row[:start] + token_ids

    def _compute(self, scheduled: ScheduledSequence, masks: Masks) -> int | None:
        token_ids = scheduled.token_ids
        if token_ids[-1] == PENDING:
            assert self.runs_ahead
            token_ids = (*token_ids[:-1], self._sampled[scheduled.request_id])
        assert PENDING not in token_ids
        self._write(scheduled.slot, scheduled.start, token_ids)
        if not scheduled.sample:
            return None
        token_id = self._model(self._rows[scheduled.slot])
        return _allowed(token_id, masks[scheduled.request_id]) if scheduled.request_id in masks else token_id
