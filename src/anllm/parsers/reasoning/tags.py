"""Reasoning between two tags at the start of an answer, the first of which the prompt may have written:

<think>
Lights, so...
</think>

The lamp is off.
"""

from __future__ import annotations

from dataclasses import dataclass

from anllm.parsers.pieces import Reasoning
from anllm.parsers.reader import Markers, Reader, Steps, Trimmed

MAX_SPACE = 16  # before the opening tag


@dataclass(frozen=True, slots=True)
class TaggedReasoning:
    """begin, end: the tags. begin_line: what else belongs to the beginning.

    is_always_on: an answer whose prompt opened no block, and which doesn't open one, is reasoning up to the end tag.
    also_ends: markup that ends the reasoning without being part of it: some models call tools without the end tag.
    """

    name: str
    begin: str
    end: str
    begin_line: str = ""
    is_always_on: bool = False
    also_ends: tuple[str, ...] = ()

    @property
    def markers(self) -> frozenset[str]:
        """Texts that may be special tokens, without which reasoning can't be told from the answer."""
        return frozenset({self.begin, self.end})

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends inside a block that it has opened."""
        return prompt.rstrip().endswith((self.begin, self.begin + self.begin_line))

    def is_closed(self, prompt: str) -> bool:
        """Whether the prompt ends with a block that it has opened and closed."""
        return prompt.rstrip().endswith(self.end)

    def read(self, reader: Reader, prompt: str) -> Steps[bool]:
        """The reasoning, if the answer begins with it, without tags and the whitespace around it; else takes nothing.

        Returns whether it did."""
        is_open = self.is_open(prompt)
        reader.is_reasoning = is_open
        if self.is_closed(prompt):
            return False
        if (yield from self._takes_begin(reader)):  # also again, though the prompt has it
            yield from reader.take_space()
            if self.begin_line:
                yield from reader.take_literal(self.begin_line)
        elif not is_open and not self.is_always_on:
            return False
        yield from self._read_block(reader)
        return True

    def _takes_begin(self, reader: Reader) -> Steps[bool]:
        """Takes the opening tag if it stands here, and nothing if not."""
        for length in range(1, MAX_SPACE + len(self.begin) + 1):
            ahead = yield from reader.peek(length)
            rest = ahead.lstrip()
            if rest == self.begin:
                yield from reader.take_space()
                yield from reader.take_literal(self.begin)
                return True
            if len(ahead) < length and rest and reader.is_cut:
                reader.drop_cut_rest()
                return True
            if len(ahead) < length or not self.begin.startswith(rest):
                return False
        return False

    def _read_block(self, reader: Reader) -> Steps[None]:
        reader.is_reasoning = True
        text = Trimmed(strips_start=True)
        ends = Markers([self.end, *self.also_ends])
        while piece := (yield from reader.take_before(ends)):
            yield Reasoning(text.add(piece))
        yield from reader.take_literal(self.end)
        reader.is_reasoning = False
