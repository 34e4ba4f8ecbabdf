"""Answers in each format, as models write them, with what they hold; and short ways to read an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anllm.parsers.choose import OutputFormat
from anllm.parsers.stream import CallArguments, CallBegun, Content, OutputParser, Piece, Reasoning, joined

LAMP = {
    "type": "object",
    "properties": {
        "room": {"type": "string"},
        "level": {"type": "integer"},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["room"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "lamp_state", "parameters": LAMP}},
    {"type": "function", "function": {"name": "ping"}},
]
BAR = "\uff5c"


def deepseek(text: str) -> str:
    return text.replace("<|", f"<{BAR}").replace("|>", f"{BAR}>")


@dataclass(frozen=True)
class Answer:
    """What an answer holds. calls: names with their arguments, parsed."""

    content: str
    calls: tuple[tuple[str, Any], ...] = ()
    reasoning: str = ""


@dataclass(frozen=True)
class Sample:
    format: str
    text: str
    answer: Answer


ATTIC: tuple[str, Any] = ("lamp_state", {"room": 'the "at}tic" é', "level": 3})
PING: tuple[str, Any] = ("ping", {})
SAMPLES = [
    Sample(
        "hermes",
        'Let me <see>.\n<tool_call>\n{"name": "lamp_state", "arguments": {"room": "the \\"at}tic\\" é", "level": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
        Answer("Let me <see>.", (ATTIC, PING)),
    ),
    Sample(
        "llama3_json",
        '{"name": "lamp_state", "parameters": {"room": "the \\"at}tic\\" é", "level": 3}}; {"name": "ping", '
        '"parameters": {}}',
        Answer("", (ATTIC, PING)),
    ),
    Sample(
        "llama3_json",
        'So:\n<|python_tag|>{"type": "function", "name": "ping", "parameters": {}}',
        Answer("So:", (PING,)),
    ),
    Sample(
        "mistral",
        'Ok. [TOOL_CALLS] [{"name": "lamp_state", "arguments": {"room": "the \\"at}tic\\" é", "level": 3}, "id": "a"}, '
        '{"name": "ping", "arguments": {}}]',
        Answer("Ok.", (ATTIC, PING)),
    ),
    Sample(
        "mistral",
        'Ok.[TOOL_CALLS]lamp_state[ARGS]{"room": "the \\"at}tic\\" é", "level": 3}[TOOL_CALLS]ping[CALL_ID]a1[ARGS]{}',
        Answer("Ok.", (ATTIC, PING)),
    ),
    Sample(
        "deepseek_v3",
        deepseek(
            "Ok\n<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>lamp_state\n```json\n"
            '{"room": "the \\"at}tic\\" é", "level": 3}\n```<|tool▁call▁end|>\n<|tool▁call▁begin|>function<|tool▁sep|>'
            "ping\n```json\n{}\n```<|tool▁call▁end|><|tool▁calls▁end|>"
        ),
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "deepseek_v31",
        deepseek(
            "Ok<|tool▁calls▁begin|><|tool▁call▁begin|>lamp_state<|tool▁sep|>"
            '{"room": "the \\"at}tic\\" é", "level": 3}<|tool▁call▁end|><|tool▁call▁begin|>ping<|tool▁sep|>{}'
            "<|tool▁call▁end|><|tool▁calls▁end|>"
        ),
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "kimi_k2",
        "Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.lamp_state:0<|tool_call_argument_begin|>"
        '{"room": "the \\"at}tic\\" é", "level": 3}<|tool_call_end|><|tool_call_begin|>functions.ping:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "glm45",
        'Ok\n<tool_call>lamp_state\n<arg_key>room</arg_key>\n<arg_value>the "at}tic" é</arg_value>\n'
        "<arg_key>level</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "glm47",
        'Ok<tool_call>lamp_state<arg_key>room</arg_key><arg_value>the "at}tic" é</arg_value><arg_key>level</arg_key>'
        "<arg_value>3</arg_value></tool_call><tool_call>ping</tool_call>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "gemma4",
        'Ok<|tool_call>call:lamp_state{level:3,room:<|"|>the "at}tic" é<|"|>}<tool_call|>'
        "<|tool_call>call:ping{}<tool_call|>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "functiongemma",
        'Ok<start_function_call>call:lamp_state{level:3,room:<escape>the "at}tic" é<escape>}<end_function_call>'
        "<start_function_call>call:ping{}<end_function_call>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "minimax_m2",
        'Ok\n<minimax:tool_call>\n<invoke name="lamp_state">\n<parameter name="room">the "at}tic" é</parameter>\n'
        '<parameter name="level">3</parameter>\n</invoke>\n<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "qwen3_coder",
        'Ok\n<tool_call>\n<function=lamp_state>\n<parameter=room>\nthe "at}tic" é\n</parameter>\n<parameter=level>\n3\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "deepseek_v32",
        deepseek(
            'Ok\n\n<|DSML|function_calls>\n<|DSML|invoke name="lamp_state">\n'
            '<|DSML|parameter name="room" string="true">the "at}tic" é</|DSML|parameter>\n'
            '<|DSML|parameter name="level" string="false">3</|DSML|parameter>\n'
            '</|DSML|invoke>\n<|DSML|invoke name="ping">\n\n</|DSML|invoke>\n</|DSML|function_calls>'
        ).replace("|", BAR),
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "minicpm5",
        'Ok\n<function name="lamp_state"><param name="room"><![CDATA[the "at}tic" é]]></param><param name="level">3'
        '</param></function>\n<function name="ping"></function>',
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "pythonic",
        "Ok<|tool_call_start|>[lamp_state(room='the \"at}tic\" é', level=3), ping()]<|tool_call_end|>",
        Answer("Ok", (ATTIC, PING)),
    ),
    Sample(
        "llama4_pythonic",
        '[lamp_state(room="the \\"at}tic\\" é", level=3), ping()]',
        Answer("", (ATTIC, PING)),
    ),
    Sample(
        "openai",
        "<|channel|>analysis<|message|>Lights?\n<|end|><|start|>assistant<|channel|>commentary<|message|>Ok<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.lamp_state <|constrain|>json<|message|>"
        '{"room": "the \\"at}tic\\" é", "level": 3}',
        Answer("Ok", (ATTIC,), "Lights?"),
    ),
]
IDS = [f"{index}-{sample.format}" for index, sample in enumerate(SAMPLES)]


def output_format(tool_parser: str | None = None, reasoning_parser: str | None = None) -> OutputFormat:
    return OutputFormat.choose("", lambda text: False, tool_parser, reasoning_parser)


def make_parser(
    tool_parser: str = "hermes",
    reasoning_parser: str | None = None,
    *,
    prompt: str = "",
    takes_calls: bool = True,
    tools: Sequence[Mapping[str, object]] = TOOLS,
) -> OutputParser:
    return output_format(tool_parser, reasoning_parser).parser(prompt, tools, takes_calls=takes_calls)


def read(parser: OutputParser, texts: Iterable[str], *, is_cut: bool = False) -> list[Piece]:
    """All pieces of an answer that comes in these texts, neighbours of one kind joined."""
    pieces = [piece for text in texts for piece in parser.add(text)]
    return list(joined(pieces + parser.finish(is_cut=is_cut)))


def pieces_of(text: str, **given: Any) -> list[Piece]:
    return read(make_parser(**given), [text])


def text_of(pieces: Iterable[Piece], kind: type[Content] | type[Reasoning]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def calls_of(pieces: Iterable[Piece], parse: Callable[[str], Any] = json.loads) -> tuple[tuple[str, Any], ...]:
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegun):
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.text
    return tuple((name, parse(arguments)) for name, arguments in calls)


def raw_calls(pieces: Iterable[Piece]) -> tuple[tuple[str, str], ...]:
    return calls_of(pieces, str)


def answer_of(pieces: Sequence[Piece]) -> Answer:
    return Answer(text_of(pieces, Content), calls_of(pieces), text_of(pieces, Reasoning))
