"""docs/troubleshooting.md quotes what the program says, word for word."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTES = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)
OF_PIP = "No matching distribution found for mlx"


@cache
def messages() -> str:
    """All texts of the source, one a line; `…` for what is filled in."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%(?:\.\d)?[a-z]", "…", node.value))
    return "\n".join(re.sub(r"`…`|'…'|…", "…", text) for text in found)


@pytest.mark.parametrize("quote", [quote for quote in QUOTES if quote != OF_PIP])
def test_each_message_is_one_of_the_program(quote: str) -> None:
    pieces = [piece for piece in re.split(r"'…'|…", quote) if re.search(r"\w{3}", piece)]
    assert pieces, f"{quote} has no words of its own"
    for piece in pieces:
        assert piece.strip(" '") in messages(), f"{piece!r} is said nowhere"


def test_there_are_messages() -> None:
    assert len(QUOTES) > 30 and len(set(QUOTES)) == len(QUOTES)


def test_each_entry_has_a_way_out() -> None:
    """A heading is followed by its text, or by further headings of the same text."""
    for entry in re.split(r"^### ", PAGE.split("\n## It does not start")[1], flags=re.MULTILINE)[1:]:
        heading, _, text = entry.partition("\n")
        text = text.split("\n## ")[0].strip()
        assert not text or "Fix: " in text or "](" in text or "`" in text or "works" in text, heading
