"""Starting, failing to start, crashing and ending. With a tiny model and the default model's tokenizer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from e2e.reference import model_folder
from e2e.servers import RunningServer, Stream, environment, run_command
from processes import is_alive
from serving import PATIENCE_S

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(300)]

LONG = {"model": "tiny", "prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
SHORT = {"model": "tiny", "prompt": "Once", "max_tokens": 3}


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from runner.folders import save

    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(folder, vocab_size=49152, max_position_embeddings=8192, num_hidden_layers=2, tie_word_embeddings=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder() / name, folder)
    return folder


def samples(server: RunningServer) -> dict[str, float]:
    """Of /metrics."""
    lines = [line for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def completion(server: RunningServer) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=SHORT, timeout=60)


def wait_until(holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- that don't start --------------------------------------------------------------------------------------------------


def refusal(*arguments: str) -> str:
    """The one sentence with which a start is refused."""
    done = run_command("serve", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, done.stderr
    assert done.stderr.rstrip().endswith(lines[0])
    return lines[0].removeprefix("Error: ")


def test_J_5_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_command("serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Can't listen on 127.0.0.1 port {port}: Address already in use. ")
    assert f"--port {port + 1}" in done.stderr and f"lsof -i :{port} " in done.stderr
    assert done.stdout == ""


def test_a_missing_folder_is_told() -> None:
    assert refusal("/no/such/folder", "--port", "0") == "There is no model folder 'folder'; check the path."


def test_a_half_downloaded_folder_is_told(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    shutil.copytree(tiny_folder, folder)
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    message = refusal(str(folder), "--port", "0")
    assert "half" in message
    assert "model.safetensors" in message


def test_an_unknown_model_type_is_told(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "no_such_family"}))
    message = refusal(str(folder), "--port", "0")
    assert message.startswith("The model 'odd' can't be loaded: ")
    assert "no_such_family" in message


def test_a_blas_that_is_not_there_is_told(tiny_folder: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("a BLAS is chosen on Linux only")
    assert refusal(str(tiny_folder), "--port", "0", "--blas", "/no/such.so").startswith("blas: '/no/such.so' can't be")


# -- that do -----------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_killed_comes_back(tiny_folder: Path, tmp_path: Path) -> None:
    """From the start on: /health is 503 until a completion would be answered, and again while the engine is away."""
    with RunningServer(tmp_path, str(tiny_folder)) as server:
        seen: list[int] = []
        while (status := server.status("/health")) != 200:
            assert server.process.poll() is None, server.log
            seen.append(status)
            if status == 503:
                again = server.get("/health")
                assert again.status_code == 200 or again.headers["retry-after"]
                assert server.get("/v1/models").json()["data"][0]["id"] == "tiny"
                refused = completion(server)
                assert refused.status_code in (200, 503)  # 200 if it became ready just now
        assert 503 in seen
        assert set(seen) <= {0, 503}
        assert completion(server).status_code == 200

        stream = Stream(f"{server.url}/v1/completions", LONG)
        assert stream.started.wait(60)
        engine = server.engine_pid()
        os.kill(engine, signal.SIGKILL)
        server.wait_for(503)
        stream.join(PATIENCE_S)
        assert not stream.is_alive()
        assert stream.error is not None
        assert stream.error["type"] == "server_error"
        assert stream.events[-1] == "[DONE]"
        assert server.status("/v1/models") == 200
        server.wait_for(200)
        assert server.engine_pid() != engine
        assert completion(server).status_code == 200


def test_C207_J_4_sigterm_lets_short_streams_finish_and_tells_long_ones(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path, str(tiny_folder), "--drain-timeout", "3") as server:
        server.wait_for(200)
        engine = server.engine_pid()
        long = Stream(f"{server.url}/v1/completions", LONG)
        assert long.started.wait(60)
        short = Stream(f"{server.url}/v1/completions", {**LONG, "max_tokens": 20})
        assert short.started.wait(60)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.status("/health") in (0, 503))
        assert server.process.wait(PATIENCE_S) == 0
        for stream in (long, short):
            stream.join(PATIENCE_S)
            assert not stream.is_alive()
        assert (short.error, short.finish_reason) == (None, "length")
        assert long.error is not None
        assert long.events[-1] == "[DONE]"
        with socket.create_server(("127.0.0.1", server.port)):
            pass
        wait_until(lambda: not is_alive(engine))
        assert "Traceback" not in server.log


def test_requests_that_do_not_say_get_what_the_model_suggests(tiny_folder: Path, tmp_path: Path) -> None:
    """A tiny model with random weights draws something else each time, unless its folder says to be greedy."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "greedy"))
    (folder / "generation_config.json").write_text('{"temperature": 0, "max_new_tokens": 1}')
    for flags, is_greedy in (((), True), (("--generation-config", "neutral"), False)):
        with RunningServer(tmp_path, str(folder), *flags) as server:
            server.wait_for(200)
            texts = {
                httpx.post(
                    f"{server.url}/v1/completions",
                    json={"model": "greedy", "prompt": "Once", "max_tokens": 12, "ignore_eos": True},
                    timeout=60,
                ).json()["choices"][0]["text"]
                for _ in range(3)
            }
            assert (len(texts) == 1) == is_greedy


