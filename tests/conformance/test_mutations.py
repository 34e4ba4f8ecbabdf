"""Good requests with something wrong in them, at every place, sent to a server in a process of its own.

Each is answered: with what was asked for, with an error object, or with 429; never with another 5xx. At the end the
server is as it was. A small and always equal draw by default; `make fuzz` draws FUZZ_EXAMPLES anew of each kind.
"""

from __future__ import annotations

import copy
import json
import os
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fake_process import FakeProcess
from processes import num_descriptors, resident_bytes
from server_harness import (
    MODEL,
    chat_body,
    chunks,
    comp_body,
    message_events,
    messages_body,
    named_events,
    responses_body,
)

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
NUM_EXAMPLES = int(EXAMPLES or 250)
HAS_PROC = Path("/proc/self/fd").exists()
NUM_KEPT = 100  # of each kind
MAX_GROWTH_BYTES = 24 << 20  # what differs from round to round; all of one round are some 10 MB of text
DELIBERATE = {429, 503, 529}

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
SAMPLING = {
    "max_tokens": 8,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 1,
    "n": 2,
    "stop": ["zz", "\n"],
    "stop_token_ids": [7],
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"65": 1.5, "256": -100},
    "min_tokens": 1,
    "ignore_eos": False,
    "priority": 1,
    "cache_salt": "a",
    "user": "u",
    "stream": True,
    "stream_options": {"include_usage": True},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x", "days": 1}'}}
DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What weather?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "user", "content": "And tomorrow?", "name": "Ann"},
]
SCHEMA = TOOL["function"]["parameters"]
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
FLAT_TOOL = {"type": "function", **TOOL["function"]}
SPACE = {
    "type": "namespace",
    "name": "sky",
    "description": "x",
    "tools": [FLAT_TOOL, {"type": "custom", "name": "look"}],
}
NAMED = {"type": "function", "name": "weather"}
FLAT_FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "What weather?"}]},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "eA==",
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city": "x"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "rain"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain.", "annotations": []}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"role": "user", "content": "And tomorrow?"},
]
OF_RESPONSES = {
    "max_output_tokens": 8,
    "parallel_tool_calls": False,
    "temperature": 0.7,
    "top_k": 5,
    "seed": 1,
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    "top_logprobs": 2,
    "metadata": {"a": "b"},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "x", "days": 1}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "text", "text": "rain"}],
    "is_error": True,
}
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "What weather?", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, USE]},
    {"role": "user", "content": [RESULT, {"type": "text", "text": "And tomorrow?"}]},
]
OF_MESSAGES = {
    "max_tokens": 8,
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [{"name": "weather", "input_schema": SCHEMA, "strict": True}, {"type": "bash_20250124", "name": "bash"}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["zz", "\n"],
    "temperature": 0.7,
    "top_k": 5,
    "metadata": {"user_id": "u"},
    "stream": True,
}
GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        chat_body(max_tokens=8),
        chat_body(messages=DIALOGUE, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False, **SAMPLING),
        chat_body(logprobs=True, top_logprobs=3, max_completion_tokens=8, metadata={"a": "b"}),
        chat_body(response_format=FORMAT, max_tokens=8),
        chat_body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "weather"}}, max_tokens=8),
    ],
    "/v1/completions": [
        comp_body(max_tokens=8),
        comp_body(**{**SAMPLING, "prompt": ["a", "b"], "stream": False, "stream_options": None}),
        comp_body(prompt=[[1, 2, 3], [4]], echo=True, logprobs=2, max_tokens=1),
        comp_body(guided_regex="[a-c]{1,5}", max_tokens=8, prompt_logprobs=1),
        comp_body(structured_outputs={"choice": ["yes", "no"]}, max_tokens=8),
    ],
    "/v1/responses": [
        responses_body(max_output_tokens=8),
        responses_body(input=ITEMS, tools=[FLAT_TOOL], instructions="Be brief.", **OF_RESPONSES),
        responses_body(text={"format": FLAT_FORMAT, "verbosity": "low"}, max_output_tokens=8, store=False),
        responses_body(tools=[SPACE, FLAT_TOOL, {"type": "web_search"}], tool_choice=NAMED, max_output_tokens=8),
        responses_body(
            stream=True, truncation="auto", reasoning={"effort": "low", "summary": "auto"}, max_output_tokens=8
        ),
    ],
    "/v1/responses/input_tokens": [responses_body(input=ITEMS)],
    "/v1/messages": [
        messages_body(max_tokens=8),
        messages_body(messages=BLOCKS, **OF_MESSAGES),
        messages_body(output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}),
        messages_body(messages=[*BLOCKS, {"role": "assistant", "content": "It"}], stream=True, max_tokens=8),
    ],
    "/v1/messages/count_tokens": [messages_body(messages=BLOCKS, max_tokens=...)],
    "/tokenize": [{"model": MODEL, "prompt": "Hello."}, {"model": MODEL, "messages": DIALOGUE, "tools": [TOOL]}],
    "/detokenize": [{"model": MODEL, "tokens": [72, 105]}],
    "/reset_prefix_cache": [{}],
}


