"""A grammar's text made into a matcher, under limits. Any thread; llguidance drops the GIL meanwhile.

The limits bound one mask. They don't bound compiling: some texts take many seconds or overflow the stack in spite of
them, so the front tries each in a process first (compile_process.py), and the engine compiles what came through.
"""

from __future__ import annotations

import itertools
import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from anllm.structured.errors import GrammarError
from anllm.structured.grammar import is_of_schemas

# Items are cheap in a schema's grammar and dear in an ambiguous one, so they are not bounded alike. An object of 300
# optional properties needs 50,000 items, one of 700 needs 200,000. The worst masks found, with 152k tokens: 60 ms of a
# schema, 100 ms of others, which take 210 ms within llguidance's own limits.
LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    step_max_items=20_000,
    step_lexer_fuel=100_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)
SCHEMA_LIMITS = LLParserLimits(
    max_items_in_row=10_000,
    step_max_items=200_000,
    step_lexer_fuel=100_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)

_MAX_MESSAGE_CHARS = 300
_AFTER = re.compile(r"^\s*\d+ \| |^<state>|^<non-verbose")  # an excerpt of the grammar, the parser's state
_BEFORE = "failed to compile JSON schema: "
_ADVICE = re.compile("[.;] (Enable 'coerce_one_of'|either increase limits).*")  # nobody who reads it can follow it


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """A matcher at the start of the grammar; copy it for each sequence. Raises GrammarError."""
    limits = SCHEMA_LIMITS if is_of_schemas(text) else LIMITS
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(first_words(matcher.get_error()))
    matcher.compute_bitmask()
    if matcher.is_error():
        is_empty = matcher.stop_reason() == "NoExtensionBias" or "NoExtensionBias" in matcher.get_error()
        raise GrammarError("no text can satisfy it." if is_empty else first_words(matcher.get_error()))
    return matcher


def first_words(message: str) -> str:
    """The sentence in llguidance's message, without the excerpt of the grammar and the parser's state after it."""
    lines = [*itertools.takewhile(lambda line: not _AFTER.search(line), message.splitlines())]
    lines = [line for line in lines if line.strip(" ^")]  # without what underlines a part of a regex
    words = _ADVICE.sub("", " ".join(" ".join(lines).split()))
    reason = words.partition(_BEFORE)[2] or words
    return f"{reason[:_MAX_MESSAGE_CHARS].rstrip('.')}."
