"""A radix tree over token ids: of all rows, which one begins like this prompt, and how far?

Keys are bytes, four for each token, so that tokens are compared by memcmp: 20,000 of them take microseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anllm.core.row import Row

TOKEN_BYTES = 4


def token_key(token_ids: Iterable[int]) -> bytes:
    """The key of these tokens."""
    return array("i", token_ids).tobytes()


class Match(NamedTuple):
    """`rows` all begin with the same first num_tokens tokens as the key that was looked for."""

    num_tokens: int
    rows: dict[Row, None]


class _Node:
    """The tokens of `edge` follow those of the parent. `rows`: all that pass through here or end here."""

    __slots__ = ("children", "edge", "parent", "rows")

    def __init__(self, edge: bytes, parent: _Node | None) -> None:
        self.edge = edge
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.rows: dict[Row, None] = {}  # a set that keeps its order, so that runs are alike


class RadixTree:
    """Rows by their keys; each row has one."""

    def __init__(self) -> None:
        self._root: _Node = _Node(b"", None)
        self._ends: dict[Row, _Node] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, row: Row) -> bool:
        return row in self._ends

    def insert(self, row: Row, key: bytes) -> None:
        """Add a row. The same row again: under another key."""
        if row in self._ends:
            self.remove(row)
        node, start = self._root, 0
        node.rows[row] = None
        while start < len(key):
            child = node.children.get(key[start : start + TOKEN_BYTES])
            if child is None:
                child = self._attach(node, key[start:])
            else:
                common = _common_bytes(child.edge, key[start : start + len(child.edge)])
                if common < len(child.edge):
                    child = self._split(child, common)
            child.rows[row] = None
            start += len(child.edge)
            node = child
        self._ends[row] = node

    def remove(self, row: Row) -> None:
        """KeyError if it is not there."""
        node: _Node | None = self._ends.pop(row)
        while node is not None:
            del node.rows[row]
            parent = node.parent
            if parent is not None:
                if not node.rows:
                    del parent.children[node.edge[:TOKEN_BYTES]]
                elif len(node.children) == 1:
                    self._merge(node)
            node = parent

    def matches(self, key: bytes) -> Iterator[Match]:
        """Rows that begin as the key does, those that do so the longest first; the same rows come again with shorter
        ones. The rows are the tree's own: not to be changed, and not to be kept beyond the next change."""
        path: list[tuple[int, _Node]] = []
        node, start = self._root, 0
        while start < len(key):
            child = node.children.get(key[start : start + TOKEN_BYTES])
            if child is None:
                break
            common = _common_bytes(child.edge, key[start : start + len(child.edge)])
            start += common
            path.append((start, child))
            if common < len(child.edge):
                break
            node = child
        for end, found in reversed(path):
            yield Match(end // TOKEN_BYTES, found.rows)

    def _attach(self, parent: _Node, edge: bytes) -> _Node:
        child = _Node(edge, parent)
        parent.children[edge[:TOKEN_BYTES]] = child
        return child

    def _split(self, node: _Node, length: int) -> _Node:
        """A new node for the first `length` bytes of the node's edge; the node itself hangs below it."""
        parent = node.parent
        assert parent is not None
        upper = self._attach(parent, node.edge[:length])
        upper.rows = dict(node.rows)
        node.edge, node.parent = node.edge[length:], upper
        upper.children[node.edge[:TOKEN_BYTES]] = node
        return upper

    def _merge(self, node: _Node) -> None:
        """Put a node and its only child together, if no row ends between them: else a tree that lives long would become
        a chain of pieces."""
        (child,) = node.children.values()
        if len(child.rows) < len(node.rows):
            return
        parent = node.parent
        assert parent is not None
        child.edge, child.parent = node.edge + child.edge, parent
        parent.children[child.edge[:TOKEN_BYTES]] = child


def _common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes of whole tokens both begin with."""
    longest = min(len(one), len(other))
    if one[:longest] == other[:longest]:
        return longest
    low, high = 0, longest // TOKEN_BYTES  # the first `low` tokens are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * TOKEN_BYTES : middle * TOKEN_BYTES] == other[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle
    return low * TOKEN_BYTES
