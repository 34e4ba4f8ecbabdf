"""When the step before is read, where masks depend on its tokens. Pure numbers; time is passed in.

Two orders. Submit the model, read the step before, make the masks, submit the sampling: the device never waits, but the
host submits twice. Or read first and submit everything at once, while the masks are made beside it: less work for the
host, but the device has nothing to do meanwhile. The first is right where the device is the limit, the second where the
host is. Which one it is shows in how long a read waits.
"""

from __future__ import annotations

LONG_WAIT_S = 0.0003  # beyond it, the device was still at work
PROBE_AFTER = 256  # reads without a wait, before the other order is tried again
FIRST_PROBE_AFTER = 16
MAX_LONG_WAITS = 2  # in a row


class ReadOrder:
    """Learns from each read of a step."""

    def __init__(self) -> None:
        self._reads_first = False
        self._num_reads = PROBE_AFTER - FIRST_PROBE_AFTER
        self._num_long = 0

    @property
    def reads_first(self) -> bool:
        """Whether the next step is to be submitted only when the one before has been read."""
        return self._reads_first

    def observe(self, waited_s: float) -> None:
        """How long reading a step took, in the order that was chosen for it."""
        is_long = waited_s > LONG_WAIT_S
        if self._reads_first:
            self._num_long = self._num_long + 1 if is_long else 0
            if self._num_long >= MAX_LONG_WAITS:
                self._reads_first, self._num_reads = False, 0
            return
        self._num_reads = 0 if is_long else self._num_reads + 1
        if self._num_reads >= PROBE_AFTER:
            self._reads_first, self._num_long = True, 0
