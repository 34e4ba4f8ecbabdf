"""Blocks of code in the documentation, and the commands in them."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])


@dataclass(frozen=True)
class Block:
    """page: from the root. line: where it begins there."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if match[1] in languages:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page.relative_to(ROOT).as_posix(), line, match[1], match[2]))
    return found


def commands(script: str) -> list[str]:
    """Each command of a shell script, over as many lines as it takes, without comments. Two that && joins are two."""
    found, pending = [], ""
    for line in script.splitlines():
        pending = f"{pending}\n{line}" if pending else line
        if not is_whole(pending):
            continue
        command = without_comment(pending)
        found.extend(re.split(r" && (?=[a-z])", command) if command else [])
        pending = ""
    assert not pending, f"the block ends inside of a command: {pending}"
    return found


def is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # an open quotation mark
        return False
    return not command.endswith("\\")


def without_comment(command: str) -> str:
    return re.sub(r"(^|\s+)#\s.*$", "", command, flags=re.MULTILINE).strip() if "'#" not in command else command.strip()


def imports(program: str) -> set[str]:
    """The first word of each module that it imports."""
    found = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found
