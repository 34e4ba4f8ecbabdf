"""How much prefill a step may hold, and who gets it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anllm.scheduler.policy import GROWTH, MIN_PREFILL_TOKENS, DecodeTime, PrefillPace, share_prefill, token_cost


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


def settled(
    *, decode_s: float, fixed_s: float = 0.0, token_s: float, most: int = 2000, steps: int = 200
) -> list[float]:
    """The lengths of mixed steps, in seconds, on a machine where prompts cost so much, from the start on."""
    pace = PrefillPace()
    pace.observe(num_decodes=4, num_prefill_tokens=0, duration_s=decode_s)
    durations = []
    for _ in range(steps):
        tokens = pace.budget(most)
        durations.append(decode_s + fixed_s + tokens * token_s)
        pace.observe(num_decodes=4, num_prefill_tokens=tokens, duration_s=durations[-1])
    return durations


@pytest.mark.parametrize("decode_s", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("token_s", [0.00002, 0.0002, 0.0005])
def test_steps_with_prompts_stay_under_three_times_a_step_without(decode_s: float, token_s: float) -> None:
    durations = settled(decode_s=decode_s, token_s=token_s)
    floor = decode_s + MIN_PREFILL_TOKENS * token_s  # less than the smallest piece is not possible
    assert (
        max(durations[20:]) <= max(3 * decode_s, decode_s + PrefillPace.MIN_ALLOWANCE_S * GROWTH, floor) + 2 * token_s
    )


@pytest.mark.parametrize("decode_s", [0.005, 0.01, 0.05])
@pytest.mark.parametrize("seconds_by_position", [1e-8, 2e-8])
def test_they_do_so_too_while_a_prompt_gets_dearer_and_the_next_step_is_under_way(
    decode_s: float, seconds_by_position: float
) -> None:
    # As on an H200: each token costs more the further back it looks, and each plan is made before the last one is read.
    pace, position, durations = PrefillPace(), 0, [decode_s]
    pace.observe(num_decodes=8, num_prefill_tokens=0, duration_s=decode_s)
    under_way: list[tuple[float, float]] = []
    while position < 5400:
        tokens = pace.budget(1024, num_decodes=8, position=position)
        middle = position + tokens / 2
        seconds = 1.2 * decode_s + tokens * (decode_s / 700 + seconds_by_position * middle)
        under_way.append((tokens * token_cost(middle), seconds))
        position += tokens
        if len(under_way) > 1:
            cost, seconds = under_way.pop(0)
            pace.observe(num_decodes=8, num_prefill_tokens=cost, duration_s=seconds)
            durations.append(seconds)
    assert max(durations) < 2.5 * decode_s  # and what else such a step may cost there is half of one


def test_prompts_never_hold_a_step_up_by_much_more_than_the_longest_allowance() -> None:
    longest_s = PrefillPace.MAX_ALLOWANCE_S * GROWTH
    assert max(settled(decode_s=1.0, token_s=0.0005)[20:]) <= 1.0 + longest_s + 0.0005


@pytest.mark.parametrize("fixed_s", [0.0, 0.005])
def test_what_is_known_not_to_fit_is_not_tried_again(fixed_s: float) -> None:
    durations = settled(decode_s=0.02, fixed_s=fixed_s, token_s=0.0002)
    assert max(durations[20:]) <= 0.02 + 0.02 * PrefillPace.SLOWDOWN + 0.0002


def test_the_time_allowed_is_used() -> None:
    durations = settled(decode_s=0.02, token_s=0.0002)
    assert min(durations[20:]) >= 0.02 + 0.02 * PrefillPace.SLOWDOWN / GROWTH / GROWTH


def test_a_cost_that_does_not_depend_on_the_tokens_does_not_starve_prompts() -> None:
    # Half of what is allowed goes to a fixed cost: the other half must still be used.
    durations = settled(decode_s=0.02, fixed_s=0.015, token_s=0.0001)
    assert min(durations[20:]) >= 0.02 + 0.015 + 0.015 / 2


def test_the_budget_is_never_less_than_a_useful_piece() -> None:
    pace = PrefillPace()
    for _ in range(50):
        pace.observe(num_decodes=1, num_prefill_tokens=pace.budget(500), duration_s=10.0)
    assert pace.budget(500) == MIN_PREFILL_TOKENS
    assert pace.budget(5) == 5


def test_it_recovers_from_a_few_slow_steps() -> None:
    pace = PrefillPace()
    pace.observe(num_decodes=1, num_prefill_tokens=0, duration_s=0.01)
    for _ in range(10):
        pace.observe(num_decodes=1, num_prefill_tokens=pace.budget(500), duration_s=10.0)
    for _ in range(30):
        pace.observe(num_decodes=1, num_prefill_tokens=pace.budget(500), duration_s=0.011)
    assert pace.budget(500) == 500


def test_a_small_piece_that_was_quick_tells_nothing_about_a_large_one() -> None:
    pace = PrefillPace()
    pace.observe(num_decodes=1, num_prefill_tokens=0, duration_s=0.01)
    before = pace.budget(10_000)
    for _ in range(50):
        pace.observe(num_decodes=1, num_prefill_tokens=10, duration_s=0.0101)
    assert pace.budget(10_000) == before


def test_steps_in_which_nobody_decodes_do_not_count() -> None:
    pace = PrefillPace()
    before = pace.budget(10_000)
    for _ in range(50):
        pace.observe(num_decodes=0, num_prefill_tokens=1000, duration_s=5.0)
    assert pace.budget(10_000) == before


def test_where_more_wait_than_decode_steps_may_be_longer_in_proportion() -> None:
    pace, durations = PrefillPace(), []
    pace.observe(num_decodes=4, num_prefill_tokens=0, duration_s=0.02)
    for _ in range(100):
        tokens = pace.budget(5000, num_decodes=4, num_waiting=20)
        durations.append(0.02 + tokens * 0.0002)
        pace.observe(num_decodes=4, num_prefill_tokens=tokens, duration_s=durations[-1])
    allowance = 25 * PrefillPace.SLOWDOWN * 0.02
    assert 0.02 + allowance / GROWTH / GROWTH <= min(durations[20:])
    assert max(durations[20:]) <= 0.02 + allowance * GROWTH + 0.001
    settled_alone = pace.budget(5000, num_decodes=4, num_waiting=4)
    assert settled_alone == pytest.approx(tokens / 25, rel=0.25)


def test_after_a_burst_a_prompt_alone_is_not_left_with_the_smallest_pieces() -> None:
    pace = PrefillPace()
    for _ in range(20):
        pace.observe(num_decodes=4, num_prefill_tokens=0, duration_s=0.05)
    for _ in range(10):  # far slower than it seemed
        tokens = pace.budget(5000, num_decodes=4, num_waiting=24)
        pace.observe(num_decodes=4, num_prefill_tokens=tokens, duration_s=0.05 + 100.0)
    for _ in range(8):
        tokens = pace.budget(5000, num_decodes=4)
        pace.observe(num_decodes=4, num_prefill_tokens=tokens, duration_s=0.05 + tokens * 0.0005)
    assert tokens > 2 * MIN_PREFILL_TOKENS


def test_where_fewer_wait_than_decode_nothing_changes() -> None:
    pace = PrefillPace()
    assert pace.budget(5000, num_decodes=8, num_waiting=1) == pace.budget(5000, num_decodes=8, num_waiting=8)


def test_the_time_of_a_step_without_prompts_is_a_line_through_recent_ones() -> None:
    time = DecodeTime()
    assert time.of(4) is None
    time.learn(8, 0.05)
    assert time.of(8) == pytest.approx(0.05)
    assert time.of(4) == pytest.approx(0.05)  # nothing is known of other numbers of rows
    for rows in (8, 16, 12, 30, 24, 8) * 10:
        time.learn(rows, 0.03 + 0.002 * rows)
    assert time.of(32) == pytest.approx(0.094, rel=0.05)
    assert time.of(2) == pytest.approx(0.034, rel=0.1)
    for _ in range(100):  # always as many rows: noise gives no slope
        time.learn(10, 0.05)
        time.learn(10, 0.052)
    assert time.of(10) == pytest.approx(0.051, rel=0.05)
    assert time.of(30) == pytest.approx(0.091, rel=0.1)


def test_more_rows_take_longer_so_more_prompt_goes_along() -> None:
    """Otherwise what the rows themselves take is held against the prompt."""
    pace = PrefillPace()
    for rows in (4, 8, 12, 16) * 5:
        pace.observe(num_decodes=rows, num_prefill_tokens=0, duration_s=0.02 + 0.002 * rows)
    for _ in range(100):
        tokens = pace.budget(5000, num_decodes=30)
        pace.observe(num_decodes=30, num_prefill_tokens=tokens, duration_s=0.08 + tokens * 0.001)
    assert PrefillPace.SLOWDOWN * 0.08 / GROWTH / GROWTH <= tokens * 0.001 <= PrefillPace.SLOWDOWN * 0.08 * GROWTH
