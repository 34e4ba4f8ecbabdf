"""Each process compiles in a folder of its own, and what it compiled is there for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from anllm.runner.kernel_cache import kernels_kept, machine_key

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Metal's kernels come compiled")
KERNEL = Path("mlx", "1.0", "cpu", f"{'k' * 249}.so")  # as long a name as MLX makes


def own_folder() -> Path:
    return Path(os.environ["TMPDIR"])


def compile_kernel(text: str = "whole") -> None:
    file = own_folder() / KERNEL
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_what_is_kept_is_there_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/before")
    with kernels_kept(tmp_path) as keep:
        assert own_folder().is_relative_to(tmp_path)
        compile_kernel()
        keep()
    assert os.environ["TMPDIR"] == "/before"
    with kernels_kept(tmp_path) as keep:
        assert (own_folder() / KERNEL).read_text() == "whole"
        keep()
    assert [file.name for file in (tmp_path / "kernels" / machine_key()).rglob("*.so")] == [KERNEL.name]


def test_what_was_being_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    with kernels_kept(tmp_path):
        compile_kernel("ha")
    assert "TMPDIR" not in os.environ
    with kernels_kept(tmp_path):
        assert not (own_folder() / KERNEL).exists()


def test_two_processes_do_not_write_the_same_file(tmp_path: Path) -> None:
    with kernels_kept(tmp_path) as keep_first:
        first = own_folder()
        compile_kernel("first")
        with kernels_kept(tmp_path) as keep_second:
            assert own_folder() != first
            compile_kernel("second")
            keep_first()
            keep_second()
    with kernels_kept(tmp_path):
        assert (own_folder() / KERNEL).read_text() == "first"


def test_folders_of_processes_that_were_killed_are_removed_and_no_others(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from anllm.runner.kernel_cache import kernels_kept\n"
    code += "with kernels_kept(Path(sys.argv[1])): print('ready', flush=True); time.sleep(100)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            (theirs,) = (tmp_path / "kernels").glob("process-*")
            with kernels_kept(tmp_path):
                assert theirs.exists()
        finally:
            process.kill()
    with kernels_kept(tmp_path):
        assert not theirs.exists()


def test_a_folder_that_is_no_folder_leaves_mlx_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    (tmp_path / "kernels").write_text("in the way")
    with kernels_kept(tmp_path) as keep:
        assert own_folder() == Path(tempfile.gettempdir())
        keep()


def test_a_cache_that_is_full_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with kernels_kept(tmp_path) as keep:
        compile_kernel()
        monkeypatch.setattr(os, "replace", full)
        keep()
    assert "No space left on device" in caplog.text
