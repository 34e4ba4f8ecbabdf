"""Python, and the packages that anllm asks for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from anllm.doctor.check import Check, ok, problem, warning

SUPPORTED = ((3, 11), (3, 14))
OLDEST_GLIBC = (2, 35)  # of the mlx wheels
OLDEST_MACOS = 14
SHOWN = ("anllm", "mlx", "mlx-lm", "transformers", "huggingface-hub")
MLX_VERSIONS = ">=0.32.4,<0.33"  # as in pyproject.toml
CUDA_12 = " (cuda12 in place of cuda13 if nvidia-smi tells an older CUDA)"
BACKENDS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")


def check_packages() -> Iterator[Check]:
    """All of this file, on this machine."""
    installed: dict[str, str] = {
        canonicalize_name(d.metadata["Name"] or ""): d.version for d in importlib.metadata.distributions()
    }
    yield check_python(sys.version_info[:2], platform.python_version())
    yield check_system(platform.system(), platform.machine(), platform.libc_ver()[1], platform.mac_ver()[0])
    try:
        wanted = importlib.metadata.requires("anllm") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        wanted = []
    yield check_versions(wanted, installed)
    if platform.system() == "Linux":
        yield check_backends(installed, has_gpu=shutil.which("nvidia-smi") is not None)
        nvidia = importlib.util.find_spec("nvidia")
        for folder in (nvidia and nvidia.submodule_search_locations) or ():
            yield from check_cuda_headers(Path(folder) / "cu13" / "include")


def check_python(version: tuple[int, ...], text: str) -> Check:
    oldest, newest = (".".join(map(str, v)) for v in SUPPORTED)
    if not SUPPORTED[0] <= version <= SUPPORTED[1]:
        return warning(
            "Python",
            f"{text} is not tested",
            f"make an environment with Python {oldest} to {newest}: python{newest} -m venv .venv",
        )
    return ok("Python", f"{text} in {sys.prefix}")


def check_system(system: str, machine: str, glibc: str, macos: str) -> Check:
    """Whether there are MLX wheels for this machine."""
    found = f"{system} {macos or (glibc and f'with glibc {glibc}')} on {machine}".replace("  ", " ")
    if system == "Darwin" and machine != "arm64":
        return problem("system", found, "use a Mac with Apple silicon, and a Python for arm64 (not under Rosetta)")
    if system == "Darwin" and macos and int(macos.split(".")[0]) < OLDEST_MACOS:
        return problem("system", found, f"update macOS: MLX needs version {OLDEST_MACOS}")
    if system == "Linux" and glibc and tuple(map(int, glibc.split(".")[:2])) < OLDEST_GLIBC:
        oldest = ".".join(map(str, OLDEST_GLIBC))
        return problem("system", found, f"use a system with glibc {oldest}: Ubuntu 22.04, Debian 12, RHEL 10, or newer")
    return ok("system", found)


def check_versions(requirements: list[str], installed: Mapping[str, str]) -> Check:
    """Whether what is installed is what anllm's own metadata asks for."""
    wrong = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(
                (f"{requirement.name} {version or 'is missing'}", f"'{requirement.name}{requirement.specifier}'")
            )
    if wrong:
        return problem(
            "packages",
            f"{', '.join(found for found, _ in wrong)} is not what anllm needs",
            f"{pip()} install {' '.join(wanted for _, wanted in wrong)}",
        )
    return ok("packages", ", ".join(f"{name} {installed[name]}" for name in SHOWN if name in installed))


def check_backends(installed: Mapping[str, str], *, has_gpu: bool) -> Check:
    """MLX on Linux comes in parts: one backend, not none, and not two, which overwrite each other's files."""
    found = [name for name in BACKENDS if name in installed]
    wanted = install_mlx("cuda13" if has_gpu else "cpu")
    if not found:
        return problem("MLX backend", "none", f"{wanted}{CUDA_12 if has_gpu else ''}")
    if len(found) > 1:
        return problem(
            "MLX backend",
            f"{' and '.join(found)} overwrite each other's files",
            f"{pip()} uninstall -y {' '.join(found)} mlx && {wanted}",
        )
    return ok("MLX backend", f"{found[0]} {installed[found[0]]}")


def check_cuda_headers(folder: Path) -> Iterator[Check]:
    """Whether MLX can compile its quantised products. folder: of the headers that came with its CUDA libraries."""
    if (folder / "mma.h").exists() and not (folder / "crt" / "mma.h").exists():
        yield warning(
            "CUDA headers",
            "crt/mma.h is missing: models that stay quantised are slower",
            f"{pip()} install 'nvidia-cuda-crt==13.*'",
        )


def install_mlx(backend: str) -> str:
    """The command that installs MLX for "cpu", "cuda12" or "cuda13"."""
    return f"{pip()} install 'mlx[{backend}]{MLX_VERSIONS}'"


def pip() -> str:
    """How pip of this environment is called; those that uv makes have none."""
    if importlib.util.find_spec("pip") is None:
        return f"UV_PYTHON={sys.executable} uv pip"
    return f"{sys.executable} -m pip"
