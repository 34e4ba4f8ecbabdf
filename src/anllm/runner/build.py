"""Builds the runner, in the order that the platform demands: BLAS before MLX, everything on the calling thread."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anllm.config import CacheConfig, ModelConfig, SchedulerConfig
from anllm.core.events import LoadProgress
from anllm.core.inspection import Inspection
from anllm.core.step import Runner
from anllm.errors import ConfigError
from anllm.runner.blas import Blas, load_blas

MLX_ENVIRONMENT = {"MLX_CUDA_GRAPH_CACHE_SIZE": "2000", "MLX_ENABLE_CACHE_THRASHING_CHECK": "0"}
NO_BACKEND = (
    "MLX has no backend here. Install one: pip install 'mlx[cpu]', or with an NVIDIA GPU 'mlx[cuda13]' or "
    "'mlx[cuda12]'; 'anllm doctor' tells which."
)
NO_DRIVER = (
    "MLX is the build for NVIDIA GPUs, and finds no driver here. Install NVIDIA's driver, so that nvidia-smi lists the "
    "GPU; a container must be given the GPU: docker run --gpus all."
)


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What a runner is built from. eos_token_ids: all end tokens of the model, as its tokenizer's files name them."""

    folder: Path
    eos_token_ids: tuple[int, ...]
    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig


def build_runner(
    settings: RunnerSettings, cache_folder: Path, on_progress: Callable[[LoadProgress], None] = lambda progress: None
) -> Runner:
    """Choose the backend and load the model, on the calling thread.

    Raises ConfigError (no backend, a bad BLAS) and ModelError (the model can't be served).
    """
    with mlx_ready(settings.model, cache_folder) as blas:
        from anllm.runner.backends import select_backend
        from anllm.runner.run import ModelRunner

        return ModelRunner(settings, select_backend(blas), on_progress)


def inspect_model(folder: Path, model: ModelConfig, cache_folder: Path) -> Inspection:
    """What the model in `folder` would be like, without its weights in memory. Raises as build_runner does."""
    with mlx_ready(model, cache_folder) as blas:
        from anllm.runner.backends import select_backend
        from anllm.runner.inspect import inspect

        return inspect(folder, model.weights, model.execution, select_backend(blas))


@contextmanager
def mlx_ready(model: ModelConfig, cache_folder: Path) -> Iterator[Blas]:
    """MLX may be imported inside, and what it needs before is done. Raises ConfigError (no backend, a bad BLAS)."""
    set_environment()
    blas = load_blas(model.blas, cache_folder) if runs_on_cpu() else Blas("")
    with _kept_file_limit():
        try:
            import mlx.core  # noqa: F401 - the one place where its absence can be told apart
        except ImportError as error:
            raise ConfigError(f"{NO_DRIVER if 'libcuda' in str(error) else NO_BACKEND} ({error})") from error
        yield blas


def set_environment() -> None:
    """What MLX reads from its environment at first use; what is set there already stays.

    MLX keeps its CUDA graphs by their shape, 400 by default, and ends the process ("Cache thrashing is happening")
    after 800 new ones. A server's steps have more shapes than that in a day.
    """
    for name, value in MLX_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def runs_on_cpu() -> bool:
    """Whether the MLX that is installed is the CPU build of Linux."""
    if platform.system() != "Linux":
        return False
    installed = {(d.metadata["Name"] or "").lower() for d in importlib.metadata.distributions()}
    return not any(name.startswith("mlx-cuda") for name in installed)


@contextmanager
def _kept_file_limit() -> Iterator[None]:
    """Importing mlx_lm lowers both limits of open files for the whole process; raise the soft one again, as far as the
    hard one still allows."""
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, hard), hard))
