"""What is under the endpoints: bodies, headers, paths, errors, health: contract C001-C017, C200-C206, cases i, j."""

import gzip
import json
import random
import subprocess
import sys

import pytest

from anllm.config import ServerConfig
from anllm.engine.client import EngineState
from server_harness import MODEL, Server, assert_error, chat_body

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
BODY = json.dumps(chat_body()).encode()
JSON = {"content-type": "application/json"}


async def test_C001_C002_I_4_models(server: Server) -> None:
    body = (await server.http.get("/v1/models")).json()
    (model,) = body["data"]
    assert body["object"] == "list"
    assert model == {
        "id": MODEL,
        "object": "model",
        "created": 1764400000,
        "owned_by": "anllm",
        "max_model_len": 1000,
    }
    for path in ("org/tiny model:1", "org%2Ftiny%20model:1"):
        assert (await server.http.get(f"/v1/models/{path}")).json() == model


@pytest.mark.parametrize("name", ["no-such-model", "../../etc", "%2e%2e%2fetc", "x" * 5000, "a%00b", ""])
async def test_C003_I_2_unknown_model(server: Server, name: str) -> None:
    error = assert_error(await server.http.get(f"http://localhost/v1/models/{name}"), 404)
    assert error["code"] in ("model_not_found", "unknown_url") and len(error["message"]) < 300


async def test_C006_request_ids(server: Server) -> None:
    first = (await server.http.get("/v1/models")).headers["x-request-id"]
    second = (await server.http.get("/nope")).headers["x-request-id"]
    assert first != second and len(first) == len(second) == 4 + 32 and first.startswith("req_")


@pytest.mark.parametrize(
    ("given", "is_echoed"), [("abc-1", True), ("x" * 129, False), ("a b", False), ("\u00e9", False), ("", False)]
)
async def test_client_request_id(server: Server, given: str, is_echoed: bool) -> None:
    response = await server.http.get("/v1/models", headers={"x-request-id": given.encode("latin-1")})
    assert (response.headers["x-request-id"] == given) is is_echoed


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":',
        b"[]",
        b"",
        b"  ",
        b'"x"',
        b"7",
        b"null",
        BODY + BODY,
        b"{'model':'x'}",
        b"\xef\xbb\xbf" + BODY,
        b"[" * 10_000,
        b"[" * 100_000 + b"]" * 100_000,
        BODY[:-1] + b',"a":' + b"[" * 2000 + b"]" * 2000 + b"}",
        BODY[:-1] + b',"metadata":' + b'{"a":' * 2000 + b"1" + b"}" * 2001,
        BODY.replace(b"Say", b"\xff\xfe"),
        BODY.replace(b"Say", b"\xf0\x9f"),
        BODY.decode().encode("utf-16"),
        BODY[:-1] + b',"seed":' + b"9" * 10_000_000 + b"}",
        *(BODY.replace(b"Say", half) for half in (rb"\ud83c", rb"\udc4d", rb"\udc4d\ud83d")),
        BODY.replace(b'"user"', rb'"user\ud83c"'),
        BODY[:-1] + rb',"stop":"\ud83c"}',
    ],
    ids=lambda body: body[:24] + b"..%d" % len(body),
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_C007_C008_C009_C201_A_6_J_11_J_12_J_13_bodies(server: Server, path: str, body: bytes) -> None:
    error = assert_error(await server.post(path, body), 400, None, None)
    assert "JSON body" in error["message"] and len(error["message"]) < 300


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}"), ('{"a":[', "]}")])
async def test_C009_nesting_has_a_bound_that_all_pass_or_fail_alike(server: Server, left: str, right: str) -> None:
    for field in ("metadata", "x", "chat_template_kwargs", "logit_bias", "messages", "tools", "response_format"):
        levels = 127 // len(left.replace('"a":', ""))
        for path in (CHAT, "/v1/completions", "/tokenize"):
            for depth, is_parsed in ((levels, True), (levels + 1, False)):
                nested = left * depth + "1" + right * depth if "{" in left else left * depth + right * depth
                body = BODY[:-1] + f',"{field}":{nested}'.encode() + b"}"
                response = await server.post(path, body)
                assert response.status_code in (200, 400)
                assert ("nested too deeply" not in response.text) is is_parsed


async def test_objects_and_arrays_are_counted_before_they_are_made(server: Server) -> None:
    part = {"type": "text", "text": '"{["\\'}
    server.service.max_model_len = 10**6
    assert (
        await server.post(CHAT, chat_body(messages=[{"role": "user", "content": [part] * 65_000}]))
    ).status_code == 200
    for body in (
        chat_body(messages=[{"role": "user", "content": [part] * 66_000}]),
        chat_body(x=[[]] * 66_000),
        chat_body(metadata={str(i): {} for i in range(66_000)}),
    ):
        error = assert_error(await server.post(CHAT, body), 400, None, None)
        assert "at most 65536 objects and arrays" in error["message"]


