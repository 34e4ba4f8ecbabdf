"""Schemas of MaskBench with documents that are valid or not (guidance-ai/jsonschemabench, arXiv 2501.10868).

Read from ../shared/data/maskbench/sample.jsonl beside the project, or from ANLLM_MASKBENCH. Token for token over the
tokenizer in the folder ANLLM_MASKBENCH_TOKENIZER, else byte for byte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from anllm.structured.compile import compile_grammar
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import json_schema
from anllm.structured.vocabulary import Vocabulary
from anllm.testing.tokenizer import ByteTokenizer
from anllm.text.interface import Tokenizer
from anllm.text.tokenizer import load_tokenizer

_BESIDE = Path(__file__).parents[3] / "shared/data/maskbench/sample.jsonl"
SAMPLE = Path(os.environ.get("ANLLM_MASKBENCH", _BESIDE))
TOKENIZER = os.environ.get("ANLLM_MASKBENCH_TOKENIZER")

pytestmark = pytest.mark.skipif(not SAMPLE.is_file(), reason=f"no {SAMPLE}; ANLLM_MASKBENCH may name it")


@pytest.fixture(scope="module")
def text_tokenizer() -> Tokenizer:
    return load_tokenizer(Path(TOKENIZER)) if TOKENIZER else ByteTokenizer()


@pytest.fixture(scope="module")
def compiler(text_tokenizer: Tokenizer) -> LLTokenizer:
    return Vocabulary.of(text_tokenizer).build()


def entries() -> Iterator[dict[str, Any]]:
    with SAMPLE.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def is_accepted(matcher: LLMatcher, tokens: list[int]) -> bool:
    matcher = matcher.deep_copy()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def writings(document: object) -> Iterator[str]:
    yield json.dumps(document, ensure_ascii=False)
    yield json.dumps(document, ensure_ascii=False, indent=2)
    yield json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def test_documents_are_accepted_if_and_only_if_they_are_valid(compiler: LLTokenizer, text_tokenizer: Tokenizer) -> None:
    num_schemas, refused, wrong = 0, [], []
    for entry in entries():
        num_schemas += 1
        try:
            matcher = compile_grammar(compiler, json_schema(entry["schema"], strict=True).text)
        except GrammarError as error:
            refused.append(error)
            continue
        for test in entry["tests"]:
            for text in writings(test["data"]):
                tokens = text_tokenizer.encode(text, add_special_tokens=False)
                if is_accepted(matcher, tokens) != test["valid"]:
                    wrong.append((entry["name"], text))
    assert not wrong
    assert len(refused) <= 0.15 * num_schemas
    assert all(len(error.reason) > 10 for error in refused)
