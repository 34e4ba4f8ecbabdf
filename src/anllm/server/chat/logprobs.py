"""The `logprobs` object of a chat answer, or of a chunk of it."""

from __future__ import annotations

from collections.abc import Sequence

from anllm.server.answers import token_logprob
from anllm.text.alignment import TextToken


def chat_logprobs(tokens: Sequence[TextToken]) -> dict[str, object]:
    """An entry for each token of the text."""
    return {"content": [token_logprob(token) for token in tokens], "refusal": None}
