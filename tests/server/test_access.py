"""API keys over HTTP (contract C014, 0.2 and 6.2), and how much one key may have open."""

import asyncio
import json
import logging

import httpx
import pytest

from anllm.config import SecurityConfig, ServerConfig
from server_harness import Server, assert_error, chat_body
from serving import PATIENCE_S

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
ANN, BOB = "sk-ann-0123456789abcdef", "sk-bob-0123456789abcdef"


@pytest.fixture
def guarded(tmp_path) -> Server:
    file = tmp_path / "keys"
    file.write_text(f"ann {ANN}\nbob {BOB}\n")
    file.chmod(0o600)
    return Server(security=SecurityConfig(api_key_file=str(file)))


async def post(server: Server, headers: dict[str, str], **fields: object) -> httpx.Response:
    return await server.http.post(CHAT, content=json.dumps(chat_body(**fields)), headers={**JSON, **headers})


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {ANN}"},
        {"authorization": f"bearer  {ANN} "},
        {"authorization": f"BEARER {ANN}"},
        {"x-api-key": ANN},
        {"x-api-key": f" {ANN}"},
        {"authorization": f"Bearer {ANN}", "x-api-key": ANN},
        {"authorization": "Bearer ", "x-api-key": ANN},
        {"authorization": "Basic SzE=", "x-api-key": ANN},
        {"authorization": "Bearer other", "x-api-key": ANN},
    ],
)
async def test_C014_J_1_a_key_opens_by_either_header(guarded: Server, headers: dict[str, str]) -> None:
    assert (await post(guarded, headers)).status_code == 200
    assert guarded.client.requests[-1].client == "ann"


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer "}, {"authorization": "Basic SzE="}, {"authorization": ANN}, {"x-api-key": ""}],
)
async def test_C014_no_key(guarded: Server, headers: dict[str, str]) -> None:
    response = await post(guarded, headers)
    error = assert_error(response, 401, None, None)
    assert error["type"] == "invalid_request_error" and "Bearer" in error["message"]
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"] and not guarded.client.requests


@pytest.mark.parametrize("key", [ANN[:-1], ANN + "x", ANN.upper(), f"{ANN} {ANN}", "ann", "x" * 10_000])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_C014_a_wrong_key(guarded: Server, key: str, header: str) -> None:
    response = await post(guarded, {header: f"Bearer {key}" if header == "authorization" else key})
    error = assert_error(response, 401, None, "invalid_api_key")
    assert key not in error["message"] and error["type"] == "invalid_request_error"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_J_1_two_authorization_headers_are_refused(guarded: Server) -> None:
    headers = [("authorization", f"Bearer {ANN}"), ("authorization", f"Bearer {BOB}")]
    assert_error(await guarded.http.get("/v1/models", headers=headers), 401, None, "invalid_api_key")


async def test_a_key_of_foreign_bytes_is_wrong(guarded: Server) -> None:
    response = await guarded.http.get("/v1/models", headers={"x-api-key": b"\xff\xfe"})
    assert_error(response, 401, None, "invalid_api_key")


async def test_everything_but_the_open_paths_needs_a_key(guarded: Server) -> None:
    document = guarded.app.openapi()["paths"]
    paths = {*document, "/docs", "/openapi.json", "/metrics", "/v1/status", "/nope", "/v1/models/x", "/assets"}
    for path in sorted(paths - {"/health", "/livez", "/ping"}):
        for method in ("GET", "POST", "DELETE"):
            assert (await guarded.http.request(method, path)).status_code == 401, path
    for path in (
        "//health",
        "/health/",
        "/health/../v1/models",
        "/HEALTH",
        "/assets/../v1/models",
        "/v1/models?/health",
    ):
        response = await guarded.http.get(f"http://localhost{path}")
        assert response.status_code in (401, 404), path


async def test_signs_of_life_and_the_page_need_no_key(guarded: Server) -> None:
    for path in ("/health", "/livez", "/ping", "/"):
        assert (await guarded.http.get(path)).status_code == 200
        assert (await guarded.http.head(path)).status_code == 200
    for path in ("/assets/x.js", "/favicon.ico"):
        assert (await guarded.http.get(path)).status_code != 401


async def test_options_needs_no_key_and_does_nothing(guarded: Server) -> None:
    assert (await guarded.http.options(CHAT)).status_code == 405


async def test_a_body_is_not_read_without_a_key(guarded: Server) -> None:
    num_chunks = 0

    async def endless():
        nonlocal num_chunks
        while True:
            num_chunks += 1
            yield b"x" * 1000

    async with asyncio.timeout(PATIENCE_S):
        response = await guarded.http.post(CHAT, content=endless(), headers=JSON)
    assert response.status_code == 401 and num_chunks == 0


async def test_logs_name_the_client_and_never_the_key(guarded: Server, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    await post(guarded, {"authorization": f"Bearer {ANN}"})
    await post(guarded, {"authorization": f"Bearer {BOB}"}, n=0)
    await post(guarded, {"authorization": "Bearer sk-wrong"})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("anllm")]
    assert sum("client=ann" in line for line in lines) == 1
    assert sum("client=bob" in line for line in lines) == 1
    assert sum("WrongApiKeyError" in line for line in lines) == 1
    assert "sk-" not in "".join(lines)


# -- how much one key may have open ------------------------------------------------------------------------------------


def limited(most: int) -> Server:
    return Server(security=SecurityConfig(api_keys=(ANN, BOB), max_requests_per_key=most))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_key_has_so_many_requests_open_and_no_more(is_stream: bool) -> None:
    server = limited(2)
    server.client.is_manual = True
    ann, bob = {"authorization": f"Bearer {ANN}"}, {"authorization": f"Bearer {BOB}"}
    calls = [server.open(CHAT, chat_body(stream=is_stream), ann) for _ in range(2)]
    await calls[1].until(lambda: server.client.num_open == 2)
    refused = await post(server, ann, stream=is_stream)
    error = assert_error(refused, 429, None, "rate_limit_exceeded")
    assert error["type"] == "requests" and int(refused.headers["retry-after"]) >= 1
    assert "has 2 requests open, and may have 2 at a time" in error["message"] and ANN not in error["message"]
    assert (await server.http.get("/v1/models", headers=ann)).status_code == 200, "asking for models is no work"
    other = server.open(CHAT, chat_body(stream=is_stream), bob)
    await other.until(lambda: server.client.num_open == 3)
    calls[0].leave()
    await calls[0].end()
    again = server.open(CHAT, chat_body(stream=is_stream), ann)
    await again.until(lambda: server.client.num_open == 3)
    for call in (calls[1], other, again):
        call.leave()
        await call.end()


async def test_requests_that_fail_are_open_no_more() -> None:
    server = limited(1)
    for _ in range(3):
        assert_error(await post(server, {"x-api-key": ANN}, n=0), 400)
    assert (await post(server, {"x-api-key": ANN})).status_code == 200


async def test_without_keys_nobody_is_limited() -> None:
    server = Server(ServerConfig())
    server.client.is_manual = True
    calls = [server.open(CHAT, chat_body()) for _ in range(50)]
    await calls[-1].until(lambda: server.client.num_open == 50)
    assert {request.client for request in server.client.requests} == {""}
    for call in calls:
        call.leave()
        await call.end()
