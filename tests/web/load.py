"""Made-up metrics under vLLM's names, a second later at each reading: requests come in waves, wait and go."""

from __future__ import annotations

import hashlib
import math
import random

TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
MAX_ROWS = 32


class Histogram:
    def __init__(self, name: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._sum += value
        self._counts = [n + (value <= bound) for n, bound in zip(self._counts, self._bounds, strict=True)]

    def lines(self) -> list[str]:
        bounds = ["+Inf" if bound == math.inf else str(bound) for bound in self._bounds]
        buckets = [
            f'{self._name}_bucket{{model_name="m",le="{b}"}} {n}' for b, n in zip(bounds, self._counts, strict=True)
        ]
        return [f"# TYPE {self._name} histogram", *buckets, f"{self._name}_sum {self._sum}"]


class MadeUpLoad:
    def __init__(self) -> None:
        self._random = random.Random(7)
        self._seconds = 0
        self._generated = self._prompt = self._finished = 0.0
        self._ttft = Histogram("vllm:time_to_first_token_seconds", TTFT_BOUNDS)
        self._itl = Histogram("vllm:inter_token_latency_seconds", ITL_BOUNDS)
        self._busy = 3.0

    def __call__(self) -> str:
        self._seconds += 1
        wanted = 22 + 15 * math.sin(self._seconds / 38) + 6 * math.sin(self._seconds / 11)
        self._busy += 0.25 * (wanted - self._busy) + self._random.uniform(-1.2, 1.2)
        busy = max(0, round(self._busy))
        running, waiting = min(busy, MAX_ROWS), max(0, busy - MAX_ROWS)
        itl = 0.011 + 0.0006 * running
        self._generated += running / itl * self._random.uniform(0.96, 1.02)
        self._prompt += 60 * running * self._random.uniform(0.2, 1.1)
        self._finished += running / 4
        for _ in range(6):
            self._ttft.observe(0.03 + 0.002 * running + 0.12 * waiting * self._random.random())
            self._itl.observe(itl * self._random.lognormvariate(0, 0.28))
        gauges = {
            "num_requests_running": running,
            "num_requests_waiting": waiting,
            "kv_cache_usage_perc": 0.08 + 0.021 * running,
            "generation_tokens_total": self._generated,
            "prompt_tokens_total": self._prompt,
            "num_preemptions_total": 0,
            "prefix_cache_queries_total": 1000 + self._prompt,
            "prefix_cache_hits_total": 0.62 * (1000 + self._prompt),
        }
        lines = [f'vllm:{name}{{model_name="m"}} {value}' for name, value in gauges.items()]
        reasons = {"stop": 0.8, "length": 0.2}
        lines += [
            f'vllm:request_success_total{{finished_reason="{reason}"}} {int(share * self._finished)}'
            for reason, share in reasons.items()
        ]
        return "\n".join([*lines, *self._ttft.lines(), *self._itl.lines(), ""])


STATUS = {
    "version": "0.1.0",
    "uptime_s": 5025.0,
    "engine": {"restarts": 0, "backend": "metal", "weights": "4-bit", "max_model_len": 40960},
    "memory": {
        "kv_budget_bytes": 12 << 30,
        "kv_used_bytes": 7 << 30,
        "kv_kept_bytes": 3 << 30,
        "active_bytes": 15 << 30,
    },
    "rows": [
        {
            "request_id": f"req_{hashlib.sha256(bytes([i])).hexdigest()[:32]}",
            "stage": stage,
            "age_s": age,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "output_tokens": output,
        }
        for i, (stage, age, prompt, cached, output) in enumerate(
            [
                ("decode", 6.21, 412, 384, 193),
                ("decode", 4.87, 1260, 0, 138),
                ("decode", 1.94, 96, 64, 52),
                ("prefill", 0.31, 8120, 2048, 0),
            ]
        )
    ],
}
