"""The documents hold together: links lead somewhere, and flags exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from anllm.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FLAGS_OF_OTHER_PROGRAMS = {
    *("--help", "--version"),  # click
    *("--decode-concurrency", "--prompt-concurrency"),  # mlx_lm.server
    *("--apply_chat_template", "--batch_size", "--include_path", "--model_args", "--tasks"),  # lm_eval
    *("--build-arg", "--cap-drop", "--cpus", "--format", "--memory", "--no-healthcheck"),  # docker
    *("--read-only", "--timeout", "--user"),  # docker
    "--repository",  # brew
    *("--auto-approve", "--yolo"),  # cline, qwen
    *(
        "--from",
        "--install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--require-hashes",
    ),  # uvx, xcode-select, pip
}
OTHER_PROGRAMS = (
    r"aider|brew|claude|cline|cn|docker|HOMEBREW\w+=\S+ brew|journalctl|llm|lm_eval|mlx_lm\.server|pi|pipx|sudo|"
    r"systemctl|uvx|vllm"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]+")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page):
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_flags_exist(page):
    known = {flag for command in commands() for flag in flags_of(command)} | FLAGS_OF_OTHER_PROGRAMS
    for script in ROOT.glob("benchmarks/*.py"):
        known |= set(re.findall(r"add_argument\(\s*\"(--[a-z][a-z0-9-]*)\"", script.read_text(encoding="utf-8")))
    unknown = set(FLAG.findall(own_words(page))) - known
    assert not unknown, f"{name(page)} names flags that anllm does not have: {sorted(unknown)}"


def own_words(page: Path) -> str:
    """Its text, without commands of other programs: in blocks, and in tables that set them beside ours."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(rf"^(?:{OTHER_PROGRAMS}) .*?(?<!\\)$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE) if page.name == "migration.md" else text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets, f"{name(page)} names make targets that are not there: {sorted(named - targets)}"


def commands() -> list[click.Command]:
    context = click.Context(main)
    found = [main.get_command(context, name) for name in main.list_commands(context)]
    return [command for command in found if command is not None]


def flags_of(command: click.Command) -> list[str]:
    opts = [flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
    return [flag for flag in opts if flag.startswith("--")]
