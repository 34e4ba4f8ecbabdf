from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.reference import model_folder
from e2e.servers import RunningServer

# What pages ask for has mostly no limit of tokens, and a small model that draws its answer may go on to the end of its
# context: minutes, on a slow machine.
SHORT = {"ANLLM_SERVE_MAX_MODEL_LEN": "2048"}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The default model, as `anllm serve` without further words serves it, but for SHORT."""
    model_folder()
    with RunningServer(tmp_path_factory.mktemp("server"), **SHORT) as running:
        running.wait_for(200)
        yield running
