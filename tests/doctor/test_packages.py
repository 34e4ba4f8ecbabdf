from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from anllm.doctor.check import Status
from anllm.doctor.packages import (
    MLX_VERSIONS,
    check_backends,
    check_cuda_headers,
    check_packages,
    check_python,
    check_system,
    check_versions,
)


def test_this_machine_has_what_it_needs() -> None:
    assert [check.name for check in check_packages() if check.status is Status.PROBLEM] == []


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10), "warning"), ((3, 11), "ok"), ((3, 14), "ok"), ((3, 15), "warning")]
)
def test_pythons(version: tuple[int, int], status: str) -> None:
    assert check_python(version, "x").status.value == status


@pytest.mark.parametrize(
    ("system", "machine", "glibc", "macos", "status"),
    [
        ("Linux", "x86_64", "2.36", "", "ok"),
        ("Linux", "aarch64", "2.34", "", "problem"),
        ("Darwin", "arm64", "", "15.1", "ok"),
        ("Darwin", "arm64", "", "13.6", "problem"),
        ("Darwin", "x86_64", "", "14.0", "problem"),
    ],
)
def test_systems(system: str, machine: str, glibc: str, macos: str, status: str) -> None:
    check = check_system(system, machine, glibc, macos)
    assert check.status.value == status
    assert bool(check.fix) == (status != "ok")


def test_a_missing_or_old_package_is_named_with_the_command() -> None:
    wanted = ["click>=8.2", "Some_Package>=2", "other<5; sys_platform == 'nowhere'", "extra>=1; extra == 'x'"]
    check = check_versions(wanted, {"click": "8.1", "some-package": "2.5"})
    assert check.status is Status.PROBLEM
    assert check.found == "click 8.1 is not what anllm needs"
    assert check.fix == f"{sys.executable} -m pip install 'click>=8.2'"
    assert check_versions(wanted, {"click": "8.2", "some-package": "2"}).status is Status.OK
    assert "some-package is missing" in check_versions(["some-package"], {}).found


def test_where_there_is_no_pip_uv_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert check_versions(["click>=8.2"], {}).fix == f"UV_PYTHON={sys.executable} uv pip install 'click>=8.2'"


def test_one_backend_is_right_and_none_or_two_are_not() -> None:
    assert check_backends({"mlx-cpu": "1"}, has_gpu=False).status is Status.OK
    assert "install 'mlx[cpu]>=" in check_backends({}, has_gpu=False).fix
    assert "install 'mlx[cuda13]>=" in check_backends({}, has_gpu=True).fix
    two = check_backends({"mlx-cpu": "1", "mlx-cuda-13": "1"}, has_gpu=True)
    assert two.status is Status.PROBLEM
    assert "uninstall -y mlx-cpu mlx-cuda-13 mlx && " in two.fix


def test_headers_that_mlx_compiles_with(tmp_path: Path) -> None:
    """nvidia-cuda-runtime has mma.h, which includes a file of nvidia-cuda-crt's."""
    assert list(check_cuda_headers(tmp_path)) == []
    (tmp_path / "mma.h").touch()
    (check,) = check_cuda_headers(tmp_path)
    assert (check.status, check.fix.split()[-1]) == (Status.WARNING, "'nvidia-cuda-crt==13.*'")
    (tmp_path / "crt").mkdir()
    (tmp_path / "crt" / "mma.h").touch()
    assert list(check_cuda_headers(tmp_path)) == []


def test_the_versions_of_mlx_are_those_of_the_project() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for backend in ("cpu", "cuda12", "cuda13"):
        assert f'{backend} = ["mlx[{backend}]{MLX_VERSIONS}"' in text
