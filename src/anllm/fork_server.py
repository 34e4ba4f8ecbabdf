"""The front's side of a process that does work which may hang or take all memory, in children that it forks.
Standard library only.

The process is a module of ours, run with the number of a socket as its argument: over it come what it is set up with,
and then, with a byte each, the sockets of pieces of work. What is said on those is between the caller and the module.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping


class ForkServer:
    """Safe from any thread. The process starts with the first connection, and again when it has ended."""

    def __init__(
        self, module: str, set_up: Callable[[socket.socket], None], variables: Mapping[str, str] | None = None
    ) -> None:
        """set_up: sends what a new process is set up with. variables: of its environment, besides this process's."""
        self._command = [sys.executable, "-m", module]
        self._set_up = set_up
        self._environment = {**os.environ, **(variables or {})}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def connect(self) -> socket.socket | None:
        """A socket to whoever does one piece of work. None where the process can't be kept running, or was closed."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            for _ in range(2):
                if self._is_closed:
                    break
                try:
                    socket.send_fds(self._running(), [b"c"], [theirs.fileno()])
                    return ours
                except OSError:  # the process has ended
                    self._end()
        ours.close()
        return None

    def close(self) -> None:
        """End the process, and whatever is done in it. May be called twice; nothing can be done any more."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._control is None:
            control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C is not for it, not even before it can say so itself
                )
            self._control = control
            self._set_up(control)
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
