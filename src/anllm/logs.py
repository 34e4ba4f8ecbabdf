"""How log lines look: text for people, or one JSON object a line for machines. Standard library only.

A line that has figures in it is logged as Fields: `key=value` in text, fields of the object in JSON. Prompts, outputs
and keys never stand in a line; whoever logs sees to that.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

CLEAR_LINE = "\r\x1b[2K"
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


# Of the HTTP request that is worked on here, so that every line about it has it.
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")


class Fields:
    """For a logger in place of a format string: `logger.info(Fields("request refused", status=503))`."""

    __slots__ = ("text", "values")

    def __init__(self, text: str = "", /, **values: object) -> None:
        self.text = text
        self.values = values

    def __str__(self) -> str:
        written = [f"{name}={_written(value)}" for name, value in self.values.items()]
        return " ".join([self.text, *written] if self.text else written)


class TextFormatter(logging.Formatter):
    """One line for a person, a traceback behind it."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return " ".join([super().formatMessage(record), *map(str, _missing(record))])


class JsonFormatter(logging.Formatter):
    """One object a line, in ASCII: time (UTC), level, logger, process, message, the fields, and a traceback if there is
    one."""

    def __init__(self, process: str) -> None:
        """process: "api" or "engine"."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        message = record.msg
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": message.text if isinstance(message, Fields) else record.getMessage(),
        }
        if isinstance(message, Fields):
            line |= {name: value for name, value in message.values.items() if name not in line}
        for fields in _missing(record):
            line |= fields.values
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TerminalHandler(logging.StreamHandler[TextIO]):
    """On a terminal a line may come while a bar of progress is drawn, perhaps by another process: it takes the bar's
    place, and the bar is drawn anew below it."""

    def format(self, record: logging.LogRecord) -> str:
        return CLEAR_LINE + super().format(record)


def configure(level: str, form: LogFormat, process: str, *, beside_bars: bool = False) -> None:
    """Everything that is logged in this process goes to stderr in this form.

    process: "api" or "engine". beside_bars: bars of progress may be drawn there.
    """
    handler = TerminalHandler(sys.stderr) if beside_bars else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _missing(record: logging.LogRecord) -> list[Fields]:
    """The id of the request, where there is one and the line does not have it."""
    request_id = current_request_id.get()
    has_it = isinstance(record.msg, Fields) and "request_id" in record.msg.values
    return [Fields(request_id=request_id)] if request_id and not has_it else []


def _written(value: object) -> str:
    """None is nothing; a text that would not be read back as one word is quoted."""
    if value is None:
        return ""
    text = str(value)
    is_plain = text.isascii() and text.isprintable() and not any(char in ' "=' for char in text)
    return text if is_plain else json.dumps(text)
