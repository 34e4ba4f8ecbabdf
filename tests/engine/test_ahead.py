"""One step ahead: the same tokens as the plain order, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.config import SchedulerConfig
from anllm.core.events import Abort, Add, StepEvents
from anllm.core.step import PENDING, StepPlan
from anllm.engine.loop import EngineLoop
from anllm.testing import FakeClock, FakeRunner
from stepping import alone, letters_and_ends, make_request


class Run:
    """An engine loop by hand. `tokens` and `ends` are what came out for each request."""

    def __init__(self, *, runs_ahead: bool, kv_budget_tokens: int = 1 << 20, max_model_len: int = 4096, **config: int):
        self.runner = FakeRunner(
            letters_and_ends,
            kv_budget_tokens=kv_budget_tokens,
            max_model_len=max_model_len,
            runs_ahead=runs_ahead,
        )
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.loop = EngineLoop(self.runner, SchedulerConfig(**config), self._collect, FakeClock())

    def _collect(self, events: StepEvents) -> None:
        for tokens in events.tokens:
            self.tokens.setdefault(tokens.request_id, []).extend(tokens.token_ids)
        for finished in events.finished:
            self.ends[finished.request_id] = finished.finish_reason
        for failed in events.failed:
            self.ends[failed.request_id] = failed.error

    def finish(self) -> None:
        for _ in range(5000):
            if not self.loop.step():
                break
        self.loop.scheduler.check_integrity()
        assert not self.loop.scheduler.has_work


def requests(lengths: list[tuple[int, int]]) -> list[Add]:
    return [Add(make_request(i, prompt, max_tokens=output)) for i, (prompt, output) in enumerate(lengths)]


SIZES = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, budget=st.integers(2, 10), batch=st.integers(1, 8), chunk=st.integers(1, 200))
def test_answers_are_those_of_each_request_alone(
    sizes: list[tuple[int, int]], budget: int, batch: int, chunk: int
) -> None:
    config = {"max_num_seqs": batch, "max_num_batched_tokens": chunk, "decode_token_budget": chunk}
    run = Run(runs_ahead=True, kv_budget_tokens=budget * 256, max_model_len=512, **config)
    adds = requests(sizes)
    run.loop.take(adds)
    run.finish()
    for add in adds:
        tokens, reason = alone(add.request, letters_and_ends, max_model_len=512)
        assert (run.tokens[add.request.request_id], run.ends[add.request.request_id]) == (tokens, reason)


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, aborts=st.dictionaries(st.integers(0, 40), st.integers(0, 11), max_size=8))
def test_aborts_while_a_step_is_in_flight_change_nobody_else(
    sizes: list[tuple[int, int]], aborts: dict[int, int]
) -> None:
    run = Run(runs_ahead=True, max_num_seqs=4)
    adds = requests(sizes)
    run.loop.take(adds)
    for step in range(41):
        if step in aborts:
            run.loop.take([Abort((aborts[step],))])
        run.loop.step()
    run.finish()
    for add in adds:
        request_id = add.request.request_id
        tokens, reason = alone(add.request, letters_and_ends)
        if request_id in run.ends:
            assert (run.tokens[request_id], run.ends[request_id]) == (tokens, reason)
        else:
            assert request_id in aborts.values()
            assert run.tokens.get(request_id, []) == tokens[: len(run.tokens.get(request_id, []))]


def test_decode_rows_are_submitted_before_their_last_token_is_read() -> None:
    run = Run(runs_ahead=True)
    run.loop.take(requests([(5, 20)]))
    run.finish()
    decodes = [plan.scheduled[0].token_ids for plan in run.runner.plans[1:]]
    assert decodes == [(PENDING,)] * len(decodes)


def test_a_sequence_at_its_limit_is_not_computed_once_more() -> None:
    run = Run(runs_ahead=True)
    add = next(a for a in requests([(5, 3)] * 30) if len(alone(a.request, letters_and_ends)[0]) == 3)
    run.loop.take([add])
    run.finish()
    assert len(run.runner.plans) == 3  # the prompt, and two of the three tokens


def test_a_step_that_fails_ends_its_requests_and_the_next_one_works() -> None:
    run = Run(runs_ahead=True, max_num_seqs=2)
    adds = requests([(5, 30)] * 4)
    run.loop.take(adds)
    run.loop.step()
    run.loop.step()
    submit = run.runner.submit

    def fail(plan: StepPlan) -> object:
        raise RuntimeError("boom")

    run.runner.submit = fail  # type: ignore[assignment, method-assign]
    run.loop.step()
    run.runner.submit = submit  # type: ignore[method-assign]
    run.finish()
    failed = [i for i, end in run.ends.items() if end == "StepError"]
    assert failed
    for i in set(range(4)) - set(failed):
        tokens, reason = alone(adds[i].request, letters_and_ends)
        assert (run.tokens[i], run.ends[i]) == (tokens, reason)


def test_plain_and_ahead_make_the_same_tokens() -> None:
    sizes = [(i * 37 % 200 + 1, i * 11 % 50 + 1) for i in range(40)]
    outcomes = []
    for runs_ahead in (False, True):
        run = Run(runs_ahead=runs_ahead, kv_budget_tokens=4096, max_model_len=512, max_num_seqs=6)
        run.loop.take(requests(sizes))
        run.finish()
        outcomes.append((run.tokens, run.ends))
    assert outcomes[0] == outcomes[1]
