"""What does the client of `anllm bench` cost a token? On the real server over an engine that costs nothing.

    python benchmarks/bench_client.py --model FOLDER --streams 64,256,512 --step-ms 20

FOLDER needs a tokenizer and a config only. Prints one JSON line a number of streams: tokens/s, CPU microseconds of the
client a token, how busy its processes were, and how late things came to it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from api import SERVE
from environment import describe
from free_engine import STEP_MS, TOKENS
from servers import Server, started

from anllm.bench.load import Load, Point
from anllm.bench.run import Bench, Settings
from anllm.client.address import Address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", default="64,256,512")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the engine; 0 is as fast as it can")
    parser.add_argument("--output", type=int, default=200, help="tokens")
    parser.add_argument("--clients", type=int, default=1, help="processes")
    options = parser.parse_args()
    code = SERVE.format(here=str(Path(__file__).parent), model=str(options.model), profile="")
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {STEP_MS: str(options.step_ms), TOKENS: "text", "PYTHONPATH": paths}
    with started(Server("anllm", (sys.executable, "-c", code), options.model.name, environment)) as running:
        for streams in map(int, options.streams.split(",")):
            settings = Settings(num_requests=streams, num_warm_up=8, num_processes=options.clients)
            load = Load(prompt_tokens=80, output_tokens=options.output)
            bench = Bench(Address.parse(running.url), None, load, settings)
            found = bench.run(Point(streams), streams, lambda tally: None, lambda stage: None)
            cpu_s = found.client_busy * found.num_processes * found.duration_s
            print(
                json.dumps(
                    {
                        "streams": streams,
                        "failed": found.num_failed,
                        "tok_s": round(found.output_tokens_s, 1),
                        "client_cpu_us_per_token": round(cpu_s / found.num_tokens * 1e6, 1),
                        "client_busy": round(found.client_busy, 3),
                        "client_lag_p99_ms": round(found.client_lag_ms, 1),
                        "itl_p50_ms": round(found.itl.percentiles[50.0], 1) if found.itl else None,
                    }
                ),
                flush=True,
            )
    print(json.dumps(describe()))


if __name__ == "__main__":
    main()
