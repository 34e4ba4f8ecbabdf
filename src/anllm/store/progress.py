"""How a long fetch tells where it stands. Knows nothing of terminals; the command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a fetch reports to. Calls come from one thread at a time, though not always from the same one."""

    def stage(self, label: str, total: int | None) -> None:
        """Begin a stage; the one before it, if any, has ended. total: bytes or units; None where nobody knows."""

    def advance(self, amount: int) -> None:
        """So many more bytes or units of this stage are done. Their sum may stay below the total."""

    def done(self) -> None:
        """The fetch has ended, perhaps without any stage. Not called when it raises."""


class NoProgress:
    """A Progress that nobody watches."""

    def stage(self, label: str, total: int | None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def done(self) -> None:
        pass
