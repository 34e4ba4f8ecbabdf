"""A process that tries grammars, each in a child of its own: a hostile one costs the child, not the server.

Limits alone do not hold: `"multipleOf": 999983` compiles for ten seconds and a chain of 20,000 references overflows the
stack, which ends a process. So this process holds the vocabulary and forks for each grammar. The kernel ends the child
when its time is up, and its memory is bounded. Single-threaded, so that forking is safe.

Started by checker.py as `python -m anllm.structured.compile_process FD`; not meant to be called by hand. FD is a local
socket. Over it come the vocabulary, once, and then one connected socket a grammar.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

from llguidance import LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from anllm.structured.compile import compile_grammar, first_words
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import GrammarSource, from_gbnf
from anllm.structured.locate import locate
from anllm.structured.messages import STARTED, CompileLimits, Setup, receive_message

# The engine compiles on threads with 8 MB or more of stack and advances on threads with 2 MB.
_STACK_BYTES = 2 << 20

_MAX_IGNORED = 10  # sentences about one schema in the log

_LOCATE_TIME_S = 0.5  # the error is told without its place when this is over


def main(descriptor: str) -> int:
    """Until the parent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair; it ends, and so does this
    control = socket.socket(fileno=int(descriptor))
    setup = receive_message(control)
    assert isinstance(setup, Setup)
    tokenizer = setup.vocabulary.build()
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return 0
        connection = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            control.close()
            _run_child(connection, tokenizer, setup.limits)
        connection.close()


def _run_child(connection: socket.socket, tokenizer: LLTokenizer, limits: CompileLimits) -> None:
    """Does not return."""
    try:
        _bound(limits)
        connection.sendall(STARTED)
        threading.stack_size(_STACK_BYTES)
        thread = threading.Thread(target=_answer, args=(connection, tokenizer))
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def _bound(limits: CompileLimits) -> None:
    signal.setitimer(signal.ITIMER_REAL, limits.time_s)  # nothing handles SIGALRM, so it ends the child in any state
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # macOS has neither /proc nor this limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what Rust says when it dies is of no use to the log


def _answer(connection: socket.socket, tokenizer: LLTokenizer) -> None:
    """One JSON line: the grammar, or the error. Where an error has a place, a second line follows."""
    source = receive_message(connection)
    assert isinstance(source, GrammarSource)
    try:
        text, ignored = _compile(tokenizer, source)
        _send_line(connection, {"text": text, "ignored": ignored})
    except GrammarError as error:
        _send_line(connection, {"reason": error.reason})
        if source.schema_text is not None:
            signal.setitimer(signal.ITIMER_REAL, _LOCATE_TIME_S)
            pointer, keyword = locate(json.loads(source.schema_text), error.reason)
            _send_line(connection, {"pointer": pointer, "keyword": keyword})


def _compile(tokenizer: LLTokenizer, source: GrammarSource) -> tuple[str, list[str]]:
    """The grammar that compiled, and what llguidance left out of it. Raises GrammarError."""
    text = _from_gbnf(source) if source.is_gbnf else source.text
    try:
        compile_grammar(tokenizer, text)
        return text, []
    except GrammarError as error:
        if source.lenient_text is None:
            raise
        try:
            matcher = compile_grammar(tokenizer, source.lenient_text)
        except GrammarError:
            raise error from None
        warnings = [error.reason, *map(first_words, matcher.get_grammar_warnings())]
        return source.lenient_text, list(dict.fromkeys(warnings))[:_MAX_IGNORED]


def _from_gbnf(source: GrammarSource) -> str:
    try:
        return from_gbnf(gbnf_to_lark(source.text), source.frame)
    except Exception as error:  # gbnf_to_lark raises plain ones for missing and doubled rules
        raise GrammarError(f"{error}.") from error


def _send_line(connection: socket.socket, answer: dict[str, object]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
