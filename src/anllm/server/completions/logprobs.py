"""The `logprobs` object of a completion, or of a chunk of it."""

from __future__ import annotations

from collections.abc import Sequence

from anllm.server.answers import bounded_logprob, printable
from anllm.text.alignment import TextToken


def completion_logprobs(tokens: Sequence[TextToken], num_top: int, offset: int) -> dict[str, object]:
    """Four arrays, one element a token. num_top 0 gives no alternatives.

    offset: characters before the answer's text, those of the prompt.
    """
    return {
        "tokens": [_text(token.raw) for token in tokens],
        "token_logprobs": [bounded_logprob(token.logprob) for token in tokens],
        "top_logprobs": [_top(token) for token in tokens] if num_top else None,
        "text_offset": [offset + token.start for token in tokens],
    }


def _top(token: TextToken) -> dict[str, float]:
    """Of tokens with equal texts the better one. The token itself is always there."""
    top: dict[str, float] = {}
    for raw, logprob in (*token.top, (token.raw, token.logprob)):
        text = _text(raw)
        top[text] = max(bounded_logprob(logprob), top.get(text, bounded_logprob(logprob)))
    return top


def _text(raw: bytes) -> str:
    """OpenAI's old notation for a token that is no text by itself: `bytes:\\xf0\\x9f`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"bytes:{printable(raw)}"
