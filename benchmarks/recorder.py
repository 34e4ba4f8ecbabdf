"""What does it cost to count? A step's frame through the recorder, by the number of rows, beside what its bytes cost.

    python benchmarks/recorder.py --rows 1,32,128

Prints one JSON line a number of rows: microseconds a step in the recorder, in the engine to make the figures, to encode
and decode the frame with and without them, and in all for each token. Then one for a page of /metrics.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from environment import describe

from anllm.config import SchedulerConfig
from anllm.core.events import Add, EngineFigures, EngineInfo, Started, StepEvents, StepFigures, Tokens
from anllm.core.request import Request, SamplingParams
from anllm.engine.loop import EngineLoop
from anllm.engine.transport import decode, encode
from anllm.metrics.prometheus import Exposition, Facts
from anllm.metrics.recorder import Recorder
from anllm.metrics.records import RequestRecord
from anllm.scheduler.scheduler import Scheduler
from anllm.testing import FakeRunner

INFO = EngineInfo("fake", "", 1 << 30, 1, 8192, 32000, "fake", "none", (2,))


def filled(num_rows: int) -> tuple[Recorder, StepEvents]:
    """A recorder with so many streams under way, and a frame with a token of each."""
    recorder = Recorder()
    recorder.on_frame(INFO)
    for i in range(num_rows):
        request = Request(request_id=i, prompt_token_ids=(1,) * 100, params=SamplingParams(max_tokens=1000))
        recorder.opened(RequestRecord(f"req_{i}", time.monotonic()), [request])
    recorder.on_frame(StepEvents(started=tuple(Started(i) for i in range(num_rows))))
    step = StepFigures(0.01, num_rows, 0, 0)
    figures = EngineFigures(num_rows, 0, 0, num_rows * 1024, 0, step=step)
    return recorder, StepEvents(tokens=tuple(Tokens(i, (5,)) for i in range(num_rows)), figures=figures)


def busy_scheduler(num_rows: int) -> Scheduler:
    """With so many rows running."""
    runner = FakeRunner(max_model_len=8192)
    loop = EngineLoop(runner, SchedulerConfig(max_num_seqs=num_rows), lambda events: None)
    params = SamplingParams(max_tokens=1000, seed=0)
    loop.take(Add(Request(request_id=i, prompt_token_ids=(i % 256,) * 10, params=params)) for i in range(num_rows))
    loop.step()
    return loop.scheduler


def microseconds(work: Callable[[], object], repeats: int) -> float:
    """The best of five rounds."""
    rounds = []
    for _ in range(5):
        began_s = time.perf_counter()
        for _ in range(repeats):
            work()
        rounds.append((time.perf_counter() - began_s) / repeats * 1e6)
    return min(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,32,128")
    parser.add_argument("--repeats", type=int, default=2000)
    options = parser.parse_args()
    for num_rows in map(int, options.rows.split(",")):
        recorder, frame = filled(num_rows)
        bare = replace(frame, figures=None)
        recorded = microseconds(lambda r=recorder, f=frame: r.on_frame(f), options.repeats)  # type: ignore[misc]
        with_figures = microseconds(lambda f=frame: decode(encode(f)), options.repeats)  # type: ignore[misc]
        without = microseconds(lambda f=bare: decode(encode(f)), options.repeats)  # type: ignore[misc]
        scheduler = busy_scheduler(num_rows)
        made = microseconds(lambda s=scheduler: s.figures(num_deferred=0, memory=None), options.repeats)  # type: ignore[misc]
        in_all = recorded + made + with_figures - without
        told = {
            "rows": num_rows,
            "recorder_us": round(recorded, 1),
            "engine_us": round(made, 1),
            "frame_us": round(with_figures, 1),
            "frame_without_figures_us": round(without, 1),
            "us_per_token": round(in_all / num_rows, 2),
        }
        print(json.dumps(told), flush=True)
    page = Exposition(recorder, lambda: Facts("model", "ok", 0, 1.0, INFO))
    print(json.dumps({"page_us": round(microseconds(lambda: page.page(""), 50))}))
    print(json.dumps(describe()))


if __name__ == "__main__":
    main()
