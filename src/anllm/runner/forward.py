"""Forward: how a plan becomes a call of the model. Three ways, from fast to plain, one file each.

flattened.py   all tokens of the step stand in the batch axis: one call, whatever is decoded or prefilled
compatible.py  prompts one by one as [1, length], decode rows together as [rows, 1], in the same slots
sequential.py  every sequence by itself, on mlx-lm's own cache objects

The models are mlx-lm's, unmodified. Which way a model can go is found out by trying (contract.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from anllm.core.step import StepPlan

INNER_NAMES = ("model", "transformer", "backbone")


class Forward(Protocol):
    """One way of calling a model."""

    name: str

    def logits(self, plan: StepPlan) -> mx.array | None:
        """Carry out the plan: resizes, copies, K/V of all its tokens; logits [n, vocab] of the logit_positions of all
        entries, in the plan's order.

        All that was computed is evaluated when this returns. None if no logits are wanted.
        """
        ...


class Positions:
    """Which positions of the hidden states the head is to see; all of them outside of `only`."""

    def __init__(self) -> None:
        self._index: tuple[mx.array, mx.array] | None = None

    @contextmanager
    def only(self, batch: mx.array, time: mx.array) -> Iterator[None]:
        """batch, time: [n, 1], so that the head still gets three dimensions: [n, 1, hidden]."""
        self._index = (batch, time)
        try:
            yield
        finally:
            self._index = None

    def pick(self, hidden: mx.array) -> mx.array:
        return hidden if self._index is None else hidden[self._index]


class LastHidden(nn.Module):
    """Stands in for the inner model (`model.model`) and lets only some of its positions through to the head.

    The head is the widest layer by far; prompt tokens that nobody samples from must not pay for it.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.positions = Positions()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.positions.pick(self.inner(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        """Heads reach inside, as in model.embed_tokens.as_linear."""
        inner = dict.get(self, "inner")
        if name == "inner" or inner is None:
            return super().__getattr__(name)
        return getattr(inner, name)


class Head:
    """Calls a model for the logits of chosen positions only, where its build allows that."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._gate = _install(model)

    def __call__(self, tokens: mx.array, cache: list[Any], batch: list[int], time: list[int]) -> mx.array:
        """tokens: [batch, time]. Logits [n, vocab] at positions (batch[i], time[i])."""
        rows, columns = mx.array(batch), mx.array(time)
        if self._gate is None:
            return self._model(tokens, cache=cache)[rows, columns]
        with self._gate.positions.only(rows[:, None], columns[:, None]):
            return self._model(tokens, cache=cache)[:, 0]

    def everywhere(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Logits [batch, time, vocab] at all positions."""
        logits: mx.array = self._model(tokens, cache=cache)
        return logits

    def skip(self, tokens: mx.array, cache: list[Any]) -> None:
        """Call the model for its K/V only; nothing of the head is computed."""
        self._model(tokens, cache=cache)


def _install(model: nn.Module) -> LastHidden | None:
    """Put a LastHidden into the model, once. None where the model is not an inner model with a head."""
    for name in INNER_NAMES:
        inner = getattr(model, name, None)
        if isinstance(inner, LastHidden):
            return inner
        if isinstance(inner, nn.Module):
            gate = LastHidden(inner)
            setattr(model, name, gate)
            return gate
    return None
