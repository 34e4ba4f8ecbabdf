from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from anllm.cli import main
from anllm.cli.main import variables
from anllm.doctor import machine, packages
from anllm.doctor.check import ok, problem, warning


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX is looked at in tests/doctor; here it is what a test says."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(machine, "run_probe", lambda command: {})
    monkeypatch.setattr(
        machine, "check_machine", lambda probe: [ok("MLX", "backend cpu"), warning("BLAS", "slow", "do it")]
    )


def test_warnings_leave_the_code_at_0() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "! BLAS: slow\n    fix: do it\n" in result.output
    assert result.output.endswith("\nReady to serve.\n")


def test_a_problem_makes_it_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packages, "check_packages", lambda: [problem("packages", "click is missing", "pip install click")]
    )
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "✗ packages: click is missing\n    fix: pip install click\n" in result.output
    assert result.output.endswith("\n1 thing to fix.\n")


def test_json_has_every_check() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert entries["BLAS"] == {"name": "BLAS", "status": "warning", "found": "slow", "fix": "do it"}
    assert {"Python", "cache folder", "network", "variables"} <= entries.keys()


def test_the_variables_of_all_commands_are_known() -> None:
    assert {"ANLLM_SERVE_PORT", "ANLLM_BENCH_CONCURRENCY", "ANLLM_API_KEY", "ANLLM_INFO_STREAMS"} <= variables()
