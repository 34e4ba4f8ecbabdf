"""What holds for every format, on answers as models write them and on broken ones."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.parsers.stream import CallArguments, CallBegun, Content, Reasoning, joined
from anllm.parsers.tools.table import TOOL_FORMATS
from parsers.samples import (
    IDS,
    SAMPLES,
    Sample,
    answer_of,
    calls_of,
    make_parser,
    pieces_of,
    raw_calls,
    read,
    text_of,
)

EACH_SAMPLE = pytest.mark.parametrize("sample", SAMPLES, ids=IDS)


@EACH_SAMPLE
def test_an_answer_holds_what_it_holds(sample: Sample) -> None:
    parser = make_parser(sample.format)
    assert answer_of(read(parser, [sample.text])) == sample.answer
    assert parser.num_calls == len(sample.answer.calls)
    assert not parser.is_call_open


@EACH_SAMPLE
def test_where_an_answer_is_cut_makes_no_difference(sample: Sample) -> None:
    text, whole = sample.text, pieces_of(sample.text, tool_parser=sample.format)
    assert read(make_parser(sample.format), text) == whole
    cuts = [(0, cut) for cut in range(len(text))] + list(itertools.combinations(range(0, len(text), 7), 2))
    for first, second in cuts:
        parts = [text[:first], text[first:second], text[second:]]
        assert read(make_parser(sample.format), parts) == whole, parts


@EACH_SAMPLE
def test_no_markup_leaks_however_short_the_answer_is_cut(sample: Sample) -> None:
    for end in range(len(sample.text)):
        pieces = read(make_parser(sample.format), sample.text[:end], is_cut=True)
        first_call = next((i for i, piece in enumerate(pieces) if isinstance(piece, CallBegun)), len(pieces))
        assert not any(isinstance(piece, Content) for piece in pieces[first_call:])
        content = text_of(pieces, Content).rstrip()
        is_bare = sample.text[0] in "{["  # nothing tells that it is a call until it is one
        assert sample.answer.content.startswith(content) or (is_bare and sample.text.startswith(content)), content
        if first_call < len(pieces):
            assert content == sample.answer.content


@EACH_SAMPLE
def test_without_a_limit_nothing_is_dropped_before_a_call(sample: Sample) -> None:
    if sample.format == "openai":
        return
    for end in range(len(sample.text)):
        pieces = read(make_parser(sample.format), sample.text[:end])
        if not any(isinstance(piece, CallBegun) for piece in pieces):
            assert text_of(pieces, Content) == sample.text[:end]


@EACH_SAMPLE
def test_closing_tags_and_text_behind_a_call_do_not_come_through(sample: Sample) -> None:
    for tail in ("\n", "</tool_call></tool_call>", "]", "\n\nDone.", sample.text[-12:]):
        if sample.format == "openai" or (sample.format == "llama3_json" and tail == sample.text[-12:]):
            continue
        assert answer_of(pieces_of(sample.text + tail, tool_parser=sample.format)) == sample.answer, tail


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_prose_is_content_and_goes_out_at_once(name: str) -> None:
    parser = make_parser(name)
    assert parser.add("It is 3 < 4 and") == [Content("It is 3 < 4 and")]
    assert parser.add(" that's ") == [Content(" that's")]
    assert parser.add("all") == [Content(" all")]
    assert parser.finish() == []
    assert parser.num_calls == 0


@pytest.mark.parametrize("name", sorted(set(TOOL_FORMATS) - {"openai"}))
def test_without_tools_markup_is_content(name: str) -> None:
    for sample in SAMPLES:
        pieces = pieces_of(f"\n{sample.text}\n", tool_parser=name, takes_calls=False)
        assert pieces == [Content(f"\n{sample.text}\n")]


def test_without_tools_a_call_of_gpt_oss_is_content() -> None:
    pieces = pieces_of(SAMPLES[-1].text, tool_parser="openai", takes_calls=False)
    assert [type(piece) for piece in pieces] == [Reasoning, Content]
    assert text_of(pieces, Content).endswith('"level": 3}')


def test_whitespace_before_a_call_is_dropped_and_other_is_kept() -> None:
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert pieces_of(f" Hi \n\n{call}")[0] == Content(" Hi")
    assert pieces_of(f"\n\n{call}")[0] == CallBegun("ping")
    assert pieces_of(" Hi \n\n") == [Content(" Hi \n\n")]
    assert pieces_of(" \n ") == [Content(" \n ")]
    assert pieces_of("") == []


def test_arguments_go_out_as_they_come() -> None:
    parser = make_parser()
    assert parser.add('<tool_call>\n{"name": "lamp_state", "argum') == [CallBegun("lamp_state")]
    assert parser.is_call_open
    assert parser.add('ents": {"room": "at') == [CallArguments('{"room": "at')]
    assert parser.add('tic"') == [CallArguments('tic"')]
    assert parser.add("}}\n</tool_call>") == [CallArguments("}")]
    assert not parser.is_call_open or parser.finish() == []


def test_a_cut_call_is_open_and_keeps_what_was_written() -> None:
    parser = make_parser()
    pieces = read(parser, ['<tool_call>{"name": "lamp_state", "arguments": {"room": "at'])
    assert raw_calls(pieces) == (("lamp_state", '{"room": "at'),)
    assert parser.is_call_open


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_the_text_nothing_raises_and_cuts_make_no_difference(sample: Sample, data: st.DataObject) -> None:
    """Texts made of the parts of an answer, in any order, and of others."""
    marks = sorted({*make_markers(sample.format), *'{}[]()":,=<>/ \n\\', '"a', "'", "é", "name", '"name": "f"'})
    pieces = st.sampled_from([*marks, *sample.text.split(" "), sample.text[:40], sample.text[-30:], "}}", "\n</"])
    text = "".join(data.draw(st.lists(pieces, max_size=25)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    whole = pieces_of(text, tool_parser=sample.format)
    assert read(make_parser(sample.format), parts) == whole
    assert read(make_parser(sample.format), text) == whole


@given(
    room=st.text(st.characters(codec="utf-8"), max_size=30),
    extra=st.dictionaries(st.text(max_size=5), st.integers() | st.none() | st.booleans() | st.text(max_size=9)),
)
@settings(max_examples=60, deadline=None)
def test_any_arguments_come_back_from_json(room: str, extra: dict[str, object]) -> None:
    import json

    arguments = {**extra, "room": room}
    for ascii_only in (True, False):
        call = json.dumps({"name": "lamp_state", "arguments": arguments}, ensure_ascii=ascii_only)
        pieces = pieces_of(f"<tool_call>\n{call}\n</tool_call>")
        assert calls_of(pieces) == (("lamp_state", arguments),)


HUGE = 60_000
DEEP = {
    "brackets": "[" * HUGE,
    "objects": '{"a":' * (HUGE // 5),
    "quotes": '"' * HUGE,
    "backslashes": "\\" * HUGE,
    "tags": "<tool_call>" * (HUGE // 11),
    "ends": "</tool_call>" * (HUGE // 12),
    "half tags": "<tool_cal" * (HUGE // 9),
    "spaces": " " * HUGE,
    "letters": "ab" * (HUGE // 2),
    "parameters": "<parameter=a>" * (HUGE // 13),
    "values": "<arg_key>a</arg_key><arg_value>" * (HUGE // 31),
    "calls": "f(a=1), " * (HUGE // 8),
}
BEGINNINGS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": ',
    "glm45": "<tool_call>f\n<arg_key>a</arg_key><arg_value>",
    "qwen3_coder": "<tool_call><function=f><parameter=a>",
    "gemma4": "<|tool_call>call:f{a:",
    "pythonic": "<|tool_call_start|>[f(a=",
    "mistral": "[TOOL_CALLS]f[ARGS]",
    "openai": "<|channel|>commentary to=functions.f<|message|>",
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_huge_and_deep_answers_take_linear_time(name: str) -> None:
    """Ten times the seconds that they take; quadratic work takes more."""
    started_s = time.process_time()
    for text in DEEP.values():
        for beginning in ("", BEGINNINGS[name]):
            parser = make_parser(name)
            read(parser, [beginning + text])
            parser = make_parser(name)
            read(parser, [beginning, *(text[start : start + 40] for start in range(0, len(text), 40))])
    assert time.process_time() - started_s < 30


def test_neighbours_are_joined() -> None:
    pieces = [Content("a"), Content("b"), CallBegun("f"), CallArguments(""), CallArguments("{"), CallArguments("}")]
    assert list(joined(pieces)) == [Content("ab"), CallBegun("f"), CallArguments("{}")]
    assert list(joined([Content(""), CallBegun("f"), CallBegun("g")])) == [CallBegun("f"), CallBegun("g")]


def make_markers(name: str) -> frozenset[str]:
    return TOOL_FORMATS[name].markers
