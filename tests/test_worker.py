"""The engine process's own start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Fails as soon as something imports it.
TORCH = "raise RuntimeError('PyTorch was imported')"
METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n"


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    package, metadata = folder / "torch", folder / "torch-2.9.0.dist-info"
    for one, name, text in ((package, "__init__.py", TORCH), (metadata, "METADATA", METADATA)):
        one.mkdir()
        (one / name).write_text(text)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_pytorch_is_not_imported_where_it_is_installed(tmp_path: Path) -> None:
    done = run(tmp_path, "from anllm.worker import hide_torch; hide_torch(); import mlx_lm.utils; print('fine')")
    assert done.stdout == "fine\n", done.stderr


def test_without_that_mlx_lm_imports_it(tmp_path: Path) -> None:
    assert "PyTorch was imported" in run(tmp_path, "import mlx_lm.utils").stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_engine_process_logs_in_the_form_of_the_server(form: str) -> None:
    code = """
import logging, sys, types
from anllm import worker
worker.decode_settings = lambda text: types.SimpleNamespace(scheduler=None, folder=None)
worker.mask_maker = lambda load: None
worker.serve_socket = lambda *_: logging.getLogger("anllm.x").info("at %s", "work") or 3
sys.exit(worker.main("", "info", sys.argv[1], "address"))
"""
    done = subprocess.run([sys.executable, "-c", code, form], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stderr
    if form == "json":
        line = json.loads(done.stderr)
        assert (line["process"], line["level"], line["message"]) == ("engine", "info", "at work")
    else:
        assert done.stderr.endswith(" INFO anllm.x: at work\n")
