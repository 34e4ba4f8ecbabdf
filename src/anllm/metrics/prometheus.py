"""What the recorder counted, as Prometheus reads it: vLLM's names for what means the same, `anllm:` for what is ours.

Names and meanings as in vLLM 0.33 (vllm/v1/metrics/loggers.py), which routers and dashboards look for. One registry an
app, never the global one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8

import anllm
from anllm.core.events import EngineInfo
from anllm.kvcache.pool import SMALLEST_CAPACITY
from anllm.metrics.histogram import Histogram
from anllm.metrics.recorder import QUEUE_FULL, Recorder

STATES = ("ok", "loading", "restarting", "draining", "failed", "closed")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the recorder does not know. state: one of STATES. load_s: how long the engine that runs took to be ready;
    info: what it found out. None before."""

    model_id: str
    state: str
    num_restarts: int
    load_s: float | None
    info: EngineInfo | None


class Exposition:
    """The page. Reads everything when it is asked for."""

    def __init__(self, recorder: Recorder, facts: Callable[[], Facts]) -> None:
        self._recorder = recorder
        self._facts = facts
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        if isinstance(encode, partial):
            # Our names are valid in every way of escaping, but the library's writer of OpenMetrics takes the colon out
            # of them, unless it is told to leave them as they are.
            encode = partial(encode, escaping=ALLOWUTF8)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        facts = self._facts()
        labels = {"model_name": facts.model_id, "engine": "0"}
        yield from _vllm(self._recorder, facts, labels)
        yield from _anllm(self._recorder, facts, labels)


Labels = Mapping[str, str]
NO_ADAPTERS = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}


def _vllm(recorder: Recorder, facts: Facts, labels: Labels) -> Iterator[Metric]:
    info, waiting, deferred = facts.info, recorder.num_waiting, recorder.num_deferred
    budget = info.kv_budget_bytes if info else 0
    yield _gauge("vllm:num_requests_running", "Requests that the engine works on.", recorder.num_running, labels)
    yield _gauge("vllm:num_requests_waiting", "Requests that wait for the engine.", waiting, labels)
    yield _family(
        GaugeMetricFamily,
        "vllm:num_requests_waiting_by_reason",
        "Requests that wait, by reason: capacity, or deferred, whose grammar is being compiled.",
        "reason",
        {"capacity": waiting - deferred, "deferred": deferred},
        labels,
    )
    yield _gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the memory for K/V that running requests hold, 0 to 1.",
        recorder.kv_used_bytes / budget if budget else 0.0,
        labels,
    )
    if info is not None:
        yield _gauge("vllm:cache_config_info", "How K/V is kept.", 1, {"engine": "0", **_cache_config(info)})
    yield _gauge("vllm:lora_requests_info", "There are no adapters here.", time.time(), {**labels, **NO_ADAPTERS})
    yield _counter(
        "vllm:prompt_tokens", "Tokens of prompts, those from the cache included.", recorder.num_prompt_tokens, labels
    )
    yield _counter(
        "vllm:prompt_tokens_cached", "Of these, those that were not computed again.", recorder.num_cached_tokens, labels
    )
    yield _counter("vllm:generation_tokens", "Tokens generated.", recorder.num_generated_tokens, labels)
    yield _counter(
        "vllm:prefix_cache_queries",
        "Tokens of prompts looked up in the prefix cache.",
        recorder.num_queried_tokens,
        labels,
    )
    yield _counter("vllm:prefix_cache_hits", "Of these, those found.", recorder.num_hit_tokens, labels)
    yield _counter(
        "vllm:num_preemptions", "Requests sent back to waiting for want of memory.", recorder.num_preemptions, labels
    )
    yield _family(
        CounterMetricFamily,
        "vllm:request_success",
        "Requests that ended, by finish reason.",
        "finished_reason",
        recorder.ends,
        labels,
    )
    yield _family(
        CounterMetricFamily,
        "vllm:admission_rejections",
        "HTTP requests refused since the queue was full.",
        "reason",
        {"max_num_queued_reqs": recorder.rejections[QUEUE_FULL]},
        labels,
    )
    for name, text, histogram in (
        ("time_to_first_token_seconds", "From arrival to the first token.", recorder.ttft_s),
        ("inter_token_latency_seconds", "Between two tokens of a request.", recorder.itl_s),
        ("request_time_per_output_token_seconds", "A request's mean time a token after the first.", recorder.tpot_s),
        ("e2e_request_latency_seconds", "From arrival to the end.", recorder.e2e_s),
        ("request_queue_time_seconds", "From submission until the engine began.", recorder.queue_s),
        ("request_prefill_time_seconds", "From there to the first token.", recorder.prefill_s),
        ("request_decode_time_seconds", "From the first token to the last.", recorder.decode_s),
        ("request_inference_time_seconds", "Prefill and decode together.", recorder.inference_s),
        ("request_prompt_tokens", "Tokens of a prompt.", recorder.request_prompt_tokens),
        ("request_generation_tokens", "Tokens generated for a request.", recorder.request_generation_tokens),
        ("request_prefill_kv_computed_tokens", "Of a prompt, the tokens computed.", recorder.request_computed_tokens),
        (
            "request_max_num_generation_tokens",
            "Most tokens among the answers to one prompt.",
            recorder.max_generation_tokens,
        ),
        ("request_params_n", "Answers asked for, each prompt counted once.", recorder.params_n),
        ("request_params_max_tokens", "Limit of a request's tokens.", recorder.params_max_tokens),
        ("iteration_tokens_total", "Tokens computed in a step, of prompts and answers.", recorder.iteration_tokens),
    ):
        yield _histogram(f"vllm:{name}", text, histogram, labels)


