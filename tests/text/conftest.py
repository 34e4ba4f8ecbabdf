"""Small real tokenizers, made on the spot."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "Hello world, how are you today? The quick brown fox jumps over the lazy dog.",
    "你好世界。日本語のテキスト。 Привет, мир! Ça va, naïve café?",
    "Emoji: 😀 🙂 👩‍👩‍👧 and code: def f(x):\n    return x + 1\n",
]


def add_bos(tokenizer: Tokenizer) -> None:
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[bos])


def make_byte_level() -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3 and Qwen have it, with BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    add_bos(tokenizer)
    return tokenizer


def make_byte_fallback() -> Tokenizer:
    """BPE over words with ▁ for a space and <0xNN> for unknown characters, as Llama 2 and Gemma have it, with BOS."""
    words = ["▁", *"▁helowrdn", "▁h", "el", "lo", "▁w", "or", "ld", "世"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(words)]
    merges = [("▁", "h"), ("e", "l"), ("l", "o"), ("▁", "w"), ("o", "r"), ("l", "d")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    add_bos(tokenizer)
    return tokenizer


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return make_byte_level()


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return make_byte_fallback()


@pytest.fixture(scope="session", params=[make_byte_level, make_byte_fallback], ids=["byte-level", "byte-fallback"])
def backend(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made
