"""How much prefill a step may hold, and who gets it. Pure functions and one small estimator."""

from __future__ import annotations

from collections.abc import Sequence

SMOOTHING = 0.2  # weight of the newest measurement
MIN_PREFILL_TOKENS = 32  # a prompt must get on, and smaller pieces cost hardly less
FIRST_PREFILL_TOKENS = 128  # before anything is measured
GROWTH = 1.2


class PrefillPace:
    """How many prompt tokens a step may take along while other sequences decode.

    A running stream should not notice somebody else's long prompt: beside the time that a step without prompts takes,
    one with them may take SLOWDOWN times that, and at most MAX_ALLOWANCE_S. What a prompt token costs is not the same
    in small and large pieces, so it is not estimated: the budget grows while steps stay inside their time, and shrinks
    in proportion when one does not.

    Where more sequences wait than decode, a longer step holds up few and a shorter one many: all of that grows with
    their ratio.
    """

    SLOWDOWN = 1.6
    MIN_ALLOWANCE_S = 0.005
    MAX_ALLOWANCE_S = 0.2

    def __init__(self) -> None:
        self._decode_step_s: float | None = None
        self._budget = float(FIRST_PREFILL_TOKENS)  # while no more sequences wait than decode
        self._crowding = 1.0  # sequences that wait for each that decodes, at least 1; of the last budget()

    def observe(self, *, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from a finished step."""
        if num_decodes == 0:
            return
        if num_prefill_tokens == 0:
            self._decode_step_s = _smooth(self._decode_step_s, duration_s)
            return
        allowance_s = self._allowance_s() * self._crowding
        taken_s = duration_s - (self._decode_step_s or 0.0)
        num_tokens = num_prefill_tokens / self._crowding
        if taken_s > allowance_s:
            shrunk = num_tokens * max(allowance_s / taken_s, 0.5)
            self._budget = max(min(self._budget, shrunk), MIN_PREFILL_TOKENS)
        elif num_tokens >= self._budget / GROWTH:  # it was used, so it is known to be good
            self._budget *= GROWTH

    def budget(self, most: int, *, num_decodes: int = 1, num_waiting: int = 1) -> int:
        """Prompt tokens for the next step, at most `most`. num_waiting: sequences whose prompts are not done."""
        self._budget = min(self._budget, max(most, MIN_PREFILL_TOKENS))
        self._crowding = max(num_waiting / num_decodes, 1.0)
        return min(most, int(self._budget * self._crowding))

    def _allowance_s(self) -> float:
        """How much longer than one without, a step with prompts may take."""
        if self._decode_step_s is None:
            return self.MAX_ALLOWANCE_S
        return min(max(self.SLOWDOWN * self._decode_step_s, self.MIN_ALLOWANCE_S), self.MAX_ALLOWANCE_S)


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


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
