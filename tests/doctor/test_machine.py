from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from anllm.doctor.check import Check, Status
from anllm.doctor.machine import check_machine, check_memory, check_processors, probe_command, run_probe
from anllm.limits import MemoryLimit
from anllm.runner.blas import STOCK

GOOD = {"name": "attention", "works": True, "difference": 1e-7, "is_needed": True, "reason": ""}


def make_probe(**changes: Any) -> dict[str, Any]:
    found = {
        "backend": "cpu",
        "device": "",
        "blas": "OpenBLAS, 99 GFLOP/s",
        "memory_bytes": 8 << 30,
        "self_tests": [GOOD],
    }
    return {**found, **changes}


def checks(probe: dict[str, Any], *programs: str) -> dict[str, Check]:
    found = check_machine(probe, lambda name: f"/bin/{name}" if name in programs else None)
    return {check.name: check for check in found}


@pytest.mark.mlx
def test_the_probe_of_this_machine() -> None:
    pytest.importorskip("mlx.core", reason="MLX has no backend here")
    found = run_probe(probe_command())
    assert "error" not in found
    tests = {test["name"]: test for test in found["self_tests"]}
    assert tests.keys() >= {"matrix products", "attention", "compiled functions"}
    assert all(test["works"] for test in tests.values())
    assert found["memory_bytes"] > 0
    assert all(check.status is not Status.PROBLEM for check in check_machine(found))


def test_a_probe_that_dies_is_an_error_with_its_last_words() -> None:
    code = "import sys; print('no driver', file=sys.stderr); sys.exit(3)"
    assert run_probe([sys.executable, "-c", code]) == {"error": "MLX ended with code 3: no driver"}
    assert "MLX ended with code -9" in run_probe([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])["error"]


def test_all_is_well() -> None:
    found = checks(make_probe(), "cc", "g++")
    assert {check.status for check in found.values()} == {Status.OK}
    assert found["BLAS"].found == "OpenBLAS, 99 GFLOP/s"


def test_memory_of_a_container_is_told_as_its_own() -> None:
    limit = MemoryLimit(2 << 30, 1 << 30)
    found = check_memory(1 << 30, "cpu", limit)
    assert found.status is Status.WARNING
    assert "1.1 GB free of the 2.1 GB of this container or service" in found.found
    assert "docker run --memory" in found.fix
    assert "of the" not in check_memory(8 << 30, "cuda", limit).found.split(";")[0], "a GPU has memory of its own"
    assert "end other programs" in check_memory(1 << 30, "cpu", None).fix


def test_processors_are_those_that_may_be_used() -> None:
    assert check_processors(8, 8).found == "8"
    assert check_processors(2, 64).found.startswith("2 of 64, by the limits of")


@pytest.mark.mlx
@pytest.mark.skipif(sys.platform != "linux", reason="MLX runs a compiler on Linux alone")
def test_a_compiler_that_does_not_work_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core", reason="MLX has no backend here")
    (tmp_path / "g++").write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no linker; exit 1\n')
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = run_probe(probe_command())
    (test,) = (test for test in found["self_tests"] if test["name"] == "compiled functions")
    assert not test["works"] and "no linker" in test["reason"]
    assert all(check.status is not Status.PROBLEM for check in check_machine(found))


def test_without_mlx_it_is_a_problem() -> None:
    found = checks({"error": "MLX has no backend here."})
    assert found["MLX"].status is Status.PROBLEM
    assert found["MLX"].fix


def test_what_is_slow_is_a_warning() -> None:
    found = checks(make_probe(blas=f"{STOCK}, 2 GFLOP/s", memory_bytes=1 << 30))
    assert found["BLAS"].status is found["memory"].status is Status.WARNING
    assert "apt-get install gcc" in found["BLAS"].fix


@pytest.mark.skipif(sys.platform != "linux", reason="compilers and drivers matter to MLX on Linux")
def test_a_compiler_and_a_gpu_that_are_not_used_are_warned_of() -> None:
    found = checks(make_probe(), "cc", "nvidia-smi")
    assert "apt-get install g++" in found["compiler"].fix
    assert "uninstall -y mlx-cpu mlx && " in found["GPU"].fix
    assert "GPU" not in checks(make_probe(backend="cuda", device="H200"), "nvidia-smi")


def test_a_self_test_that_fails_is_a_problem_where_it_is_needed() -> None:
    bad = {**GOOD, "works": False, "difference": 0.5}
    slower = {**bad, "name": "fused layers", "is_needed": False, "difference": None, "reason": "no kernel"}
    found = checks(make_probe(self_tests=[bad, slower]))
    assert found["self-test: attention"].status is Status.PROBLEM
    assert found["self-test: fused layers"].status is Status.WARNING
    assert found["self-test: fused layers"].found == "no kernel"