def test_J_4_a_second_signal_ends_at_once(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path, str(tiny_folder), "--drain-timeout", "60") as server:
        server.wait_for(200)
        engine = server.engine_pid()
        stream = Stream(f"{server.url}/v1/completions", LONG)
        assert stream.started.wait(60)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: server.status("/health") in (0, 503))
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        wait_until(lambda: not is_alive(engine))


def test_a_server_that_is_killed_leaves_no_engine_behind(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path, str(tiny_folder)) as server:
        server.wait_for(200)
        engine = server.engine_pid()
        server.process.kill()
        server.process.wait(PATIENCE_S)
        wait_until(lambda: not is_alive(engine))


def test_J_4_sigterm_while_loading_ends_in_peace(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path, str(tiny_folder)) as server:
        server.wait_for(503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.log


def test_nothing_of_mlx_is_imported_by_the_api_process() -> None:
    code = """
import sys
import anllm.launch, anllm.server.app
print([name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm")])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- what it tells -----------------------------------------------------------------------------------------------------


def test_counters_outlive_a_crash_and_all_lines_of_a_json_log_are_json(tiny_folder: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path, str(tiny_folder), "--log-format", "json") as server:
        server.wait_for(200, "/v1/models")
        assert any(name.startswith("anllm:state{") for name in samples(server)), "while it loads"
        server.wait_for(200)
        assert completion(server).status_code == 200
        stream = Stream(f"{server.url}/v1/completions", LONG)
        assert stream.started.wait(60)
        wait_until(lambda: sum(v for k, v in samples(server).items() if k.startswith("vllm:kv_cache_usage_perc")) > 0)
        before = samples(server)
        os.kill(server.engine_pid(), signal.SIGKILL)
        stream.join(60)
        wait_until(lambda: server.get("/v1/status").json()["engine"]["restarts"] == 1)
        during = samples(server)
        server.wait_for(200)
        assert completion(server).status_code == 200
        after = samples(server)
    for earlier, later in ((before, during), (during, after)):
        for name in earlier:
            if "_total{" in name or "_count{" in name or "_bucket{" in name:
                assert earlier[name] <= later[name], name

    def total(name: str) -> float:
        return sum(value for key, value in after.items() if key.startswith(name + "{"))

    assert total("anllm:engine_restarts_total") == 1
    assert total("anllm:request_failures_total") == 1
    assert total("vllm:request_success_total") == 3
    assert sum(value for key, value in during.items() if key.startswith("vllm:kv_cache_usage_perc")) == 0
    lines = [line for line in server.log.splitlines() if line.startswith("{")]
    assert {line for line in server.log.splitlines() if not line.startswith("{")} <= {
        "Starting the engine …",
        "Loading weights …",
        "Checking and warming up …",
    }
    finished = [line for line in map(json.loads, lines) if line["message"] == "request finished"]
    assert [line["finish_reason"] for line in finished] == ["length", "EngineDeadError", "length"]
    assert all(line["request_id"].startswith("req_") for line in finished)
