"""A server that was started for a command ends with it, however that goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from anllm.client.local import local_server
from anllm.errors import RemoteError
from e2e.servers import environment


def test_it_ends_when_its_input_does() -> None:
    code = "import threading, time\nfrom anllm.client.guarded import end_with_input\n"
    code += "threading.Thread(target=end_with_input, daemon=True).start()\nprint('up', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.1)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(50) == -signal.SIGTERM
    process.stdout.close()


def test_it_is_anllm() -> None:
    command = [sys.executable, "-m", "anllm.client.guarded", "--version"]
    done = subprocess.run(
        command, env=environment(), input="", capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode in (0, -signal.SIGTERM), "its input is at its end already"


def test_a_model_that_can_not_be_served_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RemoteError, match="the line above says why"), local_server("/no/such/folder"):
        pass
    assert "There is no model folder 'folder'" in capfd.readouterr().err
