"""The contract test at load: which way of calling a model gives what the model itself gives.

A random sequence goes through the model with its own cache, and then through each way, from the fast to the plain: in
two chunks and by decoding, beside another sequence. The first way whose logits agree is taken.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from anllm.config import Execution
from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, SlabResize, Slot, StepPlan
from anllm.errors import ModelError
from anllm.runner.arrays import flat_arrays
from anllm.runner.attention import Kernels, hook_attention
from anllm.runner.compatible import BuildCache, BuildPart, CompatibleForward, StateStore
from anllm.runner.flattened import FlattenedForward
from anllm.runner.forward import Forward, Head
from anllm.runner.fusion import FusedKernels, Fusion, RecordableKernels, fuse
from anllm.runner.kv_store import KVStore, LayerShape
from anllm.runner.ragged import RaggedKernels
from anllm.runner.sequential import SequentialForward

logger = logging.getLogger(__name__)

NUM_TOKENS = 29
CAPACITY = 256
# Largest difference of logits, as a share of the largest logit. Half types round differently in other shapes.
TOLERANCE = {mx.float32: 2e-3}
HALF_TOLERANCE = 5e-2


@dataclass(frozen=True, slots=True)
class ChosenForward:
    """The way that was chosen. bytes_per_token: K/V of all layers; row_bytes: state of a row whatever its length.
    reuses_prefixes: whether the beginning of a row can serve another sequence: where all of it is plain K/V."""

    forward: Forward
    bytes_per_token: int
    row_bytes: int
    reuses_prefixes: bool = True


@dataclass(frozen=True, slots=True)
class CacheKinds:
    """How the model's own list of caches is built: from K/V layers and state layers, one each or in lists."""

    shapes: list[LayerShape]
    state_sizes: list[int]
    state_bytes: int
    build: BuildCache
    is_plain: bool  # nothing but K/V, one cache for each layer

    @property
    def bytes_per_token(self) -> int:
        return sum(shape.bytes_per_token for shape in self.shapes)


class Way(NamedTuple):
    """What builds a way. is_fused: with the model's layers fused (fusion.py); is_replayed: with all of them, and decode
    steps recorded (replay.py)."""

    name: str
    build: Callable[[], ChosenForward]
    is_fused: bool = False
    is_replayed: bool = False


class UnsuitableError(Exception):
    """A way can't go with this model; the message says why."""


def choose_forward(model: nn.Module, kernels: Kernels, wanted: Execution, vocab_size: int) -> ChosenForward:
    """The fastest way that agrees with the model itself, or the one that is wanted.

    Raises ModelError if the wanted way does not agree, or none does.
    """
    hook_attention()
    sequences = _random_sequences(vocab_size)
    references, caches = _references(model, sequences)
    tolerance = TOLERANCE.get(references[0].dtype, HALF_TOLERANCE)
    reasons = []
    fusion = fuse(model, kernels) if isinstance(kernels, FusedKernels) else Fusion()
    for name, build, is_fused, is_replayed in _ways(model, kernels, caches):
        if wanted not in (Execution.AUTO, name) or (is_fused and not fusion.replaced):
            continue
        if is_replayed and fusion.num_attentions < len(caches):
            continue
        if not is_fused:
            fusion.undo()
        try:
            chosen = build()
            difference = _largest_difference(build().forward, sequences, references)
        except Exception as error:  # whatever a model does when it is called in a way that it was not written for
            logger.debug("%s failed", name, exc_info=True)
            reasons.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if difference <= tolerance:
            for reason in reasons:
                logger.warning("a slower way of calling the model is taken (%s), since %s", name, reason)
            return chosen
        reasons.append(f"{name}: its logits differ by {difference:.2%}")
    raise ModelError("The model can't be run: " + "; ".join(reasons))


def vocabulary_size(model: nn.Module) -> int:
    """Width of the logits, found by asking for some."""
    return int(model(mx.array([[0]])).shape[-1])


# -- the ways ----------------------------------------------------------------------------------------------------------


