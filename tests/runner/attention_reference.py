"""A step of attention in NumPy: what it gives, and what is in the slots afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.ragged import RaggedRows

NUM_SLOTS = 5
# Size class, slot, first position, tokens: single ones, prompts' beginnings and continuations.
PARTS = [
    (256, 0, 0, 1),
    (256, 1, 99, 1),
    (256, 4, 255, 1),
    (512, 3, 511, 1),
    (512, 0, 0, 70),
    (256, 2, 130, 9),
    (512, 1, 300, 101),
    (256, 3, 0, 3),
]


@dataclass
class Step:
    """q, k, v: [tokens, heads, 1, dim]. keys_after, values_after: by capacity, [slots, kv_heads, capacity, dim]."""

    layer: LayerSlabs
    rows: RaggedRows
    places: list[tuple[int, int, int]]  # capacity, slot, position, of each token
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    sinks: np.ndarray | None
    keys_after: dict[int, np.ndarray] = field(default_factory=dict)
    values_after: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def capacities(self) -> list[int]:
        return sorted(self.keys_after)

    def seen(self, capacity: int, case: Case) -> np.ndarray:
        """Bool [slots * kv_heads * capacity]: lines that some token of the step sees."""
        found = np.zeros((NUM_SLOTS, case.kv_heads, capacity), bool)
        for of, slot, position in self.places:
            if of == capacity:
                found[slot, :, : position + 1] = True
        return found.reshape(-1)


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    window: int | None = None
    has_sinks: bool = False
    scale: float = 0.125

    def step(self) -> Step:
        """The same for each call."""
        random = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape, np.float32)

        places = [(c, slot, first + i) for c, slot, first, count in PARTS for i in range(count)]
        capacities, slots, positions = np.array(places).T
        layer = LayerSlabs(LayerShape(self.kv_heads, self.dim, self.value_dim, mx.float32, self.window))
        number = len(places)
        q, k = normal(number, self.heads, 1, self.dim), normal(number, self.kv_heads, 1, self.dim)
        v, sinks = normal(number, self.kv_heads, 1, self.value_dim), normal(self.heads) if self.has_sinks else None
        step = Step(layer, RaggedRows(slots, positions, capacities), places, q, k, v, sinks)
        for capacity in sorted(set(capacities.tolist())):
            layer.resize(capacity, NUM_SLOTS)
            lines = NUM_SLOTS * self.kv_heads * capacity
            layer.write(
                capacity, mx.arange(lines), mx.array(normal(lines, self.dim)), mx.array(normal(lines, self.value_dim))
            )
            mx.eval(layer.arrays([capacity]))
            step.keys_after[capacity] = np.array(layer.keys(capacity))
            step.values_after[capacity] = np.array(layer.values(capacity))
        for i, (capacity, slot, position) in enumerate(places):
            step.keys_after[capacity][slot, :, position] = k[i, :, 0]
            step.values_after[capacity][slot, :, position] = v[i, :, 0]
        return step


def attend(case: Case, step: Step) -> np.ndarray:
    """[tokens, heads, 1, value_dim]"""
    outs = []
    for i, (capacity, slot, position) in enumerate(step.places):
        first = 0 if case.window is None else max(position + 1 - case.window, 0)
        keys = step.keys_after[capacity][slot, :, first : position + 1].astype(np.float64)
        values = step.values_after[capacity][slot, :, first : position + 1].astype(np.float64)
        scores = case.scale * np.einsum("hgd,hkd->hgk", step.q[i].reshape(case.kv_heads, -1, case.dim), keys)
        if step.sinks is not None:
            scores = np.concatenate([step.sinks.reshape(case.kv_heads, -1, 1), scores], axis=-1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hgk,hkd->hgd", weights if step.sinks is None else weights[..., 1:], values)
        outs.append(out.reshape(case.heads, 1, case.value_dim))
    return np.stack(outs)
