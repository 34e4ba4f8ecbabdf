"""The Scheduler: waiting and running sequences, and four verbs: add, abort, schedule, update.

It owns all Sequences and decides with integers only. One thread (the engine's); time is passed in.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable
from itertools import repeat

from anllm.config import SchedulerConfig
from anllm.core.events import (
    EngineFigures,
    Failed,
    Finished,
    MemoryUse,
    PromptLogprobs,
    Started,
    StepEvents,
    Tokens,
)
from anllm.core.request import FinishReason, Request
from anllm.core.sequence import Sequence, SequenceStatus
from anllm.core.step import ScheduledSequence, Slot, SlotCopy, StepPlan, StepResult, nearest_step_size
from anllm.errors import ContextLengthError, InvalidRequestError, QueueFullError, QueueTimeoutError, StepError
from anllm.kvcache.cache import Awaited, CacheStats, KVCache, Room
from anllm.kvcache.pool import KVPool
from anllm.scheduler.ledger import Ledger
from anllm.scheduler.policy import MIN_PREFILL_TOKENS, PrefillPace, share_prefill, token_cost
from anllm.scheduler.waiting import WaitingQueue, order_of

# Rows are taken this much longer than needed now, so that short answers never move to a larger row.
HEADROOM_TOKENS = 256
# Logits of a whole vocabulary for each scored token: so many of them at a time take 130 MB in the largest ones.
MAX_SCORED_TOKENS = 256
EXPIRE_EVERY_S = 0.1
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
        reuses_prefixes: bool = True,
        grown_slab_bytes: int | None = None,
    ) -> None:
        """prefill_tokens: max_num_batched_tokens of a config that does not say. The last two: see KVCache."""
        self._config = config
        self._pool = pool
        self._cache = KVCache(pool, reuses_prefixes=reuses_prefixes, grown_slab_bytes=grown_slab_bytes)
        self._prefill_tokens = config.max_num_batched_tokens or prefill_tokens
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._sequences: dict[int, Sequence] = {}
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in order
        self._awaiting: dict[Sequence, Awaited] = {}  # who waits for what another one computes
        self._num_arrived = 0
        self._pace = PrefillPace()
        self._in_flight: deque[tuple[StepPlan, float]] = deque()  # plans that are not read yet, and when they were made
        self._updated_s = 0.0
        self._expire_at_s = 0.0
        self._ledger = Ledger(self._cache.stats)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def cache_stats(self) -> CacheStats:
        return self._cache.stats

    @property
    def num_warm_rows(self) -> int:
        """Rows that are kept for what is in them."""
        return self._cache.num_warm_rows

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
        sequence = Sequence(request, order_of(request, self._num_arrived), max_tokens)
        self._num_arrived += 1
        self._sequences[request.request_id] = sequence
        self._waiting.add(sequence)

    def abort(self, request_id: int) -> None:
        """Forget a request; its slot is free for the next schedule(). Unknown ids are ignored."""
        if request_id in self._sequences:
            self._end(self._sequences[request_id])

    def schedule(self, now_s: float) -> StepPlan | None:
        """The next forward pass, or None if there is nothing to compute. Slots of what is in it are taken."""
        decodes, copies = self._schedule_decodes()
        prefills = self._schedule_prefills({s.slot for s in decodes}, copies)
        self._ledger.planned(now_s)
        if not decodes and not prefills:
            return None
        self._cache.end_plan()
        # A prompt's last token alone is a decode row too.
        scheduled = sorted(decodes + prefills, key=lambda s: (not s.is_decode, s.slot))
        plan = StepPlan(tuple(scheduled), resizes=self._pool.take_resizes(), copies=tuple(copies))
        self._in_flight.append((plan, now_s))
        return plan

    def update(self, plan: StepPlan, result: StepResult, now_s: float) -> StepEvents:
        """Take in what the runner computed: new tokens, finished sequences, freed slots."""
        self._observe(plan, now_s)
        self._cache.plan_was_read()
        prompts: list[PromptLogprobs] = []
        started: list[Started] = []
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
            if sequence is None:  # it ended while the step ran
                continue
            if sequence.row is not None:
                self._cache.computed(sequence.row, scheduled.end)
            if token_id is None:  # its prompt goes on
                continue
            sequence.num_pending -= 1
            if token_id < 0:
                failed.append(Failed(sequence.request_id, StepError.__name__, "The model's logits are not numbers."))
                self._end(sequence, is_sound=False)
                continue
            if not sequence.output_token_ids:
                started.append(Started(sequence.request_id, sequence.num_cached_tokens))
            sequence.output_token_ids.append(token_id)
            tokens.append(Tokens(sequence.request_id, (token_id,), (logprobs,) if logprobs else ()))
            reason = self._finish_reason(sequence, token_id)
            if reason is not None:
                finished.append(Finished(sequence.request_id, reason))
                self._end(sequence)
        return StepEvents(tuple(tokens), tuple(finished), tuple(failed), tuple(prompts), tuple(started))

    # -- further verbs -------------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[Failed]:
        """End sequences of which nothing was computed within max_queue_time_s. Looks at all that wait, so not more
        often than ten times a second."""
        limit_s = self._config.max_queue_time_s
        if limit_s is None or now_s < self._expire_at_s:
            return []
        self._expire_at_s = now_s + EXPIRE_EVERY_S
        late = [
            sequence
            for sequence in self._waiting
            if sequence.status is SequenceStatus.WAITING and now_s - sequence.request.arrival_time_s > limit_s
        ]
        for sequence in late:
            self._end(sequence)
        message = (
            f"The request waited for {limit_s:g} seconds, which is the most allowed, and was not begun. Try again."
        )
        return [Failed(sequence.request_id, QueueTimeoutError.__name__, message) for sequence in late]

    def finish(self, request_id: int) -> Finished | None:
        """End a sequence whose output is whole, though the model goes on. None if it has ended already."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._end(sequence)
        return Finished(request_id, FinishReason.STOP)

    def fail(self, plan: StepPlan, message: str) -> StepEvents:
        """The step raised: end the sequences that were in it, those that copied from them since, and no others."""
        self._in_flight.popleft()
        self._pool.repeat_resizes(plan.resizes)
        self._cache.plan_was_read()
        self._cache.plan_failed(s.slot for s in plan.scheduled)
        failed = []
        broken = {s.slot for s in plan.scheduled}
        request_ids = [s.request_id for s in plan.scheduled]
        for later, _ in self._in_flight:
            broken.update(copy.target for copy in later.copies if copy.source in broken)
            targets = {copy.target for copy in later.copies} & broken
            request_ids += [s.request_id for s in later.scheduled if s.slot in targets]
        for request_id in dict.fromkeys(request_ids):
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                failed.append(Failed(sequence.request_id, StepError.__name__, message))
                self._end(sequence, is_sound=False)
        return StepEvents(failed=tuple(failed))

    def log_ids(self, plan: StepPlan) -> list[str]:
        """Of the plan's requests, each once."""
        found = (self._sequences.get(s.request_id) for s in plan.scheduled)
        return list(dict.fromkeys(sequence.request.log_id for sequence in found if sequence is not None))

    def figures(self, *, num_deferred: int, memory: MemoryUse | None) -> EngineFigures:
        """How it stands, and what happened since this was asked for last. num_deferred: requests that wait, and are
        not here yet."""
        return self._ledger.take(
            EngineFigures(
                num_running=len(self._running),
                num_waiting=len(self._waiting) + num_deferred,
                num_deferred=num_deferred,
                kv_used_bytes=self._pool.owned_bytes - self._cache.warm_bytes,
                kv_kept_bytes=self._cache.warm_bytes,
                memory=memory,
            )
        )

    def reset_prefix_cache(self) -> None:
        """Forget what rows hold; those of running sequences stay theirs."""
        self._cache.reset()

    def check_integrity(self) -> None:
        """Assert that every sequence is in one list, and that exactly the running ones own slots."""
        assert sorted(id(s) for s in self._sequences.values()) == sorted(
            id(s) for s in [*self._waiting, *self._running]
        )
        assert all(s.row is None and s.num_computed_tokens == 0 for s in self._waiting)
        assert [s.order for s in self._running] == sorted(s.order for s in self._running)
        assert self._awaiting.keys() <= set(self._waiting)
        self._waiting.check_integrity()
        rows = [s.row for s in self._running if s.row is not None]
        assert len(rows) == len(self._running)
        self._cache.check_integrity(rows)

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
        """Move a sequence that outgrew its row to a larger one; preempt those behind it, at last itself, for the room.
        Who has moved in this step is before it, and so never preempted in it."""
        assert sequence.row is not None
        if sequence.num_tokens <= sequence.row.slot.capacity:
            return []
        room = _room(sequence)
        while (copy := self._cache.grow(sequence.row, sequence.num_computed_tokens, room)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return []
        return [copy]

    def _preempt(self, sequence: Sequence) -> None:
        """Back to waiting, where it stood; its K/V stays in the cache as long as there is room for it there."""
        self._running.remove(sequence)
        self._give_back(sequence)
        sequence.num_computed_tokens = 0
        sequence.status = SequenceStatus.PREEMPTED
        self._ledger.preempted()
        self._waiting.add(sequence)

    # -- prefill -------------------------------------------------------------------------------------------------------

    def _schedule_prefills(self, taken: set[Slot], copies: list[SlotCopy]) -> list[ScheduledSequence]:
        """Chunks of the prompts that are under way, and of waiting ones as far as slots and budget go. taken: the slots
        of this step's decode rows. copies: what has to be copied for those that begin is added."""
        under_way = [s for s in self._running if s.slot not in taken and not s.is_full]
        waiting = self._candidates()
        if waiting and under_way and waiting[0].order < under_way[0].order:
            # The oldest gets the oldest's share, or the next free memory; newer prompts don't keep it out.
            first = waiting.pop(0)
            if self._admit(first, copies):
                under_way.insert(0, first)
            elif first not in self._awaiting:
                waiting = []
        candidates = under_way + waiting
        position = max((s.num_computed_tokens for s in under_way), default=0)
        budget = self._prefill_budget(len(taken), position)
        scheduled: list[ScheduledSequence] = []
        scorable = MAX_SCORED_TOKENS
        has_memory = True
        while candidates and budget > 0:
            # Who needs less than it seemed, since it finds a part in the cache, leaves something for another round.
            shares = share_prefill([s.num_uncomputed_tokens for s in candidates], budget)
            left: list[Sequence] = []
            num_before = len(scheduled)
            for sequence, wanted in zip(candidates, shares, strict=True):
                share = min(wanted, sequence.longest_chunk(scorable))
                if share == 0:
                    left.append(sequence)
                    continue
                if sequence.row is None:
                    if not has_memory:
                        continue
                    if not self._admit(sequence, copies):
                        # Who came later does not overtake for memory, so that nobody waits for ever.
                        has_memory = sequence in self._awaiting
                        continue
                    share = min(share, sequence.num_uncomputed_tokens)
                scheduled.append(self._scheduled(sequence, share))
                scorable -= len(scheduled[-1].scored_token_ids)
                budget -= share
            if len(scheduled) == num_before:
                break
            candidates = left
        return scheduled

    def _candidates(self) -> list[Sequence]:
        """Waiting sequences whose turn it is."""
        number = min(self._config.max_num_seqs - len(self._running), MAX_CANDIDATES)
        for sequence in [s for s, awaited in self._awaiting.items() if not self._cache.is_coming(awaited)]:
            del self._awaiting[sequence]
        if number <= 0 or not len(self._waiting):
            return []
        running = Counter(s.request.client for s in self._running)
        turns = self._waiting.first(number + len(self._awaiting), running)
        return [s for s in turns if not s.is_full and s not in self._awaiting][:number]

    def _prefill_budget(self, num_decodes: int, position: int) -> int:
        if num_decodes == 0:
            return self._prefill_tokens
        most = max(self._config.decode_token_budget - num_decodes, 1)
        num_waiting = len(self._sequences) - num_decodes
        budget = self._pace.budget(most, num_decodes=num_decodes, num_waiting=num_waiting, position=position)
        usual = nearest_step_size(num_decodes + budget) - num_decodes
        return usual if MIN_PREFILL_TOKENS <= usual <= most else budget

    def _admit(self, sequence: Sequence, copies: list[SlotCopy]) -> bool:
        """Give it a row. Not if there is no memory, or if it is better to wait for what another one computes."""
        token_ids = sequence.tokens(0, sequence.num_tokens)
        is_scored = sequence.request.params.prompt_logprobs is not None  # which needs all of them computed
        reusable = 0 if is_scored else sequence.num_tokens - 1
        salt = sequence.request.params.cache_salt
        placement = self._cache.place(token_ids, salt, _room(sequence), reusable=reusable)
        if placement is None:
            return False
        if isinstance(placement, Awaited):
            self._awaiting[sequence] = placement
            return False
        if placement.copy is not None:
            copies.append(placement.copy)
        if sequence.status is SequenceStatus.WAITING:
            sequence.num_cached_tokens = placement.num_cached_tokens
            self._ledger.got_row(sequence)
        sequence.row = placement.row
        sequence.num_computed_tokens = sequence.num_reused_tokens = placement.num_cached_tokens
        sequence.status = SequenceStatus.RUNNING
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=lambda s: s.order)
        return True

    # -- both ----------------------------------------------------------------------------------------------------------

    def _scheduled(self, sequence: Sequence, num_tokens: int) -> ScheduledSequence:
        """The next num_tokens tokens of the sequence, which count as computed from now on."""
        assert sequence.row is not None
        start = sequence.num_computed_tokens
        tells_reused = start == sequence.num_reused_tokens and sequence.request.params.has_penalties
        scheduled = ScheduledSequence(
            request_id=sequence.request_id,
            slot=sequence.row.slot,
            start=start,
            token_ids=sequence.tokens(start, start + num_tokens),
            sample=start + num_tokens == sequence.num_tokens,
            token_index=sequence.num_output_tokens,
            params=sequence.request.params,
            num_prompt_tokens=sequence.num_prompt_tokens,
            banned_token_ids=self._banned(sequence),
            scored_token_ids=sequence.tokens_to_score(start, start + num_tokens),
            reused_token_ids=sequence.tokens(0, start) if tells_reused else (),
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

    def _end(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        """Out of every list; the row may go. is_sound: what it holds can be relied on."""
        del self._sequences[sequence.request_id]
        if sequence.row is None:
            self._waiting.remove(sequence)
            self._awaiting.pop(sequence, None)
        else:
            self._running.remove(sequence)
            self._give_back(sequence, is_sound=is_sound)
        sequence.status = SequenceStatus.FINISHED

    def _give_back(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        row = sequence.row
        assert row is not None
        sequence.row = None
        if is_sound:
            self._cache.release(row, sequence.tokens(0, row.num_tokens))
        else:
            self._cache.discard(row)

    def _observe(self, plan: StepPlan, now_s: float) -> None:
        """A step lasts from the end of the one before it, or from its own beginning if that was later."""
        num_decodes = sum(s.is_decode for s in plan.scheduled)
        _, made_s = self._in_flight.popleft()
        started_s = max(made_s, self._updated_s)
        self._updated_s = now_s
        self._ledger.computed(plan, num_decodes, now_s - started_s)
        self._pace.observe(
            num_decodes=num_decodes,
            num_prefill_tokens=sum(
                len(s.token_ids) * token_cost((s.start + s.end) / 2) for s in plan.scheduled if not s.is_decode
            ),
            duration_s=now_s - started_s,
        )


def _room(sequence: Sequence) -> Room:
    return Room(sequence.num_tokens, min(sequence.num_tokens + HEADROOM_TOKENS, sequence.max_num_tokens))
