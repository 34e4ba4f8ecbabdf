"""The Dockerfiles name what is there, and their parts work: the build from what is copied, the health check."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from anllm.cli.serve import serve
from anllm.config import SchedulerConfig, SecurityConfig
from anllm.launch import DRAIN_SLACK_S
from anllm.store.cache import cache_folder
from anllm.store.resolve import EMBEDDED_NAME
from fake_server import RealServer, make_runner
from serving import Gate

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "packaging" / "docker" / "monitoring"
DOCKERFILES = sorted((ROOT / "packaging" / "docker").glob("*.Dockerfile"))
each_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Name and arguments of each."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, " ".join(arguments.split())) for name, arguments in lines]


def arguments_of(path: Path, name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions(path) if instruction == name]


def copied(path: Path) -> list[str]:
    """Files and folders of the clone that get into the image's build."""
    lines = [line.split() for line in arguments_of(path, "COPY") if not line.startswith("--from")]
    return [source for line in lines for source in line[:-1]]


def compose(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "packaging" / "docker" / name).read_text(encoding="utf-8"))
    return found


def environment(path: Path) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in arguments_of(path, "ENV") for pair in line.split())


def health_check(path: Path) -> list[str]:
    command: list[str] = json.loads(arguments_of(path, "HEALTHCHECK")[0].split(" CMD ")[1])
    return command


def file_in_image(path: Path, name: str) -> Path:
    """What is copied to this place of the image."""
    sources = {line.split()[-1]: line.split()[0] for line in arguments_of(path, "COPY")}
    return ROOT / sources[name]


def test_there_is_one_for_each_kind_of_linux() -> None:
    assert [path.name for path in DOCKERFILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]


@each_dockerfile
def test_what_is_copied_is_there_and_not_ignored(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    for source in copied(path):
        assert (ROOT / source).exists(), source
        assert {f"!{source.split('/')[0]}", f"!{source}"} & set(ignored), source


@each_dockerfile
def test_packages_are_those_of_locks_by_hash(path: Path) -> None:
    backends = ("cuda12", "cuda13") if "cuda" in path.name else ("cpu",)
    installed = [command for line in arguments_of(path, "RUN") for command in re.findall(r"pip install ([^&]+)", line)]
    locks = {lock for command in installed for lock in re.findall(r"locks/([\w$]+)\.txt", command)}
    assert locks == {"pip", "build", "$BACKEND" if "cuda" in path.name else "cpu"}
    assert all(command.startswith(("--require-hashes -r ", "--no-index --no-deps ")) for command in installed)
    assert {f"locks/{name}.txt" for name in ("pip", "build", *backends)} <= set(copied(path))
    assert arguments_of(path, "ARG") == (["BACKEND=cuda13"] if "cuda" in path.name else [])


@each_dockerfile
def test_it_builds_from_what_is_copied(path: Path, tmp_path: Path) -> None:
    for source in copied(path):
        target = tmp_path / source
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, target)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=100)
    assert len(list((tmp_path / "out").glob("anllm-*.whl"))) == 1


@each_dockerfile
def test_it_runs_as_nobody_in_particular_and_holds_no_secret(path: Path) -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", arguments_of(path, "USER")[-1])
    assert not re.search(
        r"KEY|TOKEN|PASSWORD|SECRET", " ".join(environment(path)) + " ".join(arguments_of(path, "ARG"))
    )


