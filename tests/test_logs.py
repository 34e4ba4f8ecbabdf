"""Log lines in text and in JSON."""

import contextvars
import io
import json
import logging
import sys
from datetime import UTC, datetime

import pytest

from anllm.logs import Fields, JsonFormatter, TerminalHandler, TextFormatter, current_request_id


def record(message: object, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("anllm.x", logging.INFO, __file__, 1, message, args, None)
    made.created = 0.25
    made.__dict__.update(more)
    return made


def test_fields_are_key_and_value_in_text() -> None:
    fields = Fields("gone", request_id="req_1", ttft_ms=3.5, path="/v1/x y", error=None, stream=True, given='a"b')
    assert str(fields) == 'gone request_id=req_1 ttft_ms=3.5 path="/v1/x y" error= stream=True given="a\\"b"'
    assert str(Fields(status=499)) == "status=499"
    assert str(Fields(path="a\nb=1")) == 'path="a\\nb=1"', "nobody forges a line"


def test_on_a_terminal_a_line_takes_the_place_of_a_bar() -> None:
    """Of one that is just drawn, with the cursor behind it."""
    stream = io.StringIO("Loading weights 40%")
    stream.seek(0, io.SEEK_END)
    TerminalHandler(stream).emit(record("said"))
    assert stream.getvalue() == "Loading weights 40%\r\x1b[2Ksaid\n"


def test_json_lines_have_the_fields_as_they_are() -> None:
    line = json.loads(JsonFormatter("api").format(record(Fields("gone", request_id="req_1", tokens=3, itl_ms=None))))
    assert line == {
        "time": datetime.fromtimestamp(0.25, UTC).isoformat(timespec="milliseconds"),
        "level": "info",
        "logger": "anllm.x",
        "process": "api",
        "message": "gone",
        "request_id": "req_1",
        "tokens": 3,
        "itl_ms": None,
    }


def test_json_lines_of_others_are_formatted_and_stay_one_line() -> None:
    text = JsonFormatter("engine").format(record("two\n%s \u2028", "é"))
    assert text.isascii() and "\n" not in text
    assert json.loads(text)["message"] == "two\né \u2028"


def test_json_lines_have_tracebacks() -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        line = JsonFormatter("api").format(record(Fields(request_id="r"), exc_info=sys.exc_info()))
    assert "ZeroDivisionError" in json.loads(line)["exception"] and "\n" not in line


def test_a_field_does_not_take_the_place_of_what_every_line_has() -> None:
    line = json.loads(JsonFormatter("api").format(record(Fields("text", level="x", message="y"))))
    assert (line["level"], line["message"]) == ("info", "text")


@pytest.mark.parametrize("message", ["plain", Fields("with fields", tokens=3)])
def test_lines_about_a_request_have_its_id_whoever_writes_them(message: object) -> None:
    def formatted() -> tuple[str, str]:
        current_request_id.set("req_1")
        return TextFormatter().format(record(message)), JsonFormatter("api").format(record(message))

    text, line = contextvars.copy_context().run(formatted)
    assert text.endswith(" request_id=req_1")
    assert json.loads(line)["request_id"] == "req_1"
    assert "request_id" not in TextFormatter().format(record(message))
    assert "request_id" not in json.loads(JsonFormatter("api").format(record(message)))


def test_an_id_that_stands_in_the_line_stands_there_once() -> None:
    def formatted() -> tuple[str, str]:
        current_request_id.set("req_1")
        told = record(Fields("gone", request_id="req_2"))
        return TextFormatter().format(told), JsonFormatter("api").format(told)

    text, line = contextvars.copy_context().run(formatted)
    assert text.endswith(" gone request_id=req_2") and "req_1" not in text
    assert json.loads(line)["request_id"] == "req_2"


def test_a_traceback_comes_behind_the_line_in_text() -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        text = TextFormatter().format(record("broken", exc_info=sys.exc_info()))
    assert text.splitlines()[0].endswith("INFO anllm.x: broken") and "ZeroDivisionError" in text
