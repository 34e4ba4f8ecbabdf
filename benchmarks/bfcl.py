"""Function calling cases of the Berkeley Function Calling Leaderboard (BFCL v4): a prompt, the functions that may be
called, and the calls that count as right. Used by eval_tools.py; knows no server.

The cases are read from the wheel of `bfcl-eval`, which is not installed. What counts as right is what its checker for
Python says (bfcl_eval/eval_checker/ast_eval/ast_checker.py), oddities included, so that figures can be compared.
"""

from __future__ import annotations

import json
import random
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CATEGORIES = {"simple": "simple_python", "multiple": "multiple", "parallel": "parallel"}

_SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array"}  # the others have the same name
_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_IGNORED_IN_STRINGS = re.compile(r"[ ,./\-_*^]")
ABSENT = ""  # among the values of a parameter: it may be left out


@dataclass(frozen=True)
class Call:
    """arguments: None if what was written is no JSON object."""

    name: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True)
class Case:
    """functions: as BFCL describes them. answers: for each call, its function and the values that each parameter may
    have."""

    id: str
    category: str
    messages: Sequence[Mapping[str, str]]
    functions: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]

    def tools(self) -> list[dict[str, Any]]:
        """For the `tools` of a request."""
        return [{"type": "function", "function": described(function)} for function in self.functions]


def load_cases(wheel: Path, number: int, seed: int) -> list[Case]:
    """`number` cases of each category (all, if there are fewer), drawn with `seed`."""
    cases = []
    with zipfile.ZipFile(wheel) as archive:
        for category, file in CATEGORIES.items():
            entries = _lines(archive, f"bfcl_eval/data/BFCL_v4_{file}.json")
            answers = {
                entry["id"]: entry["ground_truth"]
                for entry in _lines(archive, f"bfcl_eval/data/possible_answer/BFCL_v4_{file}.json")
            }
            drawn = random.Random(f"{seed} {category}").sample(range(len(entries)), min(number, len(entries)))
            for i in sorted(drawn):
                entry = entries[i]
                cases.append(Case(entry["id"], category, entry["question"][0], entry["function"], answers[entry["id"]]))
    return cases


def _lines(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(name).decode().splitlines() if line]


def described(function: Mapping[str, Any]) -> dict[str, Any]:
    """Name, description and parameters, as OpenAI's API has them."""
    return {
        "name": called(function["name"]),
        "description": function["description"],
        "parameters": schema_of(function["parameters"]),
    }


def called(name: str) -> str:
    """OpenAI's API allows no dots in a function's name."""
    return name.replace(".", "_")


def schema_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """BFCL's description of a value as a JSON schema."""
    schema = {key: value for key, value in parameters.items() if key not in ("type", "optional")}
    kind = parameters.get("type", "any")
    if kind != "any":
        schema = {"type": _SCHEMA_TYPES.get(kind, kind), **schema}
    if "properties" in schema:
        schema["properties"] = {name: schema_of(value) for name, value in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = schema_of(schema["items"])
    return schema


def what_is_wrong(case: Case, calls: Sequence[Call]) -> str | None:
    """Why `calls` are not those of the case, in any order; None if they are. A reason for each call that may be the one
    that is missing."""
    if len(calls) != len(case.answers):
        return f"{len(calls)} calls instead of {len(case.answers)}"
    functions = {function["name"]: function for function in case.functions}
    left = list(calls)
    for answer in case.answers:
        ((name, values),) = answer.items()
        reasons = [_wrong_in_call(functions[name], call, values) for call in left]
        if None not in reasons:
            return "; ".join(filter(None, reasons))
        del left[reasons.index(None)]
    return None


def _wrong_in_call(function: Mapping[str, Any], call: Call, values: Mapping[str, Sequence[Any]]) -> str | None:
    """values: those allowed, by parameter."""
    if call.name != called(function["name"]):
        return f"{call.name} is called instead of {called(function['name'])}"
    if call.arguments is None:
        return "arguments that are no JSON object"
    described_parameters = function["parameters"]["properties"]
    for name, value in call.arguments.items():
        if name not in described_parameters or name not in values:
            return f"{name} is not expected"
        if not _is_right(value, described_parameters[name], values[name]):
            return f"{name} is {json.dumps(value)}, not one of {json.dumps(values[name])}"
    for name in [*function["parameters"]["required"], *(name for name in values if ABSENT not in values[name])]:
        if name not in call.arguments:
            return f"{name} is missing"
    return None


def _is_right(value: Any, parameter: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    kind = parameter["type"]
    expected = _PYTHON_TYPES[kind]
    inner = _PYTHON_TYPES[parameter["items"]["type"]] if kind in ("array", "tuple") else None
    if kind == "float" and type(value) is int:
        value = float(value)
    if not _has_type(value, expected, inner, allowed):
        return False
    if _type_allowed(allowed) not in (None, expected) or type(value) is not expected:
        return value in allowed
    if expected is dict:
        return _is_one_of_dicts(value, allowed)
    if inner is dict:
        return any(_are_dicts(value, dicts) for dicts in allowed)
    if expected is str:
        return _standard(value) in [_standard(item) for item in allowed if isinstance(item, str)]
    if expected is list:
        return [_standard(item) for item in value] in [[_standard(item) for item in items] for items in allowed]
    return value in allowed


def _has_type(value: Any, expected: type, inner: type | None, allowed: Sequence[Any]) -> bool:
    """The type described, or that of the values allowed, which is another one where they are names of variables."""
    if type(value) is not expected:
        return type(value) is _type_allowed(allowed)
    if inner is None:
        return True
    return any(
        not isinstance(items, list) or all(_has_type(item, inner, None, items) for item in value) for items in allowed
    )


def _type_allowed(allowed: Sequence[Any]) -> type | None:
    return next((type(item) for item in allowed if item != ABSENT), None)


def _is_one_of_dicts(value: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    return any(_is_dict(value, answer) for answer in allowed if answer != ABSENT)


def _is_dict(value: Mapping[str, Any], answer: Mapping[str, Sequence[Any]]) -> bool:
    """answer: the values allowed, by key."""
    return all(
        key in answer and _standard(item) in [_standard(one) for one in answer[key]] for key, item in value.items()
    ) and all(key in value or ABSENT in items for key, items in answer.items())


def _are_dicts(values: Sequence[Any], answers: Sequence[Any]) -> bool:
    return len(values) == len(answers) and all(
        _is_one_of_dicts(value, [answer]) for value, answer in zip(values, answers, strict=True)
    )


def _standard(value: Any) -> Any:
    """Texts without the signs and the case that BFCL does not look at; other values as they are."""
    return _IGNORED_IN_STRINGS.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
