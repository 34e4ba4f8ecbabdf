"""How much prefill a step may hold, and who gets it. Pure functions and two small estimators."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anllm.core.step import StepPlan

SMOOTHING = 0.1  # weight of the newest measurement
MIN_PREFILL_TOKENS = 32  # a prompt must get on, and smaller pieces cost hardly less
FIRST_PREFILL_TOKENS = 128  # before anything is measured
GROWTH = 1.2
# A token so far into its prompt is taken to cost twice as much as one at its beginning. On an H200 it does so after
# 1,300; where that is wrong, the times of steps put it right.
TWICE_AT = 2000


def token_cost(position: float) -> float:
    """Of a prompt's token at this position, in tokens at a beginning."""
    return 1 + position / TWICE_AT


# A step that takes so many times what its tokens should take hangs. And none is taken to hang that may be compiling
# kernels, which takes half a minute, or runs on a machine that is busy with something else.
STEP_MARGIN = 20
MIN_STEP_LIMIT_S = 60.0


def step_limit_s(plan: StepPlan, token_s: float) -> float:
    """Seconds after which it is taken to hang. token_s: what a token at the beginning of a prompt takes."""
    tokens = sum(len(s.token_ids) * token_cost(s.end) for s in plan.scheduled)
    return max(MIN_STEP_LIMIT_S, STEP_MARGIN * tokens * token_s)


class DecodeTime:
    """What a step without prompts takes, by the number of its rows: a line through recent ones (least squares, older
    steps counting less)."""

    ENOUGH_VARIANCE = 1.0  # of the number of rows, for a new slope

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0  # of rows, and of rows with seconds
        self._slope = 0.0

    def learn(self, num_rows: int, duration_s: float) -> None:
        share = max(SMOOTHING, 1 / (self._weight + 1))  # the first ones count alike
        self._weight += 1
        rows, seconds = num_rows - self._rows, duration_s - self._seconds
        self._rows += share * rows
        self._seconds += share * seconds
        self._variance = (1 - share) * (self._variance + share * rows * rows)
        self._covariance = (1 - share) * (self._covariance + share * rows * seconds)
        if self._variance >= self.ENOUGH_VARIANCE:
            self._slope = max(self._covariance / self._variance, 0.0)

    def of(self, num_rows: int) -> float | None:
        """Seconds; None before anything is known."""
        if not self._weight:
            return None
        least = self._seconds * min(num_rows / self._rows, 1.0)  # fewer rows take no less than their share
        return max(self._seconds + self._slope * (num_rows - self._rows), least)


class PrefillPace:
    """How much prefill a step may hold while other sequences decode.

    A running stream should not notice somebody else's long prompt: beside the time that a step without prompts takes,
    one with them may take SLOWDOWN times that, and at most MAX_ALLOWANCE_S. What a prompt token costs is not the same
    in small and large pieces, so it is not estimated: the tokens for each second that is allowed grow while steps stay
    inside their time, and shrink in proportion when one does not. Tokens are counted by token_cost.

    Where more sequences wait than decode, a longer step holds up few and a shorter one many: all of that grows with the
    square of their ratio, so that a burst of prompts beside one stream is computed in one go.
    """

    SLOWDOWN = 1.2
    MIN_ALLOWANCE_S = 0.005
    MAX_ALLOWANCE_S = 0.2

    def __init__(self) -> None:
        self._decode = DecodeTime()
        self._rate: float | None = None  # prompt tokens for each second allowed
        self._crowding = 1.0  # by how much more is allowed since many wait; of the last budget()

    def observe(self, *, num_decodes: int, num_prefill_tokens: float, duration_s: float) -> None:
        """Learn from a finished step. num_prefill_tokens: by token_cost."""
        if num_decodes == 0:
            return
        if num_prefill_tokens == 0:
            self._decode.learn(num_decodes, duration_s)
            return
        allowance_s = self._allowance_s(num_decodes)
        allowed_s = allowance_s * self._crowding
        taken_s = duration_s - (self._decode.of(num_decodes) or 0.0)
        rate = self._rate_for(allowance_s)
        fitting = num_prefill_tokens * max(allowed_s / taken_s, 0.5) / allowed_s if taken_s > 0 else math.inf
        if taken_s > allowed_s:
            self._rate = max(min(rate, fitting), MIN_PREFILL_TOKENS / allowance_s)
        elif num_prefill_tokens >= rate * allowed_s / GROWTH:  # it was used, so it is known to be good
            # The next step is under way before this one is read: what would not fit is not tried out.
            self._rate = max(rate, min(rate * GROWTH, fitting))

    def budget(self, most: int, *, num_decodes: int = 1, num_waiting: int = 1, position: int = 0) -> int:
        """Prompt tokens for the next step, at most `most`. num_waiting: sequences whose prompts are not done. position:
        where they stand in their prompts."""
        self._crowding = max(num_waiting / num_decodes, 1.0) ** 2
        allowance_s = self._allowance_s(num_decodes)
        self._rate = min(self._rate_for(allowance_s), max(most, MIN_PREFILL_TOKENS) / allowance_s)
        tokens = int(self._rate * allowance_s * self._crowding / token_cost(position))
        return min(most, max(tokens, MIN_PREFILL_TOKENS))

    def _rate_for(self, allowed_s: float) -> float:
        return FIRST_PREFILL_TOKENS / allowed_s if self._rate is None else self._rate

    def _allowance_s(self, num_decodes: int) -> float:
        """How much longer than one without, a step with prompts may take."""
        decode_s = self._decode.of(num_decodes)
        if decode_s is None:
            return self.MAX_ALLOWANCE_S
        return min(max(self.SLOWDOWN * decode_s, self.MIN_ALLOWANCE_S), self.MAX_ALLOWANCE_S)


def share_prefill(remaining: Sequence[int], budget: int) -> list[int]:
    """Split a budget of prompt tokens among prompts, given the tokens that each still needs, oldest first.

    The oldest gets at least half, so that it never starves; the rest goes to the shortest first, so that a short prompt
    is not stuck behind a long one.
    """
    shares = [0] * len(remaining)
    if not remaining:
        return shares
    shares[0] = min(remaining[0], max(budget // 2, 1))
    left = budget - shares[0]
    for i in sorted(range(len(remaining)), key=lambda i: remaining[i]):
        extra = min(remaining[i] - shares[i], left)
        shares[i] += extra
        left -= extra
    return shares
