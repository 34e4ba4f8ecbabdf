"""The fake model notices every plan that a real one would compute wrongly."""

import pytest

from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, SlabResize, Slot, SlotCopy, StepPlan
from anllm.testing import FakeRunner
from anllm.testing.runner import LETTERS, letters, scripted
from stepping import make_request

FIRST, SECOND = Slot(256, 0), Slot(256, 1)
TWO_ROWS = (SlabResize(256, 2),)


def entry(*tokens: int, slot: Slot = FIRST, start: int = 0, sample: bool = True) -> ScheduledSequence:
    return ScheduledSequence(0, slot, start, tokens, sample, 0, SamplingParams())


def test_the_model_is_deterministic_and_speaks_letters() -> None:
    prompt = make_request(3, 50).prompt_token_ids
    assert letters(prompt) == letters(prompt)
    assert {letters(prompt[:i]) for i in range(50)} <= set(LETTERS)


def test_each_row_answers_as_the_model_does_for_its_tokens() -> None:
    runner = FakeRunner()
    plan = StepPlan((entry(1, 2, 3), entry(4, slot=SECOND, sample=False)), resizes=TWO_ROWS)
    assert runner.run(plan).token_ids == [letters((1, 2, 3))]
    plan = StepPlan((entry(9, start=3), entry(5, 6, slot=SECOND, start=1)))
    assert runner.run(plan).token_ids == [letters((1, 2, 3, 9)), letters((4, 5, 6))]
    assert len(runner.plans) == 2


def test_a_stale_row_answers_differently() -> None:
    runner = FakeRunner()
    runner.run(StepPlan((entry(1, 2, 3),), resizes=TWO_ROWS))
    assert runner.run(StepPlan((entry(9, start=2),))).token_ids == [letters((1, 2, 9))] != [letters((9,))]


def test_a_copied_row_goes_on_in_its_new_slot() -> None:
    runner = FakeRunner()
    runner.run(StepPlan((entry(1, 2, 3),), resizes=TWO_ROWS))
    target = Slot(512, 0)
    plan = StepPlan((entry(4, slot=target, start=3),), (SlabResize(512, 1),), (SlotCopy(FIRST, target, 3),))
    assert runner.run(plan).token_ids == [letters((1, 2, 3, 4))]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (StepPlan((entry(1), entry(1)), TWO_ROWS), "a slot twice in one step"),
        (StepPlan((entry(1, slot=Slot(256, 2)),), TWO_ROWS), "a slot outside its slab"),
        (StepPlan((entry(1, start=1),), TWO_ROWS), "a gap in the row"),
        (StepPlan((entry(*range(257)),), TWO_ROWS), "more tokens than the slot holds"),
        (StepPlan((entry(1),), (SlabResize(256, 5),)), "over the K/V budget"),
    ],
)
def test_a_wrong_plan_is_noticed(plan: StepPlan, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        FakeRunner(kv_budget_tokens=1024).run(plan)


def test_a_row_is_lost_when_its_slab_is_cut() -> None:
    runner = FakeRunner()
    runner.run(StepPlan((entry(1, 2, slot=SECOND),), TWO_ROWS))
    runner.run(StepPlan((entry(1),), (SlabResize(256, 1),)))
    with pytest.raises(AssertionError, match="a gap in the row"):
        runner.run(StepPlan((entry(3, slot=SECOND, start=2),), TWO_ROWS))


def test_before_run_sees_the_plan_and_may_raise_before_anything_is_done() -> None:
    seen = []

    def before_run(plan: StepPlan) -> None:
        seen.append(plan)
        raise RuntimeError("boom")

    runner, plan = FakeRunner(before_run=before_run), StepPlan((entry(1),), TWO_ROWS)
    with pytest.raises(RuntimeError, match="boom"):
        runner.run(plan)
    assert (seen, runner.plans) == ([plan], [])


def test_a_scripted_model_answers_its_prompts_and_others_by_default() -> None:
    model = scripted({(1, 2): (7, 8)}, default=lambda token_ids: 0)
    assert [model(t) for t in ((1, 2), (1, 2, 7), (1, 2, 7, 8), (1,), (3, 4))] == [7, 8, 0, 0, 0]


def test_the_runner_tells_what_it_was_made_with() -> None:
    info = FakeRunner(max_model_len=99, kv_budget_tokens=500, vocab_size=7, eos_token_ids=(1, 2)).info
    assert (info.max_model_len, info.kv_budget_bytes, info.kv_bytes_per_token) == (99, 500, 1)
    assert (info.vocab_size, info.eos_token_ids) == (7, (1, 2))
