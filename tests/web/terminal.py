"""A shell in a terminal that is recorded, and its picture: xterm.js draws the bytes as they came, in Chromium."""

from __future__ import annotations

import base64
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from playwright.sync_api import Browser

XTERM = Path(__file__).parents[2] / "web" / "node_modules" / "@xterm" / "xterm"
READY = b"\x1b]133;A\x07"  # what the shell says before each prompt; terminals don't show it
PROMPT = r"\[\e[38;5;141m\]$\[\e[0m\] "
PATIENCE_S = 600.0  # for a slow answer on a slow machine
END_S = 30.0
THEME = {
    "background": "#1b1a22", "foreground": "#e6e4ee", "cursor": "#1b1a22", "black": "#33313d", "red": "#f2777a",
    "green": "#8fd19e", "yellow": "#f0c674", "blue": "#8ab4f8", "magenta": "#c7a6ff", "cyan": "#7fd6d0",
    "white": "#e6e4ee", "brightBlack": "#8d8a99", "brightRed": "#ff9ea0", "brightGreen": "#a9e5b5",
    "brightYellow": "#ffd98f", "brightBlue": "#a9c8ff", "brightMagenta": "#d9c2ff", "brightCyan": "#9fe9e3",
    "brightWhite": "#ffffff",
}  # fmt: skip
PAGE = """<!doctype html><style>
  body { margin: 0; display: inline-block; background: #1b1a22; }
  #bar { display: flex; gap: 8px; padding: 14px 16px 0; }
  #bar i { width: 12px; height: 12px; border-radius: 50%; background: #45424f; }
  #screen { padding: 14px 18px 16px; }
</style><div id="bar"><i></i><i></i><i></i></div><div id="screen"></div>"""
DRAW = """async ([data, columns, rows, theme]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const font = { fontFamily: "DejaVu Sans Mono, Menlo, monospace", fontSize: 13, lineHeight: 1.2 };
  const terminal = new Terminal({ cols: columns, rows, theme, ...font, scrollback: 0, cursorInactiveStyle: "none" });
  terminal.open(document.getElementById("screen"));
  const write = (what) => new Promise((done) => terminal.write(what, done));
  await write(bytes);
  let used = rows;
  while (used > 1 && !terminal.buffer.active.getLine(used - 1).translateToString(true).trim()) used--;
  await write(`\x1b[${used};1H`); // what is below the cursor goes first
  terminal.resize(columns, used);
  await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
}"""
ROWS = 80  # more than a picture needs: nothing scrolls away


class Terminal:
    """bash, and what came of it so far. Ended with the block, and all that runs in it."""

    def __init__(self, columns: int, folder: Path, environment: Mapping[str, str]) -> None:
        """environment: variables besides this process's, without its ANLLM_ ones."""
        self._columns = columns
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANLLM_")}
        said = r"\[\e]133;A\a\]"
        self._process = subprocess.Popen(
            [shutil.which("bash") or "bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**kept, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PS1": said + PROMPT, **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is for what runs in it
        )
        os.close(slave)
        self._master = master
        self._said = bytearray()
        self._more = threading.Condition()
        # All the time, so that what runs here never waits for a reader.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.until(READY)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # nobody has the other end any more
                data = b""
            with self._more:
                self._said += data
                self._more.notify_all()
            if not data:
                return

    def until(self, text: bytes, since: int = 0) -> None:
        """Waits until `text` is there after that many bytes. Raises TimeoutError, with the last of them."""
        with self._more:
            self._more.wait_for(lambda: text in self._said[since:] or not self._reader.is_alive(), PATIENCE_S)
            if text not in self._said[since:]:
                raise TimeoutError(f"no {text!r} in {bytes(self._said[-2000:])!r}")

    def type(self, line: str, until: bytes = READY) -> None:
        """Enters it, and waits for what it leads to: the next prompt of the shell, if nothing else is said."""
        since = len(self._said)
        os.write(self._master, line.encode() + b"\r")
        self.until(until, since)

    def draw(self, browser: Browser, path: Path) -> None:
        """All of it, but for a last prompt at which nothing was entered."""
        said = bytes(self._said)
        said = said[: said.rindex(READY)] if said.count(READY) > 1 else said
        page = browser.new_page(device_scale_factor=2, viewport={"width": 1600, "height": 1600})
        page.set_content(PAGE)
        page.add_style_tag(path=XTERM / "css" / "xterm.css")
        page.add_script_tag(path=XTERM / "lib" / "xterm.js")
        page.evaluate(DRAW, [base64.b64encode(said).decode(), self._columns, ROWS, THEME])
        page.locator("body").screenshot(path=path)
        page.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.type("\x03")  # ends what runs, or nothing; either way there is a prompt again
            os.write(self._master, b"exit\r")
            self._process.wait(END_S)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGHUP)  # which bash passes on to what it runs
            self._process.wait(END_S)
        finally:
            self._reader.join()
            os.close(self._master)
