"""Both samplers against each other and against a slow obvious one."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from anllm.core.request import SamplingParams
from anllm.core.step import Masks, ScheduledSequence, Slot, StepResult
from anllm.runner.noise import device_noise, host_noise, row_keys
from anllm.runner.sampler import NOT_A_NUMBER, DeviceSampler, HostSampler, Sampler
from anllm.runner.seen import Seen

pytestmark = pytest.mark.mlx

SAMPLERS = [HostSampler(), DeviceSampler()]
both = pytest.mark.parametrize("sampler", SAMPLERS, ids=["host", "device"])


def make_row(seed: int | None = 0, index: int = 0, **params: Any) -> ScheduledSequence:
    return ScheduledSequence(0, Slot(256, 0), 0, (1,), True, index, SamplingParams(seed=seed, **params))


def sample(sampler: Sampler, logits: np.ndarray, rows: list[ScheduledSequence]) -> list[int]:
    result = sampler.draw(mx.array(logits.astype(np.float32)), rows, [None] * len(rows), {}).read()
    return list(result.token_ids)


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


def slow_noise(row: ScheduledSequence, vocab: int) -> list[float]:
    """The noise of each token, one after the other, with Python's integers."""
    first, second = row_keys(row)

    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    words = [mix(mix((i * 0x9E3779B1 + first) % 2**32) ^ second) for i in range(vocab)]
    return [-math.log1p(-(word + 0.5) / 2**32) for word in words]


# -- the noise ---------------------------------------------------------------------------------------------------------


def key_pairs() -> list[tuple[int, int]]:
    return [row_keys(make_row(seed, index)) for seed in range(30) for index in range(30)]


def test_noise_is_the_hash_of_seed_index_and_token() -> None:
    for row in (make_row(3, 4), make_row(-5, 0), make_row(2**70, 999)):
        slow = slow_noise(row, 500)
        np.testing.assert_allclose(host_noise(row_keys(row), 500), slow, rtol=1e-9)
        np.testing.assert_allclose(np.array(device_noise([row_keys(row)], 500))[0], slow, rtol=1e-4)


def test_noise_is_exponentially_distributed() -> None:
    for noise in (host_noise((7, 8), 200_000), np.concatenate([host_noise(key, 1) for key in key_pairs()])):
        u = 1 - np.exp(-noise)
        counts = np.histogram(u, bins=100, range=(0, 1))[0]
        expected = len(u) / 100
        assert ((counts - expected) ** 2 / expected).sum() < 160  # chi-square, 99 degrees of freedom: 1 in 10,000


def test_the_small_noise_that_decides_is_fine_on_the_device_too() -> None:
    host, device = host_noise((1, 2), 300_000), np.array(device_noise([(1, 2)], 300_000))[0]
    small = host < 0.01
    np.testing.assert_allclose(device[small], host[small], rtol=1e-5)
    assert len(np.unique(device[small])) > 0.99 * small.sum()
    assert device.min() > 0


def test_neighbouring_seeds_indexes_and_tokens_are_independent() -> None:
    noise = np.array([[host_noise(row_keys(make_row(s, i)), 50) for i in range(30)] for s in range(30)])
    for axis in range(3):
        one = np.take(noise, range(noise.shape[axis] - 1), axis).ravel()
        other = np.take(noise, range(1, noise.shape[axis]), axis).ravel()
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64 - 1, 2**64 + 5, 10**40, -(10**40)])
def test_seeds_of_any_size_give_keys_of_32_bits(seed: int) -> None:
    keys = [row_keys(make_row(seed, index)) for index in range(100)]
    assert all(0 <= word < 2**32 for key in keys for word in key)
    assert len(set(keys)) == 100


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
    """The largest logit / temperature - log(noise) of the nucleus; another only where two scores all but tie."""
    logits = random_logits(200, 300)
    rows = [make_row(seed, temperature=temperature, top_p=top_p) for seed in range(200)]
    for token, row_logits, row in zip(sample(sampler, logits, rows), logits, rows, strict=True):
        p = slow_probabilities(row_logits, temperature, top_p)
        assert p[token] > 0
        if top_p > 0:
            scores = np.where(p > 0, row_logits / temperature - np.log(slow_noise(row, 300)), -np.inf)
            assert scores[token] >= scores.max() - 1e-4


