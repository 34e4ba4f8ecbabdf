"""The Scheduler: waiting and running sequences, and four verbs: add, abort, schedule, update.

It owns all Sequences and decides with integers only. One thread (the engine's); time is passed in.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from itertools import repeat

from anllm.config import SchedulerConfig
from anllm.core.events import Failed, Finished, PromptLogprobs, StepEvents, Tokens
from anllm.core.request import FinishReason, Request
from anllm.core.sequence import Sequence, SequenceStatus
from anllm.core.step import ScheduledSequence, Slot, SlotCopy, StepPlan, StepResult
from anllm.errors import ContextLengthError, InvalidRequestError, QueueFullError, StepError
from anllm.kvcache.pool import KVPool
from anllm.scheduler.policy import PrefillPace, share_prefill

# Rows are taken this much longer than needed now, so that short answers never move to a larger row.
HEADROOM_TOKENS = 256
# Logits of a whole vocabulary for each scored token: so many of them at a time take 130 MB in the largest ones.
MAX_SCORED_TOKENS = 256
# So many waiting sequences are looked at in one step; more could not start in it anyway.
MAX_CANDIDATES = 64


class Scheduler:
    """Continuous batching with chunked prefill: decode rows first, then prompts in what is left of the token budget.

    A plan may be made before the result of the one before it is known: every schedule() is followed by one update() or
    fail() for its plan, in the same order, but one more schedule() may come between.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: KVPool,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int],
        prefill_tokens: int = 1024,
    ) -> None:
        """prefill_tokens: max_num_batched_tokens of a config that does not say."""
        self._config = config
        self._pool = pool
        self._prefill_tokens = config.max_num_batched_tokens or prefill_tokens
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._sequences: dict[int, Sequence] = {}
        self._waiting: list[Sequence] = []  # by arrival; preempted ones stand where they arrived
        self._running: list[Sequence] = []  # by arrival
        self._num_arrived = 0
        self._pace = PrefillPace()
        self._submitted_s: deque[float] = deque()  # when each plan that is not read yet was made
        self._updated_s = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    # -- the four verbs ------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises QueueFullError, ContextLengthError (no room for a token), InvalidRequestError (empty prompt, id in use).
        """
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens == 0:
            raise InvalidRequestError("The prompt must have at least one token, got none.", param="prompt")
        if num_prompt_tokens >= self._max_model_len:
            raise ContextLengthError(num_prompt_tokens, self._max_model_len, param="prompt")
        if request.request_id in self._sequences:
            raise InvalidRequestError(f"Request id {request.request_id} is in use.", param="request_id")
        if len(self._sequences) >= self._config.max_num_open:
            raise QueueFullError(f"The queue is full ({self._config.max_num_waiting} requests wait). Try again later.")
        room = self._max_model_len - num_prompt_tokens
        max_tokens = min(request.params.max_tokens or room, room)
        sequence = Sequence(request=request, arrival=self._num_arrived, max_tokens=max_tokens)
        self._num_arrived += 1
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: int) -> None:
        """Forget a request; its slot is free for the next schedule(). Unknown ids are ignored."""
        if request_id in self._sequences:
            self._end(self._sequences[request_id])

    def schedule(self, now_s: float) -> StepPlan | None:
        """The next forward pass, or None if there is nothing to compute. Slots of what is in it are taken."""
        decodes, copies = self._schedule_decodes()
        prefills = self._schedule_prefills({s.slot for s in decodes})
        # Freed only now: nothing in this plan may take or cut off a row that is still to be copied.
        for copy in copies:
            self._pool.free(copy.source)
        if not decodes and not prefills:
            return None
        self._submitted_s.append(now_s)
        # A prompt's last token alone is a decode row too.
        scheduled = sorted(decodes + prefills, key=lambda s: (not s.is_decode, s.slot))
        return StepPlan(tuple(scheduled), resizes=self._pool.take_resizes(), copies=tuple(copies))

    def update(self, plan: StepPlan, result: StepResult, now_s: float) -> StepEvents:
        """Take in what the runner computed: new tokens, finished sequences, freed slots."""
        self._observe(plan, now_s)
        prompts: list[PromptLogprobs] = []
        tokens: list[Tokens] = []
        finished: list[Finished] = []
        failed: list[Failed] = []
        sampled = iter(result.token_ids)
        told = iter(result.logprobs or repeat(None))
        scored = iter(result.prompt_logprobs)
        for scheduled in plan.scheduled:
            token_id = next(sampled) if scheduled.sample else None
            logprobs = next(told) if scheduled.sample else None
            of_prompt = next(scored) if scheduled.scored_token_ids else None
            sequence = self._sequences.get(scheduled.request_id)
            if sequence is not None and of_prompt is not None:
                prompts.append(PromptLogprobs(sequence.request_id, of_prompt))
            if sequence is None or token_id is None:  # it ended while the step ran, or its prompt goes on
                continue
            sequence.num_pending -= 1
            if token_id < 0:
                failed.append(Failed(sequence.request_id, StepError.__name__, "The model's logits are not numbers."))
                self._end(sequence)
                continue
            sequence.output_token_ids.append(token_id)
            tokens.append(Tokens(sequence.request_id, (token_id,), (logprobs,) if logprobs else ()))
            reason = self._finish_reason(sequence, token_id)
            if reason is not None:
                finished.append(Finished(sequence.request_id, reason, sequence.num_cached_tokens))
                self._end(sequence)
        return StepEvents(tuple(tokens), tuple(finished), tuple(failed), tuple(prompts))

    # -- further verbs -------------------------------------------------------------------------------------------------

    def finish(self, request_id: int) -> Finished | None:
        """End a sequence whose output is whole, though the model goes on. None if it has ended already."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._end(sequence)
        return Finished(request_id, FinishReason.STOP, sequence.num_cached_tokens)

    def fail(self, plan: StepPlan, message: str) -> StepEvents:
        """The step raised: end the sequences that were in it, and no others."""
        self._submitted_s.popleft()
        self._pool.repeat_resizes(plan.resizes)
        failed = []
        for scheduled in plan.scheduled:
            sequence = self._sequences.get(scheduled.request_id)
            if sequence is not None:
                failed.append(Failed(sequence.request_id, StepError.__name__, message))
                self._end(sequence)
        return StepEvents(failed=tuple(failed))

    def check_integrity(self) -> None:
        """Assert that every sequence is in one list, and that exactly the running ones own slots."""
        assert sorted(id(s) for s in self._sequences.values()) == sorted(id(s) for s in self._waiting + self._running)
        assert all(s.slot is None and s.num_computed_tokens == 0 for s in self._waiting)
        slots = [s.slot for s in self._running]
        assert None not in slots and len(slots) == len(set(slots)) == self._pool.num_owned_slots
        for ordered in (self._waiting, self._running):
            assert [s.arrival for s in ordered] == sorted(s.arrival for s in ordered)
        self._pool.check_integrity()

    # -- decode --------------------------------------------------------------------------------------------------------

    def _schedule_decodes(self) -> tuple[list[ScheduledSequence], list[SlotCopy]]:
        """One token for every running sequence whose prompt is done, and the moves that this takes.

        The sources of the moves are still owned; the caller frees them.
        """
        copies: list[SlotCopy] = []
        decoding = [s for s in self._running if s.is_decoding]
        for sequence in decoding:  # oldest first when memory must be found
            if sequence.status is SequenceStatus.RUNNING:
                copies.extend(self._ensure_capacity(sequence))
        return [self._scheduled(s, 1) for s in decoding if s.status is SequenceStatus.RUNNING], copies

    def _ensure_capacity(self, sequence: Sequence) -> list[SlotCopy]:
        """Move a sequence that outgrew its row to a larger one; preempt younger ones, at last itself, for the room. Who
        has moved in this step is older, and so never preempted in it."""
        assert sequence.slot is not None
        if sequence.num_tokens <= sequence.slot.capacity:
            return []
        while (larger := self._allocate(sequence)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return []
        copy = SlotCopy(sequence.slot, larger, sequence.num_computed_tokens)
        sequence.slot = larger
        return [copy]

    def _preempt(self, sequence: Sequence) -> None:
        """Back to waiting, in the order of arrival; its K/V is given up and computed again later."""
        assert sequence.slot is not None
        self._pool.free(sequence.slot)
        self._running.remove(sequence)
        sequence.slot = None
        sequence.num_computed_tokens = 0
        sequence.status = SequenceStatus.PREEMPTED
        insort(self._waiting, sequence, key=lambda s: s.arrival)

    # -- prefill -------------------------------------------------------------------------------------------------------

    def _schedule_prefills(self, taken: set[Slot]) -> list[ScheduledSequence]:
        """Chunks of the prompts that are under way, and of waiting ones as far as slots and budget go. taken: the slots
        of this step's decode rows."""
        under_way = [s for s in self._running if s.slot not in taken and not s.is_full]
        num_free = self._config.max_num_seqs - len(self._running)
        waiting = [s for s in self._waiting[: min(num_free, MAX_CANDIDATES)] if not s.is_full]
        if waiting and under_way and waiting[0].arrival < under_way[0].arrival:
            # The oldest gets the oldest's share, or the next free memory; newer prompts don't keep it out.
            if self._admit(waiting[0]):
                under_way.insert(0, waiting.pop(0))
            else:
                waiting = []
        candidates = under_way + waiting
        shares = share_prefill([s.num_uncomputed_tokens for s in candidates], self._prefill_budget(len(taken)))
        scheduled: list[ScheduledSequence] = []
        scorable = MAX_SCORED_TOKENS
        for sequence, wanted in zip(candidates, shares, strict=True):
            share = min(wanted, sequence.longest_chunk(scorable))
            if share == 0:
                continue
            if sequence.slot is None and not self._admit(sequence):
                break  # who came later does not overtake for memory, so that nobody waits for ever
            scheduled.append(self._scheduled(sequence, share))
            scorable -= len(scheduled[-1].scored_token_ids)
        return scheduled

    def _prefill_budget(self, num_decodes: int) -> int:
        if num_decodes == 0:
            return self._prefill_tokens
        most = max(self._config.decode_token_budget - num_decodes, 1)
        return self._pace.budget(most, num_decodes=num_decodes, num_waiting=len(self._sequences) - num_decodes)

    def _admit(self, sequence: Sequence) -> bool:
        slot = self._allocate(sequence)
        if slot is None:
            return False
        sequence.slot = slot
        sequence.status = SequenceStatus.RUNNING
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=lambda s: s.arrival)
        return True

    # -- both ----------------------------------------------------------------------------------------------------------

    def _allocate(self, sequence: Sequence) -> Slot | None:
        """A row with headroom, or else one that is just long enough, or else None."""
        roomy = min(sequence.num_tokens + HEADROOM_TOKENS, sequence.max_num_tokens)
        return self._pool.allocate(roomy) or self._pool.allocate(sequence.num_tokens)

    def _scheduled(self, sequence: Sequence, num_tokens: int) -> ScheduledSequence:
        """The next num_tokens tokens of the sequence, which count as computed from now on."""
        assert sequence.slot is not None
        start = sequence.num_computed_tokens
        scheduled = ScheduledSequence(
            request_id=sequence.request_id,
            slot=sequence.slot,
            start=start,
            token_ids=sequence.tokens(start, start + num_tokens),
            sample=start + num_tokens == sequence.num_tokens,
            token_index=sequence.num_output_tokens,
            params=sequence.request.params,
            num_prompt_tokens=sequence.num_prompt_tokens,
            banned_token_ids=self._banned(sequence),
            scored_token_ids=sequence.tokens_to_score(start, start + num_tokens),
        )
        sequence.num_computed_tokens = scheduled.end
        sequence.num_scored_tokens += len(scheduled.scored_token_ids)
        sequence.num_pending += scheduled.sample
        return scheduled

    def _banned(self, sequence: Sequence) -> tuple[int, ...]:
        """The tokens that would end the sequence before its min_tokens."""
        params = sequence.request.params
        if sequence.num_output_tokens >= params.min_tokens:
            return ()
        return (*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids))

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        params = sequence.request.params
        if token_id in params.stop_token_ids or (token_id in self._eos_token_ids and not params.ignore_eos):
            return FinishReason.STOP
        if len(sequence.output_token_ids) >= sequence.max_tokens:
            return FinishReason.LENGTH
        return None

    def _end(self, sequence: Sequence) -> None:
        """Out of every list; the slot is free."""
        del self._sequences[sequence.request_id]
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._pool.free(sequence.slot)
            sequence.slot = None
        sequence.status = SequenceStatus.FINISHED

    def _observe(self, plan: StepPlan, now_s: float) -> None:
        """A step lasts from the end of the one before it, or from its own beginning if that was later."""
        num_decodes = sum(s.is_decode for s in plan.scheduled)
        started_s = max(self._submitted_s.popleft(), self._updated_s)
        self._updated_s = now_s
        self._pace.observe(
            num_decodes=num_decodes,
            num_prefill_tokens=plan.num_tokens - num_decodes,
            duration_s=now_s - started_s,
        )
