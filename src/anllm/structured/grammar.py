"""The text of a grammar, from what a request may ask for. Any thread; compiles nothing.

All become Lark as llguidance has it (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md), since text
crosses between processes. What can be seen to be wrong without compiling is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llguidance import LLMatcher

from anllm.structured.errors import GrammarError
from anllm.structured.one_of import with_disjoint_one_of
from anllm.structured.schema import check_schema, without_look_around

MAX_GRAMMAR_BYTES = 1_000_000
MAX_GBNF_BYTES = 100_000

WHITESPACE = r" ?(\n[ \t]{0,40})?"
"""Between the tokens of JSON: a space, or a new line with what indents it, or nothing. Without a bound, small models
write blanks until max_tokens. 40 is ten levels indented by 4, or twenty by 2."""

# With a way to make tokens of forced text, llguidance would allow one token alone; vocabulary.py gives it none. Of such
# lines the last one counts, so it stands at the end, where the user's lines keep their numbers. The comment marks a
# grammar of schemas; nobody can forge it, since every text ends with one of these two.
_END = '\n%llguidance {"no_forcing": true}\n'
_SCHEMA_END = f"{_END}// of schemas\n"

# Others than these the compiler would look for, and fail.
_DRAFTS = re.compile(r"https?://json-schema\.org/(draft-0[4-7]|draft/2019-09|draft/2020-12)/schema#?")

# As llguidance tells them apart; line by line, since over a whole text of blank lines its search is quadratic.
_LARK_LINE = re.compile(r"\s*(%llguidance\b|start\s*:)")

_JSON_RULE = "start: %json "
FRAMED = "%gbnf"


@dataclass(frozen=True)
class GrammarSource:
    """What is asked for, not known to compile yet. Made by the functions below, for GrammarChecker.check.

    text: a Lark grammar; in GBNF where is_gbnf.
    lenient_text: taken where text holds something that is not supported; None where that is an error.
    frame: of a GBNF grammar, the Lark grammar that it stands in, where FRAMED is; "" for none.
    schema_text: the JSON schema that it was made from.
    """

    text: str
    lenient_text: str | None = None
    is_gbnf: bool = False
    frame: str = ""
    schema_text: str | None = None


def json_object() -> GrammarSource:
    """Any JSON object. It begins with its brace, so that no blanks come before."""
    return GrammarSource(_schema_grammar({"type": "object"}))


def json_schema(schema: object, *, strict: bool | None) -> GrammarSource:
    """A JSON document that the schema allows. Properties come in the schema's order.

    strict: True refuses what is not supported; else such keywords are left out, and a log line names them.
    Raises GrammarError for an invalid schema, with its place.
    """
    check_schema(schema)
    if schema is False:
        raise GrammarError("the schema allows nothing.", pointer="")
    document = {} if schema is True else schema
    assert isinstance(document, dict)
    try:
        text = _schema_grammar(document)
        lenient_text = None if strict is True else _schema_grammar(document, is_lenient=True)
        return GrammarSource(text, lenient_text, schema_text=json.dumps(document))
    except ValueError as error:  # NaN and the infinities, which are no JSON
        raise GrammarError("a number of the schema is not finite.", pointer="") from error


def regex(pattern: str) -> GrammarSource:
    """Text that the pattern matches as a whole, in the syntax of Rust's regex crate."""
    return GrammarSource(_checked(_from_regex(pattern)))


def choice(options: Sequence[str]) -> GrammarSource:
    """One of these texts, to the letter."""
    if not options:
        raise GrammarError("a choice needs at least one option.")
    return GrammarSource(_checked(_from_regex("|".join(map(_literal, options)))))


def grammar(text: str) -> GrammarSource:
    """A grammar of the user's: Lark where it has a rule `start:` or a line %llguidance, else GBNF with `root ::=`."""
    if not text.strip():
        raise GrammarError("the grammar is empty.")
    if any(map(_LARK_LINE.match, text.splitlines())):
        return GrammarSource(_checked(text + _END))
    if len(text) > MAX_GBNF_BYTES:
        raise GrammarError(f"a GBNF grammar must not be longer than {MAX_GBNF_BYTES} bytes, got {len(text)}.")
    return GrammarSource(_checked(text), is_gbnf=True)


def from_gbnf(lark: str, frame: str = "") -> str:
    """The grammar that llguidance made of GBNF, as the checker gives it out."""
    return frame.replace(FRAMED, lark + _END, 1) or lark + _END


def embedded(source: GrammarSource, compose: Callable[[str], str]) -> GrammarSource:
    """The grammar as a part of a larger one. compose: from the body of a Lark rule to the whole, the server's own."""
    if source.is_gbnf:
        return replace(source, frame=_checked(compose(f"%lark {{\n{FRAMED}\n}}") + _END))
    end = _SCHEMA_END if is_of_schemas(source.text) else _END

    def framed(text: str) -> str:
        is_json = is_of_schemas(text) and text.startswith(_JSON_RULE)
        body = text.removeprefix("start: ").removesuffix(_SCHEMA_END) if is_json else f"%lark {{\n{text}\n}}"
        return _checked(compose(body) + end)

    lenient_text = None if source.lenient_text is None else framed(source.lenient_text)
    return replace(source, text=framed(source.text), lenient_text=lenient_text)


def around_schemas(lark: str, lenient_lark: str | None = None) -> GrammarSource:
    """A grammar of the server's own around schemas (embedded_schema), a tool call's for one. Never a user's text."""
    lenient_text = None if lenient_lark is None else _checked(lenient_lark + _SCHEMA_END)
    return GrammarSource(_checked(lark + _SCHEMA_END), lenient_text)


def embedded_schema(schema: dict[str, object], *, is_lenient: bool = False, has_fixed_spacing: bool = False) -> str:
    """`%json {...}`, which stands in a Lark rule for a document that the schema allows. On one line.

    has_fixed_spacing: one space behind each comma and colon, and no other whitespace, as templates write calls.
    schema: went through check_schema. The compiler's options are ours alone: x-guidance of a request does not count.
    Raises ValueError for numbers that JSON does not have.
    """
    spacing: dict[str, object] = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": WHITESPACE,
    }
    if has_fixed_spacing:
        spacing = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    options = {**spacing, "coerce_one_of": is_lenient, "lenient": is_lenient}
    if is_lenient:
        schema = without_look_around(schema)
    document = {**with_disjoint_one_of(schema), "x-guidance": options}
    if not _DRAFTS.fullmatch(str(document.get("$schema"))):
        document.pop("$schema", None)
    return f"%json {json.dumps(document, ensure_ascii=False, allow_nan=False)}"


def is_of_schemas(text: str) -> bool:
    """Whether the grammar is a schema's or ours around schemas, so that its masks are cheap."""
    return text.endswith(_SCHEMA_END)


def _schema_grammar(schema: dict[str, object], *, is_lenient: bool = False) -> str:
    return _checked(f"start: {embedded_schema(schema, is_lenient=is_lenient)}{_SCHEMA_END}")


def _from_regex(pattern: str) -> str:
    made = json.loads(LLMatcher.grammar_from_regex(_checked(pattern)))
    return str(made["grammars"][0]["lark_grammar"]) + _END


def _literal(text: str) -> str:
    """A pattern that matches this text only."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):X}}}" for c in text)


def _checked(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError("half of a surrogate pair stands in it alone, which is no text.") from error
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"the text must not be longer than {MAX_GRAMMAR_BYTES} bytes, got {size}.")
    return text