@both
def test_the_last_bits_of_logits_do_not_change_seeded_tokens(sampler: Sampler) -> None:
    logits = random_logits(300, 5000, scale=3.0)
    nudged = logits + np.random.default_rng(1).uniform(-1e-5, 1e-5, logits.shape).astype(np.float32)
    rows = [make_row(seed, temperature=1.2) for seed in range(300)]
    assert sample(sampler, logits, rows) == sample(sampler, nudged, rows)


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
def test_D_5_a_seed_gives_the_same_token_whatever_else_is_in_the_batch(sampler: Sampler) -> None:
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
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_what_has_no_probability_is_never_drawn(sampler: Sampler, top_p: float) -> None:
    logits = np.full((200, 1000), -np.inf if top_p == 1 else 0.0)
    logits[:, [3, 5]] = 50.0
    tokens = sample(sampler, logits, [make_row(seed, top_p=top_p) for seed in range(200)])
    assert set(tokens) == {3, 5}


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
    tokens = sampler.draw(logits, [make_row(temperature=0)] * 3, [None] * 3, {}).read().token_ids
    assert list(tokens) == logits.astype(mx.float32).argmax(axis=-1).tolist()


# -- penalties, bias, filters ------------------------------------------------------------------------------------------


def draw(
    sampler: Sampler,
    logits: np.ndarray,
    rows: list[ScheduledSequence],
    seen: list[Seen | None] | None = None,
    masks: Masks | None = None,
) -> StepResult:
    return sampler.draw(mx.array(logits.astype(np.float32)), rows, seen or [None] * len(rows), masks or {}).read()


def slow_changed(logits: np.ndarray, row: ScheduledSequence, prompt: list[int], output: list[int]) -> list[float]:
    """Bias, bans and penalties by the book, token by token."""
    p, changed = row.params, []
    for token, logit in enumerate(logits.astype(np.float64)):
        logit += dict(p.logit_bias).get(token, 0.0)
        if token in row.banned_token_ids or (p.allowed_token_ids and token not in p.allowed_token_ids):
            logit = -math.inf
        if token in prompt or token in output:
            logit = logit / p.repetition_penalty if logit > 0 else logit * p.repetition_penalty
        logit -= p.frequency_penalty * output.count(token) + p.presence_penalty * (token in output)
        changed.append(logit)
    return changed


def seen_of(prompt: list[int], output: list[int]) -> Seen:
    ids = sorted({*prompt, *output})
    return Seen(np.array(ids, np.int32), np.array([output.count(i) for i in ids], np.int32))


@both
def test_bias_bans_and_penalties_are_those_of_the_slow_way(sampler: Sampler) -> None:
    generator = random.Random(2)
    logits = random_logits(60, 80)
    rows, seen, expected = [], [], []
    for i in range(60):
        prompt, output = ([generator.randrange(80) for _ in range(generator.randrange(40))] for _ in range(2))
        row = replace(
            make_row(
                temperature=0,
                repetition_penalty=generator.choice([1, 1.5, 0.7]),
                presence_penalty=generator.choice([0, 0, 1.5, -2]),
                frequency_penalty=generator.choice([0, 0, 0.5, -0.3]),
                logit_bias=tuple((generator.randrange(80), generator.uniform(-5, 5)) for _ in range(i % 2)),
                allowed_token_ids=tuple(generator.sample(range(100), 30)) if i % 5 == 4 else (),
            ),
            banned_token_ids=tuple(generator.sample(range(80), i % 3)),
        )
        rows.append(row)
        seen.append(seen_of(prompt, output) if row.params.has_penalties else None)
        expected.append(int(np.argmax(slow_changed(logits[i], row, prompt, output))))
    assert list(draw(sampler, logits, rows, seen).token_ids) == expected


