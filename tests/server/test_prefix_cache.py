"""What requests say about the prefix cache and their turn, and the way to empty it."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.core.request import MAX_PRIORITY
from anllm.engine.client import EngineState
from server_harness import Server, assert_error, chunks

pytestmark = pytest.mark.anyio


async def test_usage_tells_what_was_not_computed_again_also_where_a_stop_string_ends_the_answer(server: Server) -> None:
    whole = (await server.chat(stop="ell")).json()["usage"]
    text = (await server.chat(stop="ell", stream=True, stream_options={"include_usage": True})).text
    assert whole["prompt_tokens_details"] == chunks(text)[-1]["usage"]["prompt_tokens_details"]
    assert whole["prompt_tokens_details"]["cached_tokens"] == 3


async def test_reset_prefix_cache_is_passed_on(server: Server) -> None:
    answer = await server.post("/reset_prefix_cache")
    assert (answer.status_code, answer.content, server.client.num_resets) == (200, b"", 1)


async def test_while_the_engine_is_down_there_is_nothing_to_reset(server: Server) -> None:
    server.client.state = EngineState.RESTARTING
    answer = await server.post("/reset_prefix_cache")
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert server.client.num_resets == 0


@pytest.mark.parametrize("priority", [-MAX_PRIORITY, -1, 0, 7.0, MAX_PRIORITY])
async def test_priority_reaches_the_engine(server: Server, priority: float) -> None:
    await server.chat(priority=priority)
    await server.comp(priority=priority)
    assert [request.params.priority for request in server.client.requests] == [priority] * 2


@pytest.mark.parametrize(("priority", "code"), [
    (MAX_PRIORITY + 1, "integer_above_max_value"),
    (-(10**400), "integer_below_min_value"),
    (0.5, "invalid_type"),
    ("1", "invalid_type"),
])  # fmt: skip
async def test_other_priorities_are_refused(server: Server, priority: Any, code: str) -> None:
    assert_error(await server.chat(priority=priority), 400, "priority", code)


async def test_a_bound_is_written_out(server: Server) -> None:
    error = assert_error(await server.chat(priority=MAX_PRIORITY + 1), 400, "priority")
    assert error["message"] == "Invalid 'priority': must be <= 1000000, got 1000001."


async def test_a_salt_reaches_the_engine_but_not_as_it_was_sent(server: Server) -> None:
    for salt in ("secret", "secret", "other", "\ud7ff", None):
        assert (await server.comp(cache_salt=salt)).status_code == 200
    salts = [request.params.cache_salt for request in server.client.requests]
    assert salts[0] == salts[1] != ""
    assert len(set(salts)) == 4 and salts[4:] == [""]
    assert all("secret" not in salt and salt.isascii() for salt in salts)