@dataclass(frozen=True)
class Text:
    """Stands in a body as it is, JSON or not."""

    json: str


@dataclass
class Twice:
    """An object that has a key twice."""

    fields: dict[str, Any]
    key: str
    value: Any = field(default=None)


def written(value: Any) -> str:
    """JSON, but for what is none."""
    if isinstance(value, Text):
        return value.json
    if isinstance(value, Twice):
        return written(value.fields)[:-1] + f",{json.dumps(value.key)}:{written(value.value)}}}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "5e-324", "-0", "-0.0", "01", "+1", "1.", ".5"]
NUMBERS += ["9" * 18, "9" * 19, "9" * 400, "-" + "9" * 30, "1" + "0" * 5000, "18446744073709551615", "1e1000000000"]
BROKEN = [r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'"\x"', '"\x01"', "'a'", '"', "", "[", "{", "[1,]", '{"a"}']
BROKEN += ["[" * depth + "]" * depth for depth in (50, 900, 5000)]
BROKEN += ['{"a":' * depth + "1" + "}" * depth for depth in (50, 900, 5000)]
WORDS = ["", " ", "\0", "\u202e\u2066", "a\u0301" * 500, "\u200d".join("\U0001f468" * 50), "\uffff\ufffe", "\u2028"]
WORDS += ["\U0010ffff", "\x1b[31m", "x" * 100_000, "\u00e9" * 40_000, "../../etc/passwd", "{{ 7*7 }}{% raw %}", "%s%n"]
WORDS += [
    "<s>",
    "<|im_end|>",
    "<eos>",
    "None",
    "null",
    "true",
    "-1",
    "1e9",
    "REFUSE",
    "\r\nx: y\r\n",
    "((((a*)*)*)*)*b",
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
wrong_values = st.one_of(
    st.sampled_from([Text(text) for text in NUMBERS + BROKEN]),
    st.sampled_from(WORDS),
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 0.5, [], {}, [[]], [{}], [None]]
    ),
    st.sampled_from([["a"] * 2000, [0] * 9000, [[1]] * 700, {f"k{i}": i for i in range(2000)}]),
    anything,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that is inside."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*at, key)
            yield from places(inner, (*at, key))


def changed(value: Any, path: tuple[Any, ...], how: str, wrong: Any) -> Any:
    """A copy in which the value at `path` is another, gone, twice there, wrapped, repeated or has a stranger by it."""
    if not path:
        return wrong
    whole = copy.deepcopy(value)
    parent, above, key = whole, None, path[-1]
    for step in path[:-1]:
        parent, above = parent[step], (parent, step)
    if how == "gone":
        del parent[key]
    elif how == "wrapped":
        parent[key] = [parent[key]]
    elif how == "repeated" and isinstance(parent, list):
        parent.extend([parent[key]] * 300)
    elif how == "stranger" and isinstance(parent, dict):
        parent[str(wrong)[:2000]] = wrong
    elif how == "twice" and isinstance(parent, dict):
        twice = Twice(parent, key, wrong)
        if above is None:
            return twice
        above[0][above[1]] = twice
    else:
        parent[key] = wrong
    return whole


WAYS = ["another", "another", "another", "gone", "wrapped", "repeated", "stranger", "twice"]


@st.composite
def wrong_bodies(draw: st.DrawFn, path: str) -> bytes:
    value: Any = draw(st.sampled_from(GOOD[path]))
    for _ in range(draw(st.integers(1, 3))):
        found = [(), *places(value)]
        value = changed(value, draw(st.sampled_from(found)), draw(st.sampled_from(WAYS)), draw(wrong_values))
        if not isinstance(value, dict):
            break
    text = written(value)
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 3)) :]
    return data


# -- the server and what holds for every answer ------------------------------------------------------------------------


class Target:
    """The server, and what came of all that was sent to it."""

    def __init__(self, process: FakeProcess) -> None:
        self.process = process
        self.http = httpx.Client(base_url=process.url, timeout=100)
        self.num_by_status: dict[int, int] = {}
        self.kept: dict[str, list[bytes]] = {}

    def send(self, method: str, path: str, **parts: Any) -> httpx.Response:
        response = self.http.request(method, path, **parts)
        self.num_by_status[response.status_code] = self.num_by_status.get(response.status_code, 0) + 1
        check(response, method)
        return response

    def send_good(self) -> None:
        for path, bodies in GOOD.items():
            for body in bodies:
                assert self.send("POST", path, json=body).status_code == 200


READERS = {"/v1/responses": named_events, "/v1/messages": message_events}


