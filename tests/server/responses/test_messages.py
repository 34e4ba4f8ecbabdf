"""What the items of a conversation are for the chat template."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.errors import InvalidRequestError
from anllm.server.responses.items import kept_form, known_items, without_references
from anllm.server.responses.messages import to_messages
from anllm.server.responses.protocol import ResponsesRequest
from anllm.server.responses.thoughts import decrypted, encrypted


def messages_of(*items: dict[str, Any], kept: dict[str, Any] | None = None) -> list[dict[str, object]]:
    """kept: items that can be referred to, by id."""
    request = ResponsesRequest.model_validate({"model": "m", "input": list(items)})
    assert isinstance(request.input, list)
    placed = without_references(request.input, (kept or {}).get)
    return to_messages(placed, lambda namespace, name: name if namespace is None else f"{namespace}.{name}")


def says(role: str, *texts: str, kind: str = "input_text") -> dict[str, Any]:
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def calls(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "f", "arguments": "{}", **more}


def gives(number: int, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output}


def thinks(text: str, key: str = "content", kind: str = "reasoning_text") -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], key: [{"type": kind, "text": text}]}


def call_of(number: int, name: str = "f", arguments: object = "{}") -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_messages_keep_their_roles_and_texts():
    given = [
        {"role": "system", "content": "a"},
        {"type": "message", "id": "msg_1", "status": "completed", **says("developer", "b")},
        says("user", "c", "d"),
        {"type": "message", **says("assistant", "e", "f", kind="output_text"), "phase": "final_answer"},
    ]
    assert messages_of(*given) == [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "ef"},
    ]


def test_no_parts_are_an_empty_text_and_a_refusal_is_what_was_said():
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages_of(says("user"), refusal) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "No."},
    ]


def test_calls_in_a_row_are_one_turn_with_the_words_and_the_thought_before_them():
    said = says("assistant", "I look.", kind="output_text")
    found = messages_of(says("user", "Go."), thinks("Hm."), said, calls(1), calls(2), gives(1), gives(2, ""))
    assert found[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call_of(1), call_of(2)],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
    ]


def test_calls_that_are_apart_are_turns_of_their_own():
    found = messages_of(
        says("user", "Go."),
        calls(1),
        gives(1),
        thinks("Hm."),
        calls(2),
        gives(2, [{"type": "input_text", "text": "x"}]),
    )
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant", "tool"]
    assert found[3] == {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call_of(2)]}
    assert found[4]["content"] == "x"


def test_words_after_a_call_begin_a_turn_and_so_does_a_thought():
    said = says("assistant", "So.", kind="output_text")
    assert [len(message.get("tool_calls", ())) for message in messages_of(calls(1), said, calls(2))] == [1, 1]
    assert [message.get("reasoning_content") for message in messages_of(calls(1), thinks("Hm."), calls(2))] == [
        None,
        "Hm.",
    ]


def test_a_thought_that_nothing_followed_is_a_turn():
    assert messages_of(thinks("Hm."), says("user", "Go on.")) == [
        {"role": "assistant", "content": "", "reasoning_content": "Hm."},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("item", "thought"),
    [
        (thinks("Hm."), "Hm."),
        (thinks("Hm.", "summary", "summary_text"), "Hm."),
        ({"type": "reasoning", "summary": [], "encrypted_content": encrypted("Hm. é")}, "Hm. é"),
        ({"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAABo-somebody_elses=="}, None),
        ({"type": "reasoning", "summary": []}, None),
        ({"type": "reasoning"}, None),
    ],
)
def test_thoughts_are_taken_from_where_they_are(item: dict[str, Any], thought: str | None):
    (message,) = messages_of(item, says("assistant", "So.", kind="output_text"))
    assert message.get("reasoning_content") == thought


def test_what_is_not_ours_is_no_thought():
    for text in ("", "x", "äöü", "YW5sbG0=", encrypted("a")[:-3]):
        assert decrypted(text) in ("", "a"[:0])
    assert decrypted(encrypted("")) == ""


def test_tools_are_called_by_the_names_that_the_model_knows():
    custom = {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": 'say "x"'}
    given = {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"}
    first, result = messages_of(calls(1, namespace="house"), custom, given)
    assert first["tool_calls"] == [call_of(1, "house.f"), call_of(2, "patch", '{"input": "say \\"x\\""}')]
    assert result == {"role": "tool", "tool_call_id": "call_2", "content": "ok"}


def test_arguments_may_be_an_object_or_nothing():
    (message,) = messages_of(calls(1, arguments={"a": 1}), calls(2, arguments=None))
    assert message["tool_calls"] == [call_of(1, arguments={"a": 1}), call_of(2, arguments="")]


def test_items_of_tools_that_are_not_here_are_dropped():
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    assert messages_of(calls(1), search, calls(2))[0]["tool_calls"] == [call_of(1), call_of(2)]


def test_items_are_referred_to_by_their_ids():
    kept = {
        "fc_1": {"id": "fc_1", "status": "completed", **calls(1)},
        "msg_1": {"type": "message", **says("user", "Hi.")},
    }
    found = messages_of({"id": "msg_1"}, {"type": "item_reference", "id": "fc_1"}, gives(1), kept=kept)
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ([{"type": "nope"}], "input[0].type", "invalid_value"),
        ([says("user", "a"), {"type": "item_reference", "id": "fc_9"}], "input[1].id", None),
        ([gives(1)], "input", None),
        ([calls(1), gives(2)], "input", None),
        ([gives(1), calls(1)], "input", None),
        ([{"type": "web_search_call"}, says("user", "x", kind="nope")], "input[1].content[0].type", "invalid_value"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].type", None),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], "input[0].content[0].type", None),
        (
            [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}],
            "input[0].content[0].type",
            "invalid_value",
        ),
        (
            [{"role": "user", "content": [{"type": "input_text"}]}],
            "input[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal"}]}],
            "input[0].content[0].refusal",
            "missing_required_parameter",
        ),
        ([calls(1), gives(1, [{"type": "input_image"}])], "input[1].output[0].type", None),
    ],
)
def test_what_can_not_be_said_is_refused_by_its_place(items: list[Any], param: str, code: str | None):
    with pytest.raises(InvalidRequestError) as caught:
        messages_of(*items)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize(
    ("given", "prefix", "more"),
    [
        (
            says("user", "a"),
            "msg_",
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        ),
        (
            {"role": "assistant", "content": "a"},
            "msg_",
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
            },
        ),
        (calls(1, arguments={"a": 1}, namespace="n"), "fc_", {**calls(1, arguments='{"a": 1}'), "namespace": "n"}),
        (gives(1), "fco_", gives(1)),
        (gives(1, [{"type": "output_text", "text": "x"}]), "fco_", gives(1, [{"type": "input_text", "text": "x"}])),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
            "ctc_",
            {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
        ),
        (
            thinks("Hm."),
            "rs_",
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "encrypted_content": None,
            },
        ),
    ],
)
def test_items_are_kept_as_the_api_lists_them(given: dict[str, Any], prefix: str, more: dict[str, Any]):
    ((_, item),) = known_items([given])
    kept = kept_form(item)
    assert kept.pop("id").startswith(prefix)
    assert kept == {"status": "completed", **more}
    assert to_messages(known_items([kept_form(item)]) if prefix != "fco_" else [], lambda _, name: name) is not None
    ((_, named),) = known_items([{**given, "id": "mine"}])
    assert kept_form(named)["id"] == "mine"
