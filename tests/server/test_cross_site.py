"""What browsers let web pages send: refused if it changes something, unless the origin is allowed; CORS headers."""

import json

import httpx
import pytest

from anllm.config import SecurityConfig
from server_harness import Server, assert_error, chat_body

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
BODY = json.dumps(chat_body()).encode()
PAGE = "https://chat.example.com"


async def post(server: Server, path: str = CHAT, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await server.http.post(path, content=BODY, headers=sent)


def allowing(*origins: str, **more: object) -> Server:
    return Server(security=SecurityConfig(allowed_origins=origins, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": PAGE},
        {"origin": "http://localhost:3000"},
        {"origin": "https://localhost:8000.evil.example"},
        {"origin": "null"},
        {"origin": "null", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
    ],
)
async def test_pages_of_other_origins_change_nothing(server: Server, headers: dict[str, str]) -> None:
    for path in (CHAT, "/v1/completions", "/tokenize", "/reset_prefix_cache"):
        response = await post(server, path, **headers)
        error = assert_error(response, 403, None, "origin_not_allowed")
        assert "--allowed-origins" in error["message"]
        assert "access-control-allow-origin" not in response.headers
    assert not server.client.requests and server.client.num_resets == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:8000"},
        {"origin": "http://localhost:8000", "sec_fetch_site": "same-origin"},
        {"origin": "http://localhost:5173", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"origin": "app://obsidian.md", "sec_fetch_site": "cross-site"},
        {"origin": "vscode-webview://x"},
    ],
    ids=str,
)
async def test_clients_that_are_no_browsers_our_own_page_and_apps_pass(server: Server, headers: dict[str, str]) -> None:
    assert (await post(server, **headers)).status_code == 200


async def test_without_cors_a_page_can_read_nothing_and_no_preflight_passes(server: Server) -> None:
    response = await server.http.get("/v1/models", headers={"origin": PAGE})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert not [name for name in (await preflight(server)).headers if name.startswith("access-control")]


async def preflight(server: Server, origin: str = PAGE, method: str = "POST") -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    return await server.http.options(CHAT, headers=asked)


async def test_J_2_an_allowed_origin_passes_the_preflight_without_a_key() -> None:
    server = allowing(PAGE, api_keys=("k" * 20,))
    answer = await preflight(server)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-lang"
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_another_origin_does_not() -> None:
    server = allowing(PAGE)
    answer = await preflight(server, "https://evil.example")
    assert answer.status_code == 400 and "access-control-allow-origin" not in answer.headers
    assert "Origin" in answer.headers["vary"]
    assert_error(await post(server, origin="https://evil.example"), 403, None, "origin_not_allowed")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_allowed_page_reads_answers_and_their_ids(is_stream: bool) -> None:
    server = allowing("https://a.example", PAGE)
    body = json.dumps(chat_body(stream=is_stream))
    headers = {"content-type": "application/json", "origin": PAGE, "sec-fetch-site": "cross-site"}
    response = await server.http.post(CHAT, content=body, headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    exposed = response.headers["access-control-expose-headers"]
    assert "x-request-id" in exposed and "openai-processing-ms" in exposed
    assert "Origin" in response.headers["vary"]


async def test_J_2_an_allowed_page_reads_errors_too() -> None:
    server = allowing(PAGE, api_keys=("k" * 20,))
    refused = await post(server, origin=PAGE)
    assert_error(refused, 401)
    assert refused.headers["access-control-allow-origin"] == PAGE


async def test_answers_vary_by_origin_also_without_one() -> None:
    assert "Origin" in (await allowing(PAGE).http.get("/v1/models")).headers["vary"]


async def test_a_star_allows_every_page() -> None:
    server = allowing("*")
    assert (await preflight(server, "https://any.example")).headers["access-control-allow-origin"] == "*"
    response = await post(server, origin="https://any.example", sec_fetch_site="cross-site")
    assert response.status_code == 200 and response.headers["access-control-allow-origin"] == "*"


async def test_J_14_allowed_hosts() -> None:
    server = Server(security=SecurityConfig(allowed_hosts=("LLM.example.com",)))
    for host in ("llm.example.com", "llm.example.com:443", "localhost:8000", "127.0.0.1"):
        assert (await server.http.get("/v1/models", headers={"host": host})).status_code == 200
    error = assert_error(await server.http.get("/v1/models", headers={"host": "evil.example"}), 403)
    assert "llm.example.com" in error["message"]