@both
@pytest.mark.parametrize("vocab_size", [80, 64, 37])
def test_bound_rows_get_what_their_masks_allow_and_others_what_they_would(sampler: Sampler, vocab_size: int) -> None:
    generator = random.Random(4)
    logits = random_logits(40, vocab_size)
    rows, masks, expected = [], {}, []
    for i in range(40):
        few = sorted(generator.sample(range(vocab_size), generator.randrange(1, 20)))
        row = replace(
            make_row(temperature=0 if i % 3 else 0.7, allowed_token_ids=tuple(few) if i % 4 == 1 else ()),
            request_id=i,
            banned_token_ids=tuple(few) if i % 4 == 2 else (),  # which masks leave out by themselves
        )
        rows.append(row)
        if i % 4 in (0, 2):
            words = np.zeros(-(-vocab_size // 32), np.uint32)
            for token in few:
                words[token // 32] |= np.uint32(1 << token % 32)
            masks[i] = words.tobytes()
        expected.append(few if i % 4 in (0, 1, 2) else list(range(vocab_size)))
    result = draw(sampler, logits, rows, masks=masks)
    for i, (token, allowed) in enumerate(zip(result.token_ids, expected, strict=True)):
        assert token in allowed
        if i % 3:
            assert token == max(allowed, key=lambda j: logits[i, j])
    unbound = [i for i in range(40) if i not in masks]
    without = draw(sampler, logits[unbound], [rows[i] for i in unbound])
    assert [result.token_ids[i] for i in unbound] == list(without.token_ids)


@both
@pytest.mark.parametrize(
    "params", [{"top_k": 1}, {"top_k": 3}, {"min_p": 0.4}, {"top_k": 5, "top_p": 0.7, "min_p": 0.1}]
)
def test_filters_leave_the_tokens_of_the_slow_way(sampler: Sampler, params: dict[str, float]) -> None:
    logits = random_logits(1, 40)[0]
    order = np.argsort(-logits)
    p = slow_probabilities(logits, 1.0, 1.0)
    allowed = set(order[: params.get("top_k", 40)].tolist())
    kept = np.where(np.isin(np.arange(40), list(allowed)), p, 0)
    if "top_p" in params:
        mass = np.cumsum(kept[order]) / kept.sum()
        allowed &= set(order[: int(np.searchsorted(mass, params["top_p"])) + 1].tolist())
    allowed &= set(np.flatnonzero(p >= params.get("min_p", 0) * p.max()).tolist())
    rows = [make_row(seed, **params) for seed in range(600)]
    assert set(draw(sampler, np.tile(logits, (600, 1)), rows).token_ids) == allowed


@both
def test_G_2_rows_with_and_without_penalties_do_not_touch_each_other(sampler: Sampler) -> None:
    logits = np.tile(random_logits(1, 50), (3, 1))
    best = int(logits[0].argmax())
    rows = [make_row(temperature=0), make_row(temperature=0, presence_penalty=2), make_row(temperature=0)]
    rows[2] = replace(rows[2], banned_token_ids=(best,))
    tokens = draw(sampler, logits - 10, rows, [None, seen_of([], [best] * 9), None]).token_ids
    assert tokens[0] == best
    assert tokens[2] != best


@both
def test_D_4_a_bias_of_a_hundred_decides(sampler: Sampler) -> None:
    row = make_row(3, temperature=1.0, logit_bias=((17, 100.0),))
    assert list(draw(sampler, random_logits(1, 50), [row]).token_ids) == [17]


# -- log probabilities -------------------------------------------------------------------------------------------------


@both
def test_logprobs_are_the_models_own(sampler: Sampler) -> None:
    logits = random_logits(4, 60)
    rows = [
        make_row(temperature=0, logprobs=3),
        make_row(1, temperature=1.5, logprobs=0, logit_bias=((5, 9.0),)),
        make_row(temperature=0),
        make_row(2, temperature=0.7, top_p=0.5, logprobs=60),
    ]
    result = draw(sampler, logits, rows)
    assert result.logprobs[2] is None
    for i, number in ((0, 3), (1, 0), (3, 60)):
        expected = np.log(slow_probabilities(logits[i], 1.0, 1.0))
        told = result.logprobs[i]
        assert told is not None
        assert told.logprob == pytest.approx(expected[result.token_ids[i]], abs=1e-4)
        order = np.argsort(-expected)[:number]
        assert [token for token, _ in told.top] == order.tolist()
        assert [value for _, value in told.top] == pytest.approx(expected[order].tolist(), abs=1e-4)


@both
def test_impossible_tokens_have_finite_logprobs(sampler: Sampler) -> None:
    logits = np.full((1, 10), -np.inf)
    logits[0, 3] = 1.0
    told = draw(sampler, logits, [make_row(temperature=0, logprobs=10)]).logprobs[0]
    assert told is not None
    assert told.logprob == pytest.approx(0.0)
    assert all(math.isfinite(value) for _, value in told.top)


@both
def test_nobody_who_asks_gets_no_logprobs(sampler: Sampler) -> None:
    assert not draw(sampler, random_logits(2, 10), [make_row(), make_row()]).logprobs


@both
def test_I_9_tokens_that_the_model_does_not_have_and_extreme_penalties_harm_nobody(sampler: Sampler) -> None:
    logits = random_logits(3, 50)
    rows = [
        replace(make_row(temperature=0, logit_bias=((49_999, 5.0),)), banned_token_ids=(50,)),
        make_row(temperature=1.0, repetition_penalty=1e-300),
        make_row(temperature=0),
    ]
    tokens = draw(sampler, logits, rows, [None, seen_of([3, 4], []), None]).token_ids
    assert tokens[0] == logits[0].argmax()
    assert 0 <= tokens[1] < 50
    assert tokens[2] == logits[2].argmax()
