"""Sequences that are bound to a grammar: compiled before they are queued, advanced token by token, masked step by step.

The grammars themselves are the business of anllm.structured. Belongs to the engine's thread.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable
from concurrent.futures import Future

import numpy as np

from anllm.core.events import Failed, Tokens
from anllm.core.request import Request
from anllm.core.step import ScheduledSequence, StepPlan
from anllm.errors import AnllmError, InvalidRequestError, StepError
from anllm.structured.state import GrammarState, MaskComputer

PATIENCE_S = 0.01  # of a loop that has nothing else to do while a grammar is compiled


class Constraints:
    """The grammars of open requests."""

    def __init__(self, computer: MaskComputer | None) -> None:
        """computer: None where no vocabulary is known; then requests with a grammar fail."""
        self._computer = computer
        self._compiling: dict[int, tuple[Request, Future[GrammarState]]] = {}
        self._states: dict[int, GrammarState] = {}

    @property
    def num_compiling(self) -> int:
        """Requests whose grammar is not compiled yet."""
        return len(self._compiling)

    def begin(self, request: Request) -> Failed | None:
        """Compile the request's grammar; take_ready() gives it back."""
        if self._computer is None:
            message = "This engine knows no vocabulary, so it can't bind answers to a grammar."
            return Failed(request.request_id, InvalidRequestError.__name__, message)
        self._compiling[request.request_id] = (request, self._computer.begin(request.params.grammar))
        return None

    def take_ready(self) -> tuple[list[Request], list[Failed]]:
        """Requests that can be queued now, and those whose grammar can't be used."""
        ready: list[Request] = []
        failed: list[Failed] = []
        for request_id, (request, future) in list(self._compiling.items()):
            if not future.done():
                continue
            del self._compiling[request_id]
            try:
                self._states[request_id] = future.result()
                ready.append(request)
            except AnllmError as error:
                failed.append(Failed(request_id, InvalidRequestError.__name__, error.message))
        return ready, failed

    def wait(self) -> bool:
        """Wait a moment for a grammar. False if none is being compiled."""
        futures = [future for _, future in self._compiling.values()]
        if futures:
            concurrent.futures.wait(futures, PATIENCE_S, concurrent.futures.FIRST_COMPLETED)
        return bool(futures)

    def forget(self, request_ids: Iterable[int]) -> None:
        """Of requests that have ended. Others are ignored."""
        for request_id in request_ids:
            self._compiling.pop(request_id, None)
            self._states.pop(request_id, None)

    def advance(self, tokens: Iterable[Tokens]) -> tuple[list[int], list[Failed]]:
        """Take in what was drawn. The requests whose output is whole, and those whose grammar did not allow it."""
        complete: list[int] = []
        failed: list[Failed] = []
        if not self._states:
            return complete, failed
        for event in tokens:
            state = self._states.get(event.request_id)
            if state is None:
                continue
            if not all(state.accept(token_id) for token_id in event.token_ids):
                failed.append(_broken(event.request_id, state))
            elif state.is_complete:
                complete.append(event.request_id)
        return complete, failed

    def masks(self, plan: StepPlan) -> tuple[dict[int, bytes], list[Failed]]:
        """What may be drawn in this plan, whose sequences have been advanced; and those that can't go on."""
        rows = [s for s in plan.scheduled if s.needs_mask and s.request_id in self._states]
        if not rows or self._computer is None:  # all of them have ended meanwhile
            return {}, []
        states = [self._states[row.request_id] for row in rows]
        words = self._computer.rows(len(rows))
        self._computer.fill(states, words)
        failed = [_broken(row.request_id, state) for row, state in zip(rows, states, strict=True) if state.error]
        masks = {row.request_id: _without_banned(mask, row) for row, mask in zip(rows, words, strict=True)}
        return masks, failed

    def close(self) -> None:
        """The end."""
        if self._computer is not None:
            self._computer.close()


def _without_banned(mask: np.ndarray, row: ScheduledSequence) -> bytes:
    """A mask without the tokens that would end the sequence too early, unless nothing else is left: the grammar goes
    before min_tokens. mask: int32 [words]."""
    if not row.banned_token_ids:
        return mask.tobytes()
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    bits[[token_id for token_id in row.banned_token_ids if token_id < len(bits)]] = 0
    return np.packbits(bits, bitorder="little").tobytes() if bits.any() else mask.tobytes()


def _broken(request_id: int, state: GrammarState) -> Failed:
    reason = state.error or "a token was drawn that it does not allow."
    return Failed(
        request_id, StepError.__name__, f"The grammar of this request can't be followed any further: {reason}"
    )
