"""`oneOf` becomes `anyOf` where the branches are known to exclude each other, and nowhere else."""

import time
from typing import Any

import pytest

from anllm.structured.one_of import with_disjoint_one_of


def tagged(*values: str, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"enum": list(values)}}, "required": ["kind"], **others}


DEFS = {"cat": tagged("cat"), "dog": {**tagged(), "properties": {"kind": {"const": "dog"}}}}


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "string"}, {"type": ["null", "boolean"]}],
        [tagged("a"), tagged("b", "c")],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}],
    ],
)
def test_branches_that_exclude_each_other_may_be_any(branches: list[Any]) -> None:
    schema = {"$defs": DEFS, "items": {"oneOf": branches}}
    assert with_disjoint_one_of(schema)["items"] == {"anyOf": branches}
    assert schema["items"] == {"oneOf": branches}


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{}, {"type": "string"}],
        [True, {"type": "string"}],
        [tagged("a"), tagged("a", "b")],
        [tagged("a"), tagged("b", required=[])],
        [tagged("a"), tagged("b", type=["object", "null"])],
        [tagged("a"), {**tagged(), "properties": {"kind": {"const": 1}}}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/none"}],
    ],
)
def test_other_branches_stay(branches: list[Any]) -> None:
    schema = {"$defs": DEFS, "oneOf": branches}
    assert with_disjoint_one_of(schema) == schema


def test_values_and_any_of_beside_it_stay() -> None:
    branches = [{"type": "integer"}, {"type": "string"}]
    schema = {"oneOf": branches, "anyOf": [{}], "default": {"oneOf": branches}}
    assert with_disjoint_one_of(schema) == schema


def test_a_hostile_schema_takes_no_time() -> None:
    names = [str(n) for n in range(5_000)]
    wide = {"type": "object", "properties": {name: {"enum": names[:90]} for name in names[:100]}, "required": names}
    unions = [{"oneOf": [{"$ref": "#/$defs/wide"}, {"$ref": "#/$defs/cat"}] * 20} for _ in range(1_000)]
    schema = {"$defs": {**DEFS, "wide": wide}, "items": unions}
    started_s = time.process_time()
    with_disjoint_one_of(schema)
    assert time.process_time() - started_s < 2
