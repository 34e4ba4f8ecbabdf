"""`python -m anllm.client.guarded ARGUMENTS`: `anllm ARGUMENTS`, ended when its standard input is closed.

That is when whoever started it is gone, however it went.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def end_with_input() -> None:
    """Blocks; for a thread of its own."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, name="anllm-starter-watch", daemon=True).start()
    runpy.run_module("anllm.cli", run_name="__main__")
