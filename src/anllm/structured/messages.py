"""What checker.py and compile_process.py say to each other, over a local socket."""

from __future__ import annotations

import pickle
import socket
from dataclasses import dataclass

from anllm.structured.vocabulary import Vocabulary

STARTED = b"+"
"""First byte of an answer: the child runs, its time counts from now."""


@dataclass(frozen=True)
class CompileLimits:
    """time_s: for one grammar, wall clock. memory_bytes: what one may take beside the vocabulary."""

    time_s: float = 2.0
    memory_bytes: int = 192 << 20


@dataclass(frozen=True)
class Setup:
    """The first message."""

    vocabulary: Vocabulary
    limits: CompileLimits


def send_message(connection: socket.socket, message: object) -> None:
    payload = pickle.dumps(message)
    connection.sendall(len(payload).to_bytes(8, "big") + payload)


def receive_message(connection: socket.socket) -> object:
    """Only from a process of ours: pickle runs what it reads. Raises EOFError."""
    size = int.from_bytes(_receive(connection, 8), "big")
    return pickle.loads(_receive(connection, size))


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError("the other end is closed")
        received += part
    return bytes(received)
