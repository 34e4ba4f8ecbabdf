from __future__ import annotations

import pytest

from anllm.cli.tables import print_pairs, print_table

ROWS = [("SmolLM2-135M-Instruct", "llama · 4-bit", "102 MB"), ("[bold]", "qwen3", "1.2 GB")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """stdout is one of 40 columns, unless a test makes it wider."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return monkeypatch


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines without what makes them bold."""
    out = capsys.readouterr().out.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    return [line.rstrip() for line in out.splitlines()]


def test_rows_stand_side_by_side_where_they_fit(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "60")
    print_table(("model", "type", "size"), ROWS, right=("size",))
    lines = printed(capsys)
    assert lines[0].split() == ["model", "type", "size"]
    assert lines[2] == "SmolLM2-135M-Instruct   llama · 4-bit   102 MB"
    assert lines[3].startswith("[bold] ")


def test_on_a_narrow_terminal_nothing_is_cut(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("model", "type", "size"), ROWS, right=("size",))
    assert printed(capsys) == [
        "SmolLM2-135M-Instruct",
        "  type  llama · 4-bit",
        "  size  102 MB",
        "[bold]",
        "  type  qwen3",
        "  size  1.2 GB",
    ]


def test_a_long_text_goes_on_below_itself(terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("model", "m"), ("memory", "1.2 GB: weights 538 MB, and K/V 377 MB")])
    assert printed(capsys) == ["model   m", "memory  1.2 GB: weights 538 MB, and K/V", "        377 MB"]


def test_where_nobody_looks_lines_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("memory", "word " * 30)])
    assert len(printed(capsys)) == 1
