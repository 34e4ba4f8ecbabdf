"""docs/config.md names every setting and every flag of `anllm serve`, with the default that the code has."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import click
import pytest

from anllm.cli.serve import serve
from anllm.config import Config

CONFIG_MD = Path(__file__).parents[2] / "docs" / "config.md"
COLUMNS = ("field", "flag", "environment", "type", "unit", "default", "what it does")
FLAGS = [parameter for parameter in serve.params if isinstance(parameter, click.Option)]
SECTIONS = {section.name: getattr(Config(), section.name) for section in fields(Config)}
SETTINGS = [(section, field) for section, values in SECTIONS.items() for field in fields(values)]


def rows_by_section() -> dict[str, list[dict[str, str]]]:
    rows: dict[str, list[dict[str, str]]] = {}
    section = ""
    for line in CONFIG_MD.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| ---", "| field")):
            cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
            if len(cells) == len(COLUMNS):
                rows.setdefault(section, []).append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def written(default: object) -> str:
    return "none" if default in (None, ()) else str(default)


@pytest.mark.parametrize(("section", "field"), SETTINGS, ids=lambda value: getattr(value, "name", value))
def test_each_setting_is_documented_with_its_default(section, field):
    assert field.default is not MISSING
    found = [row for row in rows_by_section().get(section, []) if row["field"] == field.name]
    assert len(found) == 1, f"docs/config.md must have one row for {field.name} under '## {section}'"
    assert found[0]["default"] == written(field.default)
    assert found[0]["what it does"].endswith(".")


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_each_flag_is_documented_with_its_variable_and_default(flag):
    found = [row for rows in rows_by_section().values() for row in rows if row["flag"] == flag.opts[0]]
    assert len(found) == 1, f"docs/config.md must have one row for {flag.opts[0]}"
    assert found[0]["environment"] == f"ANLLM_SERVE_{flag.name.upper()}"
    default = None if "Sentinel" in type(flag.default).__name__ else flag.default
    assert found[0]["default"] == written(default)
    if isinstance(flag.type, click.Choice):
        assert found[0]["type"] == ", ".join(flag.type.choices)


def test_nothing_is_documented_that_does_not_exist():
    settings = {(section, field.name) for section, field in SETTINGS}
    flags = {flag.opts[0] for flag in FLAGS}
    for section, rows in rows_by_section().items():
        for row in rows:
            assert not row["field"].isidentifier() or (section, row["field"]) in settings
            assert not row["flag"].startswith("--") or row["flag"] in flags


def test_the_variables_are_read(monkeypatch):
    from anllm.cli.main import main

    monkeypatch.setenv("ANLLM_SERVE_PORT", "70000")
    monkeypatch.setenv("ANLLM_SERVE_LOG_LEVEL", "error")
    with main.make_context("anllm", ["serve"]) as context, serve.make_context("serve", [], parent=context) as inner:
        assert inner.params["port"] == 70000
        assert inner.params["log_level"] == "error"


def test_every_variable_in_the_page_belongs_to_a_flag():
    known = {f"ANLLM_SERVE_{flag.name.upper()}" for flag in FLAGS} | {flag.envvar for flag in FLAGS if flag.envvar}
    assert set(re.findall(r"ANLLM_[A-Z_]+", CONFIG_MD.read_text(encoding="utf-8"))) == known
