"""Stop strings on text that comes in any pieces."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.text.stop import StopMatcher

letters = st.text(alphabet="ab", max_size=12)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4).map(tuple)


def run(stop: tuple[str, ...], pieces: list[str], *, includes_match: bool = False) -> tuple[list[str], bool]:
    """What each call gave, finish() last, and whether a stop string matched."""
    matcher = StopMatcher(stop, includes_match=includes_match)
    results = [matcher.add(piece) for piece in pieces]
    return [text for text, _ in results] + [matcher.finish()], any(matched for _, matched in results)


def longest_held(stop: tuple[str, ...], text: str) -> int:
    return max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


def slow_run(stop: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    """The rules, said plainly: after each call, look at the whole text so far."""
    known, num_out, outputs, has_matched = "", 0, [], False
    for piece in pieces:
        known += "" if has_matched else piece
        starts = [known.find(s) for s in stop if s in known]
        has_matched = bool(starts)
        end = min(starts) if starts else len(known) - longest_held(stop, known)
        outputs.append(known[num_out:end])
        num_out = end
    return [*outputs, "" if has_matched else known[num_out:]], has_matched


@given(stops, st.lists(letters, max_size=6))
@settings(max_examples=500, deadline=None)
def test_every_call_gives_what_looking_at_the_whole_text_gives(stop: tuple[str, ...], pieces: list[str]) -> None:
    assert run(stop, pieces) == slow_run(stop, pieces)


@given(st.text(alphabet="ab", min_size=1, max_size=5), st.lists(letters, max_size=6))
@settings(max_examples=300, deadline=None)
def test_with_one_stop_string_the_cuts_make_no_difference(stop: str, pieces: list[str]) -> None:
    outputs, has_matched = run((stop,), pieces)
    text = "".join(pieces)
    assert ("".join(outputs), has_matched) == (text.split(stop, 1)[0], stop in text)


@given(stops, st.lists(letters, max_size=6))
@settings(max_examples=500, deadline=None)
def test_the_stop_string_itself_goes_out_if_that_is_wanted(stop: tuple[str, ...], pieces: list[str]) -> None:
    without, has_matched = run(stop, pieces)
    including, has_matched_too = run(stop, pieces, includes_match=True)
    assert has_matched_too == has_matched
    text = "".join(without)
    if not has_matched:
        assert including == without
    else:
        assert "".join(including) in {text + s for s in stop}
        assert "".join(pieces).startswith("".join(including))


def test_of_two_stop_strings_at_one_place_the_shorter_is_included() -> None:
    assert run(("END.", "END"), ["the END."], includes_match=True) == (["the END", ""], True)
    assert run(("END",), ["the E", "N", "D."], includes_match=True) == (["the ", "", "END", ""], True)


def test_without_stop_strings_all_text_goes_out_at_once() -> None:
    assert run((), ["hello", "", " world"]) == (["hello", "", " world", ""], False)


def test_a_match_across_pieces_is_removed_with_all_behind_it() -> None:
    assert run(("END",), ["some E", "N", "D more", "even more"]) == (["some ", "", "", "", ""], True)


def test_text_that_only_began_a_stop_string_goes_out() -> None:
    assert run(("ENDING",), ["some END", " of it"]) == (["some ", "END of it", ""], False)


def test_text_held_back_at_the_end_goes_out() -> None:
    assert run(("ENDING",), ["some END"]) == (["some ", "END"], False)


def test_of_two_matches_in_one_call_the_earlier_start_wins() -> None:
    assert run(("cd", "bcde"), ["abcdef"]) == (["a", ""], True)


def test_a_match_ends_the_text_though_a_longer_one_might_follow() -> None:
    assert run(("abc", "ab"), ["xab", "c"]) == (["x", "", ""], True)


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    assert run(("aab",), ["a", "a", "a", "b"]) == (["", "", "a", "", ""], True)


@pytest.mark.parametrize("stop", ["日本", "👩‍👩‍👧", "\n\n", "🙂"])
def test_any_characters_can_stop(stop: str) -> None:
    assert run((stop,), ["x", *stop, "y"])[0] == ["x", *[""] * len(stop), "", ""]


def test_long_stop_strings_cost_little_per_piece() -> None:
    stop = tuple("ab" * 50_000 + end for end in "wxyz")
    pieces = ["abab"] * 10_000
    start_s = time.process_time()
    outputs, has_matched = run(stop, pieces)
    assert "".join(outputs) == "".join(pieces)
    assert not has_matched
    assert time.process_time() - start_s < 2  # quadratic would take minutes
