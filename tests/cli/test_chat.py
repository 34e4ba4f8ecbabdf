"""`anllm chat` as it is used: in a process of its own, piped and on a terminal, against the real server with a fake
model."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anllm.cli import chat as chat_command
from anllm.client.address import Address
from anllm.client.conversation import Conversation
from anllm.client.plain import PlainClient
from anllm.config import SchedulerConfig
from e2e.servers import COMMAND, environment
from fake_server import RealServer, make_runner, text_alone
from server_harness import MODEL
from serving import PATIENCE_S, Gate

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SAID = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 12}


@pytest.fixture
def server() -> Iterator[RealServer]:
    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig()).running() as running:
        yield running


def chat(server: RealServer, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "chat", "--url", server.url, *arguments]
    return subprocess.run(
        command, input=text, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def shown(text: str) -> str:
    """Without what a text loses in Markdown and between lines."""
    return " ".join(ANSI.sub("", text).split())


# -- piped -------------------------------------------------------------------------------------------------------------


def test_what_is_piped_in_once_is_answered_once(server: RealServer) -> None:
    expected, _ = text_alone(SAID)
    done = chat(server, "Say hi.\n", "--once", "--set", "max_tokens=12")
    assert (done.returncode, done.stdout) == (0, expected + "\n")
    assert done.stderr == "cut at its limit of tokens\n"
    assert chat(server, "hi.\n", "--prompt", "Say", "--set", "max_tokens=2").returncode == 0


def test_lines_that_are_piped_in_are_messages_and_commands(server: RealServer, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    said = [
        "/set max_tokens 12",
        "Say hi.",
        "/retry",
        '"""two',
        'lines"""',
        f"/save {saved}",
        "/nonsense",
        "/model",
        "/exit",
        "x",
    ]
    done = chat(server, "\n".join(said))
    assert done.returncode == 0, done.stderr
    expected, _ = text_alone(SAID)
    assert done.stdout.splitlines().count(expected) == 2, "the answer, and the same once more"
    assert f"* {MODEL}" in done.stdout.splitlines()
    assert "There is no command /nonsense; /help lists them." in done.stderr
    kept = json.loads(saved.read_text())
    assert [m["content"] for m in kept["messages"] if m["role"] == "user"] == ["Say hi.", "two\nlines"]
    again = chat(server, "/retry\n", "--load", str(saved))
    assert again.returncode == 0
    assert again.stdout.strip()


def test_an_error_is_told_and_the_chat_goes_on(server: RealServer) -> None:
    done = chat(server, "/set temperature -5\nSay hi.\n/set temperature none\n/set max_tokens 12\nSay hi.\n")
    assert "Error: " in done.stderr and "temperature" in done.stderr
    assert text_alone(SAID)[0] in done.stdout
    assert chat(server, "Say hi.", "--once", "--set", "temperature=-5").returncode == 1


def test_without_a_server_it_says_what_to_do() -> None:
    command = [*COMMAND, "chat", "--url", "http://127.0.0.1:1", "--prompt", "hi"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: No server at http://127.0.0.1:1 ")
    assert "start one with 'anllm serve'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--once"], "Nothing to say"),
        (["--set", "temperature"], "has no ="),
        (["--set", "temprature=1", "--once"], "Did you mean temperature?"),
        (["org/name"], "give one of the two"),
    ],
)
def test_what_can_not_be_is_refused(server: RealServer, arguments: list[str], message: str) -> None:
    done = chat(server, "", *arguments)
    assert done.returncode in (1, 2)
    assert message in " ".join(done.stderr.split())


# -- on a terminal -----------------------------------------------------------------------------------------------------


class Typed:
    """A chat on a terminal of its own."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self._fd = fd
        self.process = process
        self.output = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str) -> str:
        """Wait for it behind what was waited for last."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = re.compile(pattern, re.DOTALL).search(shown(self.output), self._seen)
            if found:
                self._seen = found.end()
                return found[0]
            assert time.monotonic() < deadline, f"no {pattern!r} in {shown(self.output)[self._seen :]!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self.output += self._read()

    def _read(self) -> str:
        try:
            return os.read(self._fd, 65536).decode(errors="replace")
        except OSError:  # Linux's word for the other end being gone
            return ""


@contextmanager
def terminal(server: RealServer, home: Path) -> Iterator[Typed]:
    ours, theirs = pty.openpty()
    variables = {**environment(), "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "XDG_CACHE_HOME": str(home)}
    process = subprocess.Popen(
        [*COMMAND, "chat", "--url", server.url], env=variables, stdin=theirs, stdout=theirs, stderr=theirs,
        preexec_fn=lambda: take_terminal(theirs), close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Typed(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def take_terminal(fd: int) -> None:
    """Ctrl-C goes to whom the terminal belongs to."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_chat_on_a_terminal(server: RealServer, tmp_path: Path) -> None:
    with terminal(server, tmp_path) as typed:
        typed.until(re.escape(f"{MODEL} at {server.url}. /help lists the commands."))
        typed.until(">>> ?")
        typed.type("/set max_tokens 12\n")
        typed.until("max_tokens = 12")
        typed.type("Say hi.\n")
        typed.until("cut at its limit of tokens · 12 tokens · (.* tokens/s · )?first after")
        typed.type("/help\n")
        typed.until("/retry draw the last answer anew")
        typed.type("/exit\n")
        assert typed.process.wait(PATIENCE_S) == 0
    history = tmp_path / "anllm" / "chat_history"
    assert "Say hi." in history.read_text()
    assert history.stat().st_mode & 0o77 == 0, "what somebody said is for nobody else"


def test_ctrl_c_stops_the_answer_and_not_the_program(server: RealServer, tmp_path: Path) -> None:
    with terminal(server, tmp_path) as typed:
        typed.until(">>> ?")
        server.gate.shut()
        typed.type("Say hi.\n")
        server.until(lambda: server.client.num_open == 1)
        typed.type("\x03")
        typed.until("stopped")
        server.gate.open()
        server.until(lambda: server.client.num_open == 0)
        typed.until(">>> ?")  # else the terminal takes the next key, and not the line that is edited
        typed.type("\x03")
        typed.until("/exit or Ctrl-D leaves")
        typed.type("/system\n")
        typed.until("No system prompt")
        typed.until(">>> ?")
        typed.type("\x04")
        assert typed.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("is_typed", [True, False])
def test_ctrl_c_beside_an_answer_ends_a_pipe_and_not_a_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_typed: bool
) -> None:
    """Such as between its last word and the figures below it."""
    said: list[str] = []

    class Interrupted(chat_command.Terminal):
        def say(self, text: str) -> None:
            said.append(text)
            raise KeyboardInterrupt

    monkeypatch.setattr(chat_command, "lines", lambda is_typed: iter(["one", "two"]))
    monkeypatch.setattr(chat_command, "prepare_line_editing", lambda: None)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: is_typed)
    talk = Interrupted(PlainClient(Address.parse("http://127.0.0.1:1")), Conversation("m", None))
    if is_typed:
        talk.run()
        assert said == ["one", "two"]
        assert capsys.readouterr().err.count("/exit or Ctrl-D leaves") == 2
    else:
        with pytest.raises(KeyboardInterrupt):
            talk.run()
        assert said == ["one"]