def strict(text: str) -> Any:
    """Of JSON without NaN and without a key twice."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {text[:200]}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), text[:500]
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def check(response: httpx.Response, method: str) -> None:
    status, kind = response.status_code, response.headers.get("content-type", "")
    assert status < 500 or status in DELIBERATE, response.text[:2000]
    assert status != 422
    assert response.headers["x-request-id"]
    if method == "HEAD":
        return
    if status >= 400:
        assert kind == "application/json"
        body = strict(response.text)
        error = body["error"]
        is_anthropic = (response.request.url.path + "/").startswith("/v1/messages/")
        assert body.keys() == ({"type", "error", "request_id"} if is_anthropic else {"error"})
        if is_anthropic and (details := error.pop("details", None)) is not None:
            assert details.keys() == {"error_code"} and isinstance(details["error_code"], str)
        assert error.keys() == ({"message", "type"} if is_anthropic else {"message", "type", "param", "code"})
        assert isinstance(error["message"], str) and 0 < len(error["message"]) < 2000
        assert isinstance(error["type"], str)
        assert all(isinstance(value, str | None) for value in error.values())
        assert "Traceback" not in error["message"] and "/src/" not in error["message"]
        if status in DELIBERATE:
            assert int(response.headers["retry-after"]) >= 1
    elif kind.startswith("text/event-stream"):
        read = READERS.get(response.request.url.path, chunks)
        for chunk in read(response.text):
            assert "error" not in chunk or chunk["error"]["type"] == "invalid_request_error", chunk
    elif kind.startswith("application/json"):
        strict(response.text)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with FakeProcess(tmp_path_factory.mktemp("server"), model="brief", step_s=0) as process:
        found = Target(process)
        with found.http:
            found.send_good()
            before_bytes = resident_bytes(process.process.pid) if HAS_PROC else 0
            yield found
            found.send_good()
        assert "Traceback" not in process.log, process.log[-5000:]
        if HAS_PROC:
            after_bytes = resident_bytes(process.process.pid)
            statuses = dict(sorted(found.num_by_status.items()))
            memory = f"memory of the API process {before_bytes / 1e6:.0f} -> {after_bytes / 1e6:.0f} MB"
            print(f"\n{sum(statuses.values())} requests, by status {statuses}; {memory}")  # noqa: T201 - shown with -s


def drawn(strategy: st.SearchStrategy[Any], send: Any) -> None:
    """send(value) for each value drawn."""

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES is None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(strategy)
    def run(value: Any) -> None:
        send(value)

    run()


@pytest.mark.parametrize("path", GOOD)
def test_bodies(target: Target, path: str) -> None:
    kept = target.kept.setdefault(path, [])

    def send(data: bytes) -> None:
        if len(kept) < NUM_KEPT:
            kept.append(data)
        target.send("POST", path, content=data, headers={"content-type": "application/json"})

    drawn(wrong_bodies(path), send)
    assert target.process.is_ready()


CHARS = string.ascii_letters + string.digits + "/._-~%!$&'()*+,;=:@?"
PATHS = [*GOOD, "/health", "/version", "/v1/models", f"/v1/models/{MODEL}", "/", "/docs", "/openapi.json", "/nope"]
targets = st.builds(
    lambda path, at, insert, query: path[:at] + insert + path[at:] + query,
    st.sampled_from(PATHS).map(lambda path: path.replace(" ", "%20")),
    st.integers(1, 30),
    st.sampled_from(["", "", "/", "..", "%2e%2e/", "%00", "%ff", "%", "%zz", ";", "//", "a" * 5000])
    | st.text(CHARS.replace("?", ""), max_size=5),
    st.sampled_from(["", "?", "?a=b", "?stream=true&n=9", "?" + "a=b&" * 1000, "?%ff=%00"])
    | st.text(CHARS, max_size=9).map("?".__add__),
)
NAMES = ["content-type", "content-encoding", "accept", "accept-encoding", "authorization", "x-request-id", "x-api-key"]
NAMES += ["host", "origin", "cookie", "range", "if-none-match", "x-forwarded-for", "openai-organization", "expect"]
values = st.sampled_from(
    ["", "application/json; charset=utf-16", "gzip", "*/*", "Bearer ", "bytes=0-1", "x" * 9000]
) | (st.text("".join(map(chr, range(32, 127))) + "\u00e9\u00ff", max_size=20))
heads = st.dictionaries(st.sampled_from(NAMES), values.map(lambda text: text.strip().encode("latin-1")), max_size=4)
methods = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])


def test_urls_methods_and_fields(target: Target) -> None:
    def send(drawn: tuple[str, str, dict[str, bytes], bool]) -> None:
        method, url, head, has_body = drawn
        body = json.dumps(chat_body(max_tokens=2)).encode() if has_body else None
        target.send(method, target.process.url + url, headers=head, content=body)

    drawn(st.tuples(methods, targets, heads, st.booleans()), send)
    assert target.process.is_ready()


@pytest.mark.skipif(not HAS_PROC, reason="descriptors and memory are read from /proc")
def test_afterwards_the_server_is_as_before(target: Target) -> None:
    """Of the same requests again and again, nothing stays. What they leave the first time is the allocator's."""
    process = target.process

    def send_all() -> None:
        for path, bodies in target.kept.items():
            for body in bodies:
                target.send("POST", path, content=body, headers={"content-type": "application/json"})

    for _ in range(2):
        send_all()
    num_before, before_bytes = num_descriptors(process.process.pid), resident_bytes(process.process.pid)
    for _ in range(3):
        send_all()
    assert num_descriptors(process.process.pid) <= num_before
    assert resident_bytes(process.process.pid) < before_bytes + MAX_GROWTH_BYTES
