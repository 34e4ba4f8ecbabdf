"""Both samplers against each other and against a slow obvious one."""

from __future__ import annotations

import random
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, Slot
from anllm.runner.sampler import MASK_64, NOT_A_NUMBER, DeviceSampler, HostSampler, Sampler, uniform

pytestmark = pytest.mark.mlx

SAMPLERS = [HostSampler(), DeviceSampler()]
both = pytest.mark.parametrize("sampler", SAMPLERS, ids=["host", "device"])


def make_row(seed: int | None = 0, index: int = 0, **params: float) -> ScheduledSequence:
    return ScheduledSequence(0, Slot(256, 0), 0, (1,), True, index, SamplingParams(seed=seed, **params))


def sample(sampler: Sampler, logits: np.ndarray, rows: list[ScheduledSequence]) -> list[int]:
    return sampler.sample(mx.array(logits.astype(np.float32)), rows)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


def slow_probabilities(logits: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """Softmax in float64; then from the most likely token on, as many as reach top_p, and those tied with the last."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    p = weights / weights.sum()
    order = np.argsort(-p, kind="stable")
    kept, mass = [], 0.0
    for token in order:
        if mass >= top_p and kept and logits[token] < logits[kept[-1]]:
            break
        kept.append(token)
        mass += p[token]
    nucleus = np.zeros_like(p)
    nucleus[kept] = p[kept]
    return nucleus / nucleus.sum()


def seed_of(draw: float) -> int:
    """A seed whose first draw is the given multiple of 2^-53: SplitMix64 run backwards."""

    def unshift(z: int, by: int) -> int:
        x = z
        for _ in range(64 // by):
            x = z ^ (x >> by)
        return x

    z = unshift(int(draw * 2**53) << 11, 31)
    z = unshift(z * pow(0x94D049BB133111EB, -1, 2**64) & MASK_64, 27)
    z = unshift(z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK_64, 30)
    return (z - 0x9E3779B97F4A7C15) * pow(0xD1342543DE82EF95, -1, 2**64) & MASK_64


# -- the draws ---------------------------------------------------------------------------------------------------------


def test_draws_are_uniform_in_the_half_open_interval() -> None:
    for draws in ([uniform(7, i) for i in range(50_000)], [uniform(i, 0) for i in range(50_000)]):
        assert all(0 <= u < 1 for u in draws)
        counts = np.histogram(draws, bins=100, range=(0, 1))[0]
        assert ((counts - 500) ** 2 / 500).sum() < 160  # chi-square, 99 degrees of freedom: 1 in 10,000


def test_neighbouring_seeds_and_draws_are_independent() -> None:
    draws = np.array([[uniform(seed, index) for index in range(200)] for seed in range(200)])
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[:-1, 1:].ravel(), draws[1:, :-1].ravel())[0, 1]) < 0.02
    assert len(np.unique(draws)) == draws.size


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64 - 1, 2**64 + 5, 10**40, -(10**40)])
def test_seeds_of_any_size_draw(seed: int) -> None:
    draws = [uniform(seed, index) for index in range(100)]
    assert all(0 <= u < 1 for u in draws)
    assert len(set(draws)) == 100


def test_the_highest_draw_is_below_one() -> None:
    assert uniform(seed_of(1 - 2**-53), 0) == 1 - 2**-53
    assert uniform(seed_of(0.0), 0) == 0.0


# -- tokens ------------------------------------------------------------------------------------------------------------


@both
def test_greedy_is_the_largest_logit(sampler: Sampler) -> None:
    logits = random_logits(9, 1000)
    rows = [make_row(temperature=0)] * 9
    assert sample(sampler, logits, rows) == logits.argmax(axis=-1).tolist()


@both
@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_p": 0}, {"temperature": 0, "top_p": 0.5}])
def test_greedy_takes_the_first_of_equals(sampler: Sampler, params: dict[str, float]) -> None:
    logits = np.zeros((2, 50))
    logits[0, [7, 9]] = 3
    logits[1, [0, 49]] = 3
    assert sample(sampler, logits, [make_row(**params)] * 2) == [7, 0]


@both
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.0, 1e-6, 0.3, 0.9, 0.999, 1.0])
def test_tokens_are_those_of_the_slow_way(sampler: Sampler, temperature: float, top_p: float) -> None:
    """The token's share of the cumulative distribution holds the draw, but for rounding."""
    logits = random_logits(200, 300)
    rows = [make_row(seed, temperature=temperature, top_p=top_p) for seed in range(200)]
    for token, row_logits, row in zip(sample(sampler, logits, rows), logits, rows, strict=True):
        p = slow_probabilities(row_logits, temperature, top_p)
        assert p[token] > 0
        if top_p > 0:
            end = p[: token + 1].sum()
            assert end - p[token] - 1e-4 <= uniform(row.params.seed or 0, 0) <= end + 1e-4


def test_host_and_device_draw_the_same_tokens() -> None:
    logits = random_logits(400, 2000)
    generator = random.Random(1)
    rows = [
        make_row(
            seed,
            index=seed % 7,
            temperature=generator.choice([0, 0.5, 1, 1.5]),
            top_p=generator.choice([0, 0.5, 0.95, 1]),
        )
        for seed in range(400)
    ]
    host, device = (sample(sampler, logits, rows) for sampler in SAMPLERS)
    assert sum(a != b for a, b in zip(host, device, strict=True)) <= 4  # float32 against float64 at the edges


@both
def test_ties_at_the_edge_of_the_nucleus_stay(sampler: Sampler) -> None:
    logits = np.log(np.array([[0.4, 0.2, 0.2, 0.1, 0.1]]))
    drawn = {sample(sampler, logits, [make_row(seed, top_p=0.5)])[0] for seed in range(200)}
    assert drawn == {0, 1, 2}
    drawn = {sample(sampler, logits, [make_row(seed, top_p=0.4 - 1e-3)])[0] for seed in range(50)}
    assert drawn == {0}


@both
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.99])
def test_all_equal_logits_are_all_in_the_nucleus(sampler: Sampler, top_p: float) -> None:
    logits = np.zeros((2000, 20))
    drawn = Counter(sample(sampler, logits, [make_row(seed, top_p=top_p) for seed in range(2000)]))
    assert sorted(drawn) == list(range(20))


