from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from anllm.store.cache import build_once, cache_folder


def test_a_given_root_is_the_cache(tmp_path):
    assert cache_folder(tmp_path) == tmp_path


def test_the_platform_names_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "anllm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / ".cache" / "anllm"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder(None) == tmp_path / "Library" / "Caches" / "anllm"


def test_what_is_there_is_not_built_again(tmp_path):
    target = tmp_path / "deep" / "target"
    build_once(target, lambda part: (part / "file").write_text("first"))
    build_once(target, lambda part: pytest.fail("built twice"))
    assert (target / "file").read_text() == "first"


def test_several_threads_build_once(tmp_path):
    built = []

    def build(part: Path) -> None:
        built.append(part)
        time.sleep(0.05)
        (part / "file").write_text("whole")

    threads = [threading.Thread(target=build_once, args=(tmp_path / "target", build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert (tmp_path / "target" / "file").read_text() == "whole"


def _append_and_write(part: Path) -> None:
    with (part.parent / "builds").open("a") as file:
        file.write("x")
    time.sleep(0.1)
    (part / "file").write_text("whole")


def _die_half_way(part: Path) -> None:
    (part / "file").write_text("half")
    os._exit(1)


def _run(build, target: Path, times: int) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=build_once, args=(target, build)) for _ in range(times)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)


def test_several_processes_build_once(tmp_path):
    _run(_append_and_write, tmp_path / "target", 2)
    assert (tmp_path / "builds").read_text() == "x"
    assert (tmp_path / "target" / "file").read_text() == "whole"


def test_a_process_that_dies_leaves_no_target_and_the_next_one_builds(tmp_path):
    target = tmp_path / "target"
    _run(_die_half_way, target, 1)
    assert not target.exists()
    assert (tmp_path / "target.part" / "file").exists()
    build_once(target, lambda part: (part / "other").write_text("whole"))
    assert [path.name for path in target.iterdir()] == ["other"]
    assert not (tmp_path / "target.part").exists()


def test_a_build_that_raises_leaves_nothing(tmp_path):
    def build(part: Path) -> None:
        (part / "file").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        build_once(tmp_path / "target", build)
    assert not any(path.is_dir() for path in tmp_path.iterdir())
