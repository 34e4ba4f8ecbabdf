"""Fakes for tests, ours and yours: a model without weights, a tokenizer of bytes, a clock that you turn by hand."""

from anllm.testing.clock import FakeClock
from anllm.testing.runner import FakeRunner
from anllm.testing.tokenizer import ByteTokenizer

__all__ = ["ByteTokenizer", "FakeClock", "FakeRunner"]
