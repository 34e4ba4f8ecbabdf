"""Following the tokens of sequences with penalties through plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from anllm.core.request import SamplingParams
from anllm.core.step import PENDING, ScheduledSequence, Slot, SlotCopy, StepPlan
from anllm.runner.seen import SeenTokens

pytestmark = pytest.mark.mlx
PENALISED = SamplingParams(presence_penalty=1.0)


def entry(slot: Slot, start: int, tokens: tuple[int, ...], num_prompt: int, params: SamplingParams = PENALISED):
    return ScheduledSequence(slot.index, slot, start, tokens, True, 0, params, num_prompt)


def told(seen: SeenTokens, scheduled: ScheduledSequence) -> dict[int, int]:
    found = seen.of(scheduled)
    assert found is not None
    return dict(zip(found.ids.tolist(), found.counts.tolist(), strict=True))


def test_prompt_tokens_count_as_seen_and_output_tokens_by_number() -> None:
    seen, slot = SeenTokens(), Slot(256, 0)
    seen.follow(StepPlan((entry(slot, 0, (5, 6), 3),)), {})
    seen.follow(StepPlan((entry(slot, 2, (5,), 3),)), {})
    for position, token in enumerate((9, 5, 9), 3):
        last = entry(slot, position, (token,), 3)
        seen.follow(StepPlan((last,)), {})
    assert told(seen, last) == {5: 1, 6: 0, 9: 2}


def test_a_pending_token_is_the_one_that_was_drawn() -> None:
    seen, slot = SeenTokens(), Slot(256, 4)
    seen.follow(StepPlan((entry(slot, 0, (5,), 1),)), {})
    last = entry(slot, 1, (PENDING,), 1)
    seen.follow(StepPlan((last,)), {4: 77})
    assert told(seen, last) == {5: 0, 77: 1}


def test_a_new_sequence_in_a_slot_starts_anew() -> None:
    seen, slot = SeenTokens(), Slot(256, 0)
    seen.follow(StepPlan((entry(slot, 0, (1, 2, 3), 3),)), {})
    last = entry(slot, 0, (8,), 1)
    seen.follow(StepPlan((last,)), {})
    assert told(seen, last) == {8: 0}


def test_a_sequence_that_moves_takes_its_tokens_along() -> None:
    seen, small, large = SeenTokens(), Slot(256, 0), Slot(512, 0)
    seen.follow(StepPlan((entry(small, 0, (1, 2), 2),)), {})
    last = entry(large, 2, (7,), 2)
    seen.follow(StepPlan((last,), copies=(SlotCopy(small, large, 2),)), {})
    assert told(seen, last) == {1: 0, 2: 0, 7: 1}


def test_a_preempted_sequence_that_is_computed_again_has_the_same_counts() -> None:
    seen, slot = SeenTokens(), Slot(256, 0)
    last = entry(slot, 0, (1, 2, 9, 9), 2)  # prompt and output in one chunk
    seen.follow(StepPlan((last,)), {})
    assert told(seen, last) == {1: 0, 2: 0, 9: 2}


def test_sequences_without_penalties_are_not_followed() -> None:
    seen = SeenTokens()
    plain = entry(Slot(256, 0), 0, (1, 2), 2, SamplingParams())
    seen.follow(StepPlan((plain,)), {})
    assert seen.of(plain) is None


def test_many_different_tokens_are_all_kept() -> None:
    seen, slot = SeenTokens(), Slot(4096, 0)
    tokens = tuple(np.random.default_rng(0).integers(0, 2000, 3000).tolist())
    last = entry(slot, 0, tokens, 0)
    seen.follow(StepPlan((last,)), {})
    assert told(seen, last) == Counter(tokens)


def test_tokens_that_are_not_computed_again_are_told_where_a_sequence_begins() -> None:
    """In a slot where it goes on from another one, and in one to which the beginning was copied while that goes on."""
    seen, first, other = SeenTokens(), Slot(256, 0), Slot(256, 1)
    seen.follow(StepPlan((entry(first, 0, (1, 2, 3), 3),)), {})
    reused = replace(entry(other, 2, (9,), 3), reused_token_ids=(1, 2))
    going_on = entry(first, 3, (4,), 3)
    seen.follow(StepPlan((going_on, reused), copies=(SlotCopy(first, other, 2),)), {})
    assert told(seen, reused) == {1: 0, 2: 0, 9: 0}
    assert told(seen, going_on) == {1: 0, 2: 0, 3: 0, 4: 1}
    anew = replace(entry(first, 2, (5, 6), 3), reused_token_ids=(1, 8))
    seen.follow(StepPlan((anew,)), {})
    assert told(seen, anew) == {1: 0, 8: 0, 5: 0, 6: 1}
