"""How a long fetch tells where it stands. The command line draws it; here is known only where that can be done."""

from __future__ import annotations

import os
from typing import Protocol, TextIO


class Progress(Protocol):
    """What a fetch reports to. Calls come from one thread at a time, though not always from the same one."""

    def stage(self, label: str, total: int | None) -> None:
        """Begin a stage; the one before it, if any, has ended. total: bytes or units; None where nobody knows."""

    def advance(self, amount: int) -> None:
        """So many more bytes or units of this stage are done. Their sum may stay below the total."""

    def done(self) -> None:
        """The fetch has ended, perhaps without any stage. Not called when it raises."""


def can_draw_on(stream: TextIO) -> bool:
    """Whether it is a terminal whose lines can be drawn anew."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class NoProgress:
    """A Progress that nobody watches."""

    def stage(self, label: str, total: int | None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def done(self) -> None:
        pass