def _anllm(recorder: Recorder, facts: Facts, labels: Labels) -> Iterator[Metric]:
    info = facts.info
    yield _family(
        GaugeMetricFamily,
        "anllm:state",
        "1 for the state that the server is in, as /health tells it.",
        "state",
        {state: int(state == facts.state) for state in STATES},
        labels,
    )
    yield _gauge("anllm:info", "This build.", 1, {**labels, **_build(info)})
    yield _gauge("anllm:requests_open", "HTTP requests that are being answered.", recorder.num_open_requests, labels)
    yield _counter("anllm:engine_restarts", "Times that the engine was started again.", facts.num_restarts, labels)
    if facts.load_s is not None:
        yield _gauge("anllm:load_time_seconds", "How long the engine took to be ready.", facts.load_s, labels)
    for family, name, text, label, values in (
        (
            CounterMetricFamily,
            "anllm:request_aborts",
            "Requests whose client left, by stage.",
            "stage",
            recorder.aborts,
        ),
        (
            CounterMetricFamily,
            "anllm:request_failures",
            "Requests that failed, by reason.",
            "reason",
            recorder.failures,
        ),
        (
            CounterMetricFamily,
            "anllm:request_rejections",
            "HTTP requests answered with an error before the engine had them, by reason.",
            "reason",
            recorder.rejections,
        ),
    ):
        yield _family(family, name, text, label, values, labels)
    yield _histogram("anllm:step_time_seconds", "Time of a step.", recorder.step_s, labels)
    yield _histogram("anllm:batch_size", "Sequences in a step.", recorder.batch_size, labels)
    yield _counter(
        "anllm:prefix_cache_evicted_rows", "Rows of the prefix cache given up.", recorder.num_evicted_rows, labels
    )
    yield _gauge("anllm:kv_used_bytes", "K/V of running requests.", recorder.kv_used_bytes, labels)
    yield _gauge("anllm:kv_kept_bytes", "K/V kept for prompts that begin alike.", recorder.kv_kept_bytes, labels)
    if info is not None:
        yield _gauge("anllm:kv_budget_bytes", "Memory that K/V may take.", info.kv_budget_bytes, labels)
    if recorder.memory is not None:
        yield _gauge("anllm:mlx_active_memory_bytes", "MLX arrays in use.", recorder.memory.active_bytes, labels)
        yield _gauge("anllm:mlx_peak_memory_bytes", "Most that were in use.", recorder.memory.peak_bytes, labels)
        yield _gauge(
            "anllm:mlx_cache_memory_bytes", "Memory that MLX keeps for reuse.", recorder.memory.cached_bytes, labels
        )


def _cache_config(info: EngineInfo) -> Labels:
    """The smallest row stands for a block: memory is given out in multiples of it."""
    block_bytes = SMALLEST_CAPACITY * info.kv_bytes_per_token + info.kv_row_bytes
    return {
        "block_size": str(SMALLEST_CAPACITY),
        "num_gpu_blocks": str(info.kv_budget_bytes // block_bytes),
        "enable_prefix_caching": str(info.reuses_prefixes),
    }


def _build(info: EngineInfo | None) -> Labels:
    return {
        "version": anllm.__version__,
        "backend": info.backend if info else "",
        "execution": info.execution if info else "",
        "weights": info.weights if info else "",
    }


def _gauge(name: str, text: str, value: float, labels: Labels) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, value: float, labels: Labels) -> Metric:
    family = CounterMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
    labels: Labels,
) -> Metric:
    """One metric with a value for each value of a further label."""
    family = kind(name, text, labels=[*labels, label])
    for key, value in values.items():
        family.add_metric([*labels.values(), key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram, labels: Labels) -> Metric:
    family = HistogramMetricFamily(name, text, labels=list(labels))
    buckets: Sequence[tuple[str, float]] = [(_bound(bound), count) for bound, count in histogram.buckets()]
    family.add_metric(list(labels.values()), buckets, histogram.sum)
    return family


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
