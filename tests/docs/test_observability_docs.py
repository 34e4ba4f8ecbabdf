"""docs/observability.md names every metric, and the dashboard asks for none that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from anllm.core.events import EngineFigures, EngineInfo, MemoryUse, StepEvents
from anllm.metrics.prometheus import STATES, Exposition, Facts
from anllm.metrics.recorder import Recorder
from anllm.server.answer_schemas import Health, Status

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "observability.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCS / "grafana" / "anllm.json").read_text(encoding="utf-8"))
INFO = EngineInfo("fake", "", 1000, 1, 4096, 257, "fake", "none", (256,))
METRIC = re.compile(r"\b(?:vllm|anllm):\w+|\bprocess_\w+")


def metrics() -> list[Metric]:
    """All that there can be, when a model is loaded and its engine has told of itself."""
    recorder = Recorder()
    recorder.on_frame(INFO)
    recorder.on_frame(StepEvents(figures=EngineFigures(0, 0, 0, 0, 0, memory=MemoryUse(1, 2, 3))))
    recorder.failures["step"] += 1
    return list(Exposition(recorder, lambda: Facts("model", "ok", 0, 1.0, INFO)).collect())


def told_name(metric: Metric) -> str:
    """As it stands in the table: with _total, where it is a counter."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


METRICS = {told_name(metric): metric for metric in metrics()}


def test_the_table_has_each_metric_with_its_kind_and_no_other() -> None:
    rows = dict(re.findall(r"^\| `((?:vllm|anllm):\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    assert rows == {name: metric.type for name, metric in METRICS.items()}


def test_each_label_and_state_is_named() -> None:
    for name, metric in METRICS.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        for label in metric.samples[0].labels.keys() - {"model_name", "engine", "le"}:
            is_empty = label in ("running_lora_adapters", "waiting_lora_adapters")
            assert is_empty or f"`{label}`" in row, (name, label)
    assert set(STATES) == set(Health.model_json_schema()["properties"]["status"]["enum"])


def sample_names() -> set[str]:
    return {sample.name for metric in METRICS.values() for sample in metric.samples}


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield variable.get("definition", "")


def test_the_dashboard_asks_for_what_there_is() -> None:
    asked = {name for query in queries() for name in METRIC.findall(query)}
    assert len(asked) > 30
    assert asked - sample_names() == {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_the_dashboard_shows_all_of_ours() -> None:
    asked = {name for query in queries() for name in METRIC.findall(query)}
    shown = {name for name, metric in METRICS.items() if any(sample.name in asked for sample in metric.samples)}
    assert {name for name in METRICS if name.startswith("anllm:")} - shown == {"anllm:info", "anllm:load_time_seconds"}


def test_groupings_of_the_dashboard_are_labels() -> None:
    for query in queries():
        for labels, metric in re.findall(r"by \((\w+)\) \(\w+\(((?:vllm|anllm):\w+)", query):
            sample = next(s for m in METRICS.values() for s in m.samples if s.name == metric)
            assert labels in sample.labels, query


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_panels_have_places_of_their_own(panel: dict[str, Any]) -> None:
    def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
        return all(one[a] < other[a] + other[s] and other[a] < one[a] + one[s] for a, s in (("x", "w"), ("y", "h")))

    place = panel["gridPos"]
    assert place["x"] >= 0 and place["x"] + place["w"] <= 24
    others = [other["gridPos"] for other in DASHBOARD["panels"] if other["id"] != panel["id"]]
    assert len(others) == len(DASHBOARD["panels"]) - 1
    assert not any(overlap(place, other) for other in others)


def test_queries_in_the_page_ask_for_what_there_is() -> None:
    text = PAGE.split("Some questions and their queries")[1].split("```")[1]
    assert set(METRIC.findall(text)) <= sample_names()


def test_the_page_names_the_keys_of_the_status() -> None:
    section = PAGE.split("\n## Status\n")[1].split("\n## ")[0]
    assert all(f"`{key}`" in section for key in Status.model_fields)
