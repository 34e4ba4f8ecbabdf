"""An engine process with a fake model, as anllm.worker is one with a real: `python fake_worker.py MODE ADDRESS`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from anllm.config import SchedulerConfig
from anllm.core.events import LoadProgress
from anllm.core.step import StepPlan
from anllm.engine.process import serve_socket
from anllm.errors import ModelError
from anllm.testing import FakeRunner

LETHAL_TOKEN = 255  # in mode "fragile", a prompt that begins with it ends the process
HANGING_TOKEN = 254  # in mode "impatient", a prompt that begins with it never ends; steps may take two seconds there


def make_runner(mode: str, on_progress: Callable[[LoadProgress], None]) -> FakeRunner:
    if mode == "refuse":
        raise ModelError("The folder has no weights.")
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    on_progress(LoadProgress("weights", 1, 2))
    on_progress(LoadProgress("weights", 2, 2))
    before_run = {"fragile": die_of_it, "impatient": hang}.get(mode, lambda plan: None)
    return FakeRunner(before_run=before_run)


def die_of_it(plan: StepPlan) -> None:
    if any(s.token_ids[0] == LETHAL_TOKEN for s in plan.scheduled):
        os.kill(os.getpid(), signal.SIGSEGV)


def hang(plan: StepPlan) -> None:
    if any(s.token_ids[0] == HANGING_TOKEN for s in plan.scheduled):
        time.sleep(600)


if __name__ == "__main__":
    mode, address = sys.argv[1:]
    config = SchedulerConfig(step_timeout_s=2.0 if mode == "impatient" else None)
    sys.exit(serve_socket(address, config, lambda on_progress: make_runner(mode, on_progress)))
