"""Structured output over a vocabulary: how long schemas take to compile, how long the mask of one token takes, and how
many schemas are taken strictly, leniently or not at all. No model and no device.

    python benchmarks/masks.py --tokenizer FOLDER --schemas maskbench/sample.jsonl

The file has one JSON object a line: `schema`, and `tests` with `data` and `valid`
(guidance-ai/jsonschemabench, arXiv 2501.10868). Prints one JSON line. Times are of one thread. A valid document that is
rejected, or an invalid one accepted, counts as wrong; `lenient` schemas are not asked, since they allow more.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from environment import describe

from anllm.structured.compile import compile_grammar
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import json_schema
from anllm.structured.state import GrammarState
from anllm.structured.vocabulary import Vocabulary
from anllm.text.tokenizer import load_tokenizer


class Bench:
    """One pass over all schemas; `report` is what came out."""

    def __init__(self, folder: Path, width: int | None) -> None:
        self.encoder = load_tokenizer(folder)
        started = time.perf_counter()
        whole = Vocabulary.of(self.encoder)
        self.vocabulary = whole if width is None else whole.fitted(width)
        self.tokenizer = self.vocabulary.build()
        self.build_s = time.perf_counter() - started
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.refusals: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.compile_s: list[float] = []
        self.mask_s: list[float] = []
        self.num_documents = 0
        self._row = np.zeros(self.vocabulary.num_mask_words, dtype=np.int32)

    def add(self, name: str, schema: object, tests: list[dict[str, Any]]) -> None:
        try:
            source = json_schema(schema, strict=False)
        except GrammarError as error:
            self._refuse(error)
            return
        started = time.perf_counter()
        try:
            matcher = compile_grammar(self.tokenizer, source.text)
        except GrammarError as error:
            assert source.lenient_text is not None
            try:
                compile_grammar(self.tokenizer, source.lenient_text)
                self.outcomes["lenient"] += 1
            except GrammarError:
                self._refuse(error)
            return
        self.compile_s.append(time.perf_counter() - started)
        self.outcomes["strict"] += 1
        for test in tests:
            state = GrammarState(matcher.deep_copy(), self.vocabulary.eos_token_ids)
            if self._accepts(state, test["data"]) != test["valid"]:
                self.wrong.append(name)

    def _refuse(self, error: GrammarError) -> None:
        self.outcomes["refused"] += 1
        self.refusals[error.keyword or error.reason.split(":")[0][:40]] += 1

    def _accepts(self, state: GrammarState, document: object) -> bool:
        self.num_documents += 1
        for token in self.encoder.encode(json.dumps(document, ensure_ascii=False), add_special_tokens=False):
            started = time.perf_counter()
            state.matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
            self.mask_s.append(time.perf_counter() - started)
            is_allowed = bool(self._row[token // 32] >> (token % 32) & 1)
            if is_allowed != state.accept(token):
                raise SystemExit(f"mask and grammar disagree about token {token} of {document}")
            if not is_allowed:
                return False
        return state.can_end

    def report(self) -> dict[str, Any]:
        return {
            "tokens": len(self.vocabulary.tokens),
            "llguidance": importlib.metadata.version("llguidance"),
            "build_s": round(self.build_s, 2),
            "schemas": {"all": self.outcomes.total(), **self.outcomes},
            "refused": dict(self.refusals.most_common()),
            "documents": self.num_documents,
            "wrong": self.wrong,
            "compile_ms": spread(self.compile_s, 1e3),
            "mask_us": {**spread(self.mask_s, 1e6), "count": len(self.mask_s)},
        }


def spread(seconds: list[float], scale: float) -> dict[str, float]:
    quantiles = statistics.quantiles(seconds, n=100)
    values = {"mean": statistics.mean(seconds), "p50": quantiles[49], "p99": quantiles[98], "max": max(seconds)}
    return {name: round(value * scale, 2) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--schemas", type=Path, required=True, help="JSON lines")
    parser.add_argument("--width", type=int, default=None, help="number of logits (number of tokens)")
    options = parser.parse_args()
    bench = Bench(options.tokenizer, options.width)
    with options.schemas.open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            bench.add(entry["name"], entry["schema"], entry["tests"])
    print(json.dumps({**bench.report(), **describe()}))


if __name__ == "__main__":
    main()
