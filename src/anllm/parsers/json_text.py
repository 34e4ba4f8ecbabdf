"""JSON in an answer: where a value ends, strings, and the object that JSON formats write for a call.

Works on text that may be cut or no JSON at all. Counts brackets and doesn't recurse, so deep nesting costs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from anllm.parsers.pieces import CallArguments
from anllm.parsers.reader import Markers, Reader, Steps

MAX_SPACE = 16  # between the end of a call and the next, where the end stands in a string that nobody closed
SPACES = re.compile(rf"\s{{0,{MAX_SPACE}}}")
ARGUMENT_KEYS = ("arguments", "parameters")
KNOWN_KEYS = (*ARGUMENT_KEYS, "name", "type", "id")


class CallEnds:
    """The markup that ends a call, for a value that may be broken.

    ends: outside of strings they end the value wherever they stand, as they can't be JSON. In a string they do so only
    if the text ends there, or one of `nexts`, which begin the next call, follows on another line, which can't be JSON
    either: the model forgot a quote.
    """

    def __init__(self, ends: Iterable[str] = (), nexts: Iterable[str] = ()) -> None:
        self.ends = Markers(ends)
        self.nexts = Markers(nexts)
        endings = "".join(f"|{re.escape(text)}" for text in self.ends.texts)
        self.in_string = re.compile(r'["\\]' + endings)
        self.in_scalar = re.compile(r"[\s,;}\]]" + endings)
        self.in_brackets = re.compile(r'["{}\[\]]' + endings)

    def is_end(self, text: str, position: int, is_complete: bool) -> bool | None:
        """Whether a call's end in a string, which reaches to `position`, is meant as one. None: more text will tell."""
        space = SPACES.match(text, position)
        after = space.end() if space else position
        if after == len(text):
            return True if is_complete else None
        if "\n" not in text[position:after]:
            return False
        if self.nexts.starts(text, after):
            return True
        return None if not is_complete and self.nexts.held_from(text, after) == after else False


NO_ENDS = CallEnds()


class JsonScanner:
    """Follows one value from its first character on. take() gives its text piece by piece, then "".

    is_whole: the value came to its own end, and not to that of the call or the text.
    """

    def __init__(self, ends: CallEnds = NO_ENDS) -> None:
        self.is_whole = False
        self._ends = ends
        self._depth = 0
        self._kind = ""  # "brackets", "string", "scalar"; "" before the first character
        self._in_string = False
        self._is_escaped = False
        self._is_over = False

    def take(self, reader: Reader) -> Steps[str]:
        return reader.take_scanned(self._scan)

    def take_all(self, reader: Reader) -> Steps[str]:
        pieces = []
        while piece := (yield from self.take(reader)):
            pieces.append(piece)
        return "".join(pieces)

    def _scan(self, text: str, position: int, is_complete: bool) -> int:
        end, goes_on = position, not self._is_over
        while goes_on and end < len(text):
            if self._in_string:
                end, goes_on = self._step_in_string(text, end, is_complete)
            else:
                end, goes_on = self._step_outside(text, end, is_complete)
        return -1 if self._is_over and end == position else end

    def _step_in_string(self, text: str, position: int, is_complete: bool) -> tuple[int, bool]:
        """How far the text is taken, and whether to go on from there."""
        if self._is_escaped:
            self._is_escaped = False
            return position + 1, True
        match = self._ends.in_string.search(text, position)
        if match is None:
            return self._hold(text, position, is_complete)
        if match[0] == "\\":
            self._is_escaped = True
            return match.end(), True
        if match[0] == '"':
            self._in_string = False
            return self._close(match.end()) if self._depth == 0 else (match.end(), True)
        is_end = self._ends.is_end(text, match.end(), is_complete)
        self._is_over = is_end is True
        return (match.end(), True) if is_end is False else (match.start(), False)

    def _step_outside(self, text: str, position: int, is_complete: bool) -> tuple[int, bool]:
        if not self._kind:
            self._kind = {'"': "string", "{": "brackets", "[": "brackets"}.get(text[position], "scalar")
        is_scalar = self._kind == "scalar"
        match = (self._ends.in_scalar if is_scalar else self._ends.in_brackets).search(text, position)
        if match is None:
            return self._hold(text, position, is_complete)
        if len(match[0]) > 1:
            self._is_over = True
            return match.start(), False
        if is_scalar:
            return self._close(match.start())
        if match[0] == '"':
            self._in_string = True
        else:
            self._depth += 1 if match[0] in "{[" else -1
        return self._close(match.end()) if self._depth == 0 and not self._in_string else (match.end(), True)

    def _hold(self, text: str, position: int, is_complete: bool) -> tuple[int, bool]:
        return (len(text) if is_complete else self._ends.ends.held_from(text, position)), False

    def _close(self, end: int) -> tuple[int, bool]:
        self._is_over = self.is_whole = True
        return end, False