@both
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.6)])
def test_frequencies_are_the_probabilities(sampler: Sampler, temperature: float, top_p: float) -> None:
    """Chi-square over 20,000 draws of one request, on a vocabulary of 50."""
    num_draws = 20_000
    logits = random_logits(1, 50, scale=1.0)[0]
    expected = slow_probabilities(logits, temperature, top_p) * num_draws
    rows = [make_row(11, index, temperature=temperature, top_p=top_p) for index in range(num_draws)]
    counts = np.bincount(sample(sampler, np.tile(logits, (num_draws, 1)), rows), minlength=50)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    freedom = possible.sum() - 1
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 4


@both
def test_a_seed_gives_the_same_token_whatever_else_is_in_the_batch(sampler: Sampler) -> None:
    logits = random_logits(8, 500)
    rows = [make_row(seed, index=seed, temperature=0.5 + seed / 8, top_p=1 - seed / 20) for seed in range(8)]
    rows[3] = make_row(temperature=0)
    together = sample(sampler, logits, rows)
    alone = [sample(sampler, logits[i : i + 1], rows[i : i + 1])[0] for i in range(8)]
    backwards = sample(sampler, logits[::-1], rows[::-1])[::-1]
    assert together == alone == backwards


@both
def test_seeds_and_token_indexes_matter(sampler: Sampler) -> None:
    logits = np.zeros((100, 1000))
    by_seed = sample(sampler, logits, [make_row(seed) for seed in range(100)])
    by_index = sample(sampler, logits, [make_row(0, index) for index in range(100)])
    assert len(set(by_seed)) > 80
    assert len(set(by_index)) > 80
    assert sample(sampler, logits, [make_row(5)] * 100) == [by_seed[5]] * 100