@each_dockerfile
def test_caches_lie_in_the_volume(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (volume,) = arguments_of(path, "VOLUME")
    variables = environment(path)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", variables["XDG_CACHE_HOME"])
    assert str(cache_folder(None)) == volume
    assert variables["HF_HOME"].startswith(f"{volume}/")
    assert any(f"--owner=10001 --group=10001 {volume}" in line for line in arguments_of(path, "RUN"))


@each_dockerfile
def test_its_settings_exist(path: Path) -> None:
    known = {f"ANLLM_SERVE_{option.name}".upper() for option in serve.params if option.name}
    assert {name for name in environment(path) if name.startswith("ANLLM_")} <= known
    assert json.loads(arguments_of(path, "ENTRYPOINT")[0]) + json.loads(arguments_of(path, "CMD")[0]) == [
        "anllm",
        "serve",
    ]


@each_dockerfile
def test_the_health_check_tells_health(path: Path) -> None:
    python, isolated, script = health_check(path)
    assert (python, isolated) == ("python", "-I")

    def check(port: int) -> int:
        """With a proxy in the environment, as Docker gives one to all containers where it is told so."""
        environment = {**os.environ, "ANLLM_SERVE_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        command = [sys.executable, "-I", str(file_in_image(path, script))]
        return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=100).returncode

    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig()).running() as server:
        assert check(server.port) == 0
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert check(unused.getsockname()[1]) == 1


@each_dockerfile
def test_the_health_check_speaks_tls_where_the_server_does(path: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=elsewhere", "-keyout", str(key)]
    subprocess.run([*make, "-out", str(certificate)], check=True, capture_output=True, timeout=100)
    security = SecurityConfig(ssl_certfile=str(certificate), ssl_keyfile=str(key))
    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig(), security=security).running() as server:
        variables = {"ANLLM_SERVE_PORT": str(server.port), "ANLLM_SERVE_SSL_CERTFILE": str(certificate)}
        command = [sys.executable, "-I", str(file_in_image(path, health_check(path)[-1]))]
        subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=100)


@each_dockerfile
def test_the_health_check_has_options_that_older_builders_know(path: Path) -> None:
    """--start-interval, say, is none to Docker before 25 and to the Podman of Debian 12."""
    options = set(re.findall(r"--([a-z-]+)=", arguments_of(path, "HEALTHCHECK")[0]))
    assert options <= {"interval", "timeout", "start-period", "retries"}


@each_dockerfile
def test_a_plain_stop_lets_the_server_drain(path: Path) -> None:
    """`docker stop` kills after ten seconds; errors and ends of streams must have gone out by then."""
    assert int(environment(path)["ANLLM_SERVE_DRAIN_TIMEOUT"]) + DRAIN_SLACK_S < 10


def test_compose_serves_with_the_images_and_lets_them_drain() -> None:
    plain, cuda = (compose(name)["services"]["anllm"] for name in ("compose.yaml", "compose.cuda.yaml"))
    for service, path in zip((plain, cuda), DOCKERFILES, strict=True):
        assert service["build"]["dockerfile"] == str(path.relative_to(ROOT))
    assert (ROOT / "packaging" / "docker" / plain["build"]["context"]).resolve() == ROOT
    drain = dict(line.split("=") for line in plain["environment"] if "=" in line)["ANLLM_SERVE_DRAIN_TIMEOUT"]
    assert plain["stop_grace_period"] == "30s" and int(drain) + DRAIN_SLACK_S < 30
    assert plain["command"] == f"serve ${{MODEL:-{EMBEDDED_NAME}}}"
    assert all(port.startswith("127.0.0.1:") for port in plain["ports"]), "others come by keys and TLS"


def test_compose_monitors_in_a_profile_with_the_projects_dashboard() -> None:
    found = compose("compose.yaml")
    others = {name: service for name, service in found["services"].items() if name != "anllm"}
    assert others.keys() == {"prometheus", "grafana"}
    assert all(service["profiles"] == ["monitoring"] for service in others.values())
    (scrape,) = yaml.safe_load(found["configs"]["prometheus"]["content"])["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["anllm:8000"]}]
    mounts = [mount.split(":")[:2] for mount in others["grafana"]["volumes"]]
    assert all((ROOT / "packaging" / "docker" / source).exists() for source, _ in mounts)
    places = {Path(target).parent for source, target in mounts if source.endswith("docs/grafana/anllm.json")}
    (provider,) = yaml.safe_load((MONITORING / "dashboards.yaml").read_text(encoding="utf-8"))["providers"]
    assert places == {Path(provider["options"]["path"])}
    (source,) = yaml.safe_load((MONITORING / "datasource.yaml").read_text(encoding="utf-8"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
