"""Messages in plainer forms for templates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from anllm.text.messages import conversations, parse_arguments, plain_message


def make_call(arguments: object) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "index": 0, "function": {"name": "lamp", "arguments": arguments}}


def forms(*messages: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return list(conversations(messages, keeps_developer=False))


def test_parts_are_joined_with_nothing_between() -> None:
    parts = [{"type": "text", "text": "Say the"}, {"type": "text", "text": " word.", "cache_control": {}}]
    assert plain_message({"role": "user", "content": parts}, keeps_developer=False)["content"] == "Say the word."


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": []}, {"content": ""}])
def test_no_content_is_an_empty_string(message: dict[str, Any]) -> None:
    plain = plain_message({"role": "assistant", **message}, keeps_developer=False)
    assert plain == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("empty", [{"tool_calls": []}, {"tool_calls": None}, {"function_call": None}, {"name": None}])
def test_empty_and_null_keys_are_dropped(empty: dict[str, Any]) -> None:
    plain = plain_message({"role": "assistant", "content": "ok", **empty}, keeps_developer=False)
    assert plain == {"role": "assistant", "content": "ok"}


def test_developer_becomes_system_unless_the_template_knows_it() -> None:
    message = {"role": "developer", "content": "x"}
    assert plain_message(message, keeps_developer=False)["role"] == "system"
    assert plain_message(message, keeps_developer=True)["role"] == "developer"


def test_function_becomes_tool() -> None:
    plain = plain_message({"role": "function", "name": "lamp", "content": "off"}, keeps_developer=False)
    assert plain == {"role": "tool", "name": "lamp", "content": "off"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"room": "attic"}', {"room": "attic"}),
        ({"room": "attic"}, {"room": "attic"}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        ('{"room": ', '{"room": '),
        ("5", "5"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_become_an_object_where_they_are_one(arguments: object, expected: object) -> None:
    assert parse_arguments(arguments) == expected


def test_a_replayed_tool_call_loses_its_index() -> None:
    plain = plain_message({"role": "assistant", "tool_calls": [make_call('{"n": 2}')]}, keeps_developer=False)
    assert plain["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "lamp", "arguments": {"n": 2}}}
    ]


def test_a_function_call_becomes_a_tool_call() -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": "lamp", "arguments": "{}"}}
    plain = plain_message(message, keeps_developer=False)
    assert plain == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "lamp", "arguments": {}}}],
    }


def test_leading_system_messages_become_one_and_later_ones_stay_at_first() -> None:
    plain, regrouped, folded = forms(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "e"},
    )
    assert [(message["role"], message["content"]) for message in plain] == [
        ("system", "a\n\nb"),
        ("user", "c"),
        ("system", "d"),
        ("user", "e"),
    ]
    assert regrouped == [{"role": "system", "content": "a\n\nb\n\nd"}, {"role": "user", "content": "c\n\ne"}]
    assert folded == [{"role": "user", "content": "a\n\nb\n\nd\n\nc\n\ne"}]


def test_a_lone_system_message_becomes_a_user_message_at_last() -> None:
    assert forms({"role": "system", "content": "a"})[-1] == [{"role": "user", "content": "a"}]


def test_merged_assistant_turns_keep_all_tool_calls() -> None:
    first = {"role": "assistant", "content": "x", "tool_calls": [make_call("{}")]}
    second = {"role": "assistant", "content": "y", "tool_calls": [make_call('{"n": 1}')]}
    (merged,) = forms(first, second)[1]
    assert merged["content"] == "x\n\ny"
    assert [call["function"]["arguments"] for call in merged["tool_calls"]] == [{}, {"n": 1}]


def test_tool_messages_are_never_merged() -> None:
    tool = {"role": "tool", "content": "off", "tool_call_id": "c1"}
    assert forms({"role": "user", "content": "x"}, tool, tool) == [[{"role": "user", "content": "x"}, tool, tool]]


def test_a_conversation_that_is_plain_already_has_one_form() -> None:
    assert len(forms({"role": "user", "content": "x"})) == 1


def test_the_messages_given_stay_as_they_are() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "system", "content": "b"},
        {"role": "assistant", "content": None, "tool_calls": [make_call('{"n": 2}')]},
        {"role": "user", "content": "c"},
    ]
    before = copy.deepcopy(messages)
    forms(*messages)
    assert messages == before
