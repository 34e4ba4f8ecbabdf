"""Log probabilities go out with the text of their tokens, however tokens are grouped and text is held back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from anllm.core.events import TokenLogprobs
from anllm.testing import ByteTokenizer
from anllm.text.alignment import TextToken, align_prompt
from anllm.text.interface import Tokenizer as TokenizerInterface
from anllm.text.output import TextOutput
from anllm.text.tokenizer import HFTokenizer

bounded = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PIECES = ["Hello", " wor", "ld", " ", "世界", "😀", "👩‍👩‍👧", "é", "lo", "\n", "  "]
Chunk = tuple[str, list[TextToken]]


def make_tokenizer(backend: Tokenizer) -> HFTokenizer:
    end = frozenset({backend.token_to_id("</s>")} - {None})
    return HFTokenizer(Tokenizer.from_str(backend.to_str()), bos_token_id=None, eos_token_ids=end)


def told(token_id: int, position: int) -> TokenLogprobs:
    return TokenLogprobs(-position / 8, ((token_id, -position / 8), (5, -9.0)))


def run(tokenizer: TokenizerInterface, token_ids: list[int], stop: tuple[str, ...], cuts: list[int]) -> list[Chunk]:
    """Text and tokens of each add() and of finish()."""
    output = TextOutput(tokenizer, stop, tokenizer.eos_token_ids, has_logprobs=True)
    bounds = [0, *sorted(cut % (len(token_ids) + 1) for cut in cuts), len(token_ids)]
    chunks = []
    for start, end in pairwise(bounds):
        logprobs = [told(token_ids[i], i) for i in range(start, end)]
        chunks.append((output.add(token_ids[start:end], logprobs), output.take_tokens()))
    return [*chunks, (output.finish(), output.take_tokens())]


def joined(chunks: list[Chunk]) -> Chunk:
    return "".join(text for text, _ in chunks), [token for _, tokens in chunks for token in tokens]


def plain_text(tokenizer: TokenizerInterface, token_ids: list[int], stop: tuple[str, ...]) -> str:
    output = TextOutput(tokenizer, stop, tokenizer.eos_token_ids)
    return output.add(token_ids) + output.finish()


def raw(tokens: list[TextToken]) -> bytes:
    return b"".join(token.raw for token in tokens)


def check_starts(chunks: list[Chunk]) -> None:
    """The tokens of a chunk begin in its text, in order."""
    num_out = 0
    for text, tokens in chunks:
        starts = [token.start for token in tokens]
        assert starts == sorted(starts)
        assert all(num_out <= start < num_out + len(text) for start in starts)
        assert bool(text) == bool(tokens)
        num_out += len(text)


@bounded
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8),
    stop=st.sampled_from([(), ("o w",), ("世",), ("界😀", "ld"), (" wor", "\n\n"), ("never",)]),
    cuts=st.lists(st.integers(0, 60), max_size=12),
)
def test_each_piece_of_a_text_comes_with_exactly_its_tokens(
    backend: Tokenizer, pieces: list[str], stop: tuple[str, ...], cuts: list[int]
) -> None:
    tokenizer = make_tokenizer(backend)
    token_ids = tokenizer.encode("".join(pieces), add_special_tokens=False)
    chunks = run(tokenizer, token_ids, stop, cuts)
    text, tokens = joined(chunks)
    assert text == plain_text(tokenizer, token_ids, stop)
    assert tokens == joined(run(tokenizer, token_ids, stop, []))[1]
    check_starts(chunks)
    has_stopped = text != plain_text(tokenizer, token_ids, ())
    for i, (part, part_tokens) in enumerate(chunks):
        is_last = not any(later for later, _ in chunks[i + 1 :])
        if has_stopped and is_last:  # a stop string may begin within a token
            assert raw(part_tokens).startswith(part.encode())
        else:
            assert raw(part_tokens) == part.encode()


@bounded
@given(data=st.data(), cuts=st.lists(st.integers(0, 30), max_size=10))
def test_broken_bytes_have_all_their_tokens_whatever_the_grouping(
    backend: Tokenizer, data: st.DataObject, cuts: list[int]
) -> None:
    tokenizer = make_tokenizer(backend)
    token_ids = data.draw(st.lists(st.integers(3, tokenizer.vocab_size + 2), max_size=25))
    stop = data.draw(st.sampled_from([(), ("\ufffd",), ("a", "lo")]))
    chunks = run(tokenizer, token_ids, stop, cuts)
    assert joined(chunks)[0] == plain_text(tokenizer, token_ids, stop)
    assert joined(chunks)[1] == joined(run(tokenizer, token_ids, stop, []))[1]
    check_starts(chunks)


@bounded
@given(token_ids=st.lists(st.integers(0, 256), max_size=25), cuts=st.lists(st.integers(0, 30), max_size=10))
def test_the_testing_tokenizer_is_aligned_too(token_ids: list[int], cuts: list[int]) -> None:
    chunks = run(ByteTokenizer(), token_ids, (), cuts)
    assert raw(joined(chunks)[1]) == bytes(t for t in token_ids if t < 256)
    assert joined(chunks)[0] == plain_text(ByteTokenizer(), token_ids, ())
    check_starts(chunks)


def test_tokens_inside_a_stop_string_have_no_entry_and_one_that_it_cuts_has() -> None:
    tokenizer = ByteTokenizer()
    (text, tokens), _ = run(tokenizer, list(b"one STOP two"), ("STOP",), [])
    assert (text, raw(tokens)) == ("one ", b"one ")


def test_text_held_for_a_stop_string_goes_out_by_whole_tokens(byte_level: Tokenizer) -> None:
    tokenizer = make_tokenizer(byte_level)
    token_ids = tokenizer.encode("Hello world", add_special_tokens=False)
    wor = next(i for i, token_id in enumerate(token_ids) if tokenizer.token_bytes(token_id) == b" wor")
    output = TextOutput(tokenizer, ("orld!",), frozenset(), has_logprobs=True)
    logprobs = [told(token_id, i) for i, token_id in enumerate(token_ids)]
    assert output.add(token_ids[: wor + 1], logprobs[: wor + 1]) == "Hello"  # " w" waits for the rest of its token
    assert raw(output.take_tokens()) == b"Hello"
    assert output.add(token_ids[wor + 1 :], logprobs[wor + 1 :]) + output.finish() == " world"
    assert raw(output.take_tokens()) == b" world"


def test_a_first_space_that_is_not_in_the_text_is_not_in_the_bytes(byte_fallback: Tokenizer) -> None:
    tokenizer = make_tokenizer(byte_fallback)
    space_h, world = byte_fallback.token_to_id("▁h"), byte_fallback.token_to_id("▁w")
    output = TextOutput(tokenizer, (), frozenset(), has_logprobs=True)
    assert output.add([space_h], [TokenLogprobs(-0.1, ((space_h, -0.1), (world, -0.2)))]) == "h"
    assert output.take_tokens() == [TextToken(b"h", 0, -0.1, ((b"h", -0.1), (b"w", -0.2)))]
    assert output.add([space_h], [TokenLogprobs(-0.1, ((world, -0.2),))]) == " h"
    assert output.take_tokens() == [TextToken(b" h", 1, -0.1, ((b" w", -0.2),))]


def test_a_decoder_with_rules_of_its_own_is_believed() -> None:
    backend = Tokenizer(models.WordPiece(vocab={"a": 0, "b": 1, "##c": 2}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    text, tokens = joined(run(make_tokenizer(backend), [0, 1, 2], (), [1, 2]))
    assert (text, [token.raw for token in tokens]) == ("a bc", [b"a", b" b", b"c"])


@pytest.mark.parametrize("token_ids", [[256], [256, 104, 256, 105, 256]])
def test_end_tokens_have_no_entry(token_ids: list[int]) -> None:
    text, tokens = joined(run(ByteTokenizer(), token_ids, (), [1, 2, 3]))
    assert raw(tokens) == text.encode() == bytes(t for t in token_ids if t < 256)


def test_without_logprobs_there_are_no_tokens(byte_level: Tokenizer) -> None:
    tokenizer = make_tokenizer(byte_level)
    output = TextOutput(tokenizer, (), frozenset())
    assert output.add(tokenizer.encode("Hello", add_special_tokens=False)) == "Hello"
    assert output.take_tokens() == []


# -- all tokens, those without text too --------------------------------------------------------------------------------


@bounded
@given(data=st.data(), cuts=st.lists(st.integers(0, 30), max_size=10))
def test_silent_tokens_stand_where_they_were(backend: Tokenizer, data: st.DataObject, cuts: list[int]) -> None:
    """Whole characters, special and end tokens between them: one entry for each token, in order."""
    tokenizer = make_tokenizer(backend)
    a = tokenizer.encode("lo", add_special_tokens=False)
    silent = [i for i in range(tokenizer.vocab_size) if tokenizer.decode([*a, i, *a]) == tokenizer.decode(a + a)]
    assert silent
    texts = data.draw(st.lists(st.sampled_from(PIECES) | st.sampled_from(silent), max_size=12))
    token_ids = [
        token_id
        for text in texts
        for token_id in ([text] if isinstance(text, int) else tokenizer.encode(text, add_special_tokens=False))
    ]
    output = TextOutput(tokenizer, (), tokenizer.eos_token_ids, has_logprobs=True, keeps_silent=True)
    bounds = [0, *sorted(cut % (len(token_ids) + 1) for cut in cuts), len(token_ids)]
    text, tokens = "", []
    for start, end in pairwise(bounds):
        text += output.add(token_ids[start:end], [told(token_ids[i], i) for i in range(start, end)])
        tokens += output.take_tokens()
    text += output.finish()
    tokens += output.take_tokens()
    assert [token.logprob for token in tokens] == [-i / 8 for i in range(len(token_ids))]
    assert text == plain_text(tokenizer, token_ids, ())
    assert raw(tokens) == text.encode()
    assert all(not token.raw for token, token_id in zip(tokens, token_ids, strict=True) if token_id in silent)
    starts = [token.start for token in tokens]
    assert starts == sorted(starts)
    for token, following in pairwise(tokens):
        if is_whole(token.raw) and is_whole(following.raw):
            assert following.start - token.start == len(token.raw.decode())
    if token_ids:
        prompt = align_prompt(tokenizer, token_ids, [told(token_ids[i], i) for i in range(1, len(token_ids))])
        assert prompt[0].logprob is None
        assert [(t.raw, t.start, t.logprob, t.top) for t in prompt[1:]] == [
            (t.raw, t.start, t.logprob, t.top) for t in tokens[1:]
        ]


def is_whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_an_end_token_behind_a_stop_string_has_no_entry() -> None:
    tokenizer = ByteTokenizer()
    end = next(iter(tokenizer.eos_token_ids))
    output = TextOutput(tokenizer, ("b",), tokenizer.eos_token_ids, has_logprobs=True, keeps_silent=True)
    token_ids = [ord("a"), end, ord("b"), end]
    assert output.add(token_ids, [told(token_id, i) for i, token_id in enumerate(token_ids)]) == "a"
    assert [token.raw for token in output.take_tokens()] == [b"a", b""]


def test_a_prompt_that_ends_within_a_character_has_all_its_tokens() -> None:
    tokenizer = ByteTokenizer()
    token_ids = list("é".encode())[:1]
    assert [(t.raw, t.start) for t in align_prompt(tokenizer, [97, *token_ids], [told(1, 1)])] == [
        (b"a", 0),
        (b"\xc3", 1),
    ]
