from __future__ import annotations

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX has no backend here")


@pytest.fixture(scope="session", autouse=True)
def _no_compile() -> None:
    """On Linux each compiled function runs the C++ compiler for a second, far longer than these tests."""
    mx.disable_compile()


@pytest.fixture(autouse=True)
def _seed() -> None:
    mx.random.seed(0)
