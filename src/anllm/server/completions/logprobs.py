"""The `logprobs` object of a completion, or of a chunk of it."""

from __future__ import annotations

from collections.abc import Sequence

from anllm.server.answers import bounded_logprob, printable
from anllm.text.alignment import TextToken


def completion_logprobs(num_top: int, *parts: tuple[Sequence[TextToken], int]) -> dict[str, object]:
    """Four arrays, one element a token. num_top 0 gives no alternatives.

    parts: tokens, and the characters before the text that they make: of an answer, or of a prompt and its answer.
    """
    tokens = [token for part, _ in parts for token in part]
    return {
        "tokens": [_text(token.raw) for token in tokens],
        "token_logprobs": [None if token.logprob is None else bounded_logprob(token.logprob) for token in tokens],
        "top_logprobs": [_top(token, num_top) for token in tokens] if num_top else None,
        "text_offset": [offset + token.start for part, offset in parts for token in part],
    }


def _top(token: TextToken, num_top: int) -> dict[str, float] | None:
    """Of tokens with equal texts the better one. The token itself is always there; the first of a prompt has none."""
    if token.logprob is None:
        return None
    top: dict[str, float] = {}
    for raw, logprob in (*token.top[:num_top], (token.raw, token.logprob)):
        text = _text(raw)
        top[text] = max(bounded_logprob(logprob), top.get(text, bounded_logprob(logprob)))
    return top


def _text(raw: bytes) -> str:
    """OpenAI's old notation for a token that is no text by itself: `bytes:\\xf0\\x9f`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"bytes:{printable(raw)}"
