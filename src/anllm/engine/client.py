"""The front's door to the engine: submit, abort, and the events that come back.

Lives in one event loop (the API process's, or a library user's). Knows nothing of text, HTTP or MLX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from anllm.core.events import EngineInfo, Failed, Finished, Tokens
from anllm.core.request import Request

Event = Tokens | Finished | Failed
OnEvent = Callable[[Event], None]


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    CLOSED = "closed"


class EngineClient:
    """STUB (being written): the face is final."""

    state: EngineState
    info: EngineInfo | None
    num_open: int

    def next_request_id(self) -> int:
        """A number not used before."""
        raise NotImplementedError

    def submit(self, requests: Sequence[Request], on_event: OnEvent) -> None:
        """Queue all of these requests, or none of them.

        on_event is called in this event loop with every event of any of them; it must not block. After a Finished or
        Failed nothing follows for that id.
        Raises QueueFullError if they don't all fit in the queue, NotReadyError while the engine is not ready.
        """
        raise NotImplementedError

    def abort(self, request_ids: Iterable[int]) -> None:
        """Forget these requests: no event follows, and their slots are free by the engine's next step. Ids that have
        ended, or were never submitted, are ignored."""
        raise NotImplementedError
