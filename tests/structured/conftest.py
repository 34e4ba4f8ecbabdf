"""A vocabulary of bytes, and the one process that tries grammars for all tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from llguidance import LLTokenizer

from anllm.structured.checker import GrammarChecker
from anllm.structured.compile import compile_grammar
from anllm.structured.grammar import GrammarSource
from anllm.structured.vocabulary import Vocabulary
from anllm.testing.tokenizer import ByteTokenizer


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary.of(ByteTokenizer())


@pytest.fixture(scope="session")
def tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    return vocabulary.build()


@pytest.fixture(scope="session")
def checker(vocabulary: Vocabulary) -> Iterator[GrammarChecker]:
    checker = GrammarChecker(vocabulary)
    yield checker
    checker.close()


@pytest.fixture
def accepts(tokenizer: LLTokenizer) -> Callable[[GrammarSource, str], bool]:
    """Whether the grammar allows the text as a whole."""

    def accepts(source: GrammarSource, text: str) -> bool:
        matcher = compile_grammar(tokenizer, source.text)
        return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()

    return accepts
