"""A running server under load, over HTTP.

    python benchmarks/online.py --url http://127.0.0.1:8000 --model NAME --streams 1,8,32 --prompt 100 --output 48

Prints one JSON line a load: output tokens/s, TTFT, inter-token latency, errors. With --standard these are the standard
loads. With --peak-shares 0.5,0.8 an open loop follows, at these shares of the best request rate that the first kind of
load had.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from environment import describe
from load import add_load_arguments, closed_loops, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--peak-shares", default="")
    add_load_arguments(parser)
    options = parser.parse_args()
    about = describe()
    best_rate = 0.0  # of the first kind of load
    loads = closed_loops(options)
    for load in loads:
        outcome = run(load, options.url, options.model, options.clients)
        if load.kind == loads[0].kind:
            best_rate = max(best_rate, outcome.num_done / outcome.wall_s)
        print(json.dumps({"load": load.name, **outcome.figures(), **about}), flush=True)
    for share in filter(None, options.peak_shares.split(",")):
        rate = float(share) * best_rate
        number = max(10, max(load.num_requests for load in loads))
        load = replace(loads[0], name=f"open loop at {share} of peak", num_requests=number, streams=None, rate=rate)
        outcome = run(load, options.url, options.model, options.clients)
        print(json.dumps({"load": load.name, "rate": round(rate, 3), **outcome.figures(), **about}), flush=True)


if __name__ == "__main__":
    main()