@both
@pytest.mark.parametrize("seed", [-1, 2**64 - 1, 10**40])
def test_seeds_of_any_size_sample(sampler: Sampler, seed: int) -> None:
    logits = random_logits(1, 100)
    assert 0 <= sample(sampler, logits, [make_row(seed)])[0] < 100


# -- the edges of arithmetic -------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("draw", [1 - 2**-53, 1 - 2**-30])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_the_highest_draw_takes_the_last_possible_token(sampler: Sampler, draw: float, top_p: float) -> None:
    """And none that the nucleus, or a probability of nothing, excludes."""
    logits = np.full((1, 1000), -np.inf if top_p == 1 else 0.0)
    logits[0, [3, 5]] = 50.0
    assert sample(sampler, logits, [make_row(seed_of(draw), top_p=top_p)]) == [5]


@both
def test_the_lowest_draw_takes_the_first_possible_token(sampler: Sampler) -> None:
    logits = np.full((1, 1000), -np.inf)
    logits[0, [3, 5]] = 50.0
    assert sample(sampler, logits, [make_row(seed_of(0.0))]) == [3]


@both
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_rows_are_told_and_no_others(sampler: Sampler, params: dict[str, float], broken: float) -> None:
    logits = random_logits(5, 100)
    whole = sample(sampler, logits, [make_row(i, **params) for i in range(5)])
    logits[1, 40] = logits[3, 0] = broken
    logits[3, 99] = broken
    tokens = sample(sampler, logits, [make_row(i, **params) for i in range(5)])
    assert tokens == [whole[0], NOT_A_NUMBER, whole[2], NOT_A_NUMBER, whole[4]]


@both
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}])
def test_a_row_of_nothing_but_minus_infinity_is_broken(sampler: Sampler, params: dict[str, float]) -> None:
    logits = random_logits(2, 100)
    logits[0] = -np.inf
    assert sample(sampler, logits, [make_row(**params)] * 2)[0] == NOT_A_NUMBER


@both
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}, {"temperature": 2.0, "top_p": 0.999}])
def test_extremes_of_float32_in_a_large_vocabulary(sampler: Sampler, params: dict[str, float]) -> None:
    largest = float(np.finfo(np.float32).max)
    logits = np.full((3, 50_000), -largest)
    logits[0, 49_999] = largest
    logits[1, 123] = 1e-30
    logits[2] = largest  # all the same
    logits[2, 0] = -largest
    tokens = sample(sampler, logits, [make_row(4, **params)] * 3)
    assert tokens[:2] == [49_999, 123]
    assert tokens[2] > 0


@both
@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-40, 5e-324])
def test_the_smallest_temperatures_are_as_good_as_greedy(sampler: Sampler, temperature: float) -> None:
    logits = random_logits(4, 1000)
    logits[np.arange(4), logits.argmax(axis=-1)] += 1
    rows = [make_row(seed, temperature=temperature) for seed in range(4)]
    assert sample(sampler, logits, rows) == logits.argmax(axis=-1).tolist()


@both
def test_the_highest_temperatures_are_uniform(sampler: Sampler) -> None:
    logits = np.tile(random_logits(1, 20), (2000, 1))
    counts = np.bincount(
        sample(sampler, logits, [make_row(seed, temperature=1e30) for seed in range(2000)]), minlength=20
    )
    assert ((counts - 100) ** 2 / 100).sum() < 50


@both
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_logits_of_every_float_type_are_taken(sampler: Sampler, dtype: mx.Dtype) -> None:
    logits = mx.array(random_logits(3, 50)).astype(dtype)
    mx.eval(logits)
    assert sampler.sample(logits, [make_row(temperature=0)] * 3) == logits.astype(mx.float32).argmax(axis=-1).tolist()
