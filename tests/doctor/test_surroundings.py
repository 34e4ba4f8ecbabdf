from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from anllm.config import SchedulerConfig
from anllm.doctor.check import Status
from anllm.doctor.surroundings import check_disk, check_network, check_open_files, check_port, check_variables
from fake_server import RealServer, make_runner
from serving import Gate


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_a_port_that_is_taken_is_told(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    taken = check_port("127.0.0.1", port)
    assert taken.status is Status.WARNING
    assert "--port" in taken.fix
    listener.close()
    assert check_port("127.0.0.1", port).status is Status.OK


def test_a_port_where_anllm_runs_is_no_fault() -> None:
    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig()).running() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        found = check_port(host, int(port))
    assert found.status is Status.OK
    assert found.found == f"an anllm runs there: {server.url}/"


def test_few_open_files_are_told() -> None:
    assert check_open_files(1024).fix == "ulimit -n 4096"
    assert check_open_files(65536).status is Status.OK


def test_a_folder_that_is_not_there_yet_is_looked_at_where_it_will_be(tmp_path: Path) -> None:
    assert check_disk("cache", tmp_path / "a" / "b", "HF_HOME").status in (Status.OK, Status.WARNING)


def test_a_folder_that_can_not_be_written_to_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # which says yes to root, whatever the folder
    found = check_disk("cache", tmp_path / "a", "HF_HOME")
    assert found.status is Status.PROBLEM
    assert "HF_HOME" in found.fix


@pytest.mark.skipif(sys.platform != "linux", reason="a CPU's kernels are compiled on Linux alone")
def test_a_cache_that_nothing_may_be_executed_from_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = os.ST_NOEXEC
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_flag=flags, f_bavail=9, f_frsize=9, f_blocks=9, f_bfree=9)
    )
    found = check_disk("cache", tmp_path, "XDG_CACHE_HOME", holds_programs=True)
    assert found.status is Status.WARNING and "noexec" in found.found and "ExecPaths=" in found.fix
    assert "noexec" not in check_disk("hub", tmp_path, "HF_HOME").found, "models are not executed"


def test_the_hub_is_tried_and_settings_are_shown_without_secrets(listener: socket.socket) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    variables = {"HF_TOKEN": "hf_secret", "PIP_INDEX_URL": "https://me:hidden@host/simple"}
    reached = check_network(url, False, variables)
    assert reached.status is Status.OK
    assert "HF_TOKEN is set" in reached.found and "https://me:***@host/simple" in reached.found
    assert "secret" not in reached.found and "hidden" not in reached.found
    listener.close()
    assert check_network(url, False, {}).status is Status.WARNING
    assert check_network(url, True, {}).status is Status.OK, "offline by choice"
    assert check_network(url, False, {"HTTPS_PROXY": "http://proxy:1"}).status is Status.OK


def test_variables_that_nothing_reads_are_told_with_the_nearest() -> None:
    known = {"ANLLM_SERVE_PORT", "ANLLM_API_KEY"}
    assert check_variables({"PATH": "x"}, known).found == "no ANLLM_ variables are set"
    assert check_variables({"ANLLM_SERVE_PORT": "1"}, known).found == "ANLLM_SERVE_PORT"
    found = check_variables({"ANLLM_SERVE_PROT": "1"}, known)
    assert found.status is Status.WARNING
    assert "perhaps ANLLM_SERVE_PORT" in found.fix
