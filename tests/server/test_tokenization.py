"""/tokenize, /detokenize and /version, as vLLM has them."""

from __future__ import annotations

from typing import Any

import pytest

import anllm
from anllm.config import ServerConfig
from server_harness import BOS, MODEL, Server, assert_error

pytestmark = pytest.mark.anyio
MESSAGES = [{"role": "user", "content": "hi"}]


async def test_a_text_gets_the_special_tokens_and_can_do_without(server: Server) -> None:
    answer = await server.post("/tokenize", {"model": MODEL, "prompt": "hé"})
    expected = [BOS, *"hé".encode()]
    assert answer.json() == {"count": 4, "max_model_len": 1000, "tokens": expected, "token_strs": None}
    bare = await server.post("/tokenize", {"prompt": "hé", "add_special_tokens": False})
    assert bare.json()["tokens"] == expected[1:]


PING = {"type": "function", "function": {"name": "ping"}}


async def test_messages_go_through_the_template_without_further_special_tokens(server: Server) -> None:
    body = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}}
    text = bytes((await server.post("/tokenize", body)).json()["tokens"]).decode()
    assert text == '<user>hi""<assistant>'
    assert server.template.variables == {"enable_thinking": False}
    shorter = await server.post("/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    assert bytes(shorter.json()["tokens"]).decode() == '<user>hi""'
    special = await server.post("/tokenize", {"messages": MESSAGES, "add_special_tokens": True})
    assert special.json()["tokens"][0] == BOS


async def test_tools_go_to_the_template(server: Server) -> None:
    assert (await server.post("/tokenize", {"messages": MESSAGES, "tools": [PING]})).status_code == 200
    assert server.template.tools == [PING]


async def test_the_tokens_of_a_chat_are_those_that_its_answer_counts(server: Server) -> None:
    counted = (await server.post("/tokenize", {"messages": MESSAGES})).json()["count"]
    assert (await server.chat(messages=MESSAGES)).json()["usage"]["prompt_tokens"] == counted


async def test_pieces_if_asked_for(server: Server) -> None:
    answer = (await server.post("/tokenize", {"prompt": "ab", "return_token_strs": True})).json()
    assert answer["token_strs"] == ["<s>", "a", "b"]


async def test_longer_than_the_context_is_counted_too(server: Server) -> None:
    assert (await server.post("/tokenize", {"prompt": "x" * 200_000})).json()["count"] == 200_001


async def test_there_and_back(server: Server) -> None:
    tokens = (await server.post("/tokenize", {"prompt": "Grüße", "add_special_tokens": False})).json()["tokens"]
    assert (await server.post("/detokenize", {"model": MODEL, "tokens": tokens})).json() == {"prompt": "Grüße"}
    assert (await server.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": None}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "messages"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, 400, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"tools": []}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ("/tokenize", {"prompt": "a", "tools": [PING]}, 400, "tools"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, 400, "continue_final_message"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"model": "other", "prompt": "a"}, 404, ...),
        ("/tokenize", b"{", 400, None),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "1"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, 258]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
        ("/detokenize", {"model": "other", "tokens": [1]}, 404, ...),
    ],
)
async def test_refusals(server: Server, path: str, body: Any, status: int, param: object) -> None:
    assert_error(await server.post(path, body), status, param)


async def test_without_a_template_messages_are_refused(server: Server) -> None:
    server.service.chat_template = None
    assert_error(await server.post("/tokenize", {"messages": MESSAGES}), 400, "messages")


async def test_a_body_over_the_limit_is_refused() -> None:
    server = Server(ServerConfig(max_body_bytes=100))
    assert_error(await server.post("/tokenize", {"prompt": "x" * 200}), 413)
    assert_error(await server.post("/detokenize", {"tokens": [1] * 200}), 413)


async def test_before_the_model_has_loaded(server: Server) -> None:
    server.service.tokenizer = None
    assert_error(await server.post("/tokenize", {"prompt": "a"}), 503)
    assert_error(await server.post("/detokenize", {"tokens": [1]}), 503)
    assert (await server.http.get("/version")).json() == {"version": anllm.__version__}
