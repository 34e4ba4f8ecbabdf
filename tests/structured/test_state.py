"""Where sequences stand in their grammars, and their masks."""

from collections.abc import Iterator

import numpy as np
import pytest

from anllm.structured.errors import GrammarError
from anllm.structured.grammar import json_object, regex
from anllm.structured.state import GrammarState, MaskComputer
from anllm.structured.vocabulary import Vocabulary
from anllm.testing.tokenizer import EOS


@pytest.fixture
def masks(vocabulary: Vocabulary) -> Iterator[MaskComputer]:
    masks = MaskComputer(vocabulary, num_threads=2)
    yield masks
    masks.close()


def begin(masks: MaskComputer, pattern: str) -> GrammarState:
    return masks.begin(regex(pattern).text).result(timeout=10)


def allowed(masks: MaskComputer, *states: GrammarState) -> list[bytes | set[int]]:
    """The bytes that each state allows, and whether the end."""
    rows = masks.rows(len(states))
    rows[:] = -1
    masks.fill(states, rows)
    return [set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()) for row in rows]


def test_several_masks_are_filled_at_once(masks: MaskComputer) -> None:
    states = [begin(masks, "[ab]c"), begin(masks, "x+"), begin(masks, "")]
    assert allowed(masks, *states) == [{97, 98}, {120}, {EOS}]
    assert states[0].accept(97) and states[1].accept(120)
    assert allowed(masks, *states[:2]) == [{99}, {120, EOS}]


def test_sequences_of_one_grammar_go_their_own_ways(masks: MaskComputer) -> None:
    first, second = begin(masks, "ab|cd"), begin(masks, "ab|cd")
    assert first.accept(ord("a")) and second.accept(ord("c"))
    assert allowed(masks, first, second) == [{ord("b")}, {ord("d")}]


def test_a_grammar_is_complete_when_only_the_end_may_follow(masks: MaskComputer) -> None:
    state = begin(masks, "[0-9]{1,2}")
    assert not state.can_end and not state.is_complete
    assert state.accept(48)
    assert state.can_end and not state.is_complete
    assert state.accept(48)
    assert state.can_end and state.is_complete
    assert allowed(masks, state) == [{EOS}]


def test_the_end_is_accepted_where_the_grammar_may_end(masks: MaskComputer) -> None:
    state = begin(masks, "[0-9]{1,2}")
    assert state.accept(48) and state.accept(EOS)
    assert state.is_complete and state.error is None
    assert not state.accept(48)


def test_a_token_that_is_not_allowed_is_an_error_for_good(masks: MaskComputer) -> None:
    for token in (ord("a"), EOS):
        state = begin(masks, "[0-9]+")
        assert not state.accept(token)
        assert state.error is not None and not state.is_complete
        assert not state.accept(48)
        assert allowed(masks, state) == [{EOS}]


def test_a_mask_that_can_not_be_computed_is_an_error_of_its_state_alone(masks: MaskComputer) -> None:
    broken, sound = begin(masks, "(a{1,9999}){1,9999}"), begin(masks, "a*")
    for _ in range(200):
        if not broken.accept(97):
            break
        allowed(masks, broken, sound)
    assert broken.error is not None and "too many" in broken.error
    assert allowed(masks, sound) == [{97, EOS}] and sound.error is None


def test_a_grammar_seen_before_is_there_at_once(masks: MaskComputer) -> None:
    text = json_object().text
    masks.begin(text).result(timeout=10)
    assert masks.begin(text).done()


def test_a_grammar_that_does_not_compile_is_told_by_its_future(masks: MaskComputer) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError):
            masks.begin("start: missing").result(timeout=10)


def test_rows_are_as_wide_as_the_logits() -> None:
    masks = MaskComputer(Vocabulary([b"a", b"<end>"], frozenset(), frozenset({1}), width=100))
    state = begin(masks, "a+")
    assert masks.rows(3).shape == (3, 4) and masks.rows(3).dtype == np.int32
    assert allowed(masks, state) == [{0}]
    masks.close()
