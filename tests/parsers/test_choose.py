"""Which formats a model has, and round trips through templates that models ship."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anllm.errors import ConfigError
from anllm.parsers.choose import OutputFormat
from anllm.parsers.stream import Content
from anllm.text.chat_template import ChatTemplate
from parsers.samples import TOOLS, answer_of, deepseek, read

HERE = Path(__file__).parent
FOLDERS = (HERE / "templates", HERE.parent / "text" / "templates")


def template_text(name: str) -> str:
    return next(path for folder in FOLDERS if (path := folder / f"{name}.jinja").is_file()).read_text(encoding="utf-8")


def choose(template: str = "", tokens: Sequence[str] = (), **given: Any) -> OutputFormat:
    return OutputFormat.choose(template, set(tokens).__contains__, **given)


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("qwen2_5", "hermes", None),
        ("qwen3", "hermes", "qwen3"),
        ("llama3_2", "llama3_json", None),
        ("mistral_nemo", "mistral", None),
        ("deepseek_v3", "deepseek_v3", None),
        ("gemma3", "hermes", None),
        ("llama3", "hermes", None),
    ],
)
def test_templates_tell_the_format(template: str, tools: str, reasoning: str | None) -> None:
    found = choose(template_text(template))
    assert found.tools.name == tools
    assert (found.reasoning.name if found.reasoning else None) == reasoning


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("<minimax:tool_call><tool_call>", "minimax_m2"),
        ("<|tool_call>call:<tool_call|>", "gemma4"),
        ("<start_function_call>", "functiongemma"),
        ("<longcat_tool_call>", "longcat"),
        ("<tool_call>{name}\n<arg_key>k</arg_key>\n<arg_value>", "glm45"),
        ("<tool_call>{name}<arg_key>k</arg_key><arg_value>", "glm47"),
        ("<|tool_list_start|>", "pythonic"),
        ("<tool_call>\\n<function=", "qwen3_coder"),
        ("<tool_call>\n<function=x", "qwen3_coder"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("[TOOL_CALLS]name[ARGS]", "mistral"),
        (deepseek("<|tool▁calls▁begin|>"), "deepseek_v31"),
        ("<|channel|>x<|message|> to=functions.", "openai"),
        ("<tool_call> tool_call.name", "hermes"),
        ("<tool_calls>[", "jamba"),
        ('<function name="f"><param name="p">', "minicpm5"),
        ("<\uff5cDSML\uff5cfunction_calls>", "deepseek_v32"),
        ("<TOOLCALL>", "nemotron_json"),
        ("<|tool_call|>", "granite"),
        ("<|tool_call|><|/tool_call|>", "phi4_mini"),
        ("plain", "hermes"),
        ("", "hermes"),
    ],
)
def test_marks_in_a_template_tell_the_format(text: str, tools: str) -> None:
    assert choose(text).tools.name == tools


@pytest.mark.parametrize(
    ("tokens", "tools", "reasoning"),
    [
        (["<|tool_call_start|>", "<|tool_call_end|>"], "pythonic", None),
        (["<|channel|>", "<|message|>", "<|call|>"], "openai", None),
        (["<|tool_calls_section_begin|>", "<think>", "</think>"], "kimi_k2", "kimi_k2"),
        (["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"], "mistral", "mistral"),
        (["<|python_tag|>"], "llama3_json", None),
        (["<think>", "</think>"], "hermes", "qwen3"),
        (["<think>"], "hermes", None),
        (["<|channel>", "<channel|>"], "hermes", "gemma4"),
    ],
)
def test_the_vocabulary_tells_where_the_template_does_not(tokens: list[str], tools: str, reasoning: str | None) -> None:
    found = choose("", tokens)
    assert found.tools.name == tools
    assert (found.reasoning.name if found.reasoning else None) == reasoning
    assert found.reasoning is None or found.reasoning.markers <= found.markers


def test_names_win() -> None:
    found = choose(template_text("qwen3"), tool_parser="qwen3_coder", reasoning_parser="deepseek_r1")
    assert found.tools.name == "qwen3_coder"
    assert found.reasoning is not None
    assert found.reasoning.is_always_on
    assert {"<tool_call>", "</think>"} <= found.markers
    assert choose(reasoning_parser="openai_gptoss").tools.name == "openai"
    assert choose(tool_parser="openai", reasoning_parser="qwen3").reasoning is None


@pytest.mark.parametrize("setting", ["tool_parser", "reasoning_parser"])
def test_an_unknown_name_is_refused_with_those_that_are_known(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting} is 'hermess'; known are .*deepseek_v3.*mistral"):
        choose(**{setting: "hermess"})


# For each template: what ends a turn of the assistant, and the number of calls that it takes at most.
ENDS = {
    "qwen2_5": ("<|im_end|>", 2),
    "qwen3": ("<|im_end|>", 2),
    "llama3_2": ("<|eot_id|>", 1),
    "mistral_nemo": ("</s>", 2),
    "deepseek_v3": (deepseek("<|end▁of▁sentence|>"), 2),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_call_that_a_template_writes_is_read_back(name: str) -> None:
    end, num_calls = ENDS[name]
    text = template_text(name)
    template = ChatTemplate(text, {"eos_token": end, "bos_token": "<s>"})
    calls: list[tuple[str, dict[str, Any]]] = [("lamp_state", {"room": 'the "at}tic" é', "level": 3}), ("ping", {})]
    calls = calls[:num_calls]
    user = {"role": "user", "content": "Lights?"}
    prompt = template.render([user], tools=TOOLS)
    turn = {"role": "assistant", "content": None, "tool_calls": [call_of(*call, name=name) for call in calls]}
    whole = template.render([user, turn], tools=TOOLS, add_generation_prompt=False)
    answer = whole[len(prompt) :].split(end)[0]
    found = choose(text).parser(prompt, TOOLS, takes_calls=True)
    pieces = read(found, [answer])
    assert answer_of(pieces).calls == tuple(calls)
    assert answer_of(pieces).content == ""


def call_of(function: str, arguments: dict[str, Any], *, name: str) -> dict[str, Any]:
    return {"id": "abcdefghi", "type": "function", "function": {"name": function, "arguments": arguments}}


def test_a_thinking_template_is_read_back() -> None:
    text = template_text("qwen3")
    template = ChatTemplate(text, {})
    user = {"role": "user", "content": "Lights?"}
    turn = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nOff."}
    prompt = template.render([user])
    answer = template.render([user, turn], add_generation_prompt=False)[len(prompt) :].removesuffix("<|im_end|>\n")
    found = choose(text)
    assert answer_of(read(found.parser(prompt, None, takes_calls=True), answer)).reasoning == "Hm."
    silent = template.render([user], enable_thinking=False)
    assert read(found.parser(silent, None, takes_calls=True), ["Off."]) == [Content("Off.")]


def test_reasoning_stays_in_the_content_where_it_is_not_wanted() -> None:
    found = choose(tokens=["<think>", "</think>"])
    parser = found.parser("", None, takes_calls=True, takes_reasoning=False)
    assert read(parser, ["<think>Hm</think>Off."]) == [Content("<think>Hm</think>Off.")]
