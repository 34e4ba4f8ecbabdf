"""The fake server, with a model that answers by the first word of the last message, for checks that need exactness.

`GET /num-open` tells how many answers it is working on, so that a client's script can see that it gave one up.
"""

from __future__ import annotations

import functools
import time

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from anllm.config import SchedulerConfig
from anllm.testing.runner import letters
from fake_server import RealServer, make_runner
from serving import Gate

EOS = 256
BEGIN = b"<assistant>"
STEP_S = {"slow": 0.005, "unicode": 0.001}  # by the word: longer than anybody waits; and in more than one piece

# checks.py and checks.mjs have the same texts.
ANSWERS = {
    "greet": "Hello there, Ann. How are you?",
    "unicode": "日本語 😀 👩‍👩‍👧 naïve\u2028é 한국어 \U0001f1e9\U0001f1ea.",
    "person": '```json\n{"name": "Ann", "age": 31}\n```',
}


def word_of(prompt: bytes) -> str:
    return prompt.decode().rpartition("<user>")[2].partition('"')[0].split()[0]


@functools.lru_cache(maxsize=256)
def answer_to(prompt: bytes) -> bytes | None:
    """None goes on for ever."""
    word = word_of(prompt)
    if word == "slow":
        return None
    if word == "repeat":
        return prompt.replace(b"<", b"[").replace(b">", b"]")
    return ANSWERS[word].encode()


def answering(token_ids: tuple[int, ...]) -> int:
    """Chats end with BEGIN; anything else is a completion and gets letters."""
    prompt, mark, answered = bytes(token_ids).rpartition(BEGIN)
    if not mark:
        return letters(token_ids)
    time.sleep(STEP_S.get(word_of(prompt), 0))
    answer = answer_to(prompt)
    if answer is None:
        return letters(token_ids[-4:])
    return answer[len(answered)] if len(answered) < len(answer) else EOS


class ScriptedServer(RealServer):
    def __init__(self) -> None:
        gate = Gate()
        super().__init__(make_runner(answering, before_run=gate), gate, SchedulerConfig(max_num_seqs=16))

    def make_app(self) -> FastAPI:
        app = super().make_app()

        @app.get("/num-open")
        async def num_open() -> PlainTextResponse:
            return PlainTextResponse(str(self.client.num_open))

        return app
