"""Who waits, and whose turn it is: by priority with ageing among one client's requests, in equal shares between
clients."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from anllm.core.request import Request
from anllm.core.sequence import Order, Sequence

# One step of priority is worth so much waiting. So nothing waits for ever: those who come so much later for each step
# of difference stand behind.
PRIORITY_S = 10.0


def order_of(request: Request, number: int) -> Order:
    """What requests are sorted by, the first to run first. number: of its arrival."""
    return request.arrival_time_s + PRIORITY_S * request.params.priority, number


class WaitingQueue:
    """Waiting sequences, by client."""

    def __init__(self) -> None:
        self._by_client: dict[str, list[Sequence]] = {}  # each in order; none is empty

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for sequences in self._by_client.values():
            yield from sequences

    def add(self, sequence: Sequence) -> None:
        insort(self._by_client.setdefault(sequence.request.client, []), sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """ValueError or KeyError if it does not wait."""
        client = sequence.request.client
        mine = self._by_client[client]
        index = bisect_left(mine, sequence.order, key=_order)
        if index == len(mine) or mine[index] is not sequence:
            raise ValueError(f"request {sequence.request_id} does not wait")
        del mine[index]
        if not mine:
            del self._by_client[client]

    def first(self, number: int, running: Counter[str]) -> list[Sequence]:
        """Those whose turn it is, at most so many. running: sequences of each client that run; the next turn is that of
        the client with the fewest, those included that got one already."""
        if len(self._by_client) == 1:
            (mine,) = self._by_client.values()
            return mine[:number]
        turns: list[Sequence] = []
        heads = [(running[client], mine[0].order, client, 0) for client, mine in self._by_client.items()]
        heapq.heapify(heads)
        while heads and len(turns) < number:
            taken, _, client, index = heads[0]
            mine = self._by_client[client]
            turns.append(mine[index])
            if index + 1 < len(mine):
                heapq.heapreplace(heads, (taken + 1, mine[index + 1].order, client, index + 1))
            else:
                heapq.heappop(heads)
        return turns

    def check_integrity(self) -> None:
        """Assert that each client's are in order."""
        for mine in self._by_client.values():
            assert mine and [s.order for s in mine] == sorted(s.order for s in mine)


def _order(sequence: Sequence) -> Order:
    return sequence.order
