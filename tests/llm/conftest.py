from __future__ import annotations

from collections.abc import Iterator

import pytest

from anllm.llm import LLM
from e2e.reference import Answer, model_folder, reference_answers

pytest.importorskip("mlx.core", reason="MLX has no backend here")


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest) -> tuple[Answer, ...]:
    return reference_answers(request.config.cache.mkdir("reference"))


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The embedded default model, in this process."""
    model_folder()
    loaded = LLM()
    yield loaded
    loaded.close()
