"""An answer that grows at its end, read by generators that wait for more text wherever they need it.

A format is written as if the whole text were there. `yield from reader.take_...()` gives back what was read; inside,
the generator yields None when it can't go on without more text. So a format can't depend on where the text was cut.
What is held back is never more than a marker's length, so each character is looked at a fixed number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar, cast

from anllm.parsers.pieces import CallBegun, Piece

T = TypeVar("T")
# Yields pieces as they become known, None to wait for text; returns what the caller asked for.
Steps: TypeAlias = Generator[Piece | None, None, T]

SPACE = re.compile(r"\s+")
# Up to where a text can be taken now, given (text, position, whether no more comes).
Scan: TypeAlias = Callable[[str, int, bool], int]


class Markers:
    """A set of texts to look for, all at once. Of several at one place the longest counts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted(set(texts), key=lambda text: (-len(text), text)))
        self._whole = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._begun = re.compile(f"(?:{'|'.join(map(_beginnings, self.texts)) or '(?!)'})\\Z")
        self._max_held = max(map(len, self.texts), default=1) - 1
        self._nests = any(inner in outer[1:] for outer in self.texts for inner in self.texts)

    def find(self, text: str, position: int, is_complete: bool) -> tuple[int, bool]:
        """Where the first marker starts, and whether it is whole; len(text) if there is none."""
        match = self._whole.search(text, position)
        held = len(text) if is_complete or (match and not self._nests) else self.held_from(text, position)
        if match and match.start() <= held:
            return match.start(), True
        return held, False

    def held_from(self, text: str, position: int) -> int:
        """Where the end of the text may be the beginning of a marker; len(text) if it is not."""
        match = self._begun.search(text, max(position, len(text) - self._max_held))
        return match.start() if match else len(text)

    def starts(self, text: str, position: int) -> bool:
        """Whether a whole marker stands here."""
        return self._whole.match(text, position) is not None


def _beginnings(text: str) -> str:
    """A pattern of all proper beginnings, but the empty one."""
    pattern = ""
    for character in reversed(text[:-1]):
        pattern = f"{re.escape(character)}(?:{pattern})?" if pattern else re.escape(character)
    return pattern or r"(?!)"


class Reader:
    """The text of one answer. Everything before the position is taken, and gone but for what is recorded."""

    def __init__(self) -> None:
        self.is_reasoning = False
        self.is_call_open = False
        self.has_called = False
        self._text = ""
        self._position = 0
        self._num_gone = 0
        self._is_complete = False
        self._is_cut = False
        self._record: list[str] | None = None

    @property
    def num_taken(self) -> int:
        """Characters taken since the beginning."""
        return self._num_gone + self._position

    def feed(self, text: str) -> None:
        self._num_gone += self._position
        self._text = self._text[self._position :] + text
        self._position = 0

    def end(self, *, is_cut: bool) -> None:
        """No more text comes. is_cut: the model had more to say, so what may be the beginning of a marker is one."""
        self._is_complete = True
        self._is_cut = is_cut

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    @property
    def is_recording(self) -> bool:
        return self._record is not None

    def begin_record(self) -> None:
        """Keep what is taken from here on, in case that it turns out to be no call."""
        self._record = []

    def end_record(self) -> str:
        """All that was taken since begin_record(); "" if it was dropped in between."""
        record, self._record = self._record or [], None
        return "".join(record)

    def begin_call(self, name: str) -> CallBegun:
        """The piece for a call that is one for sure now; what was recorded is its beginning and dropped."""
        self._record = None
        self.is_call_open = self.has_called = True
        return CallBegun(name)

    def take_scanned(self, scan: Scan) -> Steps[str]:
        """What `scan` lets go, as soon as that is anything; "" if it is nothing when it asks for no more text.

        scan returns a negative number when it is over.
        """
        while True:
            end = scan(self._text, self._position, self._is_complete)
            if end > self._position:
                return self._take(end)
            if end < 0 or self._is_complete:
                return ""
            yield None

    def take_before(self, markers: Markers) -> Steps[str]:
        """A piece of the text before the next marker; "" at a marker and at the end. Call until it is "".

        Half a marker at the end of a text that is cut is gone."""

        def scan(text: str, position: int, is_complete: bool) -> int:
            start, is_whole = markers.find(text, position, is_complete and not self._is_cut)
            if is_complete and not is_whole:
                self._text = text[:start]
            return -1 if is_whole and start == position else start

        return self.take_scanned(scan)

    def take_all_before(self, markers: Markers) -> Steps[str]:
        """The whole text before the next marker, or to the end."""
        pieces = []
        while piece := (yield from self.take_before(markers)):
            pieces.append(piece)
        return "".join(pieces)

    def take_run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """The longest run of what `pattern`, one or more of a class of characters, matches; "" if there is none."""
        pieces = []
        while True:
            match = pattern.match(self._text, self._position)
            if match:
                pieces.append(self._take(match.end()))
            if self._position < len(self._text) or self._is_complete:
                return "".join(pieces)
            yield None

    def take_space(self) -> Steps[str]:
        return self.take_run(SPACE)

    def take_literal(self, *literals: str) -> Steps[str]:
        """The longest of the literals that the text goes on with; "" if it is none of them.

        The beginning of one at the end of a text that is cut is gone."""
        length = max(map(len, literals))
        while True:
            ahead = self._text[self._position : self._position + length]
            may_grow = any(len(ahead) < len(literal) and literal.startswith(ahead) for literal in literals)
            if self._is_complete or not may_grow:
                found = max((literal for literal in literals if ahead.startswith(literal)), key=len, default="")
                if may_grow and not found and self._is_cut:
                    self._take(len(self._text))
                return self._take(self._position + len(found))
            yield None

    def peek(self, length: int = 1) -> Steps[str]:
        """The next characters, not taken; fewer at the end."""
        while len(self._text) - self._position < length and not self._is_complete:
            yield None
        return self._text[self._position : self._position + length]

    def drop_cut_rest(self) -> None:
        """What is left of a text that is cut is gone, as it begins something."""
        if self._is_cut:
            self._take(len(self._text))

    def is_at_end(self) -> Steps[bool]:
        return not (yield from self.peek())

    def _take(self, end: int) -> str:
        taken = self._text[self._position : end]
        self._position = end
        if self._record is not None and taken:
            self._record.append(taken)
        return taken


def drained(steps: Steps[T]) -> tuple[list[Piece], T]:
    """All pieces and what is returned, of steps whose reader has its whole text."""
    pieces: list[Piece] = []
    while True:
        try:
            piece = next(steps)
        except StopIteration as end:
            return pieces, cast(T, end.value)
        if piece is not None:
            pieces.append(piece)


class Trimmed:
    """A text that comes in pieces and loses the whitespace at its end, and at its start if so wanted."""

    def __init__(self, *, strips_start: bool = False) -> None:
        self._strips_start = strips_start
        self._has_text = False
        self._held: list[str] = []

    def add(self, text: str) -> str:
        """What may go out: all but the whitespace at the end."""
        if self._strips_start:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            self._held.append(text)
            return ""
        self._strips_start, self._has_text = False, True
        out = "".join(self._held) + body
        self._held = [text[len(body) :]]
        return out

    def break_with(self, separator: str) -> None:
        """What comes next is another text, whose start is stripped; `separator` stands between the two."""
        self._held = [separator] if self._has_text else []
        self._strips_start = True

    def flush(self) -> str:
        """The whitespace at the end, where it is wanted after all."""
        held, self._held = "".join(self._held), []
        return held
