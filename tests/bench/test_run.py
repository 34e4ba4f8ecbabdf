"""Real load from real processes on the real server, whose model is a fake one."""

from __future__ import annotations

import json

import pytest

from anllm.bench.figures import Figures
from anllm.bench.load import Endpoint, Load, Point
from anllm.bench.run import Bench, Settings, report
from anllm.bench.sender import Tally
from anllm.client.address import Address
from anllm.errors import RemoteError
from fake_server import RealServer
from server_harness import MODEL


def make_bench(server: RealServer, load: Load | None = None, **settings: object) -> Bench:
    load = load or Load(prompt_tokens=400, output_tokens=6)
    return Bench(Address.parse(server.url), None, load, Settings(**{"num_warm_up": 0, **settings}))  # type: ignore[arg-type]


def run(bench: Bench, point: Point, tallies: list[Tally] | None = None) -> Figures:
    return bench.run(point, 0, (tallies if tallies is not None else []).append, lambda stage: None)


@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_request_is_sent_and_counted(server: RealServer, endpoint: Endpoint) -> None:
    load = Load(endpoint, prompt_tokens=400, output_tokens=30)
    bench = make_bench(server, load, num_requests=24, num_processes=2)
    assert bench.model == MODEL
    found = bench.run(Point(8), 0, held_after_one_token(server).tally, lambda stage: None)
    assert (found.num_done, found.num_failed, found.num_tokens) == (24, 0, 24 * 30)
    assert found.num_prompt_tokens == pytest.approx(24 * 400, rel=0.15), "letters are tokens here, and words differ"
    assert found.num_processes == 2
    assert found.ttft is not None and found.itl is not None and found.e2el is not None
    assert 0 < found.ttft.mean < found.e2el.mean
    assert found.itl.mean > 0
    server.until_idle()


class Hold:
    """The model stands still until that many pieces with tokens have come, and that many requests have failed."""

    def __init__(self, server: RealServer, *, num_pieces: int = 0, num_failed: int = 0) -> None:
        self._server = server
        self._num_pieces = num_pieces
        self._num_failed = num_failed

    def tally(self, tally: Tally) -> None:
        if tally.num_pieces >= self._num_pieces and tally.num_failed >= self._num_failed:
            self._server.gate.open()


def held_after_one_token(server: RealServer) -> Hold:
    """The first token is with its client before the second one is made. A model that costs nothing would else be done
    with the answer by then, and all of it came in one piece, without a time between tokens."""
    server.gate.shut_before(lambda plan: any(s.is_decode for s in plan.scheduled))
    return Hold(server, num_pieces=1)


def test_requests_at_random_moments_keep_their_rate(server: RealServer) -> None:
    found = run(make_bench(server, num_requests=40), Point(None, rate=100.0))
    assert found.num_done == 40
    assert found.duration_s > 40 / 100 / 3, "not all at once"


def test_warming_up_is_not_counted(server: RealServer) -> None:
    bench = make_bench(server, num_requests=4, num_warm_up=3)
    stages: list[str] = []
    found = bench.run(Point(2), 0, lambda tally: None, stages.append)
    assert found.num_done == 4
    assert stages == ["warming up", "sending"]


def test_refused_requests_are_counted_with_their_reason(server: RealServer) -> None:
    """64 run and 64 wait; none of them is done before all others are refused."""
    bench = make_bench(server, Load(prompt_tokens=100, output_tokens=40), num_requests=300)
    server.gate.shut()
    found = bench.run(Point(300), 0, Hold(server, num_failed=172).tally, lambda stage: None)
    assert (found.num_done, found.num_failed) == (128, 172)
    assert "at most 128" in found.first_error


def test_where_nothing_comes_back_it_is_an_error(server: RealServer) -> None:
    load = Load(prompt_tokens=100, output_tokens=4, extra={"temperature": -1})
    with pytest.raises(RemoteError, match="temperature"):
        make_bench(server, load)
    load = Load(prompt_tokens=9_000, output_tokens=4)
    with pytest.raises(RemoteError, match=r"All 3 requests of the point '1 stream' failed: .*maximum context length"):
        run(make_bench(server, load, num_requests=3), Point(1))


def test_without_a_server_it_says_what_to_do() -> None:
    with pytest.raises(RemoteError, match=r"No server at http://127\.0\.0\.1:1 .* start one with 'anllm serve'"):
        Bench(Address.parse("http://127.0.0.1:1"), None, Load(), Settings())


def test_the_report_is_json(server: RealServer) -> None:
    bench = make_bench(server, num_requests=4)
    point = Point(2)
    told = json.loads(json.dumps(report(bench, [(point, run(bench, point))], "1.2")))
    assert told["anllm"] == "1.2"
    assert told["load"]["prompt_tokens"] == 400
    (entry,) = told["points"]
    assert (entry["max_concurrency"], entry["completed"], entry["failed"]) == (2, 4, 0)
    assert entry["ttft_ms"].keys() == {"mean", "p50", "p90", "p95", "p99"}


def test_more_streams_get_more_requests_and_processes() -> None:
    settings = Settings()
    assert [settings.requests_of(Point(n)) for n in (1, 8)] == [16, 32]
    assert settings.requests_of(Point(None, rate=5.0)) == 50
    assert settings.processes_of(Point(1)) == 1
    assert Settings(num_processes=8).processes_of(Point(4)) == 4
