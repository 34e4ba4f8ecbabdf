"""The `logprobs` object of a chat answer, or of a chunk of it."""

from __future__ import annotations

from collections.abc import Sequence

from anllm.server.answers import bounded_logprob, printable
from anllm.text.alignment import TextToken


def chat_logprobs(tokens: Sequence[TextToken]) -> dict[str, object]:
    """An entry for each token of the text."""
    return {"content": [_token(token) for token in tokens], "refusal": None}


def _token(token: TextToken) -> dict[str, object]:
    top = [_entry(raw, logprob) for raw, logprob in token.top]
    assert token.logprob is not None  # it is no prompt's
    return {**_entry(token.raw, token.logprob), "top_logprobs": top}


def _entry(raw: bytes, logprob: float) -> dict[str, object]:
    return {"token": printable(raw), "logprob": bounded_logprob(logprob), "bytes": list(raw)}
