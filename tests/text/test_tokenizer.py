"""Tokenizers from a model's folder."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from anllm.errors import ModelError
from anllm.text.interface import Tokenizer as TokenizerInterface
from anllm.text.tokenizer import HFTokenizer, load_tokenizer


def make_folder(folder: Path, backend: Tokenizer, **files: object) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def make_tokenizer(folder: Path, backend: Tokenizer) -> HFTokenizer:
    return load_tokenizer(make_folder(folder, backend, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"}))


def test_a_tokenizer_has_the_face_of_the_interface(tmp_path: Path, backend: Tokenizer) -> None:
    tokenizer: TokenizerInterface = make_tokenizer(tmp_path, backend)
    token_ids = tokenizer.encode("Hello 世界", add_special_tokens=False)
    assert tokenizer.decode(token_ids) == "Hello 世界"
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.add(token_ids) + detokenizer.finish() == "Hello 世界"


def test_special_tokens_are_added_only_when_asked(tmp_path: Path, backend: Tokenizer) -> None:
    tokenizer = make_tokenizer(tmp_path, backend)
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello", add_special_tokens=True) == [tokenizer.bos_token_id, *plain]


def test_I_6_a_text_that_begins_with_bos_gets_no_second_one(tmp_path: Path, backend: Tokenizer) -> None:
    tokenizer = make_tokenizer(tmp_path, backend)
    plain = tokenizer.encode("<s>hello", add_special_tokens=False)
    assert plain.count(backend.token_to_id("<s>")) == 1
    assert tokenizer.encode("<s>hello", add_special_tokens=True) == plain


def test_two_bos_in_the_text_stay_where_the_tokenizer_adds_none(tmp_path: Path, byte_level: Tokenizer) -> None:
    backend = Tokenizer.from_str(byte_level.to_str())
    backend.post_processor = None
    tokenizer = make_tokenizer(tmp_path, backend)
    assert tokenizer.encode("<s><s>", add_special_tokens=True) == [tokenizer.bos_token_id] * 2


def test_I_7_end_tokens_are_those_of_all_files(tmp_path: Path, byte_level: Tokenizer) -> None:
    folder = make_folder(
        tmp_path,
        byte_level,
        tokenizer_config={"eos_token": {"content": "</s>"}},
        config={"eos_token_id": 7, "text_config": {"eos_token_id": [8, 9]}},
        generation_config={"eos_token_id": [9, 10]},
    )
    assert load_tokenizer(folder).eos_token_ids == {byte_level.token_to_id("</s>"), 7, 8, 9, 10}


def test_null_and_unknown_special_tokens_are_none(tmp_path: Path, byte_level: Tokenizer) -> None:
    folder = make_folder(tmp_path, byte_level, tokenizer_config={"eos_token": "<nowhere>", "bos_token": None})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_ids == frozenset()
    assert tokenizer.bos_token_id is None


def test_bos_comes_from_config_where_the_tokenizer_names_none(tmp_path: Path, byte_level: Tokenizer) -> None:
    assert load_tokenizer(make_folder(tmp_path, byte_level, config={"bos_token_id": 0})).bos_token_id == 0


def test_the_older_special_tokens_map_is_read(tmp_path: Path, byte_level: Tokenizer) -> None:
    folder = make_folder(tmp_path, byte_level, special_tokens_map={"eos_token": {"content": "<|end|>"}})
    assert load_tokenizer(folder).eos_token_ids == {byte_level.token_to_id("<|end|>")}


def test_sizes_cover_added_tokens(tmp_path: Path, byte_level: Tokenizer) -> None:
    backend = Tokenizer.from_str(byte_level.to_str())
    long_token = "<|a token longer than all others, by far, is this one|>"
    backend.add_tokens([long_token])
    tokenizer = make_tokenizer(tmp_path, backend)
    assert tokenizer.vocab_size == backend.get_vocab_size()
    assert backend.token_to_id(long_token) == tokenizer.vocab_size - 1
    assert tokenizer.max_token_chars == len(long_token)


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path, byte_level: Tokenizer) -> None:
    backend = Tokenizer.from_str(byte_level.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    tokenizer = make_tokenizer(tmp_path, backend)
    assert len(tokenizer.encode("a", add_special_tokens=False)) == 1
    assert tokenizer.decode(tokenizer.encode("word " * 50, add_special_tokens=False)) == "word " * 50


def test_decode_keeps_special_tokens_when_asked(tmp_path: Path, byte_level: Tokenizer) -> None:
    tokenizer = make_tokenizer(tmp_path, byte_level)
    token_ids = tokenizer.encode("hello</s>", add_special_tokens=False)
    assert tokenizer.decode(token_ids) == "hello"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "hello</s>"


def test_a_piece_is_the_token_as_the_vocabulary_writes_it(tmp_path: Path, byte_level: Tokenizer) -> None:
    tokenizer = make_tokenizer(tmp_path, byte_level)
    for token, token_id in byte_level.get_vocab(with_added_tokens=True).items():
        assert tokenizer.piece(token_id) == token
    assert tokenizer.piece(10_000_000) == ""


def test_G_8_sixteen_threads_may_encode_at_once(tmp_path: Path, backend: Tokenizer) -> None:
    tokenizer = make_tokenizer(tmp_path, backend)
    texts = [f"Hello 世界 number {number} 😀 " * 20 for number in range(16)]
    expected = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(20):
            assert list(pool.map(lambda text: tokenizer.encode(text, add_special_tokens=True), texts)) == expected


def test_a_folder_without_tokenizer_is_refused_with_the_names_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer: looked for tokenizer\.json, tokenizer\.model") as caught:
        load_tokenizer(tmp_path)
    assert tmp_path.name in caught.value.message
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize("content", ["", "{}", "version https://git-lfs.github.com/spec/v1"])
def test_a_broken_tokenizer_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json of the model .* can't be read"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", "\x00"])
def test_a_broken_config_is_refused(tmp_path: Path, byte_level: Tokenizer, content: str) -> None:
    make_folder(tmp_path, byte_level)
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json of the model"):
        load_tokenizer(tmp_path)


def test_an_older_vocabulary_is_converted(tmp_path: Path, byte_level: Tokenizer) -> None:
    byte_level.model.save(str(tmp_path))  # vocab.json and merges.txt, as GPT-2 has them
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("Hello 世界", add_special_tokens=False)) == "Hello 世界"
    assert tokenizer.eos_token_ids == {byte_level.token_to_id("</s>")}


def test_an_older_vocabulary_that_is_broken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a vocabulary")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}', encoding="utf-8")
    with pytest.raises(ModelError, match="The tokenizer of the model"):
        load_tokenizer(tmp_path)


def test_loading_a_tokenizer_file_imports_no_transformers(tmp_path: Path, byte_level: Tokenizer) -> None:
    make_folder(tmp_path, byte_level)
    code = (
        "import pathlib, sys; from anllm.text.tokenizer import load_tokenizer; "
        "load_tokenizer(pathlib.Path(sys.argv[1])); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
