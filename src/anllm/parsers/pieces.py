"""What an answer consists of, in the order in which it comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer that a person reads. None comes after the first CallBegun."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A new tool call. Its index is its order. name: as the model wrote it, whether there is such a tool or not."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of the last call begun. Joined they are JSON text, if the model wrote a whole call."""

    text: str


Piece = Content | Reasoning | CallBegun | CallArguments
