"""Whole calls as mlx-lm reads them (mlx_lm.tool_parsers)."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from parsers.samples import SAMPLES, TOOLS, calls_of, pieces_of

pytestmark = pytest.mark.mlx

MODULES = {
    "functiongemma": "function_gemma",
    "gemma4": "gemma4",
    "glm45": "glm47",
    "glm47": "glm47",
    "hermes": "json_tools",
    "kimi_k2": "kimi_k2",
    "minicpm5": "minicpm5",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral",
    "pythonic": "pythonic",
    "qwen3_coder": "qwen3_coder",
}
ODD = [
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n x \n y\n</parameter>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=lamp_state><parameter=level>4.0</parameter></function></tool_call>"),
    ("functiongemma", "<start_function_call>call:f{a:<escape>b, c<escape>,d:3,e:true}<end_function_call>"),
    ("minimax_m2", '<minimax:tool_call><invoke name="lamp_state"><parameter name="on">yes?</parameter></invoke>'
     "</minimax:tool_call>"),
    ("gemma4", '<|tool_call>call:f{a:[{b:<|"|>{x:1}<|"|>},2.5],c:true}<tool_call|>'),
    ("pythonic", '<|tool_call_start|>[f.g(a={"k": [true, null]}, b=(1, 2), c="x\\ny")]<|tool_call_end|>'),
    ("mistral", '[TOOL_CALLS]a-b[ARGS]{"x": {"y": "]"}}'),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|> functions.a.b:12 <|tool_call_argument_begin|> {}"
     "<|tool_call_end|><|tool_calls_section_end|>"),
]  # fmt: skip
# mlx-lm takes an id for a name, and a brace in a string for the end of a call.
NOT_ITS = ("[CALL_ID]", "<escape>the")
CASES = [
    (sample.format, sample.text)
    for sample in SAMPLES
    if sample.format in MODULES and not any(text in sample.text for text in NOT_ITS)
] + ODD


@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_calls_are_those_that_mlx_lm_reads(name: str, text: str) -> None:
    pytest.importorskip("mlx.core")
    module = importlib.import_module(f"mlx_lm.tool_parsers.{MODULES[name]}")
    expected: list[dict[str, Any]] = []
    for body in text.split(module.tool_call_start)[1:]:
        body = body.split(module.tool_call_end)[0] if module.tool_call_end else body
        calls = module.parse_tool_call(body, TOOLS)
        expected += calls if isinstance(calls, list) else [calls]
    found = calls_of(pieces_of(text, tool_parser=name))
    wanted = [(call["name"], call["arguments"]) for call in expected]
    if name == "glm47":  # mlx-lm has no form for a call without parameters in one line
        wanted = [("ping", {}) if call == ("unknown", {"raw": "ping"}) else call for call in wanted]
    assert [(call, list_tuples(arguments)) for call, arguments in wanted] == list(found)


def list_tuples(value: Any) -> Any:
    """Tuples as JSON has them."""
    if isinstance(value, dict):
        return {key: list_tuples(item) for key, item in value.items()}
    return [list_tuples(item) for item in value] if isinstance(value, list | tuple) else value
