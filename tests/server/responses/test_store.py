"""Responses that are kept: whose they are, for how long, and what goes first."""

from __future__ import annotations

import threading

import pytest

from anllm.server.responses.store import Item, ResponseNotKeptError, ResponseStore, StoredResponse
from anllm.testing.clock import FakeClock


def store(max_responses: int = 10, max_bytes: int = 1 << 20, clock: FakeClock | None = None) -> ResponseStore:
    return ResponseStore(max_responses, max_bytes, 100, clock or FakeClock())


def message(item_id: str, text: str = "") -> Item:
    return {"id": item_id, "type": "message", "content": text}


def response(name: str, previous: str | None = None, text: str = "") -> StoredResponse:
    """With one item that it was asked with, and one of its own."""
    return StoredResponse(
        name, b'"%s"' % name.encode(), (message(f"in-{name}", text),), (message(f"out-{name}"),), previous
    )


def ids(items: list[Item]) -> list[str]:
    return [item["id"] for item in items]


def has(kept: ResponseStore, name: str, client: str = "") -> bool:
    try:
        kept.body(client, name)
    except ResponseNotKeptError:
        return False
    return True


def test_a_response_is_found_by_its_id_until_it_is_deleted():
    kept = store()
    kept.put("", response("a"))
    assert kept.body("", "a") == b'"a"'
    kept.delete("", "a")
    assert not has(kept, "a") and kept.item("", "in-a") is None
    assert (len(kept), kept.num_bytes) == (0, 0)
    with pytest.raises(ResponseNotKeptError):
        kept.delete("", "a")


def test_each_client_sees_its_own_alone():
    kept = store()
    kept.put("ann", response("a"))
    assert has(kept, "a", "ann") and not has(kept, "a", "bob") and not has(kept, "a")
    assert kept.item("ann", "out-a") == message("out-a") and kept.item("bob", "out-a") is None
    for forbidden in (kept.delete, kept.history, kept.input_items):
        with pytest.raises(ResponseNotKeptError):
            forbidden("bob", "a")
    kept.put("bob", response("b", previous="a"))
    with pytest.raises(ResponseNotKeptError):
        kept.history("bob", "b")


def test_history_is_all_items_of_the_line_the_oldest_first():
    kept = store()
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        kept.put("", response(name, previous))
    assert ids(kept.history("", "c")) == ["in-a", "out-a", "in-b", "out-b", "in-c", "out-c"]
    assert ids(kept.history("", "other")) == ["in-a", "out-a", "in-other", "out-other"]
    assert ids(kept.input_items("", "c")) == ["in-a", "out-a", "in-b", "out-b", "in-c"]


def test_a_line_that_lost_a_response_says_which():
    kept = store()
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        kept.put("", response(name, previous))
    kept.delete("", "a")
    with pytest.raises(ResponseNotKeptError) as caught:
        kept.history("", "c")
    assert caught.value.response_id == "a"
    assert ids(kept.input_items("", "c")) == ["in-b", "out-b", "in-c"]


def test_the_one_that_was_not_used_for_longest_goes_first():
    kept = store(max_responses=3)
    for name in "abc":
        kept.put("", response(name))
    assert has(kept, "a")
    kept.put("", response("d"))
    assert [has(kept, name) for name in "abcd"] == [True, False, True, True]


def test_a_line_that_is_used_is_used_from_its_beginning():
    kept = store(max_responses=3)
    kept.put("", response("a"))
    kept.put("", response("x"))
    kept.put("", response("b", previous="a"))
    kept.put("", response("c", previous="b"))
    assert not has(kept, "x")
    assert ids(kept.history("", "c"))[0] == "in-a"


def test_bytes_are_bounded_too():
    kept = store(max_bytes=10_000)
    for number in range(50):
        kept.put("", response(str(number), text="x" * 1000))
        assert kept.num_bytes <= 10_000
    assert 3 <= len(kept) < 10 and has(kept, "49") and not has(kept, "0")
    kept.put("", response("large", text="x" * 20_000))
    assert not has(kept, "large") and has(kept, "49")
    for number in range(50):
        if has(kept, str(number)):
            kept.delete("", str(number))
    assert kept.num_bytes == 0


def test_it_is_kept_for_a_time_after_its_last_use():
    clock = FakeClock()
    kept = store(clock=clock)
    kept.put("", response("a"))
    kept.put("", response("b", previous="a"))
    kept.put("", response("c"))
    clock.advance(90)
    kept.history("", "b")
    clock.advance(90)
    assert has(kept, "a") and has(kept, "b") and not has(kept, "c")
    clock.advance(101)
    assert not has(kept, "a") and not has(kept, "b") and kept.num_bytes == 0


def test_without_room_nothing_is_kept():
    kept = store(max_responses=0)
    kept.put("", response("a"))
    assert not kept.keeps_any and len(kept) == 0 and kept.num_bytes == 0


def test_an_item_that_came_twice_stays_as_long_as_its_last_response():
    kept = store()
    same = message("same")
    kept.put("", StoredResponse("a", b"{}", (same,), ()))
    kept.put("", StoredResponse("b", b"{}", (same,), ()))
    kept.delete("", "a")
    assert kept.item("", "same") == same
    kept.delete("", "b")
    assert kept.item("", "same") is None


def test_threads_may_use_it_at_once():
    kept = store(max_responses=20)

    def use(client: str) -> None:
        previous = None
        for number in range(200):
            name = f"{client}-{number}"
            kept.put(client, response(name, previous if previous and has(kept, previous, client) else None))
            previous = name

    threads = [threading.Thread(target=use, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 20
