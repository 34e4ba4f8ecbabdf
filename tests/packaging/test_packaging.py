"""What a release holds, and that the locks say the same as pyproject.toml."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BACKENDS = {"macos": "mlx-metal", "cpu": "mlx-cpu", "cuda12": "mlx-cuda-12", "cuda13": "mlx-cuda-13"}
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
CLIENT_LOCKS = sorted((ROOT / "locks" / "clients").glob("*.txt"))
CLIENT_NODE_LOCKS = sorted((ROOT / "locks" / "clients").glob("*/package-lock.json"))
NODE_LOCKS = [*CLIENT_NODE_LOCKS, ROOT / "web" / "package-lock.json"]
WEB_BUNDLE = ROOT / "src" / "anllm" / "server" / "webui" / "dist"


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=100)
    return folder


def read_wheel(dist: Path) -> dict[str, str]:
    """Name -> text; what is no text has wrong characters."""
    (file,) = dist.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        return {name: wheel.read(name).decode(errors="replace") for name in wheel.namelist()}


def read_lock(name: str) -> dict[str, list[Requirement]]:
    """Package -> its pins; more than one where Python versions differ."""
    text = (ROOT / "locks" / f"{name}.txt").read_text().replace("\\\n", " ")
    pins: dict[str, list[Requirement]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pin = Requirement(line.split(" --hash")[0])
            pins.setdefault(pin.name, []).append(pin)
    return pins


def test_the_wheel_holds_every_module_and_nothing_else_of_the_tree(dist):
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    names = {name for name in read_wheel(dist) if ".dist-info/" not in name}
    chat = {path.relative_to(source).as_posix() for path in WEB_BUNDLE.rglob("*") if path.is_file()}
    native = {path.relative_to(source).as_posix() for path in source.rglob("native/*.[ch]")}
    assert names == modules | chat | native | {"anllm/py.typed"}
    assert "anllm/runner/native/library.c" in native
    assert "anllm/server/webui/dist/index.html" in chat


def test_the_wheel_says_command_licence_and_python(dist):
    files = {name.partition(".dist-info/")[2]: text for name, text in read_wheel(dist).items()}
    assert "anllm = anllm.cli:main" in files["entry_points.txt"]
    assert files["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "License-Expression: Apache-2.0" in files["METADATA"]
    assert "Requires-Python: >=3.11" in files["METADATA"]


def test_the_sdist_holds_what_make_test_needs(dist):
    (file,) = dist.glob("*.tar.gz")
    with tarfile.open(file) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {
        "Makefile",
        "LICENSE",
        "pyproject.toml",
        "src/anllm/py.typed",
        "src/anllm/server/webui/dist/index.html",
        ".dockerignore",
        "mkdocs.yml",
        "docs/site/hooks.py",
        "examples/llm.py",
        "packaging/docker/cpu.Dockerfile",
        "packaging/systemd/anllm.service",
        "web/src/main.tsx",
        "web/package-lock.json",
        Path(__file__).relative_to(ROOT).as_posix(),
    }
    locks = {path.relative_to(ROOT) for path in (ROOT / "locks").rglob("*") if path.is_file()}
    assert wanted | {path.as_posix() for path in locks if "__pycache__" not in path.parts} <= names


@pytest.mark.parametrize("lock", LOCKS + CLIENT_LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_with_hashes_and_names_no_host(lock):
    text = lock.read_text()
    assert not re.search(r"://|^\s*-(?!-hash=)|\.(org|com|io)\b", text, re.MULTILINE)
    entries = [line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    assert entries
    assert [entry for entry in entries if not re.match(r"[\w.-]+==\S.* --hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("lock", NODE_LOCKS, ids=lambda path: path.parent.name)
def test_a_lock_for_node_pins_with_hashes_and_names_no_registry(lock):
    locked = json.loads(lock.read_text())["packages"]
    manifest = json.loads((lock.parent / "package.json").read_text())
    root = locked.pop("")
    kinds = [kind for kind in ("dependencies", "devDependencies") if kind in manifest]
    assert {kind: root[kind] for kind in kinds} == {kind: manifest[kind] for kind in kinds}
    wanted = {name for kind in kinds for name in manifest[kind]}
    assert {f"node_modules/{name}" for name in wanted} <= locked.keys()
    for name, package in locked.items():
        assert package["version"] and package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


@pytest.mark.parametrize("lock", BACKENDS)
def test_a_lock_has_its_own_backend_and_no_other(lock):
    platform = "darwin" if lock == "macos" else "linux"
    pins = read_lock(lock)
    found = {
        name
        for name in BACKENDS.values()
        if any(pin.marker is None or pin.marker.evaluate({"sys_platform": platform}) for pin in pins.get(name, []))
    }
    assert found == {BACKENDS[lock]}


@pytest.mark.parametrize("lock", BACKENDS)
def test_a_lock_satisfies_the_dependencies(lock):
    platform = "darwin" if lock == "macos" else "linux"
    wanted = PYPROJECT["project"]["dependencies"] + PYPROJECT["project"]["optional-dependencies"].get(lock, [])
    assert unmet(wanted, read_lock(lock), platform) == []


@pytest.mark.parametrize("lock", ["audit", "build", "dev", "docs", "release", "web"])
def test_a_lock_satisfies_its_group(lock):
    wanted = [item for item in PYPROJECT["dependency-groups"][lock] if isinstance(item, str)]
    assert unmet(wanted, read_lock(lock), "linux") == []


@pytest.mark.parametrize("lock", CLIENT_LOCKS, ids=lambda path: path.stem)
def test_a_clients_lock_satisfies_its_group(lock):
    wanted = PYPROJECT["dependency-groups"][f"client-{lock.stem}"]
    assert unmet(wanted, read_lock(f"clients/{lock.stem}"), "linux") == []


def test_each_client_has_a_lock():
    groups = {name.removeprefix("client-") for name in PYPROJECT["dependency-groups"] if name.startswith("client-")}
    assert groups == {lock.stem for lock in CLIENT_LOCKS}
    assert {lock.parent for lock in CLIENT_NODE_LOCKS} == {
        path for path in (ROOT / "locks" / "clients").iterdir() if path.is_dir()
    }


def test_the_locks_agree():
    """Two of them are installed into one environment."""
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, pins in read_lock(lock.stem).items():
            versions.setdefault(name, set()).add(" or ".join(sorted(str(pin.specifier) for pin in pins)))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def unmet(wanted: list[str], pins: dict[str, list[Requirement]], platform: str) -> list[str]:
    """The requirements that no pin, or a wrong one, stands for. Run `make lock` then."""
    environment = {**default_environment(), "sys_platform": platform}
    missing = []
    for text in wanted:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        found = [next(iter(pin.specifier)).version for pin in pins.get(requirement.name, [])]
        if not found or not all(requirement.specifier.contains(version) for version in found):
            missing.append(text)
    return missing
