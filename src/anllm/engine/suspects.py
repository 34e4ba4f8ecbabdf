"""Which requests were being computed when an engine ended: one that it happened to twice is not taken a third time.

Suspected are prompts that were being computed; only where there is none, those that were being continued, since what
kills an engine mostly does so the first time. An answer that comes to its end clears its request. Lives with the
client.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from anllm.core.request import Request
from anllm.errors import DeadlyRequestError

MAX_DEATHS = 2
FORGOTTEN_AFTER_S = 600.0


class Suspects:
    """Requests are the same if their prompts and parameters are, whatever their seed and id."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._computing: dict[int, bool] = {}  # by request id: whether its prompt is all that was computed so far
        self._deaths: dict[bytes, tuple[int, float]] = {}  # how many, and when the last one was

    def computing(self, request_ids: Iterable[int]) -> None:
        """The engine begins a step with the prompts of these."""
        for request_id in request_ids:
            self._computing.setdefault(request_id, True)

    def got_token(self, request_id: int) -> None:
        self._computing[request_id] = False

    def ended(self, request_id: int, request: Request | None) -> None:
        """request: if its answer is whole."""
        self._computing.pop(request_id, None)
        if request is not None and self._deaths:
            self._deaths.pop(_fingerprint(request), None)

    def died(self, requests: Iterable[Request], *, is_blamed: bool) -> None:
        """The engine ended with these open. is_blamed: not where it was ended from outside."""
        computing = [request for request in requests if request.request_id in self._computing]
        first = [request for request in computing if self._computing[request.request_id]]
        self._computing.clear()
        now_s = self._clock()
        self._deaths = {key: one for key, one in self._deaths.items() if now_s - one[1] < FORGOTTEN_AFTER_S}
        if is_blamed:
            for key in {_fingerprint(request) for request in first or computing}:
                self._deaths[key] = (self._deaths.get(key, (0, 0.0))[0] + 1, now_s)

    def check(self, requests: Iterable[Request]) -> None:
        """Raises DeadlyRequestError."""
        if not self._deaths:
            return
        now_s = self._clock()
        for request in requests:
            number, last_s = self._deaths.get(_fingerprint(request), (0, 0.0))
            if number >= MAX_DEATHS and now_s - last_s < FORGOTTEN_AFTER_S:
                raise DeadlyRequestError(
                    f"The engine ended {number} times while it computed this request, so it is not taken again for "
                    f"{FORGOTTEN_AFTER_S / 60:.0f} minutes. The server's log has the reason. Send another prompt or "
                    "other parameters."
                )


def _fingerprint(request: Request) -> bytes:
    return hashlib.sha256(repr((request.prompt_token_ids, replace(request.params, seed=None))).encode()).digest()