async def test_many_short_branches_are_not_deep(server: Server) -> None:
    assert (await server.post(CHAT, chat_body(x=[[[1]] * 1000] * 30))).status_code == 200


async def test_parse_error_says_where(server: Server) -> None:
    assert "byte 5" in assert_error(await server.post(CHAT, b'{"a":NaN}'), 400)["message"]


async def test_J_13_whole_pair_is_one_character(server: Server) -> None:
    assert (await server.post(CHAT, BODY.replace(b"Say hi.", rb"\ud83d\udc4d"))).status_code == 200
    assert server.template.messages[0]["content"] == "\U0001f44d"


async def test_duplicate_key_last_wins(server: Server) -> None:
    assert (await server.post(CHAT, BODY[:-1] + b',"n":0,"n":1}')).status_code == 200


async def test_C200_random_bytes(server: Server) -> None:
    draw = random.Random(1)
    for _ in range(100):
        assert_error(await server.post(CHAT, draw.randbytes(draw.randrange(200))), 400)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("application/vnd.api+json", 200),
        (None, 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/json", 415),
    ],
)
async def test_C011_content_type(server: Server, path: str, content_type: str | None, status: int) -> None:
    body = json.dumps(chat_body(prompt="hi")).encode()
    headers = {} if content_type is None else {"content-type": content_type}
    response = await server.http.post(path, content=body, headers=headers)
    assert response.status_code == status
    if status == 415:
        assert_error(response, 415, None, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x" * 1000])
async def test_J_7_content_encoding(server: Server, encoding: str) -> None:
    headers = {**JSON, "content-encoding": encoding}
    error = assert_error(await server.http.post(CHAT, content=gzip.compress(BODY), headers=headers), 415)
    assert encoding[:100] in error["message"]
    headers["content-encoding"] = "identity"
    assert (await server.http.post(CHAT, content=BODY, headers=headers)).status_code == 200


async def test_C016_C202_J_8_body_limit() -> None:
    server = Server(ServerConfig(max_body_bytes=1000))

    async def endless():
        for _ in range(10**9):
            yield b"x" * 100

    assert_error(await server.post(CHAT, b"x" * 1001), 413, None, "request_too_large")
    assert_error(await server.http.post(CHAT, content=endless(), headers=JSON), 413, None, "request_too_large")
    lying = {**JSON, "content-length": "5"}
    assert_error(await server.http.post(CHAT, content=endless(), headers=lying), 413)
    huge = {**JSON, "content-length": "9" * 5000}
    assert_error(await server.http.post(CHAT, content=b"", headers=huge), 413)
    assert (await server.post(CHAT, BODY)).status_code == 200


async def test_J_8_chunked_body(server: Server) -> None:
    async def bytewise():
        for byte in BODY:
            yield bytes([byte])

    assert (await server.http.post(CHAT, content=bytewise(), headers=JSON)).status_code == 200


async def test_C204_client_leaves_during_upload(server: Server) -> None:
    call = server.open(CHAT, chat_body())
    call._inbox = [{"type": "http.disconnect"}, {"type": "http.request", "body": BODY[:9], "more_body": True}]
    await call.end()
    assert call.status == 0 and not server.client.requests


async def test_J_10_large_body_is_worked_on(server: Server) -> None:
    body = chat_body(zzz="x" * 10_000_000)
    assert (await server.post(CHAT, body)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_C012_wrong_method(server: Server, method: str, path: str) -> None:
    response = await server.http.request(method, path)
    assert_error(response, 405, None, "method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_delete_model_is_405(server: Server) -> None:
    assert_error(await server.http.delete(f"/v1/models/{MODEL}"), 405)


@pytest.mark.parametrize(
    "path", ["/v1/nope", f"{CHAT}/", "/v1//chat/completions", "//v1/chat/completions", "/v1/v1/chat/completions", "/x"]
)
async def test_C013_J_6_unknown_path_is_404_and_never_a_redirect(server: Server, path: str) -> None:
    response = await server.http.post(f"http://localhost:8000{path}", content=BODY, headers=JSON)
    assert_error(response, 404, None, "unknown_url")


async def test_C015_any_authorization_without_a_key(server: Server) -> None:
    for value in ("Bearer ", "Bearer x", "Basic SzE=", "K1"):
        headers = {**JSON, "authorization": value, "x-api-key": "k"}
        assert (await server.http.post(CHAT, content=BODY, headers=headers)).status_code == 200


async def test_head_and_get_root(server: Server) -> None:
    assert (await server.http.head("/")).status_code == 200
    assert (await server.http.get("/")).json()["docs"] == "/docs"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", ""])
async def test_J_14_loopback_names(server: Server, host: str) -> None:
    assert (await server.http.get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", "[::2]", "@"])
async def test_J_14_foreign_names(server: Server, host: str) -> None:
    response = await server.http.get("/v1/models", headers={"host": host})
    assert_error(response, 403, None, "host_not_allowed")
    assert response.headers["x-request-id"]
    outside = Server(ServerConfig(host="0.0.0.0"))
    assert (await outside.http.get("/v1/models", headers={"host": host})).status_code == 200


async def test_C206_J_3_loading(server: Server) -> None:
    service, server.service.tokenizer = server.service, None
    server.client.state = EngineState.LOADING
    await assert_not_ready(server, "loading")
    server.client.state = EngineState.READY  # the engine is there, the tokenizer is not
    await assert_not_ready(server, "loading")
    service.tokenizer = server.tokenizer
    assert (await server.http.get("/health")).json() == {"status": "ok"}
    assert (await server.chat()).status_code == 200


async def test_health_of_other_states(server: Server) -> None:
    for state in (EngineState.RESTARTING, EngineState.CLOSED):
        server.client.state = state
        await assert_not_ready(server, state.value)
    server.client.state = EngineState.READY
    server.service.draining = True
    await assert_not_ready(server, "draining")
    server.service.draining, server.service.start_error = False, "No such model."
    await assert_not_ready(server, "failed")


@pytest.mark.parametrize(
    ("state", "is_draining", "start_error", "is_alive"),
    [
        (EngineState.READY, False, None, True),
        (EngineState.LOADING, False, None, True),
        (EngineState.RESTARTING, False, None, True),
        (EngineState.READY, True, None, True),
        (EngineState.CLOSED, True, None, True),  # it ends by itself
        (EngineState.CLOSED, False, None, False),
        (EngineState.LOADING, False, "No such model.", False),
    ],
)
async def test_livez_says_whether_a_new_start_would_help(
    server: Server, state: EngineState, is_draining: bool, start_error: str | None, is_alive: bool
) -> None:
    server.client.state, server.service.draining, server.service.start_error = state, is_draining, start_error
    response = await server.http.get("/livez")
    assert response.status_code == (200 if is_alive else 503)
    assert response.json() == {"status": server.service.status}


async def assert_not_ready(server: Server, status: str) -> None:
    health = await server.http.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": status})
    assert health.headers["retry-after"]
    assert (await server.http.get("/v1/models")).status_code == 200
    for stream in (False, True):
        for response in (await server.chat(stream=stream), await server.comp(stream=stream)):
            assert_error(response, 503, None, "service_unavailable")
            assert 1 <= int(response.headers["retry-after"]) <= 30


async def test_bug_is_500_without_details(server: Server, caplog) -> None:
    def explode(messages: object, /, **variables: object) -> str:
        raise KeyError("/home/secret.txt")

    server.template.render = explode  # type: ignore[method-assign]
    response = await server.http.post(CHAT, content=BODY, headers=JSON)
    error = assert_error(response, 500, None, None)
    assert error["type"] == "server_error" and response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text and "secret.txt" in caplog.text


async def test_C205_others_are_served_while_streams_are_open(server: Server) -> None:
    server.client.is_manual = True
    calls = [server.open(CHAT, chat_body(stream=True)) for _ in range(200)]
    await calls[-1].until(lambda: server.client.num_open == 200)
    assert (await server.http.get("/v1/models")).status_code == 200
    for call in calls:
        call.leave()
        await call.end()
    assert server.client.num_open == 0


async def test_documentation_describes_bodies_and_errors(server: Server) -> None:
    document = (await server.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path, name in (
        (CHAT, "ChatCompletionRequest"),
        ("/v1/completions", "CompletionRequest"),
        ("/v1/responses", "ResponsesRequest"),
    ):
        route = document["paths"][path]["post"]
        reference = route["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{name}"
        assert "temperature" in schemas[name]["properties"]
        assert {"400", "404", "413", "415", "429", "503"} <= route["responses"].keys()
    references = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert references <= schemas.keys()
    assert (await server.http.get("/docs")).status_code == 200
    assert '"422"' not in json.dumps(document)


async def test_documentation_has_the_limits_of_this_server() -> None:
    server = Server(ServerConfig(max_n=7, max_stop_strings=2))
    schemas = (await server.http.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("ChatCompletionRequest", "CompletionRequest"):
        fields = schemas[name]["properties"]
        assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 7}
        assert fields["stop"]["anyOf"][0]["oneOf"][1]["maxItems"] == 2


def test_no_mlx_is_imported() -> None:
    code = "import sys, anllm.server.app; sys.exit(any(m.split('.')[0] in ('mlx', 'mlx_lm') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_ignored_field_is_in_the_schemas() -> None:
    from anllm.server.chat.protocol import ChatCompletionRequest
    from anllm.server.field_support import ACCEPTED_WITHOUT_EFFECT

    assert ACCEPTED_WITHOUT_EFFECT.keys() <= ChatCompletionRequest.model_fields.keys()
