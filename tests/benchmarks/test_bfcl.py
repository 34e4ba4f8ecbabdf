"""What counts as a right call, and what BFCL's descriptions are as JSON schemas."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import jsonschema_rs
import pytest
from bfcl import CATEGORIES, Call, Case, load_cases, schema_of, what_is_wrong

PARAMETERS = {
    "type": "dict",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "float"},
        "is_metric": {"type": "boolean", "optional": True},
        "at": {"type": "tuple", "items": {"type": "float"}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "window": {"type": "dict", "properties": {"from": {"type": "string"}, "to": {"type": "string"}}},
        "stops": {"type": "array", "items": {"type": "dict", "properties": {"name": {"type": "string"}}}},
        "data": {"type": "any"},
    },
    "required": ["city"],
}
FUNCTION = {"name": "weather.get", "description": "The weather.", "parameters": PARAMETERS}
OTHER = {"name": "news", "description": "News.", "parameters": {"type": "dict", "properties": {}, "required": []}}


def make_case(*answers: dict[str, list[object]]) -> Case:
    """answers: the values allowed by parameter, for a call each; all but those of `city` may be absent."""
    called = [{"weather.get": {"city": ["Rome", "Rome, Italy"], **answer}} for answer in answers or ({},)]
    return Case("case_0", "parallel", [{"role": "user", "content": "?"}], [FUNCTION, OTHER], called)


def is_right(case: Case, *arguments: dict[str, object] | None, name: str = "weather_get") -> bool:
    return what_is_wrong(case, [Call(name, given) for given in arguments]) is None


def test_types_become_those_of_json_schema():
    schema = schema_of(PARAMETERS)
    types = {name: value.get("type") for name, value in schema["properties"].items()}
    assert schema["type"] == "object" and schema["required"] == ["city"]
    assert types == {
        **{"city": "string", "days": "integer", "share": "number", "is_metric": "boolean", "at": "array"},
        **{"tags": "array", "window": "object", "stops": "array", "data": None},
    }
    assert schema["properties"]["at"]["items"] == {"type": "number"}
    assert schema["properties"]["stops"]["items"]["type"] == "object"
    assert "optional" not in schema["properties"]["is_metric"]
    jsonschema_rs.meta.validate(schema)


def test_a_parameter_may_be_called_type_or_items():
    schema = schema_of({"type": "dict", "properties": {"type": {"type": "float"}, "items": {"type": "any"}}})
    assert schema["properties"] == {"type": {"type": "number"}, "items": {}}


def test_functions_are_offered_under_names_without_dots():
    assert [tool["function"]["name"] for tool in make_case().tools()] == ["weather_get", "news"]


def test_texts_are_compared_without_case_and_punctuation():
    for city in ("Rome", "ROME", " rome", "Rome, Italy", "rome-italy", "Rome/Italy."):
        assert is_right(make_case(), {"city": city})
    for city in ("Roma", "Rome!", "", 5, None):
        assert not is_right(make_case(), {"city": city})


@pytest.mark.parametrize(
    ("name", "allowed", "right", "wrong"),
    [
        ("days", [3, 4], [3, 4], [5, "3", 3.0, True]),
        ("share", [0.5, 2.0], [0.5, 2], ["0.5", 0.4]),
        ("is_metric", [True], [True], [False, "true"]),
        ("at", [[1.5, 2.0]], [[1.5, 2.0]], [[1.5], [2.0, 1.5], "1.5", ["a", "b"]]),
        ("tags", [["a b", "c"]], [["A b", "c"], ["ab", "C"]], [["c", "a b"], ["a b"], [1, 2]]),
        ("window", [{"from": ["May"], "to": ["June", ""]}], [{"from": "may"}], [{"to": "June"}, {"from": 5}, {"a": 1}]),
        ("stops", [[{"name": ["A"]}, {"name": ["B"]}]], [[{"name": "a"}, {"name": "b"}]], [[{"name": "a"}], []]),
        ("data", ["numbers"], ["numbers"], ["other"]),
        ("days", ["today"], ["today"], ["Today", 1]),  # the name of a variable, where a number is described
    ],
)
def test_a_value_must_be_one_of_those_allowed(name, allowed, right, wrong):
    case = make_case({name: allowed})
    assert [value for value in right if not is_right(case, {"city": "Rome", name: value})] == []
    assert [value for value in wrong if is_right(case, {"city": "Rome", name: value})] == []


def test_what_may_be_absent_may_be_given_too():
    case = make_case({"days": [3, ""]})
    assert is_right(case, {"city": "Rome"}) and is_right(case, {"city": "Rome", "days": 3})
    assert not is_right(case, {"city": "Rome", "days": 4})
    assert not is_right(make_case({"days": [3]}), {"city": "Rome"})


def test_what_is_not_expected_is_wrong():
    assert what_is_wrong(make_case(), [Call("weather_get", {"city": "Rome", "days": 3})]) == "days is not expected"
    assert what_is_wrong(make_case(), [Call("weather_get", {})]) == "city is missing"
    assert what_is_wrong(make_case(), [Call("weather_get", None)]) == "arguments that are no JSON object"
    assert what_is_wrong(make_case(), [Call("news", {})]) == "news is called instead of weather_get"


def test_the_number_of_calls_must_be_right():
    assert what_is_wrong(make_case(), []) == "0 calls instead of 1"
    assert not is_right(make_case(), {"city": "Rome"}, {"city": "Rome"})


def test_several_calls_may_come_in_any_order():
    case = make_case({"days": [1]}, {"days": [2]}, {"days": [2]})
    one, two = {"city": "Rome", "days": 1}, {"city": "Rome", "days": 2}
    assert is_right(case, one, two, two) and is_right(case, two, one, two)
    assert not is_right(case, one, one, two)


def test_cases_are_drawn_by_the_seed(tmp_path: Path):
    wheel = tmp_path / "bfcl_eval.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in CATEGORIES.values():
            entries = [{"id": f"{file}_{i}", "question": [[]], "function": [FUNCTION]} for i in range(9)]
            answers = [{"id": f"{file}_{i}", "ground_truth": [{"weather.get": {"days": [i]}}]} for i in range(9)]
            archive.writestr(f"bfcl_eval/data/BFCL_v4_{file}.json", "\n".join(map(json.dumps, entries)))
            archive.writestr(f"bfcl_eval/data/possible_answer/BFCL_v4_{file}.json", "\n".join(map(json.dumps, answers)))
    drawn = load_cases(wheel, 3, seed=0)
    assert [case.category for case in drawn] == ["simple"] * 3 + ["multiple"] * 3 + ["parallel"] * 3
    assert all(case.id.endswith(f"_{case.answers[0]['weather.get']['days'][0]}") for case in drawn)
    assert drawn == load_cases(wheel, 3, seed=0) != load_cases(wheel, 3, seed=1)
    assert len(load_cases(wheel, 100, seed=0)) == 27
