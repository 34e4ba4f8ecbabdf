"""Which order is chosen by what reads cost."""

from anllm.engine.read_order import FIRST_PROBE_AFTER, LONG_WAIT_S, MAX_LONG_WAITS, PROBE_AFTER, ReadOrder

LONG, SHORT = 2 * LONG_WAIT_S, LONG_WAIT_S / 10


def reads(order: ReadOrder, *, host_is_limit: bool, number: int = 1) -> list[bool]:
    """reads_first before each of so many reads, on a machine where the host is the limit or the device is. A device
    that is the limit is waited for by whoever reads first; one step ahead, submitting has waited for it already."""
    chosen = []
    for _ in range(number):
        chosen.append(order.reads_first)
        order.observe(LONG if order.reads_first and not host_is_limit else SHORT)
    return chosen


def test_where_the_host_is_the_limit_the_step_before_is_read_first_soon_and_for_good() -> None:
    order = ReadOrder()
    assert reads(order, host_is_limit=True, number=FIRST_PROBE_AFTER) == [False] * FIRST_PROBE_AFTER
    assert reads(order, host_is_limit=True, number=500) == [True] * 500


def test_where_the_device_is_the_limit_that_is_tried_now_and_then_and_left_at_once() -> None:
    order = ReadOrder()
    chosen = reads(order, host_is_limit=False, number=4 * PROBE_AFTER)
    assert sum(chosen) == MAX_LONG_WAITS * 4
    assert chosen[FIRST_PROBE_AFTER : FIRST_PROBE_AFTER + MAX_LONG_WAITS] == [True] * MAX_LONG_WAITS


def test_a_single_long_wait_changes_nothing() -> None:
    order = ReadOrder()
    reads(order, host_is_limit=True, number=FIRST_PROBE_AFTER)
    for _ in range(20):
        order.observe(LONG)
        order.observe(SHORT)
    assert order.reads_first


def test_long_waits_put_the_next_try_off() -> None:
    order = ReadOrder()
    for _ in range(1000):
        order.observe(LONG)
        assert not order.reads_first
