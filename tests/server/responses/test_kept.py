"""Responses that are kept, over HTTP: contract C184, C185 and C188."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from anllm.config import SecurityConfig, ServerConfig
from server_harness import ANSWER, EOS, Server, assert_error, named_events, responses_body

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
UNKNOWN = ("previous_response_id", "previous_response_not_found")


async def made(server: Server, **fields: Any) -> dict[str, Any]:
    response = await server.respond(**fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def said(server: Server) -> list[tuple[str, object]]:
    return [(message["role"], message["content"]) for message in server.template.messages]


async def test_C184_a_response_goes_on_from_another(server: Server) -> None:
    first = await made(server, input="My name is Bo.")
    second = await made(server, input="What is my name?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    third = await made(server, input=[{"role": "user", "content": "Sure?"}], previous_response_id=second["id"])
    turns = [("user", "My name is Bo."), ("assistant", ANSWER), ("user", "What is my name?"), ("assistant", ANSWER)]
    assert said(server) == [*turns, ("user", "Sure?")]
    await made(server, input=..., previous_response_id=third["id"])
    assert said(server)[-1] == ("assistant", ANSWER)


async def test_a_stream_can_be_gone_on_from_once_it_has_ended(server: Server) -> None:
    events = named_events((await server.respond(input="Hi.", stream=True)).text)
    final = events[-1]["response"]
    await made(server, input="And?", previous_response_id=final["id"])
    assert said(server) == [("user", "Hi."), ("assistant", ANSWER), ("user", "And?")]
    assert (await server.http.get(f"{RESPONSES}/{final['id']}")).json() == final


async def test_C184_what_is_not_kept_is_not_found(server: Server) -> None:
    for previous in ("resp_unknown", "", (await made(server, store=False))["id"]):
        error = assert_error(await server.respond(previous_response_id=previous), 400, *UNKNOWN)
        assert "'store'" in error["message"]


async def test_C185_instructions_are_not_inherited(server: Server) -> None:
    first = await made(server, instructions="Answer in one word.")
    await made(server, input="Again.", previous_response_id=first["id"])
    assert [role for role, _ in said(server)] == ["user", "assistant", "user"]


async def test_calls_go_on_from_the_response_that_made_them(server: Server) -> None:
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "name": "ping"}]
    server.client.answer = lambda request: [*call.encode(), EOS]
    first = await made(server, tools=tools)
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "pong"}
    server.client.answer = lambda request: [*b"Pong.", EOS]
    second = await made(server, tools=tools, input=[result], previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "Pong."
    assert [role for role, _ in said(server)] == ["user", "assistant", "tool"]
    wrong = {**result, "call_id": "call_other"}
    assert_error(await server.respond(input=[wrong], previous_response_id=first["id"]), 400, "input", None)


async def test_items_of_kept_responses_can_be_referred_to(server: Server) -> None:
    first = await made(server, input=[{"role": "user", "content": "Hi.", "id": "msg_mine"}])
    references = [{"type": "item_reference", "id": "msg_mine"}, {"id": first["output"][0]["id"]}]
    await made(server, input=[*references, {"role": "user", "content": "And?"}])
    assert said(server) == [("user", "Hi."), ("assistant", ANSWER), ("user", "And?")]
    error = assert_error(await server.respond(input=[{"type": "item_reference", "id": "msg_x"}]), 400, "input[0].id")
    assert "msg_x" in error["message"]


async def test_C188_a_response_is_given_again_and_forgotten(server: Server) -> None:
    first = await made(server)
    path = f"{RESPONSES}/{first['id']}"
    got = await server.http.get(path)
    assert got.json() == first and got.headers["content-type"] == "application/json"
    deleted = await server.http.delete(path)
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    for again in (await server.http.get(path), await server.http.delete(path)):
        assert_error(again, 404, None, None)
    assert_error(await server.respond(previous_response_id=first["id"]), 400, *UNKNOWN)


async def test_a_conversation_that_lost_its_beginning_says_so(server: Server) -> None:
    first = await made(server)
    second = await made(server, previous_response_id=first["id"])
    await server.http.delete(f"{RESPONSES}/{first['id']}")
    error = assert_error(await server.respond(previous_response_id=second["id"]), 400, *UNKNOWN)
    assert first["id"] in error["message"] and second["id"] in error["message"]


async def test_input_items_come_page_by_page(server: Server) -> None:
    first = await made(server, input="One.")
    second = await made(server, input=[{"role": "user", "content": "Two."}], previous_response_id=first["id"])
    path = f"{RESPONSES}/{second['id']}/input_items"
    everything = (await server.http.get(path, params={"order": "asc"})).json()
    assert [item["content"][0]["text"] for item in everything["data"]] == ["One.", ANSWER, "Two."]
    assert (everything["object"], everything["has_more"]) == ("list", False)
    assert (
        everything["first_id"] == everything["data"][0]["id"] and everything["last_id"] == everything["data"][-1]["id"]
    )
    assert (await server.http.get(path)).json()["data"] == everything["data"][::-1]
    page = (await server.http.get(path, params={"limit": 2})).json()
    assert page["has_more"] and page["data"] == everything["data"][:0:-1]
    rest = (await server.http.get(path, params={"limit": 2, "after": page["last_id"]})).json()
    assert not rest["has_more"] and rest["data"] == everything["data"][:1]
    for wrong, param in (
        ({"limit": 0}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "x"}, "after"),
    ):
        assert_error(await server.http.get(path, params=wrong), 400, param, "invalid_value")
    assert_error(await server.http.get(f"{RESPONSES}/resp_x/input_items"), 404, None, None)


async def test_only_what_runs_in_the_background_could_be_cancelled(server: Server) -> None:
    first = await made(server)
    error = assert_error(await server.post(f"{RESPONSES}/{first['id']}/cancel"), 400, None, None)
    assert "background" in error["message"]
    assert_error(await server.post(f"{RESPONSES}/resp_x/cancel"), 404, None, None)


async def test_what_is_kept_is_not_streamed_again(server: Server) -> None:
    first = await made(server)
    path = f"{RESPONSES}/{first['id']}"
    assert_error(await server.http.get(path, params={"stream": "true"}), 400, "stream", "unsupported_parameter")
    assert (await server.http.get(path, params={"stream": "false"})).json() == first


async def test_each_key_has_its_own_responses() -> None:
    server = Server(security=SecurityConfig(api_keys=("ann", "bob")))
    ann, bob = ({"authorization": f"Bearer {name}"} for name in ("ann", "bob"))
    first = (await server.http.post(RESPONSES, json=responses_body(), headers=ann)).json()
    path = f"{RESPONSES}/{first['id']}"
    assert (await server.http.get(path, headers=ann)).json() == first
    for refused in (await server.http.get(path, headers=bob), await server.http.delete(path, headers=bob)):
        assert_error(refused, 404, None, None)
    body = responses_body(previous_response_id=first["id"])
    assert_error(await server.http.post(RESPONSES, json=body, headers=bob), 400, *UNKNOWN)
    body = responses_body(input=[{"type": "item_reference", "id": first["output"][0]["id"]}])
    assert_error(await server.http.post(RESPONSES, json=body, headers=bob), 400, "input[0].id", None)
    for open_to_all in (await server.http.get(path), await server.http.delete(path), await server.http.post(RESPONSES)):
        assert_error(open_to_all, 401)


async def test_the_store_can_be_bounded_and_switched_off() -> None:
    server = Server(ServerConfig(max_stored_responses=1))
    first, second = await made(server), await made(server)
    assert (await server.http.get(f"{RESPONSES}/{first['id']}")).status_code == 404
    assert (await server.http.get(f"{RESPONSES}/{second['id']}")).status_code == 200
    server = Server(ServerConfig(max_stored_responses=0))
    first = await made(server)
    assert first["store"] is False
    error = assert_error(await server.respond(previous_response_id=first["id"]), 400, *UNKNOWN)
    assert "--max-stored-responses 0" in error["message"]


async def test_a_client_that_left_leaves_nothing_behind(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(RESPONSES, responses_body(stream=True))
    await call.until_sent("response.in_progress")
    call.leave()
    text = await call.end()
    response_id = text.split('"response":{"id":"')[1].split('"')[0]
    assert (await server.http.get(f"{RESPONSES}/{response_id}")).status_code == 404


async def test_many_at_once_keep_apart(server: Server) -> None:
    """Each answer is its prompt, so each prompt has what was said in that conversation alone."""
    server.client.answer = lambda request: [*bytes(request.prompt_token_ids).replace(b"<", b"["), EOS]

    async def chat(number: int) -> None:
        previous = None
        for _ in range(3):
            found = await made(server, input=f"name {number:05}", previous_response_id=previous)
            names = re.findall("name [0-9]{5}", found["output"][0]["content"][0]["text"])
            assert set(names) == {f"name {number:05}"}
            previous = found["id"]

    await asyncio.gather(*map(chat, range(6)))
