"""ChatTemplate in a process of its own (template_process.py), for a server that must not hang with its template.

Blocking, and safe from any thread. A prompt takes 0.1 ms longer than in this process.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence

import msgspec

from anllm.errors import InvalidRequestError, NotReadyError
from anllm.fork_server import ForkServer
from anllm.text.chat_template import ChatTemplate
from anllm.text.template_process import END, Conversation, Rendered, TemplateSetup

CPU_S = 3.0  # 20,000 messages of 50 words take 0.1 s
MEMORY_BYTES = 2 << 30  # a body of 32 MB in all the forms that are tried one after the other
MAX_CHARS = 64 << 20
PATIENCE_S = 60.0  # with those before it, and with the start of the process, which takes 2 s


class SandboxedTemplate:
    """Renders as `template` does, within a time and a memory that no template exceeds."""

    def __init__(
        self,
        template: ChatTemplate,
        *,
        cpu_s: float = CPU_S,
        memory_bytes: int = MEMORY_BYTES,
        max_chars: int = MAX_CHARS,
    ) -> None:
        """The process starts with the first conversation. cpu_s, memory_bytes: for each; max_chars: of a prompt."""
        self.text = template.text
        self._setup = TemplateSetup(template.text, template.special_tokens, cpu_s, memory_bytes, max_chars)
        # one thread, so that forking is safe
        variables = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._server = ForkServer("anllm.text.template_process", self._set_up, variables)

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._server.pid

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **template_kwargs: object,
    ) -> str:
        """See ChatTemplate.render. Raises InvalidRequestError also where the template takes too long or too much;
        NotReadyError where the process can't be started."""
        try:
            raw = msgspec.json.encode(
                Conversation(messages, add_generation_prompt, continue_final_message, tools, template_kwargs)
            )
        except (OverflowError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidRequestError(
                f"These messages can't be put into a prompt: {error}.", param="messages"
            ) from None
        with self._connect() as connection:
            answer = _ask(connection, raw)
        if answer is None:
            raise InvalidRequestError(
                f"The chat template of the model does not come to an end with these messages: it took more than "
                f"{self._setup.cpu_s:g} s, or too much memory. Please shorten them, or use another model.",
                param="messages",
            )
        if answer.error is not None:
            raise InvalidRequestError(answer.error, param=answer.param)
        return answer.prompt

    def close(self) -> None:
        """Ends the process. May be called twice; nothing can be rendered any more."""
        self._server.close()

    def _connect(self) -> socket.socket:
        """A socket to the child that renders; it may have others to do before."""
        connection = self._server.connect()
        if connection is None:
            raise NotReadyError("Conversations can't be rendered now: the process for it has ended.")
        connection.settimeout(PATIENCE_S)
        return connection

    def _set_up(self, control: socket.socket) -> None:
        control.sendall(msgspec.json.encode(self._setup) + b"\n")


def _ask(connection: socket.socket, raw: bytes) -> Rendered | None:
    """None if the child ended over it."""
    received = bytearray()
    with contextlib.suppress(OSError):  # it ended while it read
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 20):
            received += part
    if not received.endswith(END):
        return None
    return msgspec.json.decode(received[: -len(END)], type=Rendered)
