"""Responses that are kept for later requests: in memory, as JSON, within limits; gone when the server ends.

The response that was not asked for the longest goes first when room is needed. One that goes on from another counts as
asking for that one too, so a conversation is lost from its end, never from its middle. Used by the event loop and by
the threads that convert bodies.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

Item = dict[str, Any]

# Beside the texts, of an entry and of the index for each id; tracemalloc says 241 and 181.
_ENTRY_BYTES, _ID_BYTES = 300, 200


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """body: the response as it was answered, in JSON. input_items: what it was asked with, each with an id; without
    the items of the response that it goes on from, whose id is previous_id."""

    id: str
    body: bytes
    input_items: tuple[Item, ...]
    output_items: tuple[Item, ...]
    previous_id: str | None = None


@dataclass(slots=True)
class _Entry:
    body: bytes
    items: bytes  # JSON of the input items and the output items, two arrays in one
    previous_id: str | None
    item_ids: tuple[str, ...]
    used_s: float

    @property
    def size_bytes(self) -> int:
        ids = sum(map(len, self.item_ids)) + len(self.item_ids) * _ID_BYTES
        return len(self.body) + len(self.items) + ids + _ENTRY_BYTES


class ResponseNotKeptError(Exception):
    """There is no response of this id, or none any more, or it is somebody else's."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id


class ResponseStore:
    """Each client, the name of an API key, sees its own alone.

    max_responses: 0 keeps nothing. ttl_s: seconds after its last use for which a response is kept. clock_s: a clock
    that only goes forwards.
    """

    def __init__(
        self, max_responses: int, max_bytes: int, ttl_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()  # by client and id, the last used last
        self._response_of: dict[tuple[str, str], str] = {}  # by client and id of an item
        self._num_bytes = 0

    @property
    def keeps_any(self) -> bool:
        return self._max_responses > 0

    @property
    def num_bytes(self) -> int:
        """What all entries take."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, client: str, response: StoredResponse) -> None:
        """Keep it, and let others go for it. One that is larger than all there is room for is not kept."""
        items = (*response.input_items, *response.output_items)
        entry = _Entry(
            response.body,
            msgspec.json.encode((response.input_items, response.output_items)),
            response.previous_id,
            tuple(item["id"] for item in items if item.get("id")),
            self._clock_s(),
        )
        if not self.keeps_any or entry.size_bytes > self._max_bytes:
            return
        with self._lock:
            self._drop_expired()
            self._entries[client, response.id] = entry
            self._num_bytes += entry.size_bytes
            self._response_of.update(((client, item_id), response.id) for item_id in entry.item_ids)
            self._use(client, response.id)
            while len(self._entries) > self._max_responses or self._num_bytes > self._max_bytes:
                self._drop(*next(iter(self._entries)))

    def body(self, client: str, response_id: str) -> bytes:
        """The response in JSON. Raises ResponseNotKeptError."""
        with self._lock:
            return self._found(client, response_id).body

    def history(self, client: str, response_id: str) -> list[Item]:
        """All items up to and with the response's own: of those that it goes on from, the first one's first. Raises
        ResponseNotKeptError for the one that is missing."""
        texts = []
        with self._lock:
            self._found(client, response_id)
            for each in self._line(client, response_id):
                if (client, each) not in self._entries:
                    raise ResponseNotKeptError(each)
                texts.append(self._entries[client, each].items)
        return [item for text in reversed(texts) for items in msgspec.json.decode(text) for item in items]

    def input_items(self, client: str, response_id: str) -> list[Item]:
        """What the response was asked with, and before that all that it goes on from, as far as it is there. Raises
        ResponseNotKeptError."""
        with self._lock:
            entry = self._found(client, response_id)
            line = [each for each in self._line(client, response_id) if (client, each) in self._entries]
            earlier = [self._entries[client, each].items for each in line[1:]]
        own: list[Item] = msgspec.json.decode(entry.items)[0]
        return [item for text in reversed(earlier) for items in msgspec.json.decode(text) for item in items] + own

    def item(self, client: str, item_id: str) -> Item | None:
        """An item of a response that is kept, or of what one was asked with."""
        with self._lock:
            response_id = self._response_of.get((client, item_id))
            if response_id is None:
                return None
            try:
                text = self._found(client, response_id).items
            except ResponseNotKeptError:
                return None
        found: Iterator[Item] = (item for items in msgspec.json.decode(text) for item in items)
        return next((item for item in found if item.get("id") == item_id), None)

    def delete(self, client: str, response_id: str) -> None:
        """Raises ResponseNotKeptError."""
        with self._lock:
            self._found(client, response_id)
            self._drop(client, response_id)

    # -- with the lock held --------------------------------------------------------------------------------------------

    def _found(self, client: str, response_id: str) -> _Entry:
        self._drop_expired()
        entry = self._entries.get((client, response_id))
        if entry is None:
            raise ResponseNotKeptError(response_id)
        self._use(client, response_id)
        return entry

    def _line(self, client: str, response_id: str | None) -> Iterator[str]:
        """The response, the one that it goes on from, and so on; the last one may be missing."""
        while response_id is not None:
            yield response_id
            entry = self._entries.get((client, response_id))
            response_id = None if entry is None else entry.previous_id

    def _use(self, client: str, response_id: str) -> None:
        now_s = self._clock_s()
        for each in list(self._line(client, response_id)):
            if (client, each) in self._entries:
                self._entries.move_to_end((client, each))
                self._entries[client, each].used_s = now_s

    def _drop_expired(self) -> None:
        oldest_s = self._clock_s() - self._ttl_s
        while self._entries and next(iter(self._entries.values())).used_s < oldest_s:
            self._drop(*next(iter(self._entries)))

    def _drop(self, client: str, response_id: str) -> None:
        entry = self._entries.pop((client, response_id))
        self._num_bytes -= entry.size_bytes
        for item_id in entry.item_ids:
            if self._response_of.get((client, item_id)) == response_id:
                del self._response_of[client, item_id]
