"""The exceptions of anllm. Standard library only; any room may raise them.

AnllmError                      something went wrong; carries the HTTP status and OpenAI's `type`, `code` and `param`
├── ConfigError                 a setting is unknown or out of range; the start stops
├── ModelError                  the model can't be served: missing, half downloaded, of an unknown type
│   └── DownloadError           the model could not be fetched
├── RemoteError                 a server that we are a client of can't be reached, or refuses
├── InvalidRequestError         the request is wrong; 400 with the field's name
│   ├── ContextLengthError      the prompt leaves no room for one token
│   ├── ModelNotFoundError      another model than the served one was asked for; 404
│   └── DeadlyRequestError      the engine ended twice while it computed this request
├── QueueFullError              too many requests wait; 429 with Retry-After
├── NotReadyError               the model is not loaded (yet, or again); 503 with Retry-After
├── RequestTimeoutError         the answer took longer than the request or the server allows; 504
├── QueueTimeoutError           the request waited longer than the server allows; 503 with Retry-After
├── EngineDeadError             the engine process ended while the request was open; 500
└── StepError                   the forward pass that the request was in failed; 500
"""

from __future__ import annotations

import re


class AnllmError(Exception):
    """Base of all. `message` is a whole sentence for a person; it never holds a path or a traceback of ours."""

    status = 500
    type = "server_error"
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None
    may_retry = True  # whether clients that retry by the status should

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if param is not None:
            self.param = param
        if code is not None:
            self.code = code


class ConfigError(AnllmError):
    """A setting with a bad name or value; names the setting, the value given and what was expected."""


class ModelError(AnllmError):
    """The model can't be served. One clear sentence."""


class DownloadError(ModelError):
    """The model could not be fetched."""


class RemoteError(AnllmError):
    """A server that we are a client of can't be reached, or refuses. Says which, and what to do."""


class InvalidRequestError(AnllmError):
    """The client's mistake: names the field, the rule, the limit and the value given."""

    status = 400
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt fills the context. The words are those that LiteLLM, LangChain, Continue and Codex look for."""

    code = "context_length_exceeded"

    def __init__(self, num_tokens: int | None, max_model_len: int, *, param: str) -> None:
        given = f"resulted in {num_tokens} tokens" if num_tokens is not None else "are far longer than that"
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your {param} {given}: the prompt "
            f"is too long and exceeds the context window. Please reduce the length of the {param}.",
            param=param,
        )


class ModelNotFoundError(InvalidRequestError):
    """A model id that is not served."""

    status = 404
    code = "model_not_found"


class DeadlyRequestError(InvalidRequestError):
    """Clients must not send it again as it is."""

    code = "request_ends_engine"


class QueueFullError(AnllmError):
    """All slots are taken and the queue is full: refused at once, so that the client can go elsewhere."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"
    retry_after_s = 1


class NotReadyError(AnllmError):
    """No engine can take the request now: it loads, or starts again after a crash."""

    status = 503
    code = "service_unavailable"
    retry_after_s = 2


class RequestTimeoutError(AnllmError):
    """The time that was given for the answer is over; what was computed is lost, or was streamed."""

    status = 504
    type = "timeout"
    code = "request_timeout"
    may_retry = False  # it would begin again from zero


class QueueTimeoutError(AnllmError):
    """It waited too long to begin; nothing was computed."""

    status = 503
    code = "queue_timeout"
    retry_after_s = 5


class EngineDeadError(AnllmError):
    """The engine process ended while this request was open. Whether it repeats is unknown, so clients may retry."""


class StepError(AnllmError):
    """The forward pass that this request took part in raised."""


def reason_of(error: Exception) -> str:
    """The kind of error in one word, to count by: "queue_full" for a QueueFullError. What is no error of ours is
    "internal"."""
    if not isinstance(error, AnllmError) or type(error) is AnllmError:
        return "internal"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()


_FROM_ENGINE: dict[str, type[AnllmError]] = {
    error.__name__: error
    for error in (InvalidRequestError, QueueFullError, QueueTimeoutError, NotReadyError, EngineDeadError, StepError)
}


def from_engine(name: str, message: str) -> AnllmError:
    """The error that an engine told by its class's name and its message."""
    if name == ContextLengthError.__name__:  # its message is made from numbers, which are not told
        return InvalidRequestError(message, param="prompt", code=ContextLengthError.code)
    return _FROM_ENGINE.get(name, AnllmError)(message)
