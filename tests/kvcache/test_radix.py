"""The radix tree against the obvious way: comparing the prompt with every row."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.core.row import Row
from anllm.core.step import Slot
from anllm.kvcache.radix import RadixTree, token_key

KEYS = st.lists(st.integers(0, 2), max_size=12)


def new_row() -> Row:
    return Row(Slot(256, 0))


def common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(max_examples=300, deadline=None)
@given(keys=st.lists(KEYS, max_size=12), query=KEYS, seed=st.integers(0, 2**32))
def test_it_finds_what_a_comparison_with_each_row_finds(keys: list[list[int]], query: list[int], seed: int) -> None:
    tree, known = RadixTree(), dict[Row, list[int]]()
    draw = random.Random(seed)
    for key in keys:
        again = known and draw.random() < 0.3
        row = draw.choice(list(known)) if again else new_row()
        tree.insert(row, token_key(key))
        known[row] = key
        if draw.random() < 0.3:
            gone = draw.choice(list(known))
            tree.remove(gone)
            del known[gone]
    assert len(tree) == len(known)
    assert all(row in tree for row in known)
    matches = [(match.num_tokens, set(match.rows)) for match in tree.matches(token_key(query))]
    assert [length for length, _ in matches] == sorted({length for length, _ in matches}, reverse=True)
    for row, key in known.items():
        length = common(key, query)
        found = max((number for number, rows in matches if row in rows), default=0)
        assert found == length
    for length, rows in matches:
        assert rows == {row for row, key in known.items() if common(key, query) >= length}


def test_token_ids_of_any_size_are_told_apart() -> None:
    tree, row = RadixTree(), new_row()
    tree.insert(row, token_key([1, 256, 65_536, 2**31 - 1]))
    assert [match.num_tokens for match in tree.matches(token_key([1, 256, 65_536, 2**31 - 2]))] == [3]
    assert list(tree.matches(token_key([256]))) == []


def test_what_was_split_is_put_together_again() -> None:
    """A row that stays for days, beside which others come and go, does not fall into pieces."""
    tree, row = RadixTree(), new_row()
    tree.insert(row, token_key(range(1000)))
    for length in range(1, 1000):
        other = new_row()
        tree.insert(other, token_key([*range(length), 5000]))
        tree.remove(other)
    assert len(list(tree.matches(token_key(range(1000))))) == 1
