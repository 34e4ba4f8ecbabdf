"""A process that renders chat templates, which come with models and are programs: one that does not end, or fills the
memory, costs this process and not the server.

Jinja's sandbox keeps a template from files and from Python's inside, but `range(99999)` in itself three times runs for
years, and `9 ** 9 ** 9` without ever letting go of the interpreter. So the kernel ends it. This process imports what
rendering needs, and forks a child that renders; when the kernel has ended that one, it forks the next.

Started by sandboxed_template.py as `python -m anllm.text.template_process FD`; not meant to be called by hand. FD is a
local socket. Over it come the template, once, and then one connected socket a conversation.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from anllm.errors import InvalidRequestError
from anllm.text.chat_template import ChatTemplate

END = b"\0"
"""Last byte of an answer: the child came to its end."""


class TemplateSetup(msgspec.Struct, frozen=True):
    """The first message, on a line of its own. cpu_s: for one conversation. memory_bytes: beside what importing took.
    max_chars: of a prompt."""

    text: str
    special_tokens: dict[str, str]
    cpu_s: float
    memory_bytes: int
    max_chars: int


class Conversation(msgspec.Struct, frozen=True):
    """What ChatTemplate.render takes."""

    messages: Sequence[Mapping[str, object]]
    add_generation_prompt: bool
    continue_final_message: bool
    tools: Sequence[Mapping[str, object]] | None
    variables: Mapping[str, object]


class Rendered(msgspec.Struct, frozen=True):
    """The answer: a prompt, or an InvalidRequestError."""

    prompt: str = ""
    error: str | None = None
    param: str | None = None


def main(descriptor: str) -> int:
    """Until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair; it ends, and so does this
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type] # which transformers would import, for nothing
    control = socket.socket(fileno=int(descriptor))
    setup = msgspec.json.decode(_read_line(control), type=TemplateSetup)
    from transformers.utils import chat_template_utils  # noqa: F401 - once, and not in each child

    while True:
        pid = os.fork()
        if pid == 0:
            _run_child(control, setup)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            return 0


def _run_child(control: socket.socket, setup: TemplateSetup) -> None:
    """Does not return. Exit code 0 is that the parent is gone."""
    code = 1
    try:
        _bound_memory(setup.memory_bytes)
        template = ChatTemplate(setup.text, setup.special_tokens)
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                code = 0
                return
            with socket.socket(fileno=descriptors[0]) as connection:
                signal.setitimer(signal.ITIMER_PROF, setup.cpu_s)  # nothing handles SIGPROF, so it ends the process
                connection.sendall(_answer(template, _read_all(connection), setup.max_chars) + END)
                signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        os._exit(code)


def _bound_memory(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # macOS has neither /proc nor this limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answer(template: ChatTemplate, raw: bytes, max_chars: int) -> bytes:
    conversation = msgspec.json.decode(raw, type=Conversation)
    try:
        prompt = template.render(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            tools=conversation.tools,
            **conversation.variables,
        )
        if len(prompt) > max_chars:
            reason = f"The chat template of the model makes more than {max_chars} characters of these messages."
            return msgspec.json.encode(Rendered(error=reason, param="messages"))
        return msgspec.json.encode(Rendered(prompt))
    except InvalidRequestError as error:
        return msgspec.json.encode(Rendered(error=error.message, param=error.param))


def _read_all(connection: socket.socket) -> bytes:
    received = bytearray()
    while part := connection.recv(1 << 20):
        received += part
    return bytes(received)


def _read_line(control: socket.socket) -> bytes:
    """Byte by byte at its end, since what follows it is not to be read here."""
    received = bytearray()
    while not received.endswith(b"\n"):
        waiting = control.recv(1 << 16, socket.MSG_PEEK)
        if not waiting:
            raise EOFError("the parent ended")
        end = waiting.find(b"\n") + 1
        received += control.recv(end or len(waiting))
    return bytes(received)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
