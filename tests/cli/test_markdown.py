"""A text that grows stands on the terminal once, whatever was drawn on the way."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.markdown import Markdown

from anllm.cli import markdown
from anllm.cli.markdown import MarkdownStream

TEXT = "# Title\n\n" + "\n\n".join(f"Paragraph {i} with **bold** words." for i in range(12)) + (
    "\n\n- one\n- two\n\n```python\nprint('x')\n```\n\nThe end."
)  # fmt: skip
CODES = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?\d+[hl]|(\r)|(\n)|([^\x1b\r\n])")


def screen(written: str) -> list[str]:
    """What a terminal shows, as far as rich uses it: text, new lines, cursor up, erased lines."""
    rows: list[str] = [""]
    row = column = 0
    for number, code, back, newline, character in (m.groups() for m in CODES.finditer(written)):
        if back:
            column = 0
        elif newline:
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif code == "A":
            row -= int(number or 1)
            assert row >= 0
        elif code == "K":
            rows[row] = ""
        elif character:
            rows[row] = rows[row][:column].ljust(column) + character + rows[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in rows]


def console(file: io.StringIO) -> Console:
    return Console(file=file, force_terminal=True, width=60, height=24, color_system="truecolor")


@pytest.mark.parametrize("step", [1, 7, 40, len(TEXT)])
def test_what_stays_is_the_whole_text_once(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(markdown, "REDRAW_S", 0.0)
    monkeypatch.setattr(markdown, "RENDER_SHARE", 1e9)
    grown, whole = io.StringIO(), io.StringIO()
    with MarkdownStream(console(grown)) as stream:
        for end in range(step, len(TEXT) + step, step):
            stream.update(TEXT[:end])
    console(whole).print(Markdown(TEXT))
    lines = screen(grown.getvalue().rstrip())
    assert "\n".join(lines).rstrip() == "\n".join(screen(whole.getvalue())).rstrip()
    assert sum("Paragraph 3" in line for line in lines) == 1


def test_without_a_text_nothing_is_drawn() -> None:
    file = io.StringIO()
    with MarkdownStream(console(file)):
        pass
    assert file.getvalue() == ""