def _ways(model: nn.Module, kernels: Kernels, caches: list[Any]) -> list[Way]:
    """What builds each way, fast ones first. Each call builds a new one, with stores of its own."""
    head = Head(model)

    def plain_kinds() -> CacheKinds:
        kinds = analyse(caches)
        if not kinds.is_plain:
            raise UnsuitableError("some layers keep more than K/V")
        return kinds

    def flattened() -> ChosenForward:
        kinds = plain_kinds()
        return ChosenForward(FlattenedForward(head, KVStore(kinds.shapes), kernels), kinds.bytes_per_token, 0)

    def ragged(is_replayed: bool = False) -> ChosenForward:
        kinds = plain_kinds()
        if is_replayed and isinstance(kernels, RecordableKernels):
            store = KVStore(kinds.shapes, kernels.copy_rows, resize_bytes=kernels.resize_bytes)
        else:
            store = KVStore(kinds.shapes, new_slab=kernels.new_slab if isinstance(kernels, RaggedKernels) else None)
        forward = FlattenedForward(head, store, kernels, is_ragged=True, is_replayed=is_replayed)
        return ChosenForward(forward, kinds.bytes_per_token, 0)

    def compatible() -> ChosenForward:
        kinds = analyse(caches)
        forward = CompatibleForward(head, KVStore(kinds.shapes), StateStore(kinds.state_sizes), kinds.build)
        has_states = bool(kinds.state_sizes)  # which say what all tokens made of them, not the first ones
        return ChosenForward(forward, kinds.bytes_per_token, kinds.state_bytes, reuses_prefixes=not has_states)

    def sequential() -> ChosenForward:
        size = sum(array.nbytes for _, array in flat_arrays([c.state for c in caches]))
        forward = SequentialForward(model, head)
        return ChosenForward(forward, -(-size // NUM_TOKENS), 0, reuses_prefixes=False)

    plain = [Way("flattened", flattened), Way("compatible", compatible), Way("sequential", sequential)]
    if not isinstance(kernels, RaggedKernels):
        return plain
    ways = [Way("flattened", ragged, is_fused=True), Way("flattened", ragged), *plain]
    if isinstance(kernels, RecordableKernels) and kernels.writes_in_place:
        ways.insert(0, Way("flattened", lambda: ragged(is_replayed=True), is_fused=True, is_replayed=True))
    return ways


def analyse(caches: list[Any]) -> CacheKinds:
    """Take apart the caches that mlx-lm made for a model, after a forward has filled them.

    Raises UnsuitableError for a kind that slots can't stand in for.
    """
    shapes: list[LayerShape] = []
    states: list[ArraysCache] = []

    def kv_layer(i: int) -> BuildPart:
        return lambda kv, state: kv(i)

    def state_layer(i: int) -> BuildPart:
        return lambda kv, state: state(i)

    def take(cache: Any) -> BuildPart:
        if type(cache) is CacheList:
            children = [take(child) for child in cache.caches]
            return lambda kv, state: CacheList(*[child(kv, state) for child in children])
        if type(cache) is ArraysCache:
            states.append(cache)
            return state_layer(len(states) - 1)
        shapes.append(_shape(cache))
        return kv_layer(len(shapes) - 1)

    parts = [take(cache) for cache in caches]
    return CacheKinds(
        shapes,
        [len(state.cache) for state in states],
        sum(state.nbytes for state in states),
        lambda kv, state: [part(kv, state) for part in parts],
        is_plain=not states and len(shapes) == len(caches),
    )


def _shape(cache: Any) -> LayerShape:
    rotating = type(cache) is RotatingKVCache and cache.keep == 0
    if type(cache) is not KVCache and not rotating:
        raise UnsuitableError(f"its cache is a {type(cache).__name__}")
    if cache.keys is None:
        raise UnsuitableError("a layer does not use its cache")
    _, heads, _, key_dim = cache.keys.shape
    return LayerShape(heads, key_dim, cache.values.shape[-1], cache.keys.dtype, cache.max_size if rotating else None)


# -- the comparison ----------------------------------------------------------------------------------------------------


def _random_sequences(vocab_size: int) -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(vocab_size) for _ in range(NUM_TOKENS)] for _ in range(2)]


def _references(model: nn.Module, sequences: list[list[int]]) -> tuple[list[mx.array], list[Any]]:
    """Logits [NUM_TOKENS, vocab] of each sequence by the model itself, and the caches that the last one filled."""
    references = []
    for tokens in sequences:
        caches = make_prompt_cache(model)
        references.append(model(mx.array([tokens]), cache=caches)[0])
        mx.eval(references[-1], [c.state for c in caches])
    return references, caches


def _largest_difference(forward: Forward, sequences: list[list[int]], references: list[mx.array]) -> float:
    """Of the logits, as a share of the largest one: two sequences prefilled in chunks, mixed, and decoded together."""
    worst = 0.0
    for plan in _plans(sequences):
        logits = forward.logits(plan)
        sampled = [s for s in plan.scheduled if s.sample]
        for row, entry in enumerate(sampled):
            assert logits is not None
            expected = references[entry.request_id][entry.end - 1].astype(mx.float32)
            difference = mx.abs(logits[row].astype(mx.float32) - expected).max() / mx.abs(expected).max()
            worst = float("inf") if mx.isnan(difference) else max(worst, float(difference))
    return worst


def _plans(sequences: list[list[int]]) -> list[StepPlan]:
    """The steps of the test. Slot 1 stays empty, so that decode rows have a gap between them."""
    slots = [Slot(CAPACITY, 0), Slot(CAPACITY, 2)]

    def part(sequence: int, start: int, end: int, sample: bool) -> ScheduledSequence:
        tokens = tuple(sequences[sequence][start:end])
        return ScheduledSequence(sequence, slots[sequence], start, tokens, sample, 0, SamplingParams())

    return [
        StepPlan((part(0, 0, 10, False), part(1, 0, 6, False)), resizes=(SlabResize(CAPACITY, 3),)),
        StepPlan((part(0, 10, 17, False), part(1, 6, 8, True))),
        # Steps of one kind: a record is made at the second, and submitted again at the third.
        *(StepPlan((part(1, 8 + i, 9 + i, True), part(0, 17 + 3 * i, 20 + 3 * i, True))) for i in range(3)),
        *(StepPlan((part(0, 26 + i, 27 + i, True), part(1, 11 + i, 12 + i, True))) for i in range(3)),
    ]
