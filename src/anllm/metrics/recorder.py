"""The Recorder: the one place where things are counted.

It hears the engine's frames (on_frame, on_engine_end), and those who answer requests (opened, ended, closed, refused).
A step costs it one look at the clock, and a few operations for each token; what is alike is counted together.
Nothing is ever taken back: counters go on when the engine is started again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from anllm.core.events import EngineFigures, EngineInfo, LoadFailed, LoadProgress, MemoryUse, StepEvents
from anllm.core.request import Request
from anllm.metrics.histogram import Histogram, one_two_five
from anllm.metrics.recent import Recent
from anllm.metrics.records import ABORT, ERROR, FINISHED, RequestRecord, SequenceRecord

# Those of vLLM 0.33, but that gaps between tokens, which may be short here, begin below its 10 ms.
LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
# Ours:
STEP_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
BATCH_SIZE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
LONGEST = 1_000_000  # tokens, before the model's own limit is known

QUEUE_FULL = "queue_full"


class Recorder:
    """Read its attributes, call its methods; all in one event loop. "Requests" are single sequences, as in vLLM, where
    nothing else is said: one that asks for three answers counts three times."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[int, SequenceRecord] = {}
        self._requests: dict[RequestRecord, None] = {}
        self._figures: EngineFigures | None = None
        self.started_s = clock()
        self.memory: MemoryUse | None = None
        self.recent = Recent(clock)
        # counters
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.num_preemptions = 0
        self.num_evicted_rows = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.ends: Counter[str] = Counter(dict.fromkeys((*FINISHED, ABORT, ERROR), 0))  # by finish reason
        self.aborts: Counter[str] = Counter(dict.fromkeys(("waiting", "prefill", "decode"), 0))  # by stage
        self.failures: Counter[str] = Counter()  # by reason
        self.rejections: Counter[str] = Counter({QUEUE_FULL: 0})  # HTTP requests, by reason
        # histograms
        self.ttft_s = Histogram(TTFT_S)
        self.itl_s = Histogram(ITL_S)
        self.tpot_s = Histogram(ITL_S)
        self.e2e_s = Histogram(LATENCY_S)
        self.queue_s = Histogram(LATENCY_S)
        self.prefill_s = Histogram(LATENCY_S)
        self.decode_s = Histogram(LATENCY_S)
        self.inference_s = Histogram(LATENCY_S)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.params_n = Histogram(PARAMS_N)
        self.step_s = Histogram(STEP_S)
        self.batch_size = Histogram(BATCH_SIZE)
        self._bound_tokens(LONGEST)

    # -- how it stands -------------------------------------------------------------------------------------------------

    @property
    def num_open_requests(self) -> int:
        """HTTP requests that were taken and whose answer has not been sent to its end."""
        return len(self._requests)

    @property
    def num_running(self) -> int:
        """Sequences that the engine works on, as far as somebody still wants them."""
        return 0 if self._figures is None else min(self._figures.num_running, len(self._open))

    @property
    def num_waiting(self) -> int:
        """All other open ones, those included that the engine has not heard of since a step takes long."""
        return len(self._open) - self.num_running

    @property
    def num_deferred(self) -> int:
        """Of the waiting ones, those whose grammar is being compiled."""
        return 0 if self._figures is None else min(self._figures.num_deferred, self.num_waiting)

    @property
    def kv_used_bytes(self) -> int:
        """Of K/V, what running sequences hold."""
        return 0 if self._figures is None or not self._open else self._figures.kv_used_bytes

    @property
    def kv_kept_bytes(self) -> int:
        """Of K/V, what is kept for prompts that begin alike, and goes when it is needed."""
        return 0 if self._figures is None else self._figures.kv_kept_bytes

    @property
    def open_sequences(self) -> list[SequenceRecord]:
        """The oldest first."""
        return list(self._open.values())

    @property
    def now_s(self) -> float:
        """Of the clock that all moments are told by."""
        return self._clock()

    # -- requests ------------------------------------------------------------------------------------------------------

    def opened(self, record: RequestRecord, requests: Sequence[Request], *, is_empty: bool = False) -> None:
        """The engine took these sequences. is_empty: their prompts are only looked at, and no token is given out."""
        self._requests[record] = None
        now_s = self._clock()
        for request in requests:
            sequence = SequenceRecord(
                request=record,
                num_prompt_tokens=len(request.prompt_token_ids),
                max_tokens=0 if is_empty else request.params.max_tokens or 0,
                submitted_s=now_s,
            )
            record.sequences.append(sequence)
            self._open[request.request_id] = sequence

    def ended(self, request_id: int, finish_reason: str, error: str = "") -> None:
        """A sequence is over. finish_reason: see SequenceRecord. error: with "error", what it was. Ids that are not
        open are ignored."""
        sequence = self._open.pop(request_id, None)
        if sequence is None:
            return
        now_s = self._clock()
        sequence.finish_reason = finish_reason
        self.ends[finish_reason] += 1
        if finish_reason == ABORT:
            self.aborts[sequence.stage] += 1
        elif finish_reason == ERROR:
            self.failures[error] += 1
        else:
            self.recent.add("finished", 1, now_s)
            self._observe(sequence, now_s)

    def closed(self, record: RequestRecord) -> None:
        """The answer was sent, or nobody is there to read it."""
        self._requests.pop(record, None)

    def refused(self, reason: str) -> None:
        """An HTTP request was answered with an error before the engine had it."""
        self.rejections[reason] += 1

    # -- the engine ----------------------------------------------------------------------------------------------------

    def on_frame(self, frame: LoadProgress | LoadFailed | EngineInfo | StepEvents) -> None:
        """To be called with what the engine sends, before anybody acts on it."""
        if isinstance(frame, StepEvents):
            self._on_events(frame)
        elif isinstance(frame, EngineInfo) and self.request_prompt_tokens.count == 0:
            self._bound_tokens(frame.max_model_len)

    def on_engine_end(self) -> None:
        """What it told of how it stands holds no more."""
        self._figures = self.memory = None

    def _on_events(self, events: StepEvents) -> None:
        now_s = self._clock()
        if events.figures is not None:
            self._on_figures(events.figures, now_s)
        for started in events.started:
            sequence = self._open.get(started.request_id)
            if sequence is not None:
                self._on_start(sequence, started.num_cached_tokens, now_s)
        gaps_s: dict[float, int] = {}  # rows that run together have the same gap
        num_tokens = 0
        for tokens in events.tokens:
            sequence = self._open.get(tokens.request_id)
            if sequence is None or sequence.max_tokens == 0:
                continue
            count = len(tokens.token_ids)
            num_tokens += count
            sequence.num_tokens += count
            last_s, sequence.last_token_s = sequence.last_token_s, now_s
            if last_s is not None:
                gap_s = (now_s - last_s) / count
                gaps_s[gap_s] = gaps_s.get(gap_s, 0) + count
        if num_tokens:
            self.num_generated_tokens += num_tokens
            self.recent.add("generated", num_tokens, now_s)
        for gap_s, count in gaps_s.items():
            self.itl_s.observe(gap_s, count)
            self.recent.observe("itl", gap_s, count, now_s)

    def _on_figures(self, figures: EngineFigures, now_s: float) -> None:
        self._figures = figures
        self.memory = figures.memory or self.memory
        self.num_preemptions += figures.num_preemptions
        self.num_evicted_rows += figures.num_evicted_rows
        self.num_queried_tokens += figures.num_queried_tokens
        self.num_hit_tokens += figures.num_hit_tokens
        for admitted in figures.admitted:
            sequence = self._open.get(admitted.request_id)
            if sequence is not None:
                sequence.admitted_s = min(sequence.submitted_s + admitted.queue_s, now_s)
        step = figures.step
        if step is not None:
            self.step_s.observe(step.duration_s)
            self.batch_size.observe(step.num_decodes + step.num_prefills)
            self.iteration_tokens.observe(step.num_decodes + step.num_prefill_tokens)

    def _on_start(self, sequence: SequenceRecord, num_cached_tokens: int, now_s: float) -> None:
        sequence.first_token_s = now_s
        sequence.num_cached_tokens = num_cached_tokens
        self.num_prompt_tokens += sequence.num_prompt_tokens
        self.num_cached_tokens += num_cached_tokens
        self.recent.add("prompt", sequence.num_prompt_tokens, now_s)
        if sequence.max_tokens:
            ttft_s = now_s - sequence.request.arrived_s
            self.ttft_s.observe(ttft_s)
            self.recent.observe("ttft", ttft_s, 1, now_s)

    def _observe(self, sequence: SequenceRecord, now_s: float) -> None:
        """What is told of sequences that finished by themselves, once each."""
        self.e2e_s.observe(now_s - sequence.request.arrived_s)
        self.request_prompt_tokens.observe(sequence.num_prompt_tokens)
        self.request_generation_tokens.observe(sequence.num_tokens)
        self.request_computed_tokens.observe(sequence.num_prompt_tokens - sequence.num_cached_tokens)
        if sequence.max_tokens:
            self.params_max_tokens.observe(sequence.max_tokens)
        first_s, last_s, admitted_s = sequence.first_token_s, sequence.last_token_s, sequence.admitted_s
        if admitted_s is not None and first_s is not None:
            self.queue_s.observe(admitted_s - sequence.submitted_s)
            self.prefill_s.observe(first_s - admitted_s)
            self.inference_s.observe((last_s or first_s) - admitted_s)
        if first_s is not None and last_s is not None:
            self.decode_s.observe(last_s - first_s)
            if sequence.num_tokens > 1:
                self.tpot_s.observe((last_s - first_s) / (sequence.num_tokens - 1))
        siblings = sequence.request.siblings(sequence)
        if all(sibling.finish_reason in FINISHED for sibling in siblings):
            self.params_n.observe(len(siblings))
            self.max_generation_tokens.observe(max(sibling.num_tokens for sibling in siblings))

    def _bound_tokens(self, longest: int) -> None:
        bounds = one_two_five(longest)
        self.request_prompt_tokens = Histogram(bounds)
        self.request_generation_tokens = Histogram(bounds)
        self.request_computed_tokens = Histogram(bounds)
        self.max_generation_tokens = Histogram(bounds)
        self.params_max_tokens = Histogram(bounds)
