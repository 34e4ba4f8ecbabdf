"""`anllm bench` as it is used: in a process of its own, against the real server with a fake model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anllm.config import SchedulerConfig
from e2e.servers import COMMAND, environment
from fake_server import RealServer, make_runner
from server_harness import MODEL
from serving import PATIENCE_S, Gate


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    gate = Gate()
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig()).running() as running:
        yield running


def bench(
    server: RealServer | None, *arguments: str, until: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """until: when this holds, it gets a Ctrl-C, as all processes of a terminal do."""
    url = "http://127.0.0.1:1" if server is None else server.url
    command = [*COMMAND, "bench", "--url", url, "--prompt-tokens", "400", "--output-tokens", "6", *arguments]
    with subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=obey_interrupts,
    ) as process:
        try:
            if server is not None and until is not None:
                server.until(until)
                os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def obey_interrupts() -> None:
    """What a shell runs in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_sweep_is_a_table_a_file_and_a_picture(server: RealServer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'charts' is not installed")
    file, chart = tmp_path / "b.json", tmp_path / "b.svg"
    done = bench(
        server, "--concurrency", "1,4", "--requests", "8", "--goodput", "ttft:60000 e2el:60000",
        "--json", str(file), "--chart", str(chart),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    title, _, head, _, one, four = done.stdout.splitlines()
    assert title == f"{MODEL} at {server.url}. Times in ms: median / p99."
    assert head.split()[:2] == ["load", "done"] and head.endswith("goodput/s")
    assert one.split()[:3] == ["1", "stream", "8"] and four.split()[:3] == ["4", "streams", "8"]
    points = json.loads(file.read_text())["points"]
    assert [point["total_output_tokens"] for point in points] == [48, 48]
    assert points[0]["request_goodput"] == points[0]["request_throughput"], "every request kept these limits"
    assert chart.read_text().startswith("<?xml")


def test_json_on_stdout_is_json_alone(server: RealServer) -> None:
    done = bench(server, "--rate", "50", "--concurrency", "4", "--requests", "8", "--json", "-")
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert (point["request_rate"], point["max_concurrency"], point["completed"]) == (50, 4, 8)
    assert "50 requests/s, at most 4 at a time" in done.stderr


def test_what_was_measured_before_an_error_is_shown(server: RealServer) -> None:
    done = bench(server, "--concurrency", "1,2", "--requests", "4", "--timeout", "0.000001")
    assert done.returncode == 1
    assert "no end within" in done.stderr or "silent for" in done.stderr
    last_id = server.client.next_request_id() + 2 + 2  # two to count tokens, two of the first point
    server.gate.shut_before(lambda plan: any(s.request_id > last_id for s in plan.scheduled))
    try:
        second = lambda: server.client.num_open == 2  # noqa: E731
        half = bench(server, "--concurrency", "1,2", "--requests", "2", "--warmup", "0", until=second)
    finally:
        server.gate.open()
    assert half.returncode == 130
    assert "1 stream" in half.stdout and "2 streams" not in half.stdout


def test_a_dataset_and_the_other_endpoint(server: RealServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one", "max_tokens": 2}\n{"prompt": "three"}\n')
    done = bench(
        server, "--dataset", str(file), "--endpoint", "completions", "--concurrency", "2", "--requests", "4",
        "--warmup", "0", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert (point["total_input_tokens"], point["total_output_tokens"]) == (2 * 3 + 2 * 5, 2 * 2 + 2 * 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "a"], "is no list of numbers; give one such as 1,8,32"),
        (["--concurrency", "0"], "concurrency must be at least 1, got 0"),
        (["--concurrency", "1,2", "--rate", "1"], "with a rate there is one limit of it at most"),
        (["--goodput", "ttft"], "goodput: 'ttft' is none; give a name and milliseconds"),
        (["--goodput", "tbt:5"], "goodput: tbt:5 is none"),
        (["--extra-body", "[]"], "extra_body must be a JSON object"),
        (["--chart", "x.bmp"], "must end with .png, .svg, .pdf"),
        (["--chart", "no/folder/x.png"], "there is no folder for"),
        (["--dataset", "none.txt"], "can't be read"),
        (["--json", "no/folder/b.json"], "json: there is no folder for"),
        (["org/name"], "give one of the two"),
        ([], "No server at http://127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_sent(arguments: list[str], message: str) -> None:
    done = bench(None, *arguments)
    assert done.returncode in (1, 2)
    assert message in " ".join(done.stderr.split())


def test_without_matplotlib_a_chart_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib.util

    from anllm.bench.charts import check_chart
    from anllm.errors import ConfigError

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="-m pip install matplotlib"):
        check_chart(tmp_path / "x.png")
