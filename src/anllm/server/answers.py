"""What the answers of several endpoints have in common: ids, usage, and the frame around each chunk of a stream."""

from __future__ import annotations

import json
import secrets
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anllm.core.events import TokenLogprobs
from anllm.server.generation import Generation, Usage
from anllm.server.sse import event, to_ascii_json
from anllm.text.alignment import TextToken

_MIN_LOGPROB = -9999.0  # OpenAI's, for what is impossible
_CALL_ID_BYTES = 16
quote = json.encoder.encode_basestring_ascii  # a text as a JSON string in ASCII
_ID_CHAR_OF = ((string.ascii_letters + string.digits).encode() * 5)[:256]  # for each byte a letter or digit


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The keys that all chunks of an answer, and the answer itself, begin with.

    prefix: of the id, "chatcmpl" say. service_tier: None leaves the key out.
    """

    prefix: str
    model: str
    system_fingerprint: str
    service_tier: str | None = None
    id: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", new_id(f"{self.prefix}-"))
        object.__setattr__(self, "created", int(time.time()))

    def fields(self, kind: str) -> dict[str, object]:
        """`kind` is the answer's `object`."""
        fields: dict[str, object] = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return fields


class ChunkFrame:
    """Puts choices into chunks. The constant part is rendered once, so that a token costs little.

    include_usage: every chunk says `"usage":null`, or with `is_running` the usage so far.
    """

    def __init__(
        self, head: AnswerHead, kind: str, usage: Callable[[], Usage], *, include_usage: bool, is_running: bool
    ) -> None:
        self._fields = head.fields(kind)
        self._start = f'data: {to_ascii_json(self._fields)[:-1]},"choices":['
        self._end = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._usage = usage
        self._include_usage = include_usage
        self._is_running = include_usage and is_running

    def chunk(self, choice_json: str, more: str = "") -> bytes:
        """A chunk with this one choice, which is ASCII. more: further keys of the chunk, a comma before each."""
        if self._is_running:
            usage = to_ascii_json(usage_fields(self._usage()))
            return f'{self._start}{choice_json}]{more},"usage":{usage}}}\n\n'.encode()
        return f"{self._start}{choice_json}]{more}{self._end}".encode()

    def closing(self) -> bytes:
        """The usage chunk, if it was asked for."""
        if not self._include_usage:
            return b""
        return event({**self._fields, "choices": [], "usage": usage_fields(self._usage())})


def bounded_logprob(logprob: float) -> float:
    """A number that JSON has, from -9999 to 0, whatever the arithmetic gave."""
    return min(logprob, 0.0) if logprob > _MIN_LOGPROB else _MIN_LOGPROB


def prompt_logprobs_fields(
    generation: Generation, index: int, logprobs: Sequence[TokenLogprobs], num_top: int | None
) -> dict[str, object]:
    """`prompt_logprobs` of answer `index` in vLLM's form: for each token of its prompt a map from token ids to what the
    model thought of them, the token's own first; null for the first token.

    logprobs: of the answer. num_top: how many of the most likely ones are in a map; None leaves the key out.
    """
    if num_top is None:
        return {}
    told: list[dict[str, object] | None] = [None]
    for token_id, own in zip(generation.prompt_token_ids(index)[1:], logprobs, strict=True):
        ranked = [(token_id, own.logprob, own.rank)]
        ranked += [(i, logprob, rank) for rank, (i, logprob) in enumerate(own.top[:num_top], 1) if i != token_id]
        told.append(
            {
                str(i): {
                    "logprob": bounded_logprob(logprob),
                    "rank": rank,
                    "decoded_token": printable(generation.tokenizer.token_bytes(i)),
                }
                for i, logprob, rank in ranked
            }
        )
    return {"prompt_logprobs": told}


def printable(raw: bytes) -> str:
    """A token's text; bytes that are part of a character only are escaped, as in `\\xf0\\x9f`."""
    return raw.decode(errors="backslashreplace")


def token_logprob(token: TextToken) -> dict[str, object]:
    """What the model thought of a token of the answer, and of the likeliest ones in its place."""
    assert token.logprob is not None  # it is no prompt's
    top = [_logprob_entry(raw, logprob) for raw, logprob in token.top]
    return {**_logprob_entry(token.raw, token.logprob), "top_logprobs": top}


def _logprob_entry(raw: bytes, logprob: float) -> dict[str, object]:
    return {"token": printable(raw), "logprob": bounded_logprob(logprob), "bytes": list(raw)}


def new_id(prefix: str) -> str:
    """The prefix, with its dash or underscore, and 28 letters and digits that nobody can guess."""
    return f"{prefix}{secrets.token_bytes(28).translate(_ID_CHAR_OF).decode()}"


def new_call_id() -> str:
    """Of a tool call; unique in any conversation."""
    return f"call_{secrets.token_hex(_CALL_ID_BYTES)}"


def usage_fields(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
