"""Answers with parts, token by token: whatever the tokens are, the pieces are those of the whole text, and log
probabilities come with exactly the tokens of the content."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.core.events import TokenLogprobs
from anllm.parsers.choose import OutputFormat
from anllm.parsers.pieces import CallArguments, CallBegun, Content, Piece, Reasoning
from anllm.parsers.stream import joined
from anllm.server.parsed_output import ParsedOutput
from anllm.testing import ByteTokenizer
from anllm.testing.tokenizer import EOS

FORMAT = OutputFormat.choose("", lambda piece: False, reasoning_parser="qwen3")
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


class TextTokenizer(ByteTokenizer):
    """Bytes, and from 300 on the given texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self.vocab_size = 300 + len(texts)

    def token_bytes(self, token_id: int) -> bytes:
        return self._texts[token_id - 300].encode() if token_id >= 300 else super().token_bytes(token_id)

    def detokenizer(self, *, skip_special_tokens: bool = True, kept: object = ()) -> TextDetokenizer:  # type: ignore[override]
        return TextDetokenizer(self)


class TextDetokenizer:
    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = b""

    @property
    def num_held(self) -> int:
        return len(self._held)  # only bytes are held, each a token

    def add(self, token_ids: Sequence[int]) -> str:
        self._held += b"".join(map(self._tokenizer.token_bytes, token_ids))
        try:
            text = self._held.decode()
        except UnicodeDecodeError:
            return ""
        self._held = b""
        return text

    def finish(self) -> str:
        return self._held.decode(errors="replace")


def split(text: str, cuts: list[int], as_bytes: bool) -> tuple[TextTokenizer, list[int]]:
    """The text as tokens: bytes, or whatever stands between the cuts."""
    if as_bytes:
        return TextTokenizer([]), list(text.encode())
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    texts = [text[start:end] for start, end in pairwise(places)]
    return TextTokenizer(texts), [300 + i for i in range(len(texts))]


def output(tokenizer: TextTokenizer, stop: tuple[str, ...] = ()) -> ParsedOutput:
    parser = FORMAT.parser("", TOOLS, takes_calls=True)
    return ParsedOutput(tokenizer, parser, stop, frozenset({EOS}), kept=FORMAT.markers, has_logprobs=True)


def read(answer: ParsedOutput, token_ids: list[int]) -> tuple[list[Piece], list[bytes]]:
    """All pieces, and the tokens of the content; those of each moment are of the text of that moment."""
    pieces: list[Piece] = []
    raws: list[bytes] = []
    for token_id in [*token_ids, None]:
        new = answer.finish() if token_id is None else answer.add([token_id], [TokenLogprobs(-0.5)])
        told = b"".join(token.raw for token in answer.take_tokens())
        assert told == "".join(piece.text for piece in new if isinstance(piece, Content)).encode()
        pieces += new
        raws.append(told)
    return list(joined(pieces)), raws


WORDS = ["Hi", " ", "<", "é🙂", "tool", "\n", "a < b", "北京", "<tool"]
PARTS = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)


@settings(max_examples=300, deadline=None)
@given(
    thoughts=st.one_of(st.none(), PARTS),
    content=PARTS,
    num_calls=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 200), max_size=25),
    as_bytes=st.booleans(),
)
def test_pieces_and_tokens_are_those_of_the_whole_text(
    thoughts: str | None, content: str, num_calls: int, cuts: list[int], as_bytes: bool
) -> None:
    text = ("" if thoughts is None else f"<think>\n{thoughts}\n</think>\n\n") + content + "\n".join([CALL] * num_calls)
    tokenizer, token_ids = split(text, cuts, as_bytes)
    pieces, raws = read(output(tokenizer), token_ids)
    whole = FORMAT.parser("", TOOLS, takes_calls=True)
    assert pieces == list(joined([*whole.add(text), *whole.finish()]))
    kinds = [type(piece) for piece in pieces]
    assert kinds.count(CallBegun) == kinds.count(CallArguments) == num_calls
    assert b"".join(raws) == "".join(piece.text for piece in pieces if isinstance(piece, Content)).encode()


@settings(max_examples=200, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=25), as_bytes=st.booleans())
def test_a_stop_string_ends_the_content_wherever_the_tokens_end(cuts: list[int], as_bytes: bool) -> None:
    text = f"<think>\nstop it\n</think>\n\nOne, two. stop it {CALL}"
    tokenizer, token_ids = split(text, cuts, as_bytes)
    answer = output(tokenizer, ("stop it",))
    pieces = [piece for token_id in token_ids for piece in answer.add([token_id], [TokenLogprobs(-0.5)])]
    pieces += answer.finish()
    assert answer.stopped and not answer.has_calls
    assert list(joined(pieces)) == [Reasoning("stop it"), Content("One, two. ")]
