"""A running server under load, over HTTP.

    python benchmarks/online.py --url http://127.0.0.1:8000 --model NAME --streams 1,8,32 --prompt 100 --output 48

Prints one JSON line a load: output tokens/s, TTFT, inter-token latency, errors. With --peak-shares 0.5,0.8 an open loop
at these shares of the best request rate found follows.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from environment import describe
from load import Load, add_load_arguments, closed_loops, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--peak-shares", default="")
    add_load_arguments(parser)
    options = parser.parse_args()
    about = describe()
    best_rate = 0.0
    loads = closed_loops(options)
    for load in loads:
        outcome = asyncio.run(run(load, options.url, options.model))
        best_rate = max(best_rate, outcome.num_done / outcome.wall_s)
        print(json.dumps({"load": load.name, **outcome.figures(), **about}), flush=True)
    for share in filter(None, options.peak_shares.split(",")):
        rate = float(share) * best_rate
        load = Load(
            f"open loop at {share} of peak",
            options.prompt,
            options.output,
            max(10, loads[-1].num_requests),
            rate=rate,
            spread=options.spread,
            mixed=options.mixed,
            seed=options.seed,
        )
        outcome = asyncio.run(run(load, options.url, options.model))
        print(json.dumps({"load": load.name, "rate": round(rate, 3), **outcome.figures(), **about}), flush=True)


if __name__ == "__main__":
    main()
