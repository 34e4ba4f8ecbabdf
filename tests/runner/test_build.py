"""An MLX that can't be imported is told with what is missing. In a process of its own, where MLX is another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import sys
from pathlib import Path
from anllm.config import ModelConfig
from anllm.errors import ConfigError
from anllm.runner.build import mlx_ready
try:
    with mlx_ready(ModelConfig(), Path(sys.argv[1])):
        pass
except ConfigError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("libcuda.so.1: cannot open shared object file: No such file or directory", "docker run --gpus all"),
        ("libmlx.so: cannot open shared object file: No such file or directory", "pip install 'mlx[cpu]'"),
    ],
    ids=["no driver", "no backend"],
)
def test_what_mlx_lacks_is_told_with_what_to_do(tmp_path: Path, reason: str, advice: str) -> None:
    package = tmp_path / "path" / "mlx"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core.py").write_text(f"raise ImportError({reason!r})\n")
    path = os.pathsep.join([str(package.parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", LOAD, str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert reason in done.stdout and advice in done.stdout
