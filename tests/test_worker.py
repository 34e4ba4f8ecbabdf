"""The engine process's own start."""

import subprocess
import sys
from pathlib import Path

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
