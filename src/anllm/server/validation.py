"""Checks a JSON object against a pydantic model; the first fault becomes an InvalidRequestError in OpenAI's words."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from anllm.errors import InvalidRequestError
from anllm.server.body import JsonObject

M = TypeVar("M", bound=BaseModel)

_TYPES = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "string_or_array": "a string or an array",
    "string_or_object": "a string or an object",
}
_BOUNDS = {  # pydantic's type -> key of the bound, what a value must be, end of OpenAI's code
    "greater_than_equal": ("ge", ">=", "below_min_value"),
    "greater_than": ("gt", ">", "below_min_value"),
    "less_than_equal": ("le", "<=", "above_max_value"),
    "less_than": ("lt", "<", "above_max_value"),
}
_MAX_SHOWN_CHARS = 60


def validate(model: type[M], body: JsonObject) -> M:
    """Raises InvalidRequestError with the contract's `code` and the plain path of the field as `param`."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _translate(error.errors(include_url=False)[0]) from None


def invalid(param: str, rule: str, code: str | None = "invalid_value", **given: object) -> InvalidRequestError:
    """An error whose text holds field, rule and, if passed as `given`, the value."""
    suffix = f", got {shown(given['given'])}" if given else ""
    return InvalidRequestError(f"Invalid '{param}': {rule}{suffix}.", param=param, code=code)


def missing(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def shown(value: object) -> str:
    """The value as a person wants to see it in a message: short, and on one line."""
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
        case int() | float() | None:
            text = json.dumps(value)
        case _:
            text = json.dumps(str(value)[: _MAX_SHOWN_CHARS + 1], ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."


def _translate(error: Any) -> InvalidRequestError:
    kind: str = error["type"]
    location: tuple[str | int, ...] = error["loc"]
    given: object = error["input"]
    context: dict[str, Any] = error.get("ctx") or {}
    param = _path(location)
    if kind == "missing" or (given is None and isinstance(location[-1], str)):
        return missing(param)
    if kind in _TYPES:
        return invalid(param, f"must be {_TYPES[kind]}", "invalid_type", given=given)
    if kind in _BOUNDS:
        key, sign, code = _BOUNDS[kind]
        bound = context[key]
        family = "integer" if isinstance(bound, int) else "decimal"
        return invalid(param, f"must be {sign} {bound:.15g}", f"{family}_{code}", given=given)
    if kind == "literal_error":
        code = "invalid_value" if isinstance(given, str) else "invalid_type"
        return invalid(param, f"must be {context['expected']}", code, given=given)
    if kind == "too_short":
        return invalid(param, "must not be empty", "empty_array")
    if kind == "too_long":
        return invalid(param, f"must have at most {context['max_length']} items", "array_above_max_length")
    if kind == "string_too_short":
        return invalid(param, "must not be empty", "empty_string")
    if kind == "string_too_long":
        return invalid(param, f"must have at most {context['max_length']} characters", "string_above_max_length")
    return invalid(param, str(error["msg"]).lower(), given=given)


def _path(location: tuple[str | int, ...]) -> str:
    """`messages[0].content`: without the names that unions give their branches, which stand in angle brackets."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path
