"""A grammar's text made into a matcher, under limits. Any thread; llguidance drops the GIL meanwhile.

The limits bound one mask. They don't bound compiling: some texts take minutes or overflow the stack in spite of them,
so the front tries each in a process first (compile_process.py), and the engine compiles what came through.
"""

from __future__ import annotations

import itertools
import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from anllm.structured.errors import GrammarError

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=25_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)

_MAX_MESSAGE_CHARS = 300
_AFTER = re.compile(r"^\s*\d+ \| |^<state>")  # an excerpt of the grammar, the parser's state
_BEFORE = "failed to compile JSON schema: "
_ADVICE = ". Enable 'coerce_one_of'"  # which nobody who reads it can


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """A matcher at the start of the grammar; copy it for each sequence. Raises GrammarError."""
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise GrammarError(first_words(matcher.get_error()))
    matcher.compute_bitmask()
    if matcher.is_error():
        is_empty = matcher.stop_reason() == "NoExtensionBias" or "NoExtensionBias" in matcher.get_error()
        raise GrammarError("no text can satisfy it." if is_empty else first_words(matcher.get_error()))
    return matcher


def first_words(message: str) -> str:
    """The sentence in llguidance's message, without the excerpt of the grammar and the parser's state after it."""
    lines = list(itertools.takewhile(lambda line: not _AFTER.search(line), message.splitlines()))
    words = " ".join(" ".join(lines).replace("^", " ").split()).partition(_ADVICE)[0]
    reason = words.partition(_BEFORE)[2] or words
    return f"{reason[:_MAX_MESSAGE_CHARS].rstrip('.')}."
