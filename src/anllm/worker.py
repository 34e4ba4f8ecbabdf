"""The engine process's composition root: settings in, runner and loop built, until the parent is gone.

Started by launch as `python -m anllm.worker SETTINGS LOG_LEVEL LOG_FORMAT ADDRESS`; not meant to be called by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from anllm.core.events import EngineInfo, LoadProgress
from anllm.core.step import Runner
from anllm.engine.loop import MakeMasks
from anllm.engine.process import serve_socket
from anllm.logs import LogFormat, configure
from anllm.runner.build import RunnerSettings, build_runner
from anllm.runner.kernel_cache import kernels_kept
from anllm.store.cache import cache_folder
from anllm.store.progress import can_draw_on
from anllm.structured.state import MaskComputer
from anllm.structured.vocabulary import Vocabulary
from anllm.text.interface import Tokenizer
from anllm.text.tokenizer import load_tokenizer


def encode_settings(settings: RunnerSettings) -> str:
    """For the command line of the child."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> RunnerSettings:
    """The inverse of encode_settings."""
    return msgspec.json.decode(text, type=RunnerSettings, dec_hook=lambda kind, value: kind(value))


def main(settings_text: str, log_level: str, log_format: str, address: str) -> int:
    """Runs until the parent is gone; returns the exit code."""
    configure(log_level, LogFormat(log_format), "engine", beside_bars=can_draw_on(sys.stderr))
    hide_torch()
    settings, cache = decode_settings(settings_text), cache_folder(None)
    with kernels_kept(cache) as keep_kernels:

        def build(on_progress: Callable[[LoadProgress], None]) -> Runner:
            runner = build_runner(settings, cache, on_progress)
            keep_kernels()
            return runner

        return serve_socket(address, settings.scheduler, build, mask_maker(lambda: load_tokenizer(settings.folder)))


def hide_torch() -> None:
    """For this process, PyTorch is not installed. transformers, which mlx-lm imports, would import it: seconds, and
    hundreds of megabytes, for nothing."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # what makes an import fail


def mask_maker(load: Callable[[], Tokenizer]) -> MakeMasks:
    """Makes what grammars need of the model with this tokenizer, which is loaded meanwhile. Models without an end token
    get nothing, since a structured text would never end."""

    def read() -> Vocabulary | None:
        tokenizer = load()
        return Vocabulary.of(tokenizer) if tokenizer.eos_token_ids else None

    executor = ThreadPoolExecutor(1, "anllm-vocabulary")
    vocabulary = executor.submit(read)
    executor.shutdown(wait=False)

    def make(info: EngineInfo) -> MaskComputer | None:
        found = vocabulary.result()
        return None if found is None else MaskComputer(found.fitted(info.vocab_size))

    return make


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
