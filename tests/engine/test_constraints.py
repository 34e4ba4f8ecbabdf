"""Sequences bound to a grammar, in the engine's loop beside others that are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.config import SchedulerConfig
from anllm.core.events import Abort, Add, Failed, StepEvents
from anllm.core.request import Request
from anllm.core.step import StepPlan
from anllm.engine.loop import EngineLoop
from anllm.structured.grammar import choice, json_schema, regex
from anllm.structured.state import GrammarState, MaskComputer
from anllm.structured.vocabulary import Vocabulary
from anllm.testing import ByteTokenizer, FakeClock, FakeRunner
from anllm.testing.runner import _allowed
from stepping import EOS, alone, letters_and_ends, make_request

COLOURS = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "c": {"enum": ["red", "größe", "🫠"]}},
    "required": ["n", "c"],
    "additionalProperties": False,
}
JSON = json_schema(COLOURS, strict=True).text
WORDS = choice(["yes", "no", "yesterday"]).text
VOCABULARY = Vocabulary.of(ByteTokenizer())


class Run:
    """An engine loop by hand. `tokens`, `ends` and `failures` are what came out for each request."""

    def __init__(
        self,
        *,
        runs_ahead: bool = True,
        masks: MaskComputer | None = None,
        kv_budget_tokens: int = 1 << 20,
        before_run: object = None,
        **config: int,
    ) -> None:
        self.runner = FakeRunner(letters_and_ends, kv_budget_tokens=kv_budget_tokens, runs_ahead=runs_ahead)
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.failures: dict[int, Failed] = {}
        computer = masks or MaskComputer(VOCABULARY)
        self.loop = EngineLoop(self.runner, SchedulerConfig(**config), self._collect, FakeClock(), computer)

    def _collect(self, events: StepEvents) -> None:
        for tokens in events.tokens:
            assert tokens.request_id not in self.ends, "tokens after the end"
            self.tokens.setdefault(tokens.request_id, []).extend(tokens.token_ids)
        for finished in events.finished:
            assert finished.request_id not in self.ends, "ended twice"
            self.ends[finished.request_id] = finished.finish_reason
        for failed in events.failed:
            assert failed.request_id not in self.ends, "ended twice"
            self.ends[failed.request_id] = failed.error
            self.failures[failed.request_id] = failed

    def finish(self) -> None:
        for _ in range(5000):
            if not self.loop.step():
                break
            self.loop.scheduler.check_integrity()
        assert not self.loop.scheduler.has_work
        self.loop.close()

    def text(self, request_id: int) -> str:
        return bytes(token for token in self.tokens[request_id] if token != EOS).decode()


def bound_alone(request: Request) -> list[int]:
    """What the request gets when nobody else is there: one mask and one token after the other."""
    computer = MaskComputer(VOCABULARY)
    state = computer.begin(request.params.grammar).result()
    outputs: list[int] = []
    while not state.is_complete and len(outputs) < (request.params.max_tokens or 1000):
        rows = computer.rows(1)
        computer.fill([state], rows)
        outputs.append(_allowed(letters_and_ends((*request.prompt_token_ids, *outputs)), rows[0].tobytes()))
        assert state.accept(outputs[-1])
        if outputs[-1] == EOS:
            break
    computer.close()
    return outputs


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_bound_answer_is_a_document_of_its_schema_and_ends_with_it(runs_ahead: bool) -> None:
    run = Run(runs_ahead=runs_ahead)
    run.loop.take([Add(make_request(i, 5, max_tokens=200, grammar=JSON)) for i in range(20)])
    run.finish()
    for i in range(20):
        document = json.loads(run.text(i))
        assert 0 <= document["n"] <= 999 and document["c"] in ("red", "größe", "🫠") and len(document) == 2
        assert run.ends[i] == "stop"
    assert len({run.text(i) for i in range(20)}) > 10


SIZES = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 60), st.sampled_from(["", JSON, WORDS])), min_size=1, max_size=10
)


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, runs_ahead=st.booleans(), budget=st.integers(2, 10), batch=st.integers(1, 8))
def test_answers_are_those_of_each_request_alone(
    sizes: list[tuple[int, int, str]], runs_ahead: bool, budget: int, batch: int
) -> None:
    """Whoever is bound, however memory is short: nobody gets another's mask, or one of another place."""
    run = Run(runs_ahead=runs_ahead, kv_budget_tokens=budget * 4096, max_num_seqs=batch, max_num_batched_tokens=50)
    requests = [make_request(i, n, max_tokens=out, grammar=text) for i, (n, out, text) in enumerate(sizes)]
    run.loop.take([Add(request) for request in requests])
    run.finish()
    for request in requests:
        tokens = bound_alone(request) if request.params.grammar else alone(request, letters_and_ends)[0]
        assert run.tokens[request.request_id] == tokens


