from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from anllm.text.interface import Tokenizer
from anllm.text.tokenizer import load_tokenizer
from e2e.reference import Answer, model_folder, reference_answers
from e2e.servers import RunningServer

pytest.importorskip("mlx.core", reason="MLX has no backend here")

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest) -> tuple[Answer, ...]:
    """Before the server, so that the two don't share the processors."""
    return reference_answers(request.config.cache.mkdir("reference"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, reference: object) -> Iterator[RunningServer]:
    """The embedded default model, as `anllm serve` without further words serves it."""
    model_folder()
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        running.wait_for(200)
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as connected:
        yield connected


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(model_folder())
