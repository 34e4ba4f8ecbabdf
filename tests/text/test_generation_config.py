"""Which sampling a model's folder suggests."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from anllm.core.request import SamplingDefaults, SamplingParams
from anllm.errors import ModelError
from anllm.text.generation_config import load_sampling_defaults


def defaults_of(folder: Path, **given: Any) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(given), encoding="utf-8")
    return load_sampling_defaults(folder)


def test_without_a_file_they_are_neutral_and_those_of_sampling_params(tmp_path: Path) -> None:
    defaults = load_sampling_defaults(tmp_path)
    assert defaults == SamplingDefaults()
    assert SamplingParams(**asdict(defaults)) == SamplingParams()


def test_what_the_file_says_holds_and_nothing_else_of_it(tmp_path: Path) -> None:
    found = defaults_of(
        tmp_path, temperature=0.6, top_p=0.95, top_k=20, min_p=0, do_sample=False, max_new_tokens=20, eos_token_id=7
    )
    assert found == SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20)
    assert defaults_of(tmp_path, repetition_penalty=1.05, top_k=-1) == SamplingDefaults(repetition_penalty=1.05)
    assert defaults_of(tmp_path, temperature=0) == SamplingDefaults(temperature=0.0)
    assert defaults_of(tmp_path, temperature=None) == SamplingDefaults()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", 3),
        ("temperature", "0.6"),
        ("temperature", True),
        ("top_p", 1.2),
        ("top_p", float("nan")),
        ("top_k", -5),
        ("top_k", 2.5),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", float("inf")),
    ],
)
def test_what_is_out_of_range_is_left_out_with_a_warning(
    tmp_path: Path, key: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = defaults_of(tmp_path, **{"temperature": 0.5, "top_p": 0.5, key: value})
    kept = {"temperature": 0.5, "top_p": 0.5}
    kept.pop(key, None)
    assert found == SamplingDefaults(**kept)
    assert key in caplog.text
    assert "generation_config.json" in caplog.text


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(ModelError, match="generation_config"):
        load_sampling_defaults(tmp_path)