def take_string(reader: Reader, ends: CallEnds = NO_ENDS) -> Steps[str | None]:
    """A string, decoded; None if there is none or it is broken."""
    if (yield from reader.peek()) != '"':
        return None
    return decoded_string((yield from JsonScanner(ends).take_all(reader)))


def decoded_string(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return encodable(value) if isinstance(value, str) else None


def encodable(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which escapes in JSON may leave alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def written_json(value: object) -> str:
    """JSON text that can be encoded. Raises ValueError for a number that JSON doesn't have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text == encodable(text) else json.dumps(value, allow_nan=False)


def stream_arguments(reader: Reader, ends: CallEnds) -> Steps[bool]:
    """Arguments as they are written. An object in a string, as some models write it, comes out of it; null is "{}".

    Returns whether the value was whole.
    """
    first = yield from reader.peek()
    scanner = JsonScanner(ends)
    if first == "{":
        while piece := (yield from scanner.take(reader)):
            yield CallArguments(piece)
        return scanner.is_whole
    raw = yield from scanner.take_all(reader)
    if text := plain_arguments(raw):
        yield CallArguments(text)
    return scanner.is_whole


def plain_arguments(raw: str) -> str:
    """The arguments that a value means which is no object."""
    inner = decoded_string(raw) if raw.startswith('"') else None
    if inner is not None and (not inner.strip() or inner.lstrip().startswith("{")):
        return inner.strip() or "{}"
    return "{}" if raw.strip() == "null" else raw


@dataclass(slots=True)
class _Call:
    """What is known of the call that an object holds."""

    name: str | None = None
    early: str | None = None  # arguments that came before the name
    has_begun: bool = False
    has_arguments: bool = False


def read_call_object(reader: Reader, ends: CallEnds, *, is_bare: bool = False) -> Steps[bool]:
    """One object with a name and arguments, in any order. Returns whether it came to its end.

    is_bare: no markup says that the object is a call. It is one if it has both keys and none that calls don't have.
    """
    call = _Call()
    if not (yield from reader.take_literal("{")):
        return False
    while True:
        yield from reader.take_space()
        if (yield from reader.take_literal("}")):  # of an empty object, or after a comma too many
            break
        key = yield from take_string(reader, ends)
        yield from reader.take_space()
        if key is None or not (yield from reader.take_literal(":")) or (is_bare and key not in KNOWN_KEYS):
            return False
        yield from reader.take_space()
        if not (yield from _read_member(reader, ends, call, key, is_bare)):
            return False
        yield from reader.take_space()
        if (separator := (yield from reader.take_literal(",", "}"))) != ",":
            if not separator:
                return False
            break
    if call.name is None or (is_bare and not call.has_begun):
        return False
    if not call.has_arguments:
        yield CallArguments("{}")
    return True


def _read_member(reader: Reader, ends: CallEnds, call: _Call, key: str, is_bare: bool) -> Steps[bool]:
    if key == "name" and call.name is None:
        call.name = yield from take_string(reader, ends)
        if call.name is None:
            return False
        if not is_bare or call.early is not None:
            yield from _begin(reader, call)
        return True
    if key not in ARGUMENT_KEYS or call.has_arguments or call.early is not None:
        scanner = JsonScanner(ends)
        yield from scanner.take_all(reader)
        return scanner.is_whole
    if call.name is None:
        scanner = JsonScanner(ends)
        call.early = plain_arguments((yield from scanner.take_all(reader)))
        return scanner.is_whole
    if is_bare and (yield from reader.peek()) not in ("{", '"', "n"):
        return False
    if not call.has_begun:
        yield from _begin(reader, call)
    call.has_arguments = True
    return (yield from stream_arguments(reader, ends))


def _begin(reader: Reader, call: _Call) -> Steps[None]:
    call.has_begun = True
    yield reader.begin_call(call.name or "")
    if call.early is not None:
        call.has_arguments = True
        yield CallArguments(call.early)
