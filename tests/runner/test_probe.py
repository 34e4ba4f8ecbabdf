from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from anllm.runner.blas import load_blas
from anllm.runner.probe import SelfTest, self_tests

pytestmark = pytest.mark.mlx


def test_this_backend_computes_right() -> None:
    tests = self_tests("metal")  # those of any backend
    assert [test.name for test in tests] == ["matrix products", "attention", "compiled functions"]
    assert all(test.works for test in tests), tests


def test_the_native_library_is_tested_where_there_is_one(tmp_path: Path) -> None:
    names = {test.name: test for test in self_tests("cpu", load_blas(None, tmp_path).native)}
    if "native library" not in names:
        assert {"packed weights", "native layers", "native attention"} < names.keys()
    assert all(test.works for test in names.values()), names
    (missing,) = [test for test in self_tests("cpu") if not test.works]
    assert (missing.name, missing.is_needed, missing.reason) == ("native library", False, "it could not be built")


@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="on a GPU they work, or tell what is wrong")
def test_kernels_that_do_not_run_here_are_told_and_are_no_end() -> None:
    kernels = [test for test in self_tests("cuda") if not test.is_needed and test.name != "compiled functions"]
    assert len(kernels) == 3
    assert not any(test.works for test in kernels)
    assert all(test.reason for test in kernels)


def test_a_difference_beyond_the_tolerance_does_not_work() -> None:
    assert SelfTest("x", 0.01, 0.01, True).works
    assert not SelfTest("x", 0.02, 0.01, True).works
    assert not SelfTest("x", float("nan"), 0.01, True).works
    assert not SelfTest("x", None, 0.01, True, "no driver").works
