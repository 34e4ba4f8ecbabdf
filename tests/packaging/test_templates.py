"""Forms for issues are ones that code hosts can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_code_hosts_want(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert ids and len(ids) == len(set(ids))
    for part in form["body"]:
        assert part["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert isinstance(part["attributes"].get("value" if part["type"] == "markdown" else "label"), str)


def test_files_that_the_forms_name_are_there() -> None:
    for path in FORMS:
        for name in ("docs/troubleshooting.md", "docs/scope.md", "SECURITY.md"):
            assert name not in path.read_text(encoding="utf-8") or (ROOT / name).exists()
