"""The fake server, with answers for a chat in the browser, and switches for what may go wrong.

The last message of the user says what is answered: ANSWERS by the words in it; `slow` goes on for ever; `call ...` has
get_weather called; anything else comes back as it was. A text after the word is told of nowhere.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anllm.config import SchedulerConfig
from anllm.parsers.choose import OutputFormat
from anllm.server.service import Service
from anllm.testing.runner import letters
from fake_server import RealServer, make_runner
from serving import Gate
from web.answers import ANSWERS

EOS = 256
BEGIN = b"<assistant>"
SLOW_S = 0.004
PERSON = '{"name": "Ada", "age": 36}'
THOUGHT = "The user wants a sum. **17 and 25** make 42."
_SAID = re.compile(r'<(?:user|tool)>(.*?)""(?=<)', re.DOTALL)  # in FakeTemplate's words


@functools.lru_cache(maxsize=64)
def answer_to(prompt: bytes) -> bytes | None:
    """prompt: up to and with BEGIN. None goes on for ever."""
    text = prompt.decode()
    said: str = _SAID.findall(text)[-1]
    if "<tool>" in text[text.rindex(said) - 8 : text.rindex(said)]:
        return f"It says **{said}**.".encode()
    word = said.split()[0].lower()
    if word == "slow":
        return None
    if word == "call":
        call = {"name": "get_weather", "arguments": {"city": "Oslo"}}
        return f"Let me look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>".encode()
    if word == "think":
        return f"<think>\n{THOUGHT}\n</think>\n\n17 + 25 = 42.".encode()
    if word == "person":
        return PERSON.encode()
    for key, answer in ANSWERS.items():
        if key in said:
            return answer.encode()
    return f"You said: {said}".encode()


class Faults:
    """Before the app: what a server of another kind, or one in trouble, would answer."""

    def __init__(self, app: ASGIApp, server: ChatServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        headers = dict(scope.get("headers", ()))
        self._server.asked.append((scope.get("method", ""), path))
        if self._server.key and (path.startswith("/v1/") or path == "/metrics"):
            given = headers.get(b"authorization", b"").decode()
            if given != f"Bearer {self._server.key}":
                error = {"message": "Incorrect API key provided.", "type": "invalid_request_error"}
                await _send_json(send, 401, {"error": {**error, "param": None, "code": "invalid_api_key"}})
                return
        if path == "/metrics" and self._server.metrics is not None:
            await _send(send, 200, self._server.metrics().encode(), b"text/plain; version=0.0.4")
            return
        if path == "/v1/status" and self._server.status is not None:
            await _send_json(send, 200, self._server.status)
            return
        if path == "/v1/chat/completions":
            if self._server.refusals:
                await _send_json(send, *self._server.refusals.pop(0))
                return
            if self._server.cuts:
                self._server.cuts -= 1
                send = _cut_after(send, 3)
        await self._app(scope, receive, send)


def _cut_after(send: Send, num_pieces: int) -> Send:
    """Ends the connection in the middle of the stream."""
    left = num_pieces

    async def cut(message: Message) -> None:
        nonlocal left
        if message["type"] == "http.response.body":
            left -= 1
            if left < 0:
                raise ConnectionAbortedError
        await send(message)

    return cut


async def _send_json(send: Send, status: int, body: object, *headers: tuple[bytes, bytes]) -> None:
    await _send(send, status, json.dumps(body).encode(), b"application/json", *headers)


async def _send(send: Send, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    start = {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


class ChatServer(RealServer):
    """step_s: how long a token takes. key: what /v1 asks for. metrics, status: what
    /metrics and /v1/status tell; None leaves it to the app.
    refusals: (status, body, headers...) for the next chats. cuts: how many of the next streams break off."""

    def __init__(self, *, model_id: str | None = None) -> None:
        gate = Gate()
        super().__init__(make_runner(self._next_token, before_run=gate), gate, SchedulerConfig(max_num_seqs=16))
        self.step_s = 0.0
        self._model_id = model_id
        self.service: Service
        self.reset()

    def reset(self) -> None:
        self.key = ""
        self.metrics: Callable[[], str] | None = None
        self.status: object = None
        self.refusals: list[Any] = []
        self.cuts = 0
        self.asked: list[tuple[str, str]] = []
        self.gate.fails = lambda plan: False
        self.step_s = 0.0

    def _next_token(self, token_ids: tuple[int, ...]) -> int:
        prompt, mark, answered = bytes(token_ids).rpartition(BEGIN)
        if not mark:
            return letters(token_ids[-4:])
        answer = answer_to(prompt + BEGIN)
        if answer is None:
            time.sleep(SLOW_S)
            return letters(token_ids[-4:])
        time.sleep(self.step_s)
        return answer[len(answered)] if len(answered) < len(answer) else EOS

    def make_service(self) -> Service:
        self.service = super().make_service()
        if self._model_id is not None:
            self.service.model_id = self._model_id
        self.service.output_format = OutputFormat.choose("", {"<think>", "</think>"}.__contains__)
        return self.service

    def make_app(self) -> ASGIApp:  # type: ignore[override]
        return Faults(super().make_app(), self)
