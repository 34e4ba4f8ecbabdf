"""What is sent: lengths, seeds, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anllm.bench.load import Endpoint, Load, Point
from anllm.bench.prompts import WordLength, body_of, dataset_requests, random_requests, read_dataset
from anllm.errors import ConfigError

WORDS = WordLength(overhead=20, tokens_per_word=2)


def texts(load: Load, number: int = 20, seed: int = 0) -> list[str]:
    return [body["messages"][0]["content"] for body in random_requests(load, "m", number, WORDS, seed)]


def test_prompts_have_the_length_that_is_wanted() -> None:
    assert {len(text.split()) for text in texts(Load(prompt_tokens=120))} == {50}


def test_lengths_are_spread_to_both_sides() -> None:
    load = Load(prompt_tokens=120, output_tokens=100, range_ratio=0.5)
    bodies = random_requests(load, "m", 200, WORDS, 0)
    words = [len(body["messages"][0]["content"].split()) for body in bodies]
    assert 20 <= min(words) < 30 and 70 < max(words) <= 80
    tokens = [body["max_tokens"] for body in bodies]
    assert 50 <= min(tokens) < 60 and 140 < max(tokens) <= 150


def test_equal_seeds_give_equal_prompts_and_others_do_not() -> None:
    load = Load()
    assert texts(load) == texts(load)
    assert not set(texts(load)) & set(texts(load, seed=1))
    assert not set(texts(load)) & set(texts(Load(seed=1)))


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    prompts = texts(Load(prompt_tokens=120, prefix_tokens=60))
    starts, ends = (
        {text.split()[0:20].__repr__() for text in prompts},
        {text.split()[20:].__repr__() for text in prompts},
    )
    assert (len(starts), len(ends)) == (1, 20)
    assert {len(text.split()) for text in prompts} == {20 + 30}


def test_the_two_endpoints_get_their_bodies() -> None:
    chat = body_of(Load(extra={"top_p": 0.5}), "m", "hi", 7)
    assert chat == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_p": 0.5,
    }
    plain = body_of(Load(Endpoint.COMPLETIONS, ignore_eos=False), "m", [{"role": "user", "content": "hi"}], 7)
    assert plain["prompt"] == "hi"
    assert "ignore_eos" not in plain and "messages" not in plain


def test_datasets_in_each_form(tmp_path: Path) -> None:
    lines, sharegpt, text = tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.txt"
    messages = [{"role": "user", "content": "two"}]
    lines.write_text('{"prompt": "one", "max_tokens": 3}\n\n' + json.dumps({"messages": messages}))
    turns = [{"from": "system", "value": "s"}, {"from": "human", "value": "first"}, {"from": "gpt", "value": "x"}]
    sharegpt.write_text(json.dumps([{"conversations": turns}]))
    text.write_text("x\n\ny\n")
    assert read_dataset(lines) == [("one", 3), (messages, None)]
    assert read_dataset(sharegpt) == [("first", None)]
    assert read_dataset(text) == [("x", None), ("y", None)]
    bodies = dataset_requests(Load(dataset=str(lines), output_tokens=9), "m", 3)
    assert [body["max_tokens"] for body in bodies] == [3, 9, 3], "from the start again"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "{", "is no JSON"),
        ("a.jsonl", '{"text": "x"}', 'entry 1 of .* has none of "prompt"'),
        ("a.txt", "\n", "holds no prompts"),
        ("none.txt", None, "can't be read"),
    ],
)
def test_bad_datasets_are_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_dataset(tmp_path / name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Load(prompt_tokens=0), "prompt_tokens must be at least 1, got 0"),
        (lambda: Load(range_ratio=1.0), "range_ratio must be at least 0 and below 1, got 1.0"),
        (lambda: Load(prefix_tokens=128), "prefix_tokens must be from 0 to below prompt_tokens, got 128"),
        (lambda: Load(goodput_ms={"tbt": 5}), "goodput: tbt:5 is none; give a name of ttft, tpot, itl, e2el"),
        (lambda: Point(0), "concurrency must be at least 1, got 0"),
        (lambda: Point(None, -1.0), "rate must be above 0 and finite, got -1.0"),
        (lambda: Point(None, 1.0, 0.0), "burstiness must be above 0 and finite, got 0.0"),
    ],
)
def test_bad_loads_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=message):
        make()
