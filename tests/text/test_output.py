"""The text of one sequence: detokenizing and stop strings together."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from anllm.text.output import TextOutput
from anllm.text.tokenizer import HFTokenizer


def make_tokenizer(backend: Tokenizer) -> HFTokenizer:
    end = frozenset({backend.token_to_id("</s>")})
    return HFTokenizer(Tokenizer.from_str(backend.to_str()), bos_token_id=None, eos_token_ids=end)


def make_output(backend: Tokenizer, *stop: str) -> TextOutput:
    tokenizer = make_tokenizer(backend)
    return TextOutput(tokenizer, stop, tokenizer.eos_token_ids)


def encode(backend: Tokenizer, text: str) -> list[int]:
    return make_tokenizer(backend).encode(text, add_special_tokens=False)


def groups(token_ids: list[int], size: int) -> list[list[int]]:
    return [token_ids[i : i + size] for i in range(0, len(token_ids), size)]


def test_text_without_stop_strings_goes_out_whole(backend: Tokenizer) -> None:
    output = make_output(backend)
    token_ids = encode(backend, "Hello 世界")
    assert output.add(token_ids) + output.finish() == "Hello 世界"
    assert output.num_tokens == len(token_ids)
    assert not output.stopped


@pytest.mark.parametrize("stop", ["lo w", "世界", "😀", "d 世"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_text_and_count_at_a_stop_string_do_not_depend_on_grouping(backend: Tokenizer, stop: str, size: int) -> None:
    text = "Hello world 世界 😀 and more"
    token_ids = encode(backend, text)
    output = make_output(backend, stop)
    joined = "".join(map(output.add, groups(token_ids, size))) + output.finish()
    assert joined == text.split(stop)[0]
    assert output.stopped
    decoded = [make_tokenizer(backend).decode(token_ids[:n]) for n in range(len(token_ids) + 1)]
    assert output.num_tokens == next(n for n, known in enumerate(decoded) if stop in known)


def test_after_a_stop_string_nothing_is_added_or_counted(byte_level: Tokenizer) -> None:
    output = make_output(byte_level, "l")
    output.add(encode(byte_level, "Hello"))
    num_tokens = output.num_tokens
    assert output.add(encode(byte_level, "more")) == ""
    assert output.finish() == ""
    assert output.num_tokens == num_tokens


def test_end_tokens_are_counted_and_not_shown(byte_level: Tokenizer) -> None:
    tokenizer = make_tokenizer(byte_level)
    token_ids = encode(byte_level, "Hello")
    output = TextOutput(tokenizer, (), frozenset({token_ids[-1]}))
    assert output.add(token_ids) + output.finish() == tokenizer.decode(token_ids[:-1])
    assert output.num_tokens == len(token_ids)


def test_text_held_for_a_stop_string_goes_out_at_the_end(byte_level: Tokenizer) -> None:
    output = make_output(byte_level, "world!!")
    assert output.add(encode(byte_level, "Hello world")) == "Hello "
    assert output.finish() == "world"


def test_an_incomplete_character_goes_out_at_the_end_and_can_stop(byte_level: Tokenizer) -> None:
    half = [*encode(byte_level, "a "), byte_level.token_to_id("ð")]
    output = make_output(byte_level, "X")
    assert (output.add(half) + output.finish()).endswith("\ufffd")
    stopped = make_output(byte_level, "\ufffd")
    assert "\ufffd" not in stopped.add(half) + stopped.finish()
    assert stopped.stopped
