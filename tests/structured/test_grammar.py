"""What each kind of grammar allows, and what is refused before anything is compiled."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from anllm.structured.errors import GrammarError
from anllm.structured.grammar import (
    MAX_GRAMMAR_BYTES,
    GrammarSource,
    around_schemas,
    choice,
    embedded_schema,
    grammar,
    is_of_schemas,
    json_object,
    json_schema,
    regex,
)

Accepts = Callable[[GrammarSource, str], bool]

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("text", ["{}", '{"a": [1, {"b": null}]}', '{\n  "a": [\n    1\n  ]\n}'])
def test_json_object_takes_any_object(accepts: Accepts, text: str) -> None:
    assert accepts(json_object(), text)


@pytest.mark.parametrize("text", ["[]", "1", '"{}"', " {}", "{} ", "{", '{"a":}', '{"a":      1}'])
def test_json_object_takes_nothing_else(accepts: Accepts, text: str) -> None:
    assert not accepts(json_object(), text)


def test_blanks_between_tokens_are_bounded(accepts: Accepts) -> None:
    deepest: Any = 1
    for _ in range(10):
        deepest = {"a": [deepest]} if isinstance(deepest, int) else {"a": deepest}
    for text in (json.dumps(deepest, indent=2), json.dumps(deepest, indent="\t"), json.dumps(deepest)):
        assert accepts(json_object(), text)
    assert not accepts(json_object(), '{"a":\n\n1}')
    assert not accepts(json_object(), "{\n" + " " * 41 + "}")


def test_a_schema_takes_its_documents_in_the_order_of_its_properties(accepts: Accepts) -> None:
    source = json_schema(PERSON, strict=True)
    assert accepts(source, '{"name": "Zoë", "tags": [1, 2]}')
    assert not accepts(source, '{"tags": [1, 2], "name": "Zoë"}')
    assert not accepts(source, '{"name": "Zoë", "age": 3}')
    assert not accepts(source, "{}")


def test_keys_and_values_beyond_ascii_are_written_as_they_are(accepts: Accepts) -> None:
    values = ["zażółć", "北京", "🫠", "naïve"]
    schema = {"properties": {"größe": {"enum": values}}, "required": ["größe"], "additionalProperties": False}
    source = json_schema({"type": "object", **json.loads(json.dumps(schema))}, strict=True)
    for value in values:
        assert accepts(source, f'{{"größe": "{value}"}}')
    assert not accepts(source, '{"größe": "?"}')


def test_notes_in_a_schema_are_ignored(accepts: Accepts) -> None:
    notes = {"$schema": "https://example.org/none", "title": "x", "description": "y", "default": 5, "examples": [6]}
    assert accepts(json_schema({**notes, "type": "integer", "deprecated": True}, strict=True), "7")


def test_a_request_can_not_set_the_compilers_options(accepts: Accepts) -> None:
    source = json_schema({"type": "object", "x-guidance": {"whitespace_pattern": " *", "lenient": True}}, strict=True)
    assert not accepts(source, "{      }")


@pytest.mark.parametrize(("strict", "has_lenient"), [(True, False), (False, True), (None, True)])
def test_only_a_strict_schema_has_no_second_chance(strict: bool | None, has_lenient: bool) -> None:
    assert (json_schema({}, strict=strict).lenient_text is not None) == has_lenient


def test_true_allows_all_and_false_nothing(accepts: Accepts) -> None:
    assert accepts(json_schema(True, strict=True), "[1]")
    with pytest.raises(GrammarError, match="allows nothing"):
        json_schema(False, strict=None)


@pytest.mark.parametrize("schema", [{"const": float("nan")}, {"maximum": float("inf")}])
def test_a_number_that_json_has_not_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="not finite"):
        json_schema(schema, strict=True)


@pytest.mark.parametrize(
    "make", [regex, lambda text: choice([text]), grammar, lambda t: json_schema({"const": t}, strict=True)]
)
def test_half_a_surrogate_pair_is_refused(make: Callable[[str], GrammarSource]) -> None:
    with pytest.raises(GrammarError, match="surrogate"):
        make('root ::= "\ud83c"')


@pytest.mark.parametrize(
    "make", [regex, lambda text: choice([text]), grammar, lambda t: json_schema({"const": t}, strict=True)]
)
def test_a_text_over_the_limit_is_refused(make: Callable[[str], GrammarSource]) -> None:
    with pytest.raises(GrammarError, match="must not be longer than"):
        make("a" * (MAX_GRAMMAR_BYTES + 1))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a/b", "a/b"),
        (r"\d{3}", "123"),
        ("^abc$", "abc"),
        ("a\nb", "a\nb"),
        ("(?i)ja|nein", "JA"),
        ("ä+", "ää"),
        ('"', '"'),
    ],
)
def test_a_regex_matches_the_whole_text(accepts: Accepts, pattern: str, text: str) -> None:
    assert accepts(regex(pattern), text)
    assert not accepts(regex(pattern), text + "~")


def test_a_choice_is_to_the_letter(accepts: Accepts) -> None:
    options = ["yes", "no.", "a|b", "(c", '"d"\n/\\', "π ≈ 3", "", "{{x}}", "$1 ^2 #3"]
    for option in options:
        assert accepts(choice(options), option)
    for other in ("a", "nox", "c", "maybe", "YES"):
        assert not accepts(choice(options), other)


def test_a_choice_without_options_is_refused() -> None:
    with pytest.raises(GrammarError, match="at least one option"):
        choice([])


def test_a_lark_grammar_keeps_its_line_numbers(accepts: Accepts) -> None:
    assert accepts(grammar('start: "a" b\nb: /[0-9]+/'), "a12")
    with pytest.raises(GrammarError, match=r"2\(4\): unknown name"):
        accepts(grammar('start: "a" b\nb: c'), "a")


def test_an_empty_grammar_is_refused() -> None:
    with pytest.raises(GrammarError, match="empty"):
        grammar(" \n")


def test_the_servers_own_grammar_holds_schemas(accepts: Accepts) -> None:
    source = around_schemas(f'start: "<call>" call "</call>"\ncall: {embedded_schema(PERSON)}')
    assert accepts(source, '<call>{"name": "x"}</call>')
    assert is_of_schemas(source.text)


def test_a_users_grammar_does_not_pass_for_the_servers_own() -> None:
    forged = grammar(json_schema(PERSON, strict=True).text)
    assert not is_of_schemas(forged.text) and forged.schema_text is None


def test_the_schema_can_be_read_from_the_text() -> None:
    source = json_schema(PERSON, strict=True)
    assert source.schema_text is not None and json.loads(source.schema_text)["required"] == ["name"]


HUGE = 300_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: grammar("\n" * 3 * HUGE + 'start: "a"'),
        lambda: json_schema({"enum": list(range(HUGE // 3))}, strict=False),
        lambda: json_schema({"properties": {str(n): {"$ref": "#/$defs/a"} for n in range(20_000)}}, strict=False),
    ],
)
def test_a_huge_text_takes_no_time_to_make(make: Callable[[], GrammarSource]) -> None:
    started_s = time.process_time()
    make()
    assert time.process_time() - started_s < 5  # quadratic would take hours
