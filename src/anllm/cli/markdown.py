"""A text in Markdown that grows on a terminal.

Only the last lines are drawn anew, since what has scrolled off the screen can't be. That is how aider does it
(aider/mdstream.py); Markdown above the last few lines hardly ever changes when more comes.
"""

from __future__ import annotations

import io
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

WINDOW_LINES = 8
REDRAW_S = 0.1
RENDER_SHARE = 0.2  # of the time, at most, goes to drawing: long texts are drawn less often


class MarkdownStream:
    """Draws nothing until the first update."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._num_printed = 0
        self._next_s = 0.0
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()

    def update(self, text: str) -> None:
        """text: all of it so far."""
        self._text = text
        now = time.monotonic()
        if now < self._next_s:
            return
        self._draw(is_last=False)
        took = time.monotonic() - now
        self._next_s = now + max(REDRAW_S, took / RENDER_SHARE)

    def finish(self) -> None:
        """Draw what is there, for good."""
        if self._text:
            self._draw(is_last=True)
            self._text = ""
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()
            self._live = None

    def _draw(self, *, is_last: bool) -> None:
        if self._live is None:
            self._live = Live(Text(""), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        lines = self._rendered()
        num_stable = len(lines) if is_last else max(len(lines) - WINDOW_LINES, self._num_printed)
        if num_stable > self._num_printed:
            self._live.update(Text(""), refresh=True)
            stable = "".join(lines[self._num_printed : num_stable])
            self._console.print(Text.from_ansi(stable.removesuffix("\n")))
            self._num_printed = num_stable
        self._live.update(Text.from_ansi("".join(lines[num_stable:])), refresh=True)

    def _rendered(self) -> list[str]:
        """Lines with their line ends and colours."""
        file = io.StringIO()
        inner = Console(
            file=file,
            force_terminal=True,
            width=self._console.width,
            color_system="truecolor" if self._console.color_system else None,
        )
        inner.print(Markdown(self._text))
        return file.getvalue().splitlines(keepends=True)
