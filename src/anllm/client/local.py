"""A server of our own for as long as it is used: started for a model, and ended with whoever started it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from anllm.client.address import Address
from anllm.errors import RemoteError

READY = re.compile(r" at (https?://\S+)/v1 ")  # of the line that serve prints when the model answers
END_S = 20.0


@contextmanager
def local_server(model: str | None, flags: Sequence[str] = (), api_key: str | None = None) -> Iterator[Address]:
    """`anllm serve MODEL FLAGS` on a free port of this machine. What it says while it loads goes to stderr.

    Raises RemoteError if it can't be served; the reason stands on stderr then.
    """
    command = [sys.executable, "-m", "anllm.client.guarded", "serve", *([model] if model else [])]
    command += ["--port", "0", "--log-level", "error", *flags]
    # In a session of its own, so that Ctrl-C is ours to answer.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield _wait(process, api_key)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _wait(process: subprocess.Popen[str], api_key: str | None) -> Address:
    assert process.stdout is not None
    for line in process.stdout:
        if found := READY.search(line):
            return Address.parse(found[1], api_key)
    raise RemoteError("The model can't be served; the line above says why.")
