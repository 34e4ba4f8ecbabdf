"""An engine process with a fake model, as anllm.worker is one with a real: `python fake_worker.py MODE ADDRESS`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from anllm.config import SchedulerConfig
from anllm.core.events import LoadProgress
from anllm.core.step import StepPlan
from anllm.engine.process import serve_socket
from anllm.errors import ModelError
from anllm.testing import FakeRunner

LETHAL_TOKEN = 255  # in mode "fragile", a prompt that begins with it ends the process


def make_runner(mode: str, on_progress: Callable[[LoadProgress], None]) -> FakeRunner:
    if mode == "refuse":
        raise ModelError("The folder has no weights.")
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    on_progress(LoadProgress("weights", 1, 2))
    on_progress(LoadProgress("weights", 2, 2))
    return FakeRunner(before_run=die_of_it if mode == "fragile" else lambda plan: None)


def die_of_it(plan: StepPlan) -> None:
    if any(s.token_ids[0] == LETHAL_TOKEN for s in plan.scheduled):
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    mode, address = sys.argv[1:]
    sys.exit(serve_socket(address, SchedulerConfig(), lambda on_progress: make_runner(mode, on_progress)))
