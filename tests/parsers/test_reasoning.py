"""Reasoning in front of the answer."""

from __future__ import annotations

import pytest

from anllm.parsers.reasoning.table import REASONING_FORMATS
from anllm.parsers.stream import Content, Reasoning
from parsers.samples import Answer, answer_of, make_parser, pieces_of, read

TAGGED = sorted(name for name, found in REASONING_FORMATS.items() if found)


def tags(name: str) -> tuple[str, str]:
    found = REASONING_FORMATS[name]
    assert found is not None
    return found.begin + found.begin_line, found.end


@pytest.mark.parametrize("name", TAGGED)
def test_a_block_that_the_answer_opens_or_the_prompt(name: str) -> None:
    begin, end = tags(name)
    expected = [Reasoning("So <b>,\nthen"), Content("It is off.\n")]
    body = f"\nSo <b>,\nthen\n{end}\n\nIt is off.\n"
    for prompt, text in (("", begin + body), ("", f"\n{begin}{body}"), (f"user: hi {begin}\n", body)):
        assert pieces_of(text, reasoning_parser=name, prompt=prompt) == expected
        assert read(make_parser(reasoning_parser=name, prompt=prompt), text) == expected


@pytest.mark.parametrize("name", TAGGED)
def test_all_of_a_block_without_end_is_reasoning(name: str) -> None:
    begin, _ = tags(name)
    assert pieces_of(f"{begin}\nSo then\n", reasoning_parser=name) == [Reasoning("So then")]
    assert pieces_of("So then", reasoning_parser=name, prompt=begin) == [Reasoning("So then")]


@pytest.mark.parametrize("name", TAGGED)
def test_half_a_tag_is_not_shown_where_a_limit_cut_it(name: str) -> None:
    begin, end = tags(name)
    for cut in range(1, len(end)):
        text = f"{begin}So then\n{end[:cut]}"
        assert read(make_parser(reasoning_parser=name), text, is_cut=True) == [Reasoning("So then")]
    for cut in range(1, len(begin)):
        assert read(make_parser(reasoning_parser=name), f"\n{begin[:cut]}", is_cut=True) == []


@pytest.mark.parametrize("name", TAGGED)
def test_behind_a_block_that_the_prompt_has_closed_all_is_content(name: str) -> None:
    begin, end = tags(name)
    prompt = f"{begin}\n\n{end}\n\n"
    assert pieces_of("It is off.", reasoning_parser=name, prompt=prompt) == [Content("It is off.")]
    assert pieces_of("", reasoning_parser=name, prompt=prompt) == []


@pytest.mark.parametrize("name", TAGGED)
def test_an_answer_that_opens_no_block(name: str) -> None:
    _, end = tags(name)
    found = REASONING_FORMATS[name]
    assert found is not None
    expected = [Reasoning("So then"), Content("Off.")] if found.is_always_on else [Content(f"So then{end}Off.")]
    assert pieces_of(f"So then{end}Off.", reasoning_parser=name) == expected


def test_a_block_later_in_the_answer_is_content() -> None:
    text = "First <think>no</think> last"
    assert pieces_of(text, reasoning_parser="qwen3") == [Content(text)]


def test_a_call_behind_a_block() -> None:
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    expected = Answer("", (("ping", {}),), "Hm <tool_call>")
    assert answer_of(pieces_of(f"<think>Hm <tool_call></think>\n\n{call}", reasoning_parser="qwen3")) == expected


def test_calls_of_kimi_end_a_block_that_has_no_end() -> None:
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    pieces = pieces_of(f"Hm {call}", tool_parser="kimi_k2", reasoning_parser="kimi_k2", prompt="<think>")
    assert answer_of(pieces) == Answer("", (("ping", {}),), "Hm")


def test_the_parser_tells_whether_a_block_is_open() -> None:
    parser = make_parser(reasoning_parser="qwen3", prompt="<think>\n")
    assert parser.is_reasoning
    parser.add("So")
    assert parser.is_reasoning
    parser.add("</think>")
    assert not parser.is_reasoning
    parser = make_parser(reasoning_parser="qwen3")
    assert not parser.is_reasoning
    parser.add("<think>So")
    assert parser.is_reasoning
    assert parser.finish() == []


def test_gpt_oss_begins_where_the_prompt_ends() -> None:
    def read_with(prompt: str, text: str) -> Answer:
        return answer_of(pieces_of(text, tool_parser="openai", prompt=prompt))

    body = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Off."
    start = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    assert read_with(start, f"<|channel|>analysis<|message|>{body}") == Answer("Off.", (), "Hm.")
    assert read_with(f"{start}<|channel|>analysis<|message|>", body) == Answer("Off.", (), "Hm.")
    assert read_with(f"{start}<|channel|>final<|message|>", "Off.") == Answer("Off.")
    assert read_with(f"{start}<|channel|>final<|message|>It is", " off.") == Answer(" off.")
    assert make_parser("openai", prompt=f"{start}<|channel|>analysis<|message|>").is_reasoning
    call = " to=functions.ping<|channel|>commentary json<|message|>{}"
    assert read_with(start, call) == Answer("", (("ping", {}),))
    assert read_with(start, "Plain") == Answer("Plain")
    assert read_with("", "Plain") == Answer("Plain")
