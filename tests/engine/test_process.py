"""The engine in a real process of its own: it answers, dies, comes back, and never outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

import anllm
from anllm.config import SchedulerConfig
from anllm.core.events import Abort, EngineInfo, LoadProgress, StepEvents
from anllm.engine import process
from anllm.engine.client import EngineClient, EngineState
from anllm.engine.process import Note, ProcessTransport
from anllm.engine.pulse import watch
from anllm.engine.transport import End, decode, encode
from anllm.errors import DeadlyRequestError, ModelError
from anllm.testing import FakeRunner
from fake_worker import HANGING_TOKEN, LETHAL_TOKEN
from processes import is_alive
from serving import PATIENCE_S, Reader, eventually, submit
from stepping import alone, make_request

pytestmark = pytest.mark.anyio
TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find anllm where this process found it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(anllm.__file__).parents[1]))


def worker(mode: str = "plain") -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(TESTS / "fake_worker.py"), mode]


@asynccontextmanager
async def running(mode: str = "plain", **settings: object) -> AsyncIterator[tuple[EngineClient, ProcessTransport]]:
    transport = ProcessTransport(worker(mode))
    client = EngineClient(transport, SchedulerConfig(), **settings)  # type: ignore[arg-type]
    try:
        await client.start()
        yield client, transport
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await client.close()
        assert transport.pid is None


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.02)


async def test_a_child_loads_answers_and_ends_when_asked() -> None:
    progress: list[LoadProgress] = []
    async with running(on_progress=progress.append) as (client, transport):
        assert progress == [LoadProgress("weights", 1, 2), LoadProgress("weights", 2, 2)]
        assert client.info == FakeRunner().info
        pid = transport.pid
        assert pid is not None
        assert pid != os.getpid()
        assert is_alive(pid)
        requests = [make_request(i, 1 + 7 * i, max_tokens=1 + i) for i in range(32)]
        readers = [submit(client, request) for request in requests]
        await asyncio.gather(*(reader.end([i]) for i, reader in enumerate(readers)))
        for i, reader in enumerate(readers):
            assert reader.tokens == {i: alone(requests[i])[0]}
        refused = submit(client, make_request(99, 9999))
        await refused.end([99])
        assert refused.error(99) == "ContextLengthError"
    assert not is_alive(pid)


async def test_an_abort_reaches_the_child() -> None:
    async with running() as (client, _):
        reader = submit(client, *(make_request(i, max_tokens=4000) for i in range(3)))
        await reader.until(lambda: len(reader.tokens) == 3)
        client.abort(range(3))
        num_tokens = {i: len(tokens) for i, tokens in reader.tokens.items()}
        other = submit(client, make_request(9))
        await other.end([9])
        assert {i: len(tokens) for i, tokens in reader.tokens.items()} == num_tokens


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_child_fails_what_is_open_and_another_one_answers(number: signal.Signals) -> None:
    async with running(restart_delays_s=(0.0,)) as (client, transport):
        pid = transport.pid
        assert pid is not None
        reader = submit(client, *(make_request(i, max_tokens=4000) for i in range(3)))
        await reader.until(lambda: len(reader.tokens) == 3)
        states = [client.state]
        os.kill(pid, number)
        await reader.end(range(3))
        states.append(client.state)
        await eventually(lambda: client.state is EngineState.READY)
        assert states == [EngineState.READY, EngineState.RESTARTING]
        assert {reader.error(i) for i in range(3)} == {"EngineDeadError"}
        assert (client.num_open, client.num_restarts) == (0, 1)
        assert transport.pid not in (None, pid)
        again = submit(client, make_request(9))
        await again.end([9])
        assert again.tokens[9] == alone(make_request(9))[0]


async def test_a_request_that_kills_the_child_takes_along_only_what_is_open() -> None:
    async with running("fragile", restart_delays_s=(0.0, 0.0)) as (client, _):
        before = submit(client, make_request(0))
        await before.end()
        for life in (1, 2):
            lethal = submit(client, make_request(10 * life, prompt=(LETHAL_TOKEN, 1, 2)))
            await lethal.end([10 * life])
            assert lethal.error(10 * life) == "EngineDeadError"
            await eventually(lambda life=life: client.state is EngineState.READY and client.num_restarts == life)
        after = submit(client, make_request(9))
        await after.end([9])
        assert after.tokens[9] == alone(make_request(9))[0]


async def test_a_request_that_ended_the_child_twice_is_refused_and_others_are_not() -> None:
    async with running("fragile", restart_delays_s=(0.0, 0.0)) as (client, _):
        for life in (1, 2):
            # Those beside it have their first token, or come after it: they may come again.
            beside = submit(client, make_request(100 * life, 10, max_tokens=4000))
            await beside.until(lambda life=life, beside=beside: beside.tokens.get(100 * life))
            lethal = submit(client, make_request(100 * life + 1, prompt=(LETHAL_TOKEN, 1, 2), seed=life))
            await lethal.end([100 * life + 1])
            await beside.end([100 * life])
            await eventually(lambda life=life: client.state is EngineState.READY and client.num_restarts == life)
        with pytest.raises(DeadlyRequestError, match="ended 2 times"):
            submit(client, make_request(301, prompt=(LETHAL_TOKEN, 1, 2), seed=9))
        again = submit(client, make_request(302, 10, max_tokens=3), make_request(303, prompt=(1, 2, 3)))
        await again.end([302, 303])
        assert client.num_restarts == 2


def test_what_was_about_to_be_computed_is_read_whatever_is_left_of_it(tmp_path: Path) -> None:
    address, file = f"ipc://{tmp_path}/engine", tmp_path / "engine-computing"
    assert Note.read(address) == [], "a child that never began"
    note = Note(address)
    assert Note.read(address) == [], "one that computed nothing"
    long, short = StepEvents(computing=tuple(range(300))), StepEvents(computing=(7,))
    for frame in (long, short):
        note.write(frame)
        assert Note.read(address) == [frame]
    whole = file.read_bytes()
    for cut in (whole[:-1], whole[:1], b"\xff" + whole[1:], encode(Abort((1,)))):
        file.write_bytes(cut)
        assert Note.read(address) == []
    file.unlink()
    note.write(long)  # to a file that is gone


async def test_a_child_that_is_stopped_is_ended_and_another_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "watch", lambda beats, is_loaded: watch(beats, is_loaded, silent_after_s=2.0))
    async with running(restart_delays_s=(0.0,)) as (client, transport):
        pid = transport.pid
        assert pid is not None
        reader = submit(client, make_request(0, max_tokens=4000))
        await reader.until(lambda: reader.tokens)
        os.kill(pid, signal.SIGSTOP)
        await reader.end()
        assert reader.error() == "EngineDeadError"
        assert client.end_reason == "gave no sign of life for 2 seconds and was ended"
        until_gone(pid)
        await eventually(lambda: client.state is EngineState.READY)
        await submit(client, make_request(9)).end([9])


async def test_a_child_that_is_stopped_before_its_first_beat_is_noticed() -> None:
    """And one that still loads is waited for, however long that takes."""
    context = zmq.asyncio.Context()
    try:
        beats = context.socket(zmq.PULL)
        beats.bind("inproc://beats")
        is_loaded = asyncio.Event()
        watching = asyncio.create_task(watch(beats, is_loaded, silent_after_s=0.01))
        done, _ = await asyncio.wait([watching], timeout=0.2)
        assert not done
        is_loaded.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await watching == "gave no sign of life for 0.01 seconds"
    finally:
        context.destroy(linger=0)


async def test_a_step_that_hangs_is_ended_and_its_request_refused_the_third_time() -> None:
    async with running("impatient", restart_delays_s=(0.0, 0.0)) as (client, _):
        for life in (1, 2):
            hanging = submit(client, make_request(10 * life, prompt=(HANGING_TOKEN, 1)))
            await hanging.end([10 * life])
            assert hanging.error(10 * life) == "EngineDeadError"
            assert "did not come out of a step" in client.end_reason
            await eventually(lambda life=life: client.state is EngineState.READY and client.num_restarts == life)
        with pytest.raises(DeadlyRequestError):
            submit(client, make_request(30, prompt=(HANGING_TOKEN, 1)))
        await submit(client, make_request(9)).end([9])


async def test_a_child_that_is_idle_or_works_long_is_let_live() -> None:
    async with running("impatient") as (client, _):
        await asyncio.sleep(2.5)
        reader = submit(client, make_request(0, 3000, max_tokens=1000))
        await reader.end()
        assert client.num_restarts == 0


async def test_a_model_that_cant_be_served_is_told_by_start() -> None:
    transport = ProcessTransport(worker("refuse"))
    client = EngineClient(transport, SchedulerConfig())
    with pytest.raises(ModelError, match=r"^The folder has no weights\.$"):
        await client.start()
    assert client.state is EngineState.CLOSED
    await client.close()


async def test_a_refused_model_ends_the_child_with_code_1() -> None:
    assert await ProcessTransport(worker("refuse")).run(lambda frame: None) == End("ended with code 1")


async def test_a_child_that_crashes_while_it_loads_is_told_by_start(caplog: pytest.LogCaptureFixture) -> None:
    client = EngineClient(ProcessTransport(worker("crash")), SchedulerConfig())
    with pytest.raises(ModelError, match="While it loaded the model the engine ended by signal SIGKILL"):
        await client.start()
    assert "ended by signal SIGKILL" in caplog.text


async def test_a_command_that_does_not_exist_is_told_by_start() -> None:
    client = EngineClient(ProcessTransport(lambda: ["/no/such/python"]), SchedulerConfig())
    with pytest.raises(ModelError):
        await asyncio.wait_for(client.start(), PATIENCE_S)
    await client.close()


@pytest.mark.parametrize("num_turns", [1, 2, 3, 10, 100])
async def test_close_ends_a_child_that_is_just_starting(num_turns: int) -> None:
    transport = ProcessTransport(worker())
    client = EngineClient(transport, SchedulerConfig())
    starting = asyncio.create_task(client.start())
    for _ in range(num_turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(client.close(), PATIENCE_S)
    with pytest.raises(ModelError):
        await starting
    assert transport.pid is None


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_child_ends_when_the_parents_pipe_closes(is_ready: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="anllm-") as folder, zmq.Context() as context:
        socket = context.socket(zmq.PAIR)
        socket.bind(f"ipc://{folder}/engine")
        child = subprocess.Popen([*worker()(), f"ipc://{folder}/engine"], stdin=subprocess.PIPE)
        assert child.stdin is not None
        while is_ready and not isinstance(decode(socket.recv()), EngineInfo):
            pass
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0
        socket.close(linger=0)


@pytest.mark.parametrize("work", ["idle", "busy"])
def test_a_child_ends_when_its_parent_is_killed(work: str) -> None:
    parent = subprocess.Popen([sys.executable, str(TESTS / "fake_parent.py"), work], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    until_gone(pid)


async def test_interrupting_the_child_does_not_end_it() -> None:
    """What happens after Ctrl-C is for the parent to decide. A child that just starts can't refuse it: it is out of
    reach, in a session of its own."""
    async with running() as (client, transport):
        assert transport.pid is not None
        assert os.getsid(transport.pid) == transport.pid
        os.kill(transport.pid, signal.SIGINT)
        reader: Reader = submit(client, make_request(0))
        await reader.end()
        assert client.num_restarts == 0
