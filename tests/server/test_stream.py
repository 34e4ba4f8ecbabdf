"""The timer of a stream's keep-alive comments."""

import asyncio

import pytest

from anllm.server.stream import SilenceTimer

pytestmark = pytest.mark.anyio
SILENCE_S = 0.08


async def test_restarting_in_time_keeps_it_quiet() -> None:
    calls: list[float] = []
    timer = SilenceTimer(SILENCE_S, lambda: calls.append(0))
    for _ in range(20):
        await asyncio.sleep(SILENCE_S / 10)
        timer.restart()
    timer.cancel()
    assert not calls


async def test_each_silence_is_told_once_and_none_after_the_end() -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    calls: list[float] = []
    timer = SilenceTimer(SILENCE_S, lambda: calls.append(loop.time() - started_s))
    await asyncio.sleep(SILENCE_S * 2.5)
    assert calls and calls[0] >= SILENCE_S * 0.95 and len(calls) <= 2
    timer.cancel()
    number = len(calls)
    await asyncio.sleep(SILENCE_S * 1.5)
    assert len(calls) == number