def test_a_limit_inside_the_document_is_told_as_length() -> None:
    run = Run()
    run.loop.take([Add(make_request(0, max_tokens=4, grammar=JSON))])
    run.finish()
    assert run.ends[0] == "length" and len(run.tokens[0]) == 4 and run.text(0).startswith("{")


@pytest.mark.parametrize("changes", [{"ignore_eos": True}, {"min_tokens": 100}, {"min_tokens": 2}])
def test_the_grammar_goes_before_what_would_keep_the_answer_going(changes: dict[str, object]) -> None:
    run = Run()
    run.loop.take([Add(make_request(0, max_tokens=300, grammar=WORDS, **changes))])
    run.finish()
    assert run.text(0) in ("yes", "no", "yesterday") and run.ends[0] == "stop"


def test_min_tokens_holds_where_the_grammar_leaves_a_choice() -> None:
    run = Run()
    adds = [Add(make_request(i, max_tokens=100, min_tokens=9, grammar=regex("[ab]*").text)) for i in range(20)]
    run.loop.take(adds)
    run.finish()
    assert all(len(run.text(i)) >= 9 for i in range(20)) and any(len(run.text(i)) < 60 for i in range(20))


def test_a_grammar_that_cant_be_used_fails_its_request_alone() -> None:
    run = Run()
    run.loop.take([Add(make_request(0, grammar='start: "a" (')), Add(make_request(1, max_tokens=3))])
    run.finish()
    assert run.ends[0] == "InvalidRequestError" and "grammar" in run.failures[0].message
    assert len(run.tokens[1]) == 3


def test_without_a_vocabulary_bound_requests_fail() -> None:
    events: list[StepEvents] = []
    loop = EngineLoop(FakeRunner(), SchedulerConfig(), events.append, FakeClock())
    loop.take([Add(make_request(0, grammar=JSON))])
    assert [failed.error for failed in events[0].failed] == ["InvalidRequestError"]
    assert not loop.step()


class SlowComputer(MaskComputer):
    """Its grammars are never done."""

    def _compiled(self, grammar: str):  # type: ignore[no-untyped-def]
        from concurrent.futures import Future

        return Future()


def test_while_a_grammar_is_compiled_others_run_and_it_can_be_aborted() -> None:
    run = Run(masks=SlowComputer(VOCABULARY))
    run.loop.take([Add(make_request(0, grammar=JSON)), Add(make_request(1, max_tokens=3, ignore_eos=True))])
    for _ in range(10):
        run.loop.step()
    assert len(run.tokens[1]) == 3
    assert run.loop.step()  # an idle loop waits a moment, and does not end
    run.loop.take([Abort((0,))])
    assert not run.loop.step()
    assert 0 not in run.ends


class BreakingComputer(MaskComputer):
    """Its masks fail from the third step on."""

    num_fills = 0

    def fill(self, states: Sequence[GrammarState], rows) -> None:  # type: ignore[no-untyped-def]
        super().fill(states, rows)
        self.num_fills += 1
        if self.num_fills > 2:
            states[0].accept(0)  # which no grammar here allows


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_grammar_that_breaks_on_the_way_fails_its_request_alone(runs_ahead: bool) -> None:
    run = Run(masks=BreakingComputer(VOCABULARY), runs_ahead=runs_ahead)
    other = make_request(1, max_tokens=30)
    run.loop.take([Add(make_request(0, max_tokens=50, grammar=JSON)), Add(other)])
    run.finish()
    assert run.ends[0] == "StepError" and len(run.tokens[0]) == 2
    assert run.tokens[1] == alone(other, letters_and_ends)[0]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_step_that_fails_ends_those_in_it_and_the_next_ones_go_on(runs_ahead: bool) -> None:
    run = Run(runs_ahead=runs_ahead)
    seen = [0]

    def before_run(plan: StepPlan) -> None:
        seen[0] += 1
        if seen[0] == 3:
            raise RuntimeError("the model does not like this")

    run.runner._before_run = before_run
    run.loop.take([Add(make_request(0, max_tokens=50, grammar=JSON))])
    run.finish()
    assert run.ends[0] == "StepError"
    later = replace(make_request(1, max_tokens=50, grammar=JSON))
    run.loop.take([Add(later)])
    run.finish()
    assert run.tokens[1] == bound_alone(later)
