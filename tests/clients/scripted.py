"""The fake server, with a model that answers by the last message of the user, for checks that need exactness.

The message begins with a word that says what to answer: one of ANSWERS, `slow`, `repeat`, or steps with " then "
between them, one for each turn that the answer takes:

    call get_weather {"city": "Oslo"} get_time {}     calls, as the model writes them
    look get_weather {"city": "Oslo"}                 the same with some words before
    write {"name": "Ann"}                             this text

Once the steps are done, it tells what the tools gave back. If it thinks, THOUGHT comes before everything.

`GET /num-open` tells how many answers it is working on, so that a client's script can see that it gave one up.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterator

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from anllm.config import SchedulerConfig
from anllm.parsers.choose import OutputFormat
from anllm.server.service import Service
from anllm.testing.runner import letters
from fake_server import MAX_MODEL_LEN, RealServer, make_runner
from serving import Gate

EOS = 256
BEGIN = b"<assistant>"
STEP_S = {"slow": 0.005, "unicode": 0.005}  # by the word: longer than anybody waits; and in more than one piece

# checks.py and checks.mjs have the same texts.
LOOK = "Let me look."
THOUGHT = "What might Ann want?"
ANSWERS = {
    "greet": "Hello there, Ann. How are you?",
    "unicode": "日本語 😀 👩‍👩‍👧 naïve\u2028é 한국어 \U0001f1e9\U0001f1ea.",
    "person": '```json\n{"name": "Ann", "age": 31}\n```',
}
WORDS = (*ANSWERS, "slow", "repeat", "call", "look", "write")
REMINDERS = r"(?:<system-reminder>.*?</system-reminder>\s*)*"  # which agents put before what their user says
USER = re.compile(rf"<user>{REMINDERS}(?=\s*(?:{'|'.join(WORDS)})\b)", re.DOTALL)
RESULT = re.compile(r'<(?:tool|function)>(.*?)""(?=<)', re.DOTALL)  # in FakeTemplate's words


def request_of(prompt: bytes) -> tuple[str, str]:
    """The last message of the user that begins with such a word, and the conversation since then, as FakeTemplate
    writes them. Clients add messages of their own, about mistakes."""
    text = prompt.decode()
    starts = [message.end() for message in USER.finditer(text)]
    asked, _, since = text[starts[-1] :].partition('""<')
    return asked, "<" + since


def word_of(prompt: bytes) -> str:
    return request_of(prompt)[0].split()[0]


@functools.lru_cache(maxsize=256)
def answer_to(prompt: bytes) -> bytes | None:
    """prompt: up to and with BEGIN. None goes on for ever."""
    word = word_of(prompt)
    if word == "slow":
        return None
    if word == "repeat":
        return prompt.removesuffix(BEGIN).replace(b"<", b"[").replace(b">", b"]")
    return ANSWERS[word].encode() if word in ANSWERS else next_step(*request_of(prompt)).encode()


def next_step(text: str, since: str) -> str:
    steps = text.split(" then ")
    num_done = since.count(BEGIN.decode()) - 1
    if num_done >= len(steps):
        return f"The tools said: {', '.join(RESULT.findall(since))}."
    word, _, what = steps[num_done].partition(" ")
    if word == "write":
        return what
    return f"{LOOK}\n" * (word == "look") + "\n".join(calls(what))


def calls(text: str) -> Iterator[str]:
    """In the format of Hermes, which is that of a model whose template tells of none."""
    while text:
        name, _, text = text.partition(" ")
        arguments, end = json.JSONDecoder().raw_decode(text)
        yield f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        text = text[end:].lstrip()


def answering(token_ids: tuple[int, ...], thought: bytes = b"") -> int:
    """Chats end with BEGIN; anything else is a completion and gets letters."""
    prompt, mark, answered = bytes(token_ids).rpartition(BEGIN)
    if not mark:
        return letters(token_ids)
    time.sleep(STEP_S.get(word_of(prompt + BEGIN), 0))
    answer = answer_to(prompt + BEGIN)
    if answer is None:
        return letters(token_ids[-4:])
    answer = thought + answer
    return answer[len(answered)] if len(answered) < len(answer) else EOS


def thinking(token_ids: tuple[int, ...]) -> int:
    return answering(token_ids, f"<think>\n{THOUGHT}\n</think>\n\n".encode())


class ScriptedServer(RealServer):
    """max_model_len: tokens are bytes, so the instructions of an agent take thousands."""

    def __init__(self, *, thinks: bool = False, max_model_len: int = MAX_MODEL_LEN) -> None:
        gate = Gate()
        runner = make_runner(thinking if thinks else answering, before_run=gate, max_model_len=max_model_len)
        super().__init__(runner, gate, SchedulerConfig(max_num_seqs=16, max_num_waiting=32))  # checks.py has their sum
        self._thinks, self._max_model_len = thinks, max_model_len

    def make_service(self) -> Service:
        service = super().make_service()
        service.max_model_len = self._max_model_len
        if self._thinks:
            service.output_format = OutputFormat.choose("", {"<think>", "</think>"}.__contains__)
        return service

    def make_app(self) -> FastAPI:
        app = super().make_app()

        @app.get("/num-open")
        async def num_open() -> PlainTextResponse:
            return PlainTextResponse(str(self.client.num_open))

        return app
