"""Each id of ids.txt is either in the name of a test or in README.md's table of those without one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ID = re.compile(r"(?<![A-Za-z0-9])(C\d{3}|[A-J]_\d{1,2})(?![A-Za-z0-9])")


def ids_in(text: str) -> list[str]:
    return ID.findall(text)


@pytest.mark.timeout(330)  # collecting takes ten seconds; the rest is for busy machines
def test_every_id_has_a_test_or_a_reason() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    names = [line.partition("::")[2] for line in done.stdout.splitlines()]

    known = ids_in((HERE / "ids.txt").read_text(encoding="utf-8"))
    table = (HERE / "README.md").read_text(encoding="utf-8").split("## Without a test")[1]
    reasons = [ids_in(row.split("|")[1]) for row in table.splitlines() if row.startswith("|")]
    excused = [one for row in reasons for one in row]
    tested = {one for name in names for one in ids_in(name)}

    assert len(known) == len(set(known)) > 200
    assert len(excused) == len(set(excused))
    assert tested - set(known) == set(), "in the name of a test, and in no list"
    assert set(excused) - set(known) == set(), "in the table, and in no list"
    assert tested & set(excused) == set(), "with a test, and in the table of those without one"
    assert set(known) - tested - set(excused) == set(), "forgotten"
