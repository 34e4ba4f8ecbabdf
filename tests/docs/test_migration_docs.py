"""docs/migration.md: the table of mlx_lm.server has each flag that the installed one has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from anllm.cli.serve import serve

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")


def rows(name: str, command: str) -> list[list[str]]:
    """Cells of its table of flags."""
    table = PAGE.split(f"| {name} | {command} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_each_flag_of_mlx_lm_server_has_its_row() -> None:
    package = importlib.util.find_spec("mlx_lm")  # which is not imported: it needs MLX
    assert package is not None and package.submodule_search_locations
    source = (Path(package.submodule_search_locations[0]) / "server.py").read_text(encoding="utf-8")
    flags = set(re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", source))
    listed = {flag for row in rows("mlx_lm.server", "anllm serve") for flag in re.findall(r"--[a-z-]+", row[0])}
    assert listed == flags


def test_the_flags_beside_them_are_ours() -> None:
    known = {flag for option in serve.params for flag in (*option.opts, *option.secondary_opts)}
    for name, command in (
        ("mlx_lm.server", "anllm serve"),
        ("Ollama", "anllm serve"),
        ("llama-server", "anllm serve"),
        ("vllm serve", "anllm serve"),
    ):
        text = PAGE.split(f"| {name} | {command} |")[1].split("\n\n")[0]
        cells = [line.strip("|").split("|") for line in text.splitlines()[2:]]
        assert len(cells) > 5
        for theirs, ours, _ in cells:
            assert set(re.findall(r"--[a-z-]+", ours)) <= known, ours
            if ours.strip() == "the same":
                assert set(re.findall(r"--[a-z-]+", theirs)) <= known, theirs
