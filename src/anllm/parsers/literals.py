"""Values that are almost JSON, as Python and Gemma write them, into JSON as they come.

Bare keys, strings in other quotes, True and None, tuples, commas too many. Whatever the text, this goes on to the end
of the object; it has no recursion, so deep nesting costs nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from anllm.parsers.pieces import CallArguments
from anllm.parsers.reader import Markers, Reader, Steps, drained

WORDS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")
HEX = {"x": 2, "u": 4, "U": 8}
HEX_DIGITS = re.compile(r"[0-9a-fA-F]+\Z")
ESCAPES = {
    "n": "\\n",
    "t": "\\t",
    "r": "\\r",
    "b": "\\b",
    "f": "\\f",
    '"': '\\"',
    "\\": "\\\\",
    "/": "/",
    "'": "'",
    "\n": "",
}
ESCAPES |= {"a": "\\u0007", "v": "\\u000b", "0": "\\u0000"}
OPENERS = {"{": "}", "[": "]", "(": "]"}
CLOSERS = ("}", "]", ")")


@dataclass(frozen=True, slots=True)
class Dialect:
    """quotes: what a string stands in. plain_quotes: of these, those without escapes and with anything inside.

    ends: markup that ends the call wherever it stands. separator: what stands between a key and a value of the outer
    object, `=` or `:`.
    """

    quotes: tuple[str, ...]
    plain_quotes: tuple[str, ...]
    ends: tuple[str, ...]
    separator: str


PYTHON = Dialect(quotes=('"', "'"), plain_quotes=(), ends=(), separator=":")


@dataclass(slots=True)
class _Level:
    """An object or a list that is open."""

    closer: str
    is_key_next: bool
    has_items: bool = False
    is_comma_due: bool = False


@dataclass(slots=True)
class LiteralReader:
    """Writes one object whose opening bracket is taken already, up to and with the bracket that closes it."""

    reader: Reader
    dialect: Dialect
    _levels: list[_Level] = field(default_factory=list)

    def object(self) -> Steps[bool]:
        """Returns whether the object came to its end."""
        dialect = self.dialect
        literals = (*dialect.quotes, *OPENERS, *CLOSERS, *dict.fromkeys((",", ":", dialect.separator)))
        stops = Markers([*literals, *dialect.ends])
        self._levels = [_Level("}", is_key_next=True)]
        yield CallArguments("{")
        while self._levels:
            word = (yield from self.reader.take_all_before(stops)).strip()
            if word and not (yield from self.reader.is_at_end()):
                yield self._word(word)
            literal = yield from self.reader.take_literal(*literals)
            if not literal:
                return False
            if literal in dialect.quotes:
                yield from self._string(literal)
            else:
                yield CallArguments(self._bracket(literal))
        return True

    def _word(self, word: str) -> CallArguments:
        """A text without quotes: a key, a number, a name for a value, or a string whose quotes were forgotten."""
        level = self._levels[-1]
        if level.is_key_next:
            return CallArguments(self._before_value() + json.dumps(word, ensure_ascii=False))
        text = WORDS.get(word) or (word if NUMBER.match(word) else json.dumps(word, ensure_ascii=False))
        return CallArguments(self._before_value() + text)

    def _before_value(self) -> str:
        """The comma that was put off until something follows it."""
        level = self._levels[-1]
        comma = ", " if level.is_comma_due and level.has_items else ""
        level.is_comma_due, level.has_items = False, True
        return comma

    def _bracket(self, literal: str) -> str:
        level = self._levels[-1]
        if literal == ",":
            level.is_comma_due = True
            level.is_key_next = level.closer == "}"
            return ""
        if literal in (":", "="):
            was_key, level.is_key_next = level.is_key_next, False
            return ": " if was_key and level.has_items else ""
        if literal in OPENERS:
            comma = self._before_value()
            self._levels.append(_Level(OPENERS[literal], is_key_next=literal == "{"))
            return comma + ("{" if literal == "{" else "[")
        self._levels.pop()
        return level.closer

    def _string(self, quote: str) -> Steps[None]:
        yield CallArguments(self._before_value() + '"')
        is_plain = quote in self.dialect.plain_quotes
        stops = Markers([quote, *self.dialect.ends] + ([] if is_plain else ["\\"]))
        while True:
            while text := (yield from self.reader.take_before(stops)):
                yield CallArguments(json.dumps(text, ensure_ascii=False)[1:-1])
            stop = yield from self.reader.take_literal(quote, *([] if is_plain else ["\\"]))
            if not stop:
                return
            if stop == "\\":
                yield CallArguments((yield from self._escape()))
            else:
                space = "" if is_plain else (yield from self.reader.take_space())
                if is_plain or self._may_follow_string((yield from self.reader.peek())):
                    yield CallArguments('"')
                    return
                yield CallArguments(json.dumps(quote + space)[1:-1])

    def _may_follow_string(self, character: str) -> bool:
        """Else the quote before is part of the string: templates write strings without escaping quotes in them."""
        return character in ",:=)]}" or any(end.startswith(character) for end in self.dialect.ends)

    def _escape(self) -> Steps[str]:
        """What stands for the escape that the backslash taken begins."""
        kind = yield from self.reader.peek()
        length = HEX.get(kind)
        if length is None:
            if kind not in ESCAPES:
                return "\\\\"
            yield from self.reader.take_literal(kind)
            return ESCAPES[kind]
        digits = (yield from self.reader.peek(1 + length))[1:]
        if len(digits) < length or not HEX_DIGITS.match(digits) or int(digits, 16) > 0x10FFFF:
            return "\\\\"
        yield from self.reader.take_literal(kind + digits)
        return f"\\u{digits.zfill(4)}" if length <= 4 else json.dumps(chr(int(digits, 16)))[1:-1]


def literal_value(text: str) -> object:
    """The value of a Python literal. Raises ValueError if the text is none and can't be taken for one."""
    reader = Reader()
    reader.feed(f"value: {text}}}")
    reader.end(is_cut=False)
    pieces, is_whole = drained(LiteralReader(reader, PYTHON).object())
    written = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
    _, has_no_rest = drained(reader.is_at_end())
    if not is_whole or not has_no_rest:
        raise ValueError("not one literal")
    value: object = json.loads(written)["value"]
    return value
