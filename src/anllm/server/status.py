"""GET /v1/status, for a person who looks at the server now. Nothing that was asked or answered stands in it."""

from __future__ import annotations

import anllm
from anllm.metrics.recorder import Recorder
from anllm.server.service import Service

PERCENTILES = (50, 95, 99)
MAX_LISTED = 1000  # open sequences


def status_of(service: Service) -> dict[str, object]:
    """See answer_schemas.Status."""
    recorder, client, info = service.recorder, service.client, service.client.info
    budget_bytes = 0 if info is None else info.kv_budget_bytes
    return {
        "status": service.status,
        "version": anllm.__version__,
        "model": service.model_id,
        "uptime_s": round(recorder.now_s - recorder.started_s, 3),
        "engine": {
            "state": client.state.value,
            "restarts": client.num_restarts,
            "load_s": None if client.load_s is None else round(client.load_s, 3),
            "backend": None if info is None else info.backend,
            "execution": None if info is None else info.execution,
            "weights": None if info is None else info.weights,
            "max_model_len": service.max_model_len,
        },
        "queue": {
            "requests": recorder.num_open_requests,
            "running": recorder.num_running,
            "waiting": recorder.num_waiting,
        },
        "memory": {
            "kv_budget_bytes": budget_bytes,
            "kv_used_bytes": recorder.kv_used_bytes,
            "kv_kept_bytes": recorder.kv_kept_bytes,
            "kv_usage": round(recorder.kv_used_bytes / budget_bytes, 4) if budget_bytes else 0.0,
            "active_bytes": None if recorder.memory is None else recorder.memory.active_bytes,
            "peak_bytes": None if recorder.memory is None else recorder.memory.peak_bytes,
            "cached_bytes": None if recorder.memory is None else recorder.memory.cached_bytes,
        },
        "last_minute": last_minute(recorder),
        "rows": rows(recorder),
    }


def last_minute(recorder: Recorder) -> dict[str, object]:
    recent = recorder.recent
    return {
        "finished": recent.total("finished"),
        "requests_per_s": round(recent.per_second("finished"), 3),
        "prompt_tokens_per_s": round(recent.per_second("prompt"), 3),
        "output_tokens_per_s": round(recent.per_second("generated"), 3),
        "ttft_ms": {f"p{percent}": _ms(recent.percentile("ttft", percent)) for percent in PERCENTILES},
        "itl_ms": {f"p{percent}": _ms(recent.percentile("itl", percent)) for percent in PERCENTILES},
    }


def rows(recorder: Recorder) -> list[dict[str, object]]:
    now_s = recorder.now_s
    return [
        {
            "request_id": sequence.request.id,
            "stage": sequence.stage,
            "age_s": round(now_s - sequence.request.arrived_s, 3),
            "prompt_tokens": sequence.num_prompt_tokens,
            "cached_tokens": sequence.num_cached_tokens,
            "output_tokens": sequence.num_tokens,
        }
        for sequence in recorder.open_sequences[:MAX_LISTED]
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
