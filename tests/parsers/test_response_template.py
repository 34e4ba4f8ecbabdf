"""Answers read with a checkpoint's response_template."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.errors import ConfigError
from anllm.parsers.choose import OutputFormat
from anllm.parsers.stream import CallBegun, Content, OutputParser, Reasoning
from anllm.parsers.tools.table import TOOL_FORMATS
from parsers.samples import TOOLS, Answer, answer_of, read

TEMPLATE: dict[str, Any] = {
    "version": 1,
    "start_anchor": "<|im_start|>assistant\n",
    "defaults": {"role": "assistant"},
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "content": {"close": "<|im_end|>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
PROMPT = "<|im_start|>user\nLights?<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "lamp_state", "arguments": {"room": "attic"}}\n</tool_call>'
PING = '<tool_call>{"name": "ping"}</tool_call>'


def make_parser(prompt: str = PROMPT, *, takes_calls: bool = True) -> OutputParser:
    found = OutputFormat.choose("", lambda text: False, response_template=TEMPLATE)
    return found.parser(prompt, TOOLS, takes_calls=takes_calls)


def test_content_reasoning_and_calls_come_out_wherever_the_answer_is_cut() -> None:
    text = f"<think>\nHm.\n</think>\n\nOk.\n{CALL}\n{PING}\n"
    expected = Answer("Ok.", (("lamp_state", {"room": "attic"}), ("ping", {})), "Hm.")
    whole = read(make_parser(), [text])
    assert answer_of(whole) == expected
    assert read(make_parser(), text) == whole
    for cut in range(len(text)):
        parser = make_parser()
        assert read(parser, [text[:cut], text[cut:]]) == whole
        assert parser.num_calls == 2
        assert not parser.is_call_open


def test_a_block_that_the_prompt_opened_goes_on() -> None:
    parser = make_parser(f"{PROMPT}<think>\n")
    assert parser.is_reasoning
    pieces = parser.add("Hm.")
    assert pieces == [Reasoning("Hm.")]
    assert parser.is_reasoning
    assert parser.add("</think>\nOff.") == [Content("Off.")]
    assert not parser.is_reasoning
    assert parser.finish() == []


@pytest.mark.parametrize("body", ["oops", '{"nom": 1}', "[3]", "3"])
def test_a_call_that_the_parser_can_not_read_is_content(body: str) -> None:
    text = f"Ok {TEMPLATE['fields']['tool_calls']['open']}{body}</tool_call> more {CALL}"
    pieces = read(make_parser(), [text])
    assert all(isinstance(piece, Content) for piece in pieces)
    assert answer_of(pieces).content == text
    assert read(make_parser(), text) == pieces


def test_a_prompt_that_the_parser_can_not_read_does_no_harm() -> None:
    parser = make_parser(f"{PROMPT}<tool_call>oops</tool_call>")
    assert read(parser, f"Ok {PING}") == [Content(f"Ok {PING}")]


def test_nothing_follows_a_call() -> None:
    pieces = read(make_parser(), [f"{PING} more <tool_call>oops</tool_call> end"])
    assert [type(piece) for piece in pieces[:1]] == [CallBegun]
    assert answer_of(pieces) == Answer("", (("ping", {}),))


def test_without_tools_calls_are_content() -> None:
    pieces = read(make_parser(takes_calls=False), [f"Ok {PING}"])
    assert all(isinstance(piece, Content) for piece in pieces)


def test_the_marks_of_regions_are_kept() -> None:
    fields = {"a": {"open": "<|c|>x<|m|>", "close": ["<e>", "[END]"]}, "b": {"open_pattern": r"<\|call\|>(?P<n>\w+)"}}
    found = OutputFormat(TOOL_FORMATS["hermes"], None, {"fields": fields})
    assert found.markers >= {"<|c|>", "<|m|>", "<e>", "[END]", "<|call|>"}
    assert OutputFormat(TOOL_FORMATS["hermes"], None, {"fields": None}).markers == frozenset()


def test_names_win_over_a_template_and_a_broken_one_stops_the_start() -> None:
    found = OutputFormat.choose("", lambda text: False, tool_parser="glm45", response_template=TEMPLATE)
    assert found.response_template is None
    with pytest.raises(ConfigError, match="response_template"):
        OutputFormat.choose("", lambda text: False, response_template={"version": 9})
