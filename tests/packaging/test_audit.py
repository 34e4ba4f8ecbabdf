"""What `make audit` makes of pip-audit's report."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "locks" / "audit.py"
spec = importlib.util.spec_from_file_location("audit", PATH)
assert spec is not None and spec.loader is not None
audit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(audit)

GOOD = {"name": "good", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([GOOD, GOOD], 0, "1 packages, no known vulnerability"),
        ([GOOD, BAD], 1, "bad 2: PYSEC-1, mended in 2.1"),
        ([GOOD, UNKNOWN], 2, "1 of 2 packages could not be audited"),
        ([UNKNOWN, BAD], 1, "could not be audited"),
        ([{**UNKNOWN, "name": f"p{number}"} for number in range(12)], 2, "and 2 more"),
        ([], 2, ""),
    ],
)
def test_only_what_was_asked_about_counts_as_good(packages, code: int, words: str) -> None:
    found, text = audit.verdict(packages)
    assert found == code and words in text


def test_a_service_that_gives_no_report_is_told_of(monkeypatch, capsys) -> None:
    monkeypatch.setattr(audit.sys, "executable", "false")
    assert audit.main(["locks/cpu.txt"]) == 2
    assert "could not be asked" in capsys.readouterr().err
