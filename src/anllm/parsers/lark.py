"""Grammars in llguidance's dialect of Lark (guidance-ai/llguidance, docs/syntax.md).

Builds text only and doesn't import llguidance. A marker that is one special token must be named by its id, since the
engine of grammars never spells special tokens in letters; all other markup is plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from anllm.structured.grammar import embedded_schema
from anllm.structured.schema import closed

# The id of a text that is one special token of the model, as the engine of grammars sees it, else None.
SpecialId = Callable[[str], int | None]
OPTIONS = "x-guidance"
LENIENT = {OPTIONS: {"lenient": True}}
ANY_TEXT = "/(?s:.*)/"


class Lark:
    """Rules of one grammar, gathered while it is built.

    markers: the texts of the format that may be special tokens.
    """

    def __init__(self, special_id: SpecialId, markers: Iterable[str]) -> None:
        self._ids = {text: token_id for text in markers if (token_id := special_id(text)) is not None}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._rules: list[str] = []

    def rule(self, prefix: str, body: str, options: str = "") -> str:
        """Adds a rule and gives its name, which is new. An upper-case prefix makes a terminal."""
        name = f"{prefix}_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def text(self, text: str) -> str:
        """This text exactly."""
        parts = [part for part in self._split.split(text) if part]
        return " ".join(f"<[{self._ids[part]}]>" if part in self._ids else json.dumps(part) for part in parts)

    def json(self, schema: Mapping[str, object]) -> str:
        """JSON that fits the schema, with whitespace as templates write it, and without properties that are not named.

        Keywords that the engine doesn't know make the grammar fail, unless LENIENT is part of the schema."""
        is_lenient = schema.get(OPTIONS) == LENIENT[OPTIONS]
        plain = {keyword: value for keyword, value in schema.items() if keyword != OPTIONS}
        return embedded_schema(closed(plain), is_lenient=is_lenient, has_fixed_spacing=True)

    def text_before(self, end: str, text: str = ANY_TEXT, *, without: Iterable[str] = ()) -> str:
        """A terminal's text, then `end`. What is in `without` doesn't occur in it, nor does the beginning of `end`."""
        terminal = excluding(text, without)
        before, *marked = self._split.split(end, maxsplit=1)
        if marked:
            name = self.rule("TEXT", f"{_grouped(terminal)} {json.dumps(before)}" if before else terminal)
            return f"{name} {self.text(''.join(marked))}"
        return self.rule("text", f"{_grouped(terminal)} {json.dumps(end)}", "[lazy]")

    def build(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules]) + "\n"


def _grouped(terminal: str) -> str:
    return f"({terminal})" if "&" in terminal else terminal


def excluding(text: str, without: Iterable[str]) -> str:
    """A terminal for what `text`, a terminal too, matches and none of these texts occurs in."""
    patterns = "|".join(regex_escaped(part) for part in dict.fromkeys(without))
    return f"{text} & ~/(?s:.*)({patterns})(?s:.*)/" if patterns else text


def regex_escaped(text: str) -> str:
    """A pattern for the text, as it stands between slashes."""
    escaped = re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text)  # the engine takes no other escapes
    return escaped.replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r")


def repeated(item: str, between: str, minimum: int, maximum: int | None) -> str:
    """`item` that many times, `between` standing between two. minimum is at least 1."""
    if maximum == 1:
        return item
    most = "" if maximum is None else str(maximum - 1)
    return f"{item} ({between} {item}){{{minimum - 1},{most}}}"
