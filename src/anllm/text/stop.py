"""Stop strings: what of a growing text may go out, and whether it ends here.

Each stop string is followed by its own Knuth-Morris-Pratt automaton (Knuth, Morris, Pratt 1977, "Fast pattern matching
in strings"), so a character costs the same however long the strings are, and nothing is read twice. The table of an
automaton grows with the match, so a long string that never begins costs nothing.

Knows text only, no tokens. One sequence, one thread.
"""

from __future__ import annotations


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces.

    stop: non-empty strings. includes_match: the stop string itself goes out too. matched: the one that was found.

    Text that may be the beginning of a stop string is held back. If one call completes several stop strings, the one
    that starts first counts, of several there the shortest; nothing of it, and nothing behind it, goes out.
    """

    def __init__(self, stop: tuple[str, ...], *, includes_match: bool = False) -> None:
        self._stops = [_StopString(text) for text in stop]
        self._includes_match = includes_match
        self._has_matched = False
        self.matched = ""

    def add(self, text: str) -> tuple[str, bool]:
        """The text that may go out, and whether a stop string matched. After a match always ("", True)."""
        if self._has_matched:
            return "", True
        held, num_held = self._held()
        matches = [(start, len(stop.text), stop.text) for stop in self._stops if (start := stop.find(text)) is not None]
        self._has_matched = bool(matches)
        start, length, self.matched = min(matches, default=(len(text) - self._held()[1], 0, ""))
        num_out = num_held + start + (length if self._includes_match else 0)
        if num_out <= num_held:
            return held[:num_out], self._has_matched
        return held[:num_held] + text[: num_out - num_held], self._has_matched

    def finish(self) -> str:
        """The text still held back; "" after a match. Call once, at the end."""
        held, num_held = self._held()
        return "" if self._has_matched else held[:num_held]

    def _held(self) -> tuple[str, int]:
        """The stop string that the longest held-back text begins, and the length of that text."""
        return max(((stop.text, stop.num_matched) for stop in self._stops), key=lambda held: held[1], default=("", 0))


class _StopString:
    """num_matched: length of the longest end of the text so far that begins this stop string."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        # [i] is the length of the longest proper end of text[:i+1] that begins text; known for i < max num_matched.
        self._fallback = [0]

    def find(self, text: str) -> int | None:
        """Where in `text` the first match starts, negative if before it; None if no match is complete."""
        position = 0
        while position < len(text):
            if self.num_matched == 0:
                position = text.find(self.text[0], position)
                if position < 0:
                    return None
            self._advance(text[position])
            position += 1
            if self.num_matched == len(self.text):
                return position - len(self.text)
        return None

    def _advance(self, character: str) -> None:
        self.num_matched = self._extend(self.num_matched, character)
        if self.num_matched > len(self._fallback):
            self._fallback.append(self._extend(self._fallback[-1], character))

    def _extend(self, num_matched: int, character: str) -> int:
        """The longest match that ends with `character`, after one of `num_matched` characters."""
        while num_matched and self.text[num_matched] != character:
            num_matched = self._fallback[num_matched - 1]
        return num_matched + (self.text[num_matched] == character)
