"""The files for systemd, launchd and Homebrew say what anllm takes, and leave it time to end."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from anllm.cli import main
from anllm.cli.serve import serve
from anllm.config import ServerConfig
from e2e.servers import run_command

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "packaging" / "systemd" / "anllm.service").read_text(encoding="utf-8")
PLIST = (ROOT / "packaging" / "launchd" / "anllm.plist").read_text(encoding="utf-8")
FORMULA = (ROOT / "packaging" / "homebrew" / "anllm.rb").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")


def unit(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def agent() -> dict[str, Any]:
    """As the command of the page makes it."""
    assert 'sed "s|HOME_FOLDER|$HOME|"' in PAGE
    filled: dict[str, Any] = plistlib.loads(
        "\n".join(line.replace("HOME_FOLDER", "/Users/ann", 1) for line in PLIST.splitlines()).encode()
    )
    return filled


def test_systemd_starts_the_server_and_lets_it_drain() -> None:
    assert unit("ExecStart") == ["/opt/anllm/bin/anllm serve $ANLLM_MODEL"]
    assert int(unit("TimeoutStopSec")[0]) > ServerConfig().drain_timeout_s + 5
    assert unit("Restart") == ["on-failure"]


def test_systemd_gives_it_no_more_than_it_needs() -> None:
    for key in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome", "RestrictNamespaces"):
        assert unit(key) == ["yes"], key
    assert unit("ProtectSystem") == ["strict"] and unit("CapabilityBoundingSet") == [""]
    assert unit("CacheDirectory") == ["anllm"]


def test_systemd_lets_it_load_what_it_compiles() -> None:
    """A dynamic user's folders are mounted noexec: then the library of products can't be loaded, and each token takes
    ten times as long."""
    assert unit("DynamicUser") == ["yes"] and unit("ExecPaths") == [f"%C/{unit('CacheDirectory')[0]}"]


def test_systemd_does_not_try_again_what_is_written_wrong() -> None:
    assert run_command("serve", "--port", "none").returncode == int(unit("RestartPreventExitStatus")[0])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    checked = tmp_path / "anllm.service"
    checked.write_text(UNIT.replace("/opt/anllm/bin/anllm", shutil.which("true") or "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(checked)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "anllm.service" not in done.stderr


def test_launchd_starts_the_server_and_lets_it_drain() -> None:
    service = agent()
    program, *arguments = service["ProgramArguments"]
    assert program == "/Users/ann/.local/bin/anllm" and arguments[0] in main.list_commands(click.Context(main))
    assert service["KeepAlive"] == {"SuccessfulExit": False}
    assert service["ExitTimeOut"] > ServerConfig().drain_timeout_s + 5


def test_launchd_gets_whole_paths() -> None:
    service = agent()
    assert service["StandardErrorPath"] == "/Users/ann/Library/Logs/anllm.log"
    assert "HOME_FOLDER" not in str(service) and "~" not in str(service)


def test_homebrew_names_locks_that_are_there() -> None:
    locks = re.findall(r"%w\[(.*?)\]", FORMULA)[0].split()
    assert locks == ["pip", "build", "macos"]
    assert all((ROOT / "locks" / f"{lock}.txt").exists() for lock in locks)


def test_homebrew_asks_for_completions_as_click_gives_them() -> None:
    assert 'generate_completions_from_executable(bin/"anllm", shell_parameter_format: :click)' in FORMULA


def test_homebrew_tests_for_what_is_said() -> None:
    done = run_command("serve", "nothing", "--port", "0")
    assert done.returncode == 1 and "no model" in done.stderr
    assert re.search(r"\d+\.\d+\.\d+", run_command("--version").stdout)


def test_variables_of_the_page_are_settings() -> None:
    known = {f"ANLLM_SERVE_{option.name}".upper() for option in serve.params if option.name}
    assert set(re.findall(r"ANLLM_SERVE_\w+", PAGE + UNIT)) - {"ANLLM_SERVE_"} <= known
