from __future__ import annotations

import io
import itertools

import pytest
import regex
from tokenizers.pre_tokenizers import ByteLevel

from anllm.errors import ModelError
from anllm.store.gguf_file import GGUFFile
from anllm.store.gguf_tokenizer import build_tokenizer, tokenizer_config

TEXTS = [
    "hello world",
    "hello  hello\n\n12 123",
    " it's 2024, äöü 日本語 🙂!",
    "",
    "x\t\r\n  y",
    "<|im_start|>hello<|im_end|>",
]

# The patterns of llama-vocab.cpp, applied one after the other.
REST = r" ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = {
    "smollm": [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|" + REST],
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|" + REST],
    "llama-bpe": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}


def slow_encode(text: str, pre: str, vocab: dict[str, int], merges: list[str], special: list[str]) -> list[int]:
    """Byte-level BPE the obvious way: split, then join the best pair until there is none."""
    pieces = regex.split("(" + "|".join(map(regex.escape, special)) + ")", text)
    ids = []
    for piece in pieces:
        ids += [vocab[piece]] if piece in special else slow_words(piece, pre, vocab, merges)
    return ids


def slow_words(text: str, pre: str, vocab: dict[str, int], merges: list[str]) -> list[int]:
    words = [text]
    for pattern in PATTERNS[pre]:
        words = [part for word in words for part in split_isolated(pattern, word)]
    letters = dict(zip(byte_order(), sorted_alphabet(), strict=True))
    ids = []
    for word in words:
        symbols = [letters[byte] for byte in word.encode()]
        ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        while best := min((p for p in itertools.pairwise(symbols) if p in ranks), key=ranks.get, default=None):
            i = next(i for i in range(len(symbols)) if tuple(symbols[i : i + 2]) == best)
            symbols[i : i + 2] = ["".join(best)]
        ids += [vocab[symbol] for symbol in symbols]
    return ids


def split_isolated(pattern: str, text: str) -> list[str]:
    parts, end = [], 0
    for match in regex.finditer(pattern, text):
        parts += [text[end : match.start()], match[0]]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


def byte_order() -> list[int]:
    """Bytes in the order of the letters that stand for them: printable ones are themselves, others come after 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [byte for byte in range(256) if byte not in printable]


def sorted_alphabet() -> list[str]:
    return sorted(ByteLevel.alphabet())


@pytest.mark.parametrize("pre", sorted(PATTERNS))
def test_byte_level_ids_are_those_of_the_obvious_algorithm(make_gguf, pre):
    path, model = make_gguf(metadata={"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False})
    tokenizer = build_tokenizer(GGUFFile(path))
    merges = model.usual_metadata()["tokenizer.ggml.merges"]
    vocab = {token: i for i, token in enumerate(model.tokens)}
    for text in TEXTS:
        assert tokenizer.encode(text).ids == slow_encode(text, pre, vocab, merges, model.tokens[:3]), text


@pytest.mark.parametrize("pre", sorted(PATTERNS))
def test_byte_level_text_comes_back(make_gguf, pre):
    path, _ = make_gguf(metadata={"tokenizer.ggml.pre": pre})
    tokenizer = build_tokenizer(GGUFFile(path))
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_ids_stay_as_the_file_has_them(make_gguf):
    path, model = make_gguf()
    tokenizer = build_tokenizer(GGUFFile(path))
    assert tokenizer.get_vocab_size() == len(model.tokens)
    assert [tokenizer.id_to_token(i) for i in range(len(model.tokens))] == model.tokens


def test_control_tokens_are_special_and_user_defined_ones_are_not(make_gguf):
    path, model = make_gguf()
    types = model.usual_metadata()["tokenizer.ggml.token_type"]
    path, _ = make_gguf("other.gguf", token_types=[3, 4, *types[2:]])
    tokenizer = build_tokenizer(GGUFFile(path))
    assert tokenizer.encode("<|endoftext|><|im_start|>").ids == [0, 1]
    assert tokenizer.decode([0, 1]) == "<|im_start|>"


@pytest.mark.parametrize(
    ("metadata", "first"),
    [
        ({"tokenizer.ggml.pre": "smollm"}, None),
        ({"tokenizer.ggml.pre": "smollm", "tokenizer.ggml.add_bos_token": True}, 1),
        ({"tokenizer.ggml.pre": "llama-bpe"}, 1),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, None),
    ],
)
def test_bos_is_put_before_a_text_as_the_file_says(make_gguf, metadata, first):
    path, _ = make_gguf(metadata=metadata)
    ids = build_tokenizer(GGUFFile(path)).encode("hello").ids
    assert (ids[0] if len(ids) == 2 else None) == first


def test_eos_is_put_behind_a_text_when_the_file_says_so(make_gguf):
    path, _ = make_gguf(metadata={"tokenizer.ggml.add_eos_token": True})
    assert build_tokenizer(GGUFFile(path)).encode("hello").ids[-1] == 2


def test_the_tokenizer_config_names_special_tokens_and_template(make_gguf):
    path, _ = make_gguf(metadata={"tokenizer.ggml.padding_token_id": 0})
    config = tokenizer_config(GGUFFile(path))
    assert config["chat_template"] == "{{ messages[0].content }}"
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert (config["tokenizer_class"], config["model_max_length"]) == ("PreTrainedTokenizerFast", 512)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'; only gpt2 and llama"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'; only gpt-2, default, smollm"),
        ({"tokenizer.ggml.merges": ["h nosuch"]}, "merge 'h nosuch'"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "a token twice"),
        ({"tokenizer.ggml.model": "llama"}, "0 scores"),
    ],
)
def test_an_unknown_or_broken_tokenizer_is_refused(make_gguf, metadata, words):
    path, _ = make_gguf(metadata=metadata)
    with pytest.raises(ModelError, match=words):
        build_tokenizer(GGUFFile(path))


@pytest.fixture(scope="module")
def sentencepiece_model():
    """A real SentencePiece BPE model, trained on a few sentences."""
    sentencepiece = pytest.importorskip("sentencepiece")
    sentences = ["the quick brown fox jumps over the lazy dog", "hello world, hello there", "a banana and an ananas"]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(processor) -> dict[str, object]:
    ids = range(processor.get_piece_size())
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        for i in ids
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [float(processor.get_score(i)) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.mark.parametrize(
    "text", ["hello world", "the banana ananas", "  two  spaces ", "äöü 日本 🙂", "over\nthe dog", "x", "anananana"]
)
def test_scored_tokens_give_the_ids_of_sentencepiece(make_gguf, sentencepiece_model, text):
    path, _ = make_gguf(metadata=sentencepiece_metadata(sentencepiece_model))
    tokenizer = build_tokenizer(GGUFFile(path))
    assert tokenizer.encode(text).ids == [1, *sentencepiece_model.encode(text)]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_no_space_is_put_before_a_text_when_the_file_says_so(make_gguf, sentencepiece_model):
    metadata = sentencepiece_metadata(sentencepiece_model) | {"tokenizer.ggml.add_space_prefix": False}
    path, _ = make_gguf(metadata=metadata)
    tokenizer = build_tokenizer(GGUFFile(path))
    assert not tokenizer.encode("hello").tokens[1].startswith("▁")
    assert tokenizer.decode(tokenizer.encode(" hello").ids) == " hello"
