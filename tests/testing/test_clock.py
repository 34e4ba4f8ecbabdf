from anllm.testing import FakeClock


def test_the_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(5.0)
    assert [clock(), clock()] == [5.0, 5.0]
    clock.advance(0.5)
    assert clock() == 5.5
