"""From records of requests to the figures that people compare: those of `vllm bench serve`, by the same definitions.

TTFT: sent to first piece. TPOT: mean time for each token after the first. ITL: each gap between two pieces. E2EL: sent
to last piece. Requests that failed count as failed, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anllm.bench.answer import Record
from anllm.bench.sender import Sent

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
MAX_BUSY = 0.8  # of one processor; beyond that, pieces wait for the client
MAX_LAG_SHARE = 0.25  # of the median ITL
MIN_LAG_S = 0.005


@dataclass(frozen=True, slots=True)
class Spread:
    """Of times in milliseconds. percentiles: by number, as 99.0."""

    mean: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        if not seconds:
            return None
        ordered = sorted(seconds)
        return cls(1e3 * fmean(ordered), {p: 1e3 * percentile(ordered, p) for p in PERCENTILES})

    def as_json(self) -> dict[str, float]:
        return {
            "mean": round(self.mean, 2),
            **{f"p{p:g}": round(value, 2) for p, value in self.percentiles.items()},
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """With linear interpolation between neighbours, as NumPy has it."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one point. Rates are per second of duration_s, which goes from the first request to the last piece.

    goodput: requests a second that kept every limit; None without limits. client_busy: of its busiest process;
    client_lag_ms: p99.
    """

    num_done: int
    num_failed: int
    first_error: str
    duration_s: float
    num_prompt_tokens: int
    num_tokens: int
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2el: Spread | None
    goodput: float | None
    num_processes: int
    client_busy: float
    client_lag_ms: float

    @classmethod
    def of(cls, sent: Sequence[Sent], goodput_ms: Mapping[str, float]) -> Figures:
        records = [record for part in sent for record in part.records]
        done = [record for record in records if not record.error and record.first_s is not None]
        failed = [record for record in records if record.error or record.first_s is None]
        ends = [record.last_s for record in done if record.last_s is not None]
        duration_s = max(ends) - min(record.sent_s for record in records) if ends else 0.0
        lags = sorted(lag for part in sent for lag in part.lags_s)
        good = sum(_is_good(record, goodput_ms) for record in done)
        return cls(
            num_done=len(done),
            num_failed=len(failed),
            first_error=(failed[0].error or "no tokens came") if failed else "",
            duration_s=duration_s,
            num_prompt_tokens=sum(record.num_prompt_tokens for record in done),
            num_tokens=sum(record.num_tokens for record in done),
            ttft=Spread.of([ttft_s(record) for record in done]),
            tpot=Spread.of([tpot_s(record) for record in done if record.num_tokens > 1]),
            itl=Spread.of([gap for record in done for gap in record.gaps_s]),
            e2el=Spread.of([e2el_s(record) for record in done]),
            goodput=good / duration_s if goodput_ms and duration_s else (0.0 if goodput_ms else None),
            num_processes=len(sent),
            client_busy=max((part.busy for part in sent), default=0.0),
            client_lag_ms=1e3 * percentile(lags, 99) if lags else 0.0,
        )

    def rate(self, number: float) -> float:
        return number / self.duration_s if self.duration_s else 0.0

    @property
    def output_tokens_s(self) -> float:
        return self.rate(self.num_tokens)

    @property
    def total_tokens_s(self) -> float:
        return self.rate(self.num_tokens + self.num_prompt_tokens)

    @property
    def requests_s(self) -> float:
        return self.rate(self.num_done)

    @property
    def warning(self) -> str:
        """Why these figures are the client's rather than the server's; "" if they are the server's."""
        itl_ms = self.itl.percentiles[50.0] if self.itl else 0.0
        if self.client_busy > MAX_BUSY:
            return f"the client was busy {self.client_busy:.0%} of the time: take more processes (--clients)"
        if self.client_lag_ms > max(1e3 * MIN_LAG_S, MAX_LAG_SHARE * itl_ms):
            return (
                f"the client saw things up to {self.client_lag_ms:.0f} ms late (p99): the machine is too busy for it; "
                "take another one, or more processes (--clients)"
            )
        return ""

    def as_json(self) -> dict[str, Any]:
        spreads = {name: getattr(self, name) for name in ("ttft", "tpot", "itl", "e2el")}
        return {
            "completed": self.num_done,
            "failed": self.num_failed,
            "first_error": self.first_error or None,
            "duration_s": round(self.duration_s, 3),
            "total_input_tokens": self.num_prompt_tokens,
            "total_output_tokens": self.num_tokens,
            "request_throughput": round(self.requests_s, 3),
            "output_throughput": round(self.output_tokens_s, 2),
            "total_token_throughput": round(self.total_tokens_s, 2),
            "request_goodput": None if self.goodput is None else round(self.goodput, 3),
            **{f"{name}_ms": spread and spread.as_json() for name, spread in spreads.items()},
            "client": {
                "processes": self.num_processes,
                "busy": round(self.client_busy, 3),
                "lag_p99_ms": round(self.client_lag_ms, 2),
                "warning": self.warning or None,
            },
        }


def ttft_s(record: Record) -> float:
    assert record.first_s is not None
    return record.first_s - record.sent_s


def e2el_s(record: Record) -> float:
    assert record.last_s is not None
    return record.last_s - record.sent_s


def tpot_s(record: Record) -> float:
    return (e2el_s(record) - ttft_s(record)) / (record.num_tokens - 1)


def _is_good(record: Record, limits_ms: Mapping[str, float]) -> bool:
    found = {
        "ttft": ttft_s(record),
        "tpot": tpot_s(record) if record.num_tokens > 1 else 0.0,
        "itl": fmean(record.gaps_s) if record.gaps_s else 0.0,
        "e2el": e2el_s(record),
    }
    return all(1e3 * found[name] <= limit for name, limit in limits_ms.items())
