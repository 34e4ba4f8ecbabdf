"""Grammars are tried here before their requests are admitted: what is unsupported, hostile or too big ends in 400.

For the front. Blocking, and safe from any thread: call it through asyncio.to_thread. Compiling happens in a process of
its own (compile_process.py), started with the first grammar.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import socket
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from anllm.errors import NotReadyError, QueueFullError
from anllm.fork_server import ForkServer
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import GrammarSource
from anllm.structured.messages import STARTED, CompileLimits, Setup, send_message
from anllm.structured.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0  # Python, llguidance and the vocabulary: 0.15 s for 49k tokens, 0.35 s for 152k
TURN_TIMEOUT_S = 10.0  # what a grammar waits for others
END_GRACE_S = 0.5  # for the kernel to end a child whose time is up
MAX_PARALLEL = 2
MAX_CACHED = 512


@dataclass(frozen=True)
class _Outcome:
    """What is remembered of a grammar; its text only where the caller does not have it."""

    text: str | None = None
    is_lenient: bool = False
    error: tuple[str, str | None, str | None] | None = None  # reason, pointer, keyword


class GrammarChecker:
    """Says whether a grammar compiles, within a time and a memory that no grammar exceeds."""

    def __init__(
        self, vocabulary: Vocabulary, limits: CompileLimits | None = None, *, max_cached: int = MAX_CACHED
    ) -> None:
        """max_cached: outcomes that are kept, good and bad, the last used."""
        self._vocabulary = vocabulary
        self._limits = limits or CompileLimits()
        self._max_cached = max_cached
        self._outcomes: OrderedDict[bytes, _Outcome] = OrderedDict()
        self._turns = threading.BoundedSemaphore(MAX_PARALLEL)
        self._lock = threading.Lock()
        self._server = ForkServer("anllm.structured.compile_process", self._set_up)

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._server.pid

    def check(self, source: GrammarSource) -> str:
        """The text to hand to the engine. Raises GrammarError; QueueFullError where too many are being tried.

        Takes a few milliseconds, at most the limit once it is its turn.
        """
        key = _key(source)
        outcome = self._remembered(key)
        if outcome is None:
            outcome = self._try(source)
            self._remember(key, outcome)
        if outcome.error is not None:
            reason, pointer, keyword = outcome.error
            raise GrammarError(reason, pointer=pointer, keyword=keyword)
        if outcome.is_lenient:
            assert source.lenient_text is not None
            return source.lenient_text
        return outcome.text or source.text

    def close(self) -> None:
        """Ends the process; a check that runs is told NotReadyError or its error. May be called twice."""
        self._server.close()

    def _try(self, source: GrammarSource) -> _Outcome:
        if not self._turns.acquire(timeout=TURN_TIMEOUT_S):
            raise QueueFullError("Too many grammars are being compiled. Please try again later.")
        try:
            connection = self._connect()
            with connection:
                return self._ask(connection, source)
        finally:
            self._turns.release()

    def _ask(self, connection: socket.socket, source: GrammarSource) -> _Outcome:
        connection.settimeout(START_TIMEOUT_S)
        try:
            started = connection.recv(1)
        except TimeoutError:
            started = b""
        if started != STARTED:
            raise NotReadyError("Grammars can't be compiled now: their process did not start.")
        connection.settimeout(self._limits.time_s + END_GRACE_S)
        with contextlib.suppress(OSError):  # it ended while it read
            send_message(connection, source)
        answer = _read_lines(connection)
        root = "" if source.schema_text is not None else None
        if not answer:
            return _Outcome(error=(self._too_complex(), root, None))
        if "reason" in answer:
            return _Outcome(error=(answer["reason"], answer.get("pointer", root), answer.get("keyword")))
        if answer["ignored"]:
            logger.info("ignored in a schema that is not strict: %s", " ".join(answer["ignored"]))
            return _Outcome(is_lenient=True)
        return _Outcome(text=answer["text"] if source.is_gbnf else None)

    def _too_complex(self) -> str:
        return f"it is too complex: it needs more than {self._limits.time_s:g} s, or too much memory, to compile."

    def _connect(self) -> socket.socket:
        """A socket to a child that waits for one grammar."""
        connection = self._server.connect()
        if connection is None:
            raise NotReadyError("Grammars can't be compiled now: their process ended.")
        return connection

    def _set_up(self, control: socket.socket) -> None:
        control.settimeout(START_TIMEOUT_S)
        send_message(control, Setup(self._vocabulary, self._limits))

    def _remembered(self, key: bytes) -> _Outcome | None:
        with self._lock:
            outcome = self._outcomes.get(key)
            if outcome is not None:
                self._outcomes.move_to_end(key)
            return outcome

    def _remember(self, key: bytes, outcome: _Outcome) -> None:
        with self._lock:
            self._outcomes[key] = outcome
            while len(self._outcomes) > self._max_cached:
                self._outcomes.popitem(last=False)


def _key(source: GrammarSource) -> bytes:
    digest = hashlib.blake2b(source.text.encode(), digest_size=32)
    digest.update(b"gbnf" if source.is_gbnf else b"lark")
    digest.update(source.frame.encode())
    digest.update(b"strict" if source.lenient_text is None else b"lenient")
    return digest.digest()


def _read_lines(connection: socket.socket) -> dict[str, Any]:
    """The members of all lines that came before the child ended."""
    received = bytearray()
    with contextlib.suppress(OSError):  # a time-out, or the child was ended
        while part := connection.recv(1 << 16):
            received += part
    complete = received[: received.rfind(b"\n") + 1]
    answer: dict[str, Any] = {}
    for line in complete.splitlines():
        answer.update(json.loads(line))
    return answer
