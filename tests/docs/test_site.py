"""mkdocs.yml has a place for each page, and none for what is not there. That the site builds is seen by `make docs`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
HOOKS = (DOCS / "site" / "hooks.py").read_text(encoding="utf-8")
PAGES_OF_ROOT = dict(re.findall(r'"(\w+\.md)": "([\w-]+\.md)"', HOOKS))  # file -> its page in the site


def leaves(nav: Any) -> Iterator[str]:
    for entry in nav.values() if isinstance(nav, dict) else nav:
        if isinstance(entry, str):
            yield entry
        else:
            yield from leaves(entry)


def test_each_page_has_one_place_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    places = list(leaves(SITE["nav"]))
    assert len(places) == len(set(places))
    assert set(places) == pages | set(PAGES_OF_ROOT.values()) | set(SITE["extra"]["not_written_yet"])


def test_pages_of_the_root_are_there() -> None:
    assert [name for name in PAGES_OF_ROOT if not (ROOT / name).exists()] == []
    assert PAGES_OF_ROOT.keys() == {path.name for path in ROOT.glob("*.md")}


def test_what_is_written_is_not_called_unwritten() -> None:
    assert [page for page in SITE["extra"]["not_written_yet"] if (DOCS / page).exists()] == []


def test_the_site_asks_no_other_host() -> None:
    assert SITE["theme"]["font"] is False
    assert "://" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
