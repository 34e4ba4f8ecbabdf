"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json of the `tokenizers` library.

Two families: byte-level BPE ("gpt2"), and SentencePiece BPE with scores and byte fallback ("llama"). Ids stay as the
file has them. Patterns and defaults follow llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from anllm.errors import ModelError
from anllm.store.gguf_file import GGUFFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"


def _split(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Family:
    """What tokenizer.ggml.pre stands for. ignore_merges: a word that is a token is taken whole."""

    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = _Family(pre_tokenizers.ByteLevel(add_prefix_space=False))
_LLAMA3_FAMILY = _Family(_split(_LLAMA3), ignore_merges=True, add_bos=True)
_FAMILIES = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _Family(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "llama-bpe": _LLAMA3_FAMILY,
    "llama3": _LLAMA3_FAMILY,
    "llama-v3": _LLAMA3_FAMILY,
    "qwen2": _Family(_split(_QWEN2), normalizer=normalizers.NFC()),
}


def build_tokenizer(gguf_file: GGUFFile) -> Tokenizer:
    """Raises ModelError, naming what is known, for another kind of tokenizer."""
    tokens = gguf_file.strings("tokenizer.ggml.tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or not tokens:
        raise ModelError(f"'{gguf_file.name}' has no vocabulary, or one with a token twice; download it again.")
    kind = gguf_file.string("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(gguf_file, vocab)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(gguf_file, tokens, vocab), True
    else:
        raise ModelError(
            f"'{gguf_file.name}' has a tokenizer of kind '{kind}'; only gpt2 and llama can be read from GGUF: give the "
            "model's safetensors folder instead."
        )
    tokenizer.add_tokens(_added_tokens(gguf_file, tokens))
    _add_template(tokenizer, gguf_file, tokens, add_bos)
    return tokenizer


def tokenizer_config(gguf_file: GGUFFile) -> dict[str, object]:
    """tokenizer_config.json."""
    tokens = gguf_file.strings("tokenizer.ggml.tokens")
    special = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    named = {name: _special(gguf_file, tokens, key) for name, key in special.items()}
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf_file.required_integer(f"{gguf_file.architecture}.context_length"),
        "chat_template": gguf_file.string("tokenizer.chat_template"),
        **named,
    }
    return {key: value for key, value in config.items() if value is not None}


def _special(gguf_file: GGUFFile, tokens: list[str], key: str) -> str | None:
    token_id = gguf_file.integer(f"tokenizer.ggml.{key}_token_id")
    return tokens[token_id] if token_id is not None and token_id < len(tokens) else None


def _byte_level(gguf_file: GGUFFile, vocab: dict[str, int]) -> tuple[Tokenizer, bool]:
    pre = gguf_file.string("tokenizer.ggml.pre") or "default"
    family = _FAMILIES.get(pre)
    if family is None:
        raise ModelError(
            f"'{gguf_file.name}' splits words by the rules of '{pre}'; only {', '.join(_FAMILIES)} can be read from "
            "GGUF: give the model's safetensors folder instead."
        )
    merges = _merges(gguf_file, vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=family.ignore_merges))
    tokenizer.pre_tokenizer = family.pre_tokenizer
    if family.normalizer is not None:
        tokenizer.normalizer = family.normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, family.add_bos


def _merges(gguf_file: GGUFFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for line in gguf_file.strings("tokenizer.ggml.merges"):
        left, _, right = line.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelError(f"'{gguf_file.name}' has the merge '{line}' of tokens that are not in its vocabulary.")
        merges.append((left, right))
    return merges


def _sentencepiece(gguf_file: GGUFFile, tokens: list[str], vocab: dict[str, int]) -> Tokenizer:
    scores = gguf_file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"'{gguf_file.name}' has {len(scores)} scores for {len(tokens)} tokens; download it again.")
    types = _token_types(gguf_file, tokens)
    scored = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    unknown = _special(gguf_file, tokens, "unknown")
    model = BPE(vocab=vocab, merges=merges_by_score(scored), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    add_space = gguf_file.flag("tokenizer.ggml.add_space_prefix") is not False
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if add_space else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space else steps)
    return tokenizer


def merges_by_score(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, the best score first: what SentencePiece does without storing merges.

    The order among equals is that of generate_merges in transformers' tokenization_utils_base.py.
    """
    order = {token: position for position, token in enumerate(scores)}
    merges = []
    for token, score in scores.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        found = [(left, right, score) for left, right in pairs if left in scores and right in scores]
        merges += sorted(found, key=lambda merge: (order[merge[0]], order[merge[1]]))
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [(left, right) for left, right, _ in merges]


def _token_types(gguf_file: GGUFFile, tokens: list[str]) -> list[int]:
    types = gguf_file.integers("tokenizer.ggml.token_type")
    return types if len(types) == len(tokens) else [NORMAL] * len(tokens)


def _added_tokens(gguf_file: GGUFFile, tokens: list[str]) -> list[AddedToken]:
    """Tokens that are found in text before anything else, in the order of their ids, which they keep."""
    types = _token_types(gguf_file, tokens)
    return [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _add_template(tokenizer: Tokenizer, gguf_file: GGUFFile, tokens: list[str], add_bos: bool) -> None:
    """Have BOS put before each text, and EOS behind it, where the file says so. add_bos: where it says nothing."""
    asked = gguf_file.flag("tokenizer.ggml.add_bos_token")
    bos = _special(gguf_file, tokens, "bos") if (add_bos if asked is None else asked) else None
    eos = _special(gguf_file, tokens, "eos") if gguf_file.flag("tokenizer.ggml.add_eos_token") else None
    if bos is None and eos is None:
        return
    single = [part for part in (bos, "$A", eos) if part is not None]
    pair = [*single, *("$B:1" if part == "$A" else f"{part}:1" for part in single)]
    special = [(token, tokens.index(token)) for token in {bos, eos} if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
