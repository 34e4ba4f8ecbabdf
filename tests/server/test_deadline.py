"""How long a request may take, by the server's limit and its own."""

import asyncio

import pytest
from starlette.datastructures import Headers

from anllm.config import ServerConfig
from anllm.errors import InvalidRequestError
from anllm.server.deadline import timeout_s
from server_harness import MODEL, Server, assert_error, chat_body
from serving import eventually

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("given", "limit_s", "expected_s"),
    [(None, None, None), (None, 5.0, 5.0), ("2.5", None, 2.5), ("2.5", 5.0, 2.5), ("60", 5.0, 5.0), (" 3 ", None, 3.0)],
)
def test_the_shorter_of_the_two_counts(given: str | None, limit_s: float | None, expected_s: float | None) -> None:
    headers = Headers({} if given is None else {"x-request-timeout": given})
    assert timeout_s(headers, limit_s) == expected_s


@pytest.mark.parametrize("given", ["", "0", "-1", "nan", "inf", "1e999", "5s", "x" * 1000])
def test_anything_else_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        timeout_s(Headers({"x-request-timeout": given}), None)
    assert refusal.value.param == "x-request-timeout"
    assert len(refusal.value.message) < 300


def far_timers() -> list[asyncio.TimerHandle]:
    """Of the event loop: those that have minutes before them."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
    return [timer for timer in timers if not timer.cancelled() and timer.when() - loop.time() > 300]


def let_time_pass() -> None:
    """What is to happen in some minutes happens now."""
    (timer,) = far_timers()
    timer._run()
    timer.cancel()


async def test_an_answer_that_is_late_is_ended_and_its_slot_freed() -> None:
    server = Server(ServerConfig(request_timeout_s=600))
    server.client.is_manual = True
    call = asyncio.create_task(server.chat(n=2))
    await eventually(lambda: server.client.num_open == 2)
    let_time_pass()
    response = await call
    error = assert_error(response, 504, None, "request_timeout")
    assert error["type"] == "timeout"
    assert "600 seconds" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert sorted(server.client.aborted) == [100, 101]
    assert server.client.num_open == 0


async def test_a_stream_that_is_late_ends_with_an_error_and_no_finish_reason() -> None:
    server = Server(ServerConfig(request_timeout_s=600))
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    await call.until(lambda: server.client.open_ids)
    server.client.emit(100, "Hel")
    await call.until_sent("Hel")
    let_time_pass()
    text = await call.end()
    assert "Hel" in text
    assert '"code":"request_timeout"' in text
    assert '"finish_reason":"' not in text
    assert text.endswith("data: [DONE]\n\n")
    assert server.client.aborted == [100]


async def test_a_request_may_ask_for_less() -> None:
    server = Server(ServerConfig(request_timeout_s=600))
    server.client.is_manual = True
    body = {"model": MODEL, "prompt": "x"}
    response = await server.http.post("/v1/completions", json=body, headers={"x-request-timeout": "0.05"})
    assert_error(response, 504, None, "request_timeout")


async def test_an_answer_in_time_leaves_no_timer_behind() -> None:
    server = Server(ServerConfig(request_timeout_s=600))
    assert (await server.chat()).status_code == 200
    assert (await server.chat(stream=True)).status_code == 200
    assert not far_timers()


async def test_a_header_that_is_no_time_is_refused_before_anything_begins(server: Server) -> None:
    body = {"model": MODEL, "prompt": "x"}
    response = await server.http.post("/v1/completions", json=body, headers={"x-request-timeout": "soon"})
    assert_error(response, 400, "x-request-timeout")
    assert server.client.requests == []
