"""What is known about an HTTP request before anything is read: its id and when it came. Kept in the ASGI scope."""

from __future__ import annotations

import time
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import Send

from anllm.server.dialect import Dialect

_KEY = "anllm"


@dataclass(slots=True)
class RequestContext:
    """request_id: as sent in x-request-id. dialect: whose API it speaks. started_s: time.monotonic() at arrival.
    client: the name of the API key that came with it; "" where there are no keys.

    is_taken: the engine has it; before that, an answer that is an error is a refusal. refusal: its reason in one word,
        by whoever answers with an error.
    send: past everything between the HTTP server and the routes, where nothing looks at a response that has begun. For
        streams, which send thousands of times.
    """

    request_id: str
    send: Send
    dialect: Dialect = Dialect.OPENAI
    started_s: float = field(default_factory=time.monotonic)
    client: str = ""
    is_taken: bool = False
    refusal: str = ""

    @property
    def elapsed_ms(self) -> float:
        return (time.monotonic() - self.started_s) * 1000


def new_request_id() -> str:
    """In OpenAI's form."""
    return f"req_{uuid.uuid4().hex}"


def put_context(scope: MutableMapping[str, Any], context: RequestContext) -> None:
    scope[_KEY] = context


def get_context(scope: MutableMapping[str, Any]) -> RequestContext:
    return cast(RequestContext, scope[_KEY])
