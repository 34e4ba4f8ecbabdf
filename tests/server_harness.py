"""A scripted engine, a byte tokenizer, a plain chat template, and a raw ASGI call: the app without network or model."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import httpx

from anllm.config import SecurityConfig, ServerConfig
from anllm.core.events import Failed, Finished, PromptLogprobs, Started, StepEvents, TokenLogprobs, Tokens
from anllm.core.request import FinishReason, Request
from anllm.engine.client import EngineState, OnEvent
from anllm.errors import InvalidRequestError, NotReadyError, QueueFullError
from anllm.server.app import create_app
from anllm.server.service import Service
from anllm.structured.checker import GrammarChecker
from anllm.structured.vocabulary import Vocabulary
from anllm.testing.tokenizer import ByteDetokenizer
from serving import PATIENCE_S

BOS, EOS = 256, 257
MODEL = "org/tiny model:1"
ANSWER = "Hello there, Ann. \U0001f600 \u00e9\u2028 The end."


class FakeTokenizer:
    """Tokens are bytes of UTF-8; 256 begins a text, 257 ends it."""

    vocab_size = 258
    bos_token_id: int | None = BOS
    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset({BOS, EOS})
    max_token_chars = 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        begins = self.bos_token_id is not None and add_special_tokens
        return [BOS] * begins + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(t for t in token_ids if t < BOS).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])

    def piece(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("latin-1")

    def token_id(self, piece: str) -> int | None:
        named = {"<s>": BOS, "</s>": EOS}.get(piece)
        return ord(piece) if named is None and len(piece) == 1 and ord(piece) < 256 else named

    def detokenizer(self, *, skip_special_tokens: bool = True, kept: Collection[str] = ()) -> ByteDetokenizer:
        return ByteDetokenizer(end="" if skip_special_tokens else "<s>")


@cache
def grammar_checker() -> GrammarChecker:
    """One for all tests: its process starts with the first grammar, and ends with this one."""
    return GrammarChecker(Vocabulary.of(FakeTokenizer()))


class FakeTemplate:
    """Writes role and text of each message. Refuses the word REFUSE."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: Sequence[Mapping[str, object]] = ()
        self.variables: dict[str, object] = {}

    def render(
        self,
        messages: list[dict[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        self.messages, self.variables, self.tools = messages, variables, tools or ()
        text = "".join(f"<{m['role']}>{_text(m['content'])}{json.dumps(m.get('tool_calls', ''))}" for m in messages)
        if "REFUSE" in text:
            raise InvalidRequestError("The chat template refuses: no.", param="messages")
        return text + "<assistant>" * add_generation_prompt + "<continue>" * continue_final_message


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return str(content)


class ScriptedClient:
    """Has the face of EngineClient. Answers every request with `answer(request)`, a token a step; or, with `is_manual`,
    only what emit, finish and fail say."""

    def __init__(self) -> None:
        self.state = EngineState.READY
        self.info = None
        self.num_restarts = 0
        self.load_s: float | None = None
        self.on_frame: Callable[[StepEvents], None] = lambda events: None
        self.answer: Callable[[Request], Sequence[int]] = lambda request: [*ANSWER.encode(), EOS]
        self.is_manual = False
        self.max_num_open = 640
        self.requests: list[Request] = []
        self.aborted: list[int] = []
        self.num_steps = 0
        self.num_resets = 0
        self.logprob: Callable[[int], float] = lambda token: -(token % 7) / 4
        self._open: dict[int, OnEvent] = {}
        self._started = set[int]()
        self._num_logprobs: dict[int, int | None] = {}
        self._scripts: dict[int, list[int]] = {}
        self._unscored: dict[int, list[int]] = {}  # tokens of prompts whose log probabilities are asked for
        self._ids = itertools.count(100)

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def open_ids(self) -> list[int]:
        return list(self._open)

    def next_request_id(self) -> int:
        return next(self._ids)

    def submit(self, requests: Sequence[Request], on_event: OnEvent) -> None:
        if self.state is not EngineState.READY:
            raise NotReadyError("The engine is not ready.")
        if self.num_open + len(requests) > self.max_num_open:
            raise QueueFullError("The queue is full.")
        for request in requests:
            self.requests.append(request)
            self._open[request.request_id] = on_event
            self._num_logprobs[request.request_id] = request.params.logprobs
            tokens = list(self.answer(request))[: request.params.max_tokens]
            self._scripts[request.request_id] = tokens
            if request.params.prompt_logprobs is not None:
                self._unscored[request.request_id] = list(request.prompt_token_ids[1:])
        if not self.is_manual:
            asyncio.get_running_loop().call_soon(self._step)

    def abort(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            if self._open.pop(request_id, None):
                self.aborted.append(request_id)

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def emit(self, request_id: int, tokens: str | Sequence[int]) -> None:
        ids = tuple(tokens.encode()) if isinstance(tokens, str) else tuple(tokens)
        if request_id in self._open:
            self._tell(Tokens(request_id, ids, self._logprobs(request_id, ids)))

    def score(self, request_id: int, most: int) -> None:
        """Tell of so many tokens of a prompt: each second most likely, behind the one that follows it."""
        tokens = [self._unscored[request_id].pop(0) for _ in range(min(most, len(self._unscored[request_id])))]
        told = [(token, self.logprob(token)) for token in tokens]
        number = next(r.params.prompt_logprobs for r in self.requests if r.request_id == request_id) or 0
        logprobs = tuple(
            TokenLogprobs(own, (((token + 1) % 258, own + 0.5), (token, own), (0, own - 1.0))[:number], 2)
            for token, own in told
        )
        self._open[request_id](PromptLogprobs(request_id, logprobs))

    def start(self, request_id: int, num_cached_tokens: int) -> None:
        self._tell(Started(request_id, num_cached_tokens))

    def _tell(self, event: Started | Tokens) -> None:
        """A frame with this event alone."""
        is_start = isinstance(event, Started)
        self.on_frame(StepEvents(started=(event,)) if is_start else StepEvents(tokens=(event,)))
        self._open[event.request_id](event)

    def finish(self, request_id: int, reason: FinishReason = FinishReason.STOP) -> None:
        if on_event := self._open.pop(request_id, None):
            on_event(Finished(request_id, reason))

    def fail(self, request_id: int, error: str = "StepError", message: str = "The step failed.") -> None:
        if on_event := self._open.pop(request_id, None):
            on_event(Failed(request_id, error, message))

    def _logprobs(self, request_id: int, ids: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """If asked for: the token itself the likeliest, then those that follow it."""
        number = self._num_logprobs[request_id]
        if number is None:
            return ()
        told = [(token, self.logprob(token)) for token in ids]
        return tuple(
            TokenLogprobs(own, tuple(((token + i) % 258, own - i) for i in range(number))) for token, own in told
        )

    def _step(self) -> None:
        """The next token of every open request, as the engine would."""
        self.num_steps += 1
        for request_id in self.open_ids:
            if self._unscored.get(request_id):
                self.score(request_id, 3)
                continue
            script = self._scripts[request_id]
            token = script.pop(0) if script else EOS
            if request_id not in self._started:
                self._started.add(request_id)
                self.start(request_id, 3)
            self.emit(request_id, [token])
            if token == EOS or not script:
                self.finish(request_id, FinishReason.STOP if token == EOS else FinishReason.LENGTH)
        if self._open:
            asyncio.get_running_loop().call_soon(self._step)


class Server:
    """The app with fakes behind it, and short ways to call it."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        max_model_len: int = 1000,
        security: SecurityConfig | None = None,
    ) -> None:
        self.client = ScriptedClient()
        self.template = FakeTemplate()
        self.tokenizer = FakeTokenizer()
        self.service = Service(self.client, MODEL, 1764400000)  # type: ignore[arg-type]
        self.client.on_frame = self.service.recorder.on_frame
        self.service.tokenizer = self.tokenizer
        self.service.chat_template = self.template
        self.service.max_model_len = max_model_len
        self.service.grammars = grammar_checker()
        self.app = create_app(self.service, config or ServerConfig(), security)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost:8000")

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", chat_body(**fields))

    async def comp(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", comp_body(**fields))

    async def respond(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/responses", responses_body(**fields))

    async def message(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/messages", messages_body(**fields))

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        response = await self.http.post(path, content=content, headers={"content-type": "application/json"})
        check_always(response)
        return response

    def open(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> RawCall:
        return RawCall(self.app, path, json.dumps(body).encode(), headers or {})


def chat_body(**fields: Any) -> dict[str, Any]:
    """A good request overlaid by `fields`; a field that is `...` is left out."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hi."}], **fields}
    return {key: value for key, value in body.items() if value is not ...}


def comp_body(**fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "The sky is", "max_tokens": 64, **fields}
    return {key: value for key, value in body.items() if value is not ...}


def responses_body(**fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": "Say hi.", **fields}
    return {key: value for key, value in body.items() if value is not ...}


def messages_body(**fields: Any) -> dict[str, Any]:
    user = {"role": "user", "content": "Say hi."}
    body = {"model": MODEL, "max_tokens": 64, "messages": [user], **fields}
    return {key: value for key, value in body.items() if value is not ...}


def check_always(response: httpx.Response) -> None:
    """What holds for every answer: C006, C017, C098."""
    assert response.headers["x-request-id"]
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert response.status_code not in (422, 500)
    if response.headers.get("content-type", "").startswith("application/json"):
        body = json.loads(response.text, parse_constant=lambda name: 1 / 0)
        assert "detail" not in body


def assert_error(response: httpx.Response, status: int, param: object = ..., code: object = ...) -> dict[str, Any]:
    """The error object, with all of its keys. `...` lets anything pass."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["type"], str)
    assert param is ... or error["param"] == param, error
    assert code is ... or error["code"] == code, error
    return error


def assert_messages_error(response: httpx.Response, status: int, kind: str, message: str) -> None:
    """Anthropic's error object, with all of its keys. message: a part of it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert body["error"].keys() - {"details"} == {"type", "message"}
    assert body["error"]["type"] == kind
    assert message in body["error"]["message"]


def chunks(text: str) -> list[dict[str, Any]]:
    """The chunks of a whole stream, its framing checked: C121, C140."""
    assert text.endswith("data: [DONE]\n\n")
    assert text.isascii() and "\r" not in text
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all("\n" not in event and event.startswith(("data: ", ": keep-alive")) for event in events)
    payloads = [event[6:] for event in events if event.startswith("data: ")]
    assert payloads.pop() == "[DONE]" and "[DONE]" not in payloads
    return [json.loads(payload) for payload in payloads]


def named_events(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream of the Responses API, their names, numbers and order checked: C181."""
    assert text.endswith("data: [DONE]\n\n")
    assert text.isascii() and "\r" not in text
    found = []
    for block in text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
        if block != ": keep-alive":
            name, _, data = block.partition("\ndata: ")
            found.append(json.loads(data))
            assert name == f"event: {found[-1]['type']}" and "\n" not in data
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    assert len({event["response"]["id"] for event in found if "response" in event}) == 1
    return found


def message_events(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream of the Messages API, signs of life left out: every one named, the message around
    all, its blocks one after the other, each in itself."""
    assert text.isascii() and "\r" not in text and "[DONE]" not in text
    found = []
    for block in text.split("\n\n")[:-1]:
        name, _, data = block.partition("\ndata: ")
        event = json.loads(data)
        assert name == f"event: {event['type']}" and "\n" not in data
        if event["type"] != "ping":
            found.append(event)
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    is_open, index = False, -1
    for event in found[1:-2]:
        begins = event["type"] == "content_block_start"
        assert is_open is not begins
        index += begins
        is_open = event["type"] != "content_block_stop"
        assert event["index"] == index
    assert not is_open
    return found


def joined(parts: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a chat or completion stream."""
    choices = [c for part in parts for c in part.get("choices", []) if c["index"] == index]
    return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)


class RawCall:
    """One ASGI call under the test's control: what was sent, when the client leaves, whether it reads."""

    def __init__(self, app: Any, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.body = b""
        self.status = 0
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self._gone = asyncio.Event()
        self._inbox = [{"type": "http.request", "body": body, "more_body": False}]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._inbox:
            return self._inbox.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.is_reading.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.body += message.get("body", b"")

    def leave(self) -> None:
        self._gone.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop run until the condition holds, and threads too."""
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def until_sent(self, text: str) -> None:
        await self.until(lambda: text.encode() in self.body)

    async def end(self) -> str:
        await asyncio.wait_for(self.task, PATIENCE_S)
        return self.body.decode()
