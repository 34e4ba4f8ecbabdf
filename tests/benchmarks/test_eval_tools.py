"""How answers are read and counted."""

from __future__ import annotations

import json

import pytest
from bfcl import Call, Case
from eval_tools import Answer, calls_in_message, calls_in_text, figures, request, table

FUNCTION = {
    "name": "weather.get",
    "description": "The weather.",
    "parameters": {"type": "dict", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
}
CASE = Case("simple_0", "simple", [{"role": "user", "content": "?"}], [FUNCTION], [{"weather.get": {"days": [3]}}])
RIGHT = Call("weather_get", {"days": 3})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[{"name": "f", "arguments": {"a": [1]}}]', [Call("f", {"a": [1]})]),
        (
            '```json\n[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]\n```',
            [Call("f", {}), Call("g", {})],
        ),
        ('{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}', [Call("f", {}), Call("g", {})]),
        ("There is no function for that.", []),
        ('[{"name": "f", "arguments": {"a": ', [Call("", None)]),
        ('{"name": "f", "arguments": "a"} and {"a": 1}', [Call("f", None), Call("", None)]),
        ("[f(a=1)]", [Call("", None)]),
        ("[]", []),
    ],
)
def test_calls_are_read_from_text(text, calls):
    assert calls_in_text(text) == calls


def test_calls_are_read_from_a_message():
    functions = [{"name": "f", "arguments": '{"a": 1}'}, {"name": "g", "arguments": '{"a": '}]
    message = {"tool_calls": [{"function": function} for function in functions]}
    assert calls_in_message(message) == [Call("f", {"a": 1}), Call("g", None)]
    assert calls_in_message({"content": "hello"}) == []


def test_tools_are_sent_or_described():
    assert request(CASE, "required")["tool_choice"] == "required"
    assert request(CASE, "auto")["tools"][0]["function"]["name"] == "weather_get"
    asked = request(CASE, "text")
    assert asked.keys() == {"messages"}
    assert json.loads(asked["messages"][0]["content"].splitlines()[1])["name"] == "weather_get"


def test_calls_fit_or_not():
    calls = [RIGHT, Call("weather_get", {"days": "3"}), Call("weather_get", {}), Call("news", {}), Call("", None)]
    assert Answer(CASE, calls).misfits() == [
        'weather_get: "3" is not of type "integer"',
        'weather_get: "days" is a required property',
        "news: no such function",
        "the answer: no JSON",
    ]


def test_a_call_that_was_cut_off_is_no_call():
    answers = [Answer(CASE, [RIGHT, Call("weather_get", None)], is_cut=True), Answer(CASE, [RIGHT])]
    counted = figures(answers)
    assert (counted["calls"], counted["fit"], counted["cut"]) == (2, 2, ["simple_0"])
    assert counted["right"]["simple"] == 1


def test_calls_that_were_taken_for_content_are_counted_by_themselves():
    counted = figures([Answer(CASE, in_content=[RIGHT, RIGHT, Call("", None)])])
    assert (counted["calls"], counted["in_content"], counted["with_calls"]) == (0, 2, 0)


def test_the_table_has_a_column_for_each_way():
    answers = [Answer(CASE, [RIGHT], output_tokens=1234), Answer(CASE, error="500")]
    lines = table({"required": {**figures(answers), "seconds": 1.2}}).splitlines()
    assert lines[0] == "|  | required |"
    assert "| answers with a call | 1 of 2 |" in lines
    assert "| right: simple | 1 of 2 |" in lines
    assert "| tokens in, out | 0, 1,234 |" in lines
