"""Grammars tried in a process of their own: hostile ones end in time, and nothing else does."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from anllm.errors import NotReadyError
from anllm.structured.checker import GrammarChecker
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import GrammarSource, choice, grammar, json_object, json_schema, regex
from anllm.structured.messages import CompileLimits
from anllm.structured.vocabulary import Vocabulary
from processes import children

UNSUPPORTED = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 5}}}}


@pytest.fixture
def own_checker(vocabulary: Vocabulary) -> Iterator[GrammarChecker]:
    checker = GrammarChecker(vocabulary, CompileLimits(time_s=30.0), max_cached=2)
    yield checker
    checker.close()


def slow(number: int = 0) -> GrammarSource:
    """Takes ten seconds to compile."""
    return json_schema({"type": "integer", "multipleOf": 999_983, "title": str(number)}, strict=True)


def error_of(checker: GrammarChecker, source: GrammarSource) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        checker.check(source)
    return caught.value


def nested_any_of(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 4} for n in range(levels)}
    return {"$defs": {**defs, f"l{levels}": {"type": "string"}}, "$ref": "#/$defs/l0"}


def references(count: int, **beside: Any) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}], **beside} for n in range(count)}
    return {"$defs": {**defs, f"d{count}": {}}, "$ref": "#/$defs/d0"}


def test_a_grammar_that_compiles_is_given_back(checker: GrammarChecker) -> None:
    for source in (json_object(), regex("a+"), choice(["a", "b"]), grammar('start: "a"')):
        assert checker.check(source) == source.text


def test_gbnf_is_given_back_as_lark(checker: GrammarChecker) -> None:
    lark = checker.check(grammar('root ::= "a" digits\ndigits ::= [0-9]+'))
    assert "start:" in lark
    assert checker.check(grammar(lark)).startswith(lark)


@pytest.mark.parametrize(
    "source",
    [
        grammar('root ::= "a" missing'),
        grammar('root := "a"'),
        grammar("nothing of the kind"),
        grammar('root ::= "a"\nroot ::= "b" other'),
        grammar('start: "a" missing'),
        grammar("start: a\na: a"),
        regex("(["),
        regex("(?=a)a"),
        grammar("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ],
)
def test_a_grammar_that_does_not_compile_is_an_error(checker: GrammarChecker, source: GrammarSource) -> None:
    assert error_of(checker, source).message.startswith("Invalid grammar: ")


def test_a_strict_schema_with_something_unsupported_is_refused_with_its_place(checker: GrammarChecker) -> None:
    error = error_of(checker, json_schema(UNSUPPORTED, strict=True))
    assert (error.pointer, error.keyword) == ("/properties/a", "not")
    assert "#/properties/a" in error.message and "not" in error.message


@pytest.mark.parametrize("strict", [False, None])
def test_else_it_is_left_out_and_logged(
    checker: GrammarChecker, strict: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = json_schema({**UNSUPPORTED, "title": str(strict)}, strict=strict)
    with caplog.at_level(logging.INFO, logger="anllm.structured.checker"):
        assert checker.check(source) == source.lenient_text
    assert [record.getMessage() for record in caplog.records] == [
        'ignored in a schema that is not strict: Unimplemented keys: ["not"].'
    ]


def test_the_log_names_all_that_is_left_out(checker: GrammarChecker, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"properties": {"a": {"type": "string", "format": "zz"}, "b": {"not": {}}, "c": {"uniqueItems": True}}}
    with caplog.at_level(logging.INFO, logger="anllm.structured.checker"):
        checker.check(json_schema(schema, strict=False))
    for word in ("zz", "not", "uniqueItems"):
        assert word in caplog.text


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "string", "pattern": "(["}, ""),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "/properties/a"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, ""),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, ""),
    ],
)
def test_what_leniency_does_not_help_is_refused(
    checker: GrammarChecker, schema: Any, pointer: str, strict: bool
) -> None:
    assert error_of(checker, json_schema(schema, strict=strict)).pointer == pointer


def test_a_remote_reference_is_refused_and_not_fetched(checker: GrammarChecker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        error = error_of(checker, json_schema({"items": {"$ref": url}}, strict=False))
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (error.pointer, error.keyword) == ("/items", "$ref")


HOSTILE = {
    "nested counts": lambda: json_schema({"type": "string", "pattern": "^(a{1,9999}){1,9999}$"}, strict=True),
    "minItems": lambda: json_schema({"type": "array", "minItems": 1_000_000}, strict=True),
    "maxLength": lambda: json_schema({"type": "string", "maxLength": 100_000_000}, strict=True),
    "anyOf": lambda: json_schema(nested_any_of(14), strict=True),
    "enum": lambda: json_schema({"enum": [f"value {n}" for n in range(50_000)]}, strict=True),
    "choice": lambda: choice([f"value {n}" for n in range(50_000)]),
    "multipleOf": slow,
    "multipleOf in Lark": lambda: grammar('start: %json {"type": "integer", "multipleOf": 999983}'),
    "references": lambda: json_schema(references(5_000), strict=True),
    "intersections": lambda: json_schema(references(2_000, type="object"), strict=True),
    "properties": lambda: json_schema(
        {"properties": {f"p{n}": {"type": "integer"} for n in range(20_000)}}, strict=True
    ),
    "rules": lambda: grammar("start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(20_000)) + 'r20000: "a"'),
    "gbnf rules": lambda: grammar(
        "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(3_000)) + 'r3000 ::= "a"'
    ),
    "doubling": lambda: grammar("start: R0\n" + "".join(f"R{n}: R{n + 1} R{n + 1}\n" for n in range(60)) + 'R60: "a"'),
    "alternatives": lambda: regex("|".join(f"[a-z]{{{n}}}x{n}" for n in range(3_000))),
    "classes": lambda: regex(r"(\p{L}\p{M}?){1,100000}(\w{1,1000}\s){1,1000}"),
    "optional": lambda: regex("".join(f"[{chr(97 + n % 26)}-z]?" for n in range(5_000))),
    "intersected": lambda: grammar("start: X\nX: /.*a.{15}/ & /.*b.{17}/ & /.*c.{18}/"),
    "ambiguous": lambda: grammar('start: s\ns: s s s | s s | /[a-z]/ | /[a-z][a-z]/ | ""'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_ends_in_time(checker: GrammarChecker, name: str) -> None:
    source = HOSTILE[name]()
    started = time.monotonic()
    with contextlib.suppress(GrammarError):
        checker.check(source)
    assert time.monotonic() - started < 30  # the limit is 2 s; the rest is for a busy machine


def test_the_others_go_on_while_a_hostile_one_is_tried(vocabulary: Vocabulary) -> None:
    checker = GrammarChecker(vocabulary, CompileLimits(time_s=60.0))
    checker.check(json_object())
    thread = threading.Thread(target=error_of, args=(checker, slow()))
    thread.start()
    for number in range(1, 5):
        checker.check(regex(f"a{{{number}}}"))
    assert thread.is_alive(), "it is tried still"
    assert checker.pid is not None
    for child in children(checker.pid):  # the others' have ended, or are just about to
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    thread.join()
    checker.close()


def test_many_threads_may_ask_at_once(own_checker: GrammarChecker) -> None:
    sources = [regex(f"a{{{n}}}") for n in range(1, 9)]
    given: list[str] = []
    threads = [threading.Thread(target=lambda s=s: given.append(own_checker.check(s))) for s in sources * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == sorted(source.text for source in sources * 2)


@pytest.fixture
def tried(own_checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> list[GrammarSource]:
    """What was not remembered."""
    sources: list[GrammarSource] = []
    really_try = own_checker._try

    def note_and_try(source: GrammarSource) -> object:
        sources.append(source)
        return really_try(source)

    monkeypatch.setattr(own_checker, "_try", note_and_try)
    return sources


def test_outcomes_are_remembered_good_and_bad(own_checker: GrammarChecker, tried: list[GrammarSource]) -> None:
    first = error_of(own_checker, regex("(["))
    own_checker.check(regex("a"))
    again = error_of(own_checker, regex("(["))
    own_checker.check(regex("a"))
    assert tried == [regex("(["), regex("a")]
    assert again.message == first.message and again is not first


def test_the_oldest_outcomes_are_forgotten(own_checker: GrammarChecker, tried: list[GrammarSource]) -> None:
    for pattern in ("([", "a", "b"):
        with contextlib.suppress(GrammarError):
            own_checker.check(regex(pattern))
    own_checker.check(regex("b"))
    error_of(own_checker, regex("(["))
    assert tried == [regex(pattern) for pattern in ("([", "a", "b", "([")]


def test_a_process_that_ended_is_started_again(own_checker: GrammarChecker) -> None:
    own_checker.check(regex("a"))
    assert own_checker.pid is not None
    os.kill(own_checker.pid, signal.SIGKILL)
    while own_checker.pid is not None:
        time.sleep(0.01)
    assert own_checker.check(regex("b"))


def test_closing_ends_the_process(own_checker: GrammarChecker) -> None:
    own_checker.check(regex("a"))
    own_checker.close()
    own_checker.close()
    assert own_checker.pid is None


def test_a_process_that_can_not_start_is_told(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    checker = GrammarChecker(vocabulary)
    with pytest.raises(NotReadyError):
        checker.check(regex("a"))
    checker.close()


LOOKING = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "^(?!x)[a-z]+$"}}}


def test_a_pattern_that_looks_around_is_left_out_unless_strict(checker: GrammarChecker) -> None:
    assert "(?!" not in checker.check(json_schema(LOOKING, strict=None))
    assert "look-around" in str(error_of(checker, json_schema(LOOKING, strict=True)))
    kept = {"enum": [{"pattern": "(?=x)"}]}
    assert "(?=x)" in checker.check(json_schema(kept, strict=None))
