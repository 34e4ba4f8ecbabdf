"""How much prefill a step may hold, and who gets it. Pure functions and one small estimator."""

from __future__ import annotations

from collections.abc import Sequence

SMOOTHING = 0.2  # weight of the newest measurement
MIN_PREFILL_TOKENS = 16  # a prompt must get on even where the estimate says that nothing fits


class PrefillPace:
    """How many prompt tokens a step may take along while other sequences decode.

    A running stream should not notice somebody else's long prompt: a step with prefill may last at most
    MAX_SLOWDOWN times a step without, and at most MAX_STEP_S. Both speeds are measured, step by step.
    """

    MAX_SLOWDOWN = 2.5
    MAX_STEP_S = 0.1

    def __init__(self) -> None:
        self._decode_step_s: float | None = None
        self._prefill_token_s: float | None = None

    def observe(self, *, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from a finished step."""
        if num_prefill_tokens == 0:
            self._decode_step_s = _smooth(self._decode_step_s, duration_s)
        elif num_prefill_tokens >= MIN_PREFILL_TOKENS:
            decode_s = (self._decode_step_s or 0.0) if num_decodes else 0.0
            per_token_s = max(duration_s - decode_s, 0.0) / num_prefill_tokens
            self._prefill_token_s = _smooth(self._prefill_token_s, per_token_s)

    def budget(self, most: int) -> int:
        """Prompt tokens for the next step, at most `most`."""
        if not self._prefill_token_s:
            return most
        allowance_s = self.MAX_STEP_S
        if self._decode_step_s is not None:
            allowance_s = min(allowance_s, (self.MAX_SLOWDOWN - 1) * self._decode_step_s)
        return max(min(most, int(allowance_s / self._prefill_token_s)), min(most, MIN_PREFILL_TOKENS))


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
