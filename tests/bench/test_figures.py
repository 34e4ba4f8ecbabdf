"""From records to figures, by hand-made records."""

from __future__ import annotations

import pytest

from anllm.bench.answer import Reader, Record
from anllm.bench.figures import Figures, percentile
from anllm.bench.sender import Sent


def make_record(sent_s: float = 0.0, ttft_s: float = 0.5, gaps_s: tuple[float, ...] = (0.1, 0.3)) -> Record:
    first_s = sent_s + ttft_s
    return Record(sent_s, first_s, first_s + sum(gaps_s), list(gaps_s), 10, len(gaps_s) + 1)


def figures_of(*records: Record, busy: float = 0.1, lags_s: tuple[float, ...] = (0.0,), **goodput_ms: float) -> Figures:
    return Figures.of([Sent(list(records), busy, list(lags_s))], goodput_ms)


def test_times_are_those_of_vllm() -> None:
    found = figures_of(make_record())
    assert found.ttft is not None and found.ttft.mean == pytest.approx(500)
    assert found.tpot is not None and found.tpot.mean == pytest.approx(200), "(0.1 + 0.3) / 2"
    assert found.itl is not None and found.itl.percentiles[50.0] == pytest.approx(200)
    assert found.e2el is not None and found.e2el.mean == pytest.approx(900)


def test_rates_go_from_the_first_request_to_the_last_piece() -> None:
    found = figures_of(make_record(100.0), make_record(101.1))
    assert found.duration_s == pytest.approx(2.0)
    assert found.requests_s == pytest.approx(1.0)
    assert found.output_tokens_s == pytest.approx(3.0)
    assert found.total_tokens_s == pytest.approx(13.0)


def test_failed_requests_count_as_failed_and_nowhere_else() -> None:
    broken, silent = make_record(), Record(0.0)
    broken.error = "429"
    found = figures_of(make_record(), broken, silent)
    assert (found.num_done, found.num_failed, found.first_error) == (1, 2, "429")
    assert found.num_tokens == 3
    nothing = figures_of(silent)
    assert (nothing.num_done, nothing.first_error, nothing.ttft) == (0, "no tokens came", None)


def test_goodput_counts_those_that_keep_every_limit() -> None:
    slow = make_record(ttft_s=0.7)
    assert figures_of(make_record(), slow, ttft=600, tpot=250).goodput == pytest.approx(1 / 1.1)
    assert figures_of(make_record(), slow, tpot=150).goodput == 0
    assert figures_of(make_record()).goodput is None


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.5), (99, 3.97), (100, 4.0)])
def test_percentiles_are_those_of_numpy(percent: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == pytest.approx(value)


def test_a_client_that_was_the_bottleneck_says_so() -> None:
    assert figures_of(make_record()).warning == ""
    assert "busy 95%" in figures_of(make_record(), busy=0.95).warning
    late = figures_of(make_record(gaps_s=(0.01,)), lags_s=(0.02,))
    assert "20 ms late" in late.warning
    assert figures_of(make_record(gaps_s=(1.0,)), lags_s=(0.02,)).warning == "", "next to a second, it is nothing"


def test_a_stream_is_read_in_any_pieces() -> None:
    text = (
        b': keep-alive\n\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
        b'data: {"choices":[{"delta":{"reasoning_content":"b"}}]}\n\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    )
    clock, pieces = iter(range(10_000)), iter(range(10_000))
    for size in (1, 7, len(text)):
        record = Record(0.0)
        reader = Reader(record, lambda: float(next(clock)), lambda: next(pieces) and None)
        for start in range(0, len(text), size):
            reader.feed(text[start : start + size])
        assert reader.is_done
        assert (record.num_prompt_tokens, record.num_tokens, record.error) == (5, 2, "")
        assert len(record.gaps_s) == 1
    assert next(pieces) == 2 * 3, "two have tokens"


def test_an_error_event_is_an_error() -> None:
    record = Record(0.0)
    Reader(record, lambda: 0.0, lambda: None).feed(b'data: {"error":{"message":"The engine ended."}}\n\n')
    assert "The engine ended." in record.error
    Reader(record, lambda: 0.0, lambda: None).feed(b"data: {broken\n\n")
    assert record.error.startswith("an event is not as OpenAI's")
