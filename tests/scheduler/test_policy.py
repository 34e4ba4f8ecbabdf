"""How much prefill a step may hold, and who gets it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anllm.scheduler.policy import MIN_PREFILL_TOKENS, PrefillPace, share_prefill


@pytest.mark.parametrize(
    ("remaining", "budget", "shares"),
    [
        ([], 100, []),
        ([10], 100, [10]),
        ([1000], 100, [100]),
        ([1000, 30], 100, [70, 30]),  # the short one whole, the rest to the oldest
        ([1000, 300], 100, [50, 50]),  # the oldest gets half
        ([10, 1000], 100, [10, 90]),
        ([1000, 30, 10, 20], 100, [50, 20, 10, 20]),  # shortest first
        ([1000, 1000, 1000], 1, [1, 0, 0]),
        ([5, 5, 5], 8, [5, 3, 0]),
    ],
)
def test_half_for_the_oldest_and_the_rest_for_the_shortest(
    remaining: list[int], budget: int, shares: list[int]
) -> None:
    assert share_prefill(remaining, budget) == shares


@given(remaining=st.lists(st.integers(1, 5000), max_size=20), budget=st.integers(1, 2000))
def test_shares_fit_and_nothing_is_left_over(remaining: list[int], budget: int) -> None:
    shares = share_prefill(remaining, budget)
    assert len(shares) == len(remaining)
    assert all(0 <= share <= need for share, need in zip(shares, remaining, strict=True))
    assert sum(shares) == min(budget, sum(remaining))
    if remaining:
        assert shares[0] >= min(remaining[0], max(budget // 2, 1))


def pace(*, decode_step_s: float | None = None, prefill_token_s: float | None = None) -> PrefillPace:
    made = PrefillPace()
    if decode_step_s is not None:
        made.observe(num_decodes=4, num_prefill_tokens=0, duration_s=decode_step_s)
    if prefill_token_s is not None:
        made.observe(num_decodes=0, num_prefill_tokens=100, duration_s=100 * prefill_token_s)
    return made


def test_with_nothing_measured_the_budget_is_all() -> None:
    assert pace().budget(500) == 500
    assert pace(decode_step_s=0.01).budget(500) == 500


@pytest.mark.parametrize(
    ("decode_step_s", "prefill_token_s", "most", "budget"),
    [
        (0.010, 0.0005, 500, 30),  # 1.5 * 10 ms
        (0.010, 0.0005, 20, 20),
        (0.010, 0.000001, 500, 500),
        (1.0, 0.0005, 500, 200),  # 100 ms at most
        (None, 0.0005, 500, 200),
        (0.010, 1.0, 500, MIN_PREFILL_TOKENS),
        (0.010, 1.0, 5, 5),
    ],
)
def test_the_budget_follows_what_was_measured(
    decode_step_s: float | None, prefill_token_s: float, most: int, budget: int
) -> None:
    assert pace(decode_step_s=decode_step_s, prefill_token_s=prefill_token_s).budget(most) == pytest.approx(
        budget, abs=1
    )


def test_the_decode_part_of_a_mixed_step_is_not_blamed_on_prefill() -> None:
    made = pace(decode_step_s=0.010)
    made.observe(num_decodes=4, num_prefill_tokens=100, duration_s=0.010 + 100 * 0.0005)
    assert made.budget(500) == pytest.approx(30, abs=1)


def test_a_few_prompt_tokens_tell_nothing_about_the_speed() -> None:
    made = pace()
    made.observe(num_decodes=0, num_prefill_tokens=MIN_PREFILL_TOKENS - 1, duration_s=10.0)
    assert made.budget(500) == 500


def test_one_slow_step_moves_the_estimate_by_a_fifth() -> None:
    made = pace(decode_step_s=0.010, prefill_token_s=0.0005)
    made.observe(num_decodes=0, num_prefill_tokens=100, duration_s=0.1)
    assert made.budget(500) == pytest.approx(0.015 / 0.0006, abs=1)


def test_the_estimate_recovers() -> None:
    made = pace(decode_step_s=0.010, prefill_token_s=0.1)
    for _ in range(60):
        made.observe(num_decodes=4, num_prefill_tokens=MIN_PREFILL_TOKENS, duration_s=0.010 + 16 * 0.0005)
    assert made.budget(500) == pytest.approx(30, abs=2)
