from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.reference import model_folder
from e2e.servers import RunningServer


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The default model, as `anllm serve` without further words serves it."""
    model_folder()
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        running.wait_for(200)
        yield running
