"""Text to token ids and back, by the tokenizer that lies in a model's folder.

Over the `tokenizers` library; transformers is imported only for a model without tokenizer.json. Knows nothing of chat
templates or requests. Any thread may call it: encoding releases the GIL, and no call changes what another gives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from anllm.errors import ModelError
from anllm.text.detokenizer import IncrementalDetokenizer
from anllm.text.special_tokens import configured_ids, special_token_texts
from anllm.text.token_bytes import TokenBytes
from anllm.text.whole_texts import WholeTexts

# Files from which transformers builds a fast tokenizer when there is no tokenizer.json.
CONVERTIBLE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


class HFTokenizer:
    """A Hugging Face tokenizer behind anllm.text.interface.Tokenizer.

    backend: taken over; truncation and padding are switched off, since a call that sets them for itself would change
        the tokenizer under other threads (huggingface/tokenizers#537).
    """

    def __init__(self, backend: Tokenizer, *, bos_token_id: int | None, eos_token_ids: frozenset[int]) -> None:
        backend.no_truncation()
        backend.no_padding()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        added_tokens = backend.get_added_tokens_decoder()
        self._backend = backend
        self._bos_token_id = bos_token_id
        self._eos_token_ids = eos_token_ids
        self._vocab_size = max(vocabulary.values(), default=-1) + 1
        self._max_token_chars = max(map(len, vocabulary), default=0)
        self._special_token_ids = frozenset(id for id, token in added_tokens.items() if token.special)
        self._token_bytes = TokenBytes(backend, self._special_token_ids)
        self._whole_texts = WholeTexts(backend, self._special_token_ids, self._token_bytes)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._eos_token_ids

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special_token_ids

    @property
    def max_token_chars(self) -> int:
        """Length of the longest token as the vocabulary writes it. A byte-level vocabulary writes one character a
        byte, so this is at least the number of characters of the text."""
        return self._max_token_chars

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        has_second_bos = add_special_tokens and self._bos_token_id is not None and ids[:2] == [self._bos_token_id] * 2
        return ids[1:] if has_second_bos and self._adds_bos() else ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self._token_bytes(token_id)

    def piece(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""

    def token_id(self, piece: str) -> int | None:
        token_id: int | None = self._backend.token_to_id(piece)
        return token_id

    def detokenizer(self, *, skip_special_tokens: bool = True, kept: Collection[str] = ()) -> IncrementalDetokenizer:
        if not skip_special_tokens:
            return IncrementalDetokenizer(self._backend)
        kept_ids = {self._backend.token_to_id(text) for text in kept} & self._special_token_ids
        return IncrementalDetokenizer(
            self._backend, self._special_token_ids - kept_ids, self._whole_texts, keeps_some=bool(kept_ids)
        )

    def _adds_bos(self) -> bool:
        return self._backend.encode("", add_special_tokens=True).ids[:1] == [self._bos_token_id]


def load_tokenizer(folder: Path) -> HFTokenizer:
    """The tokenizer of the model in `folder`. Nothing is downloaded, and no code of the model runs.

    Raises ModelError if there is none, or none that the `tokenizers` library can run.
    """
    backend = _load_backend(folder)
    texts = special_token_texts(folder)
    bos_ids = [*_ids_of(backend, texts.get("bos_token")), *configured_ids(folder, "bos_token_id")]
    eos_ids = [*_ids_of(backend, texts.get("eos_token")), *configured_ids(folder, "eos_token_id")]
    return HFTokenizer(backend, bos_token_id=bos_ids[0] if bos_ids else None, eos_token_ids=frozenset(eos_ids))


def _ids_of(backend: Tokenizer, text: str | None) -> list[int]:
    token_id = None if text is None else backend.token_to_id(text)
    return [] if token_id is None else [token_id]


def _load_backend(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _convert_backend(folder)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no type of its own
        raise ModelError(f"tokenizer.json of the model {folder.name} can't be read: {error}.") from error


def _convert_backend(folder: Path) -> Tokenizer:
    """A tokenizer made by transformers out of an older vocabulary file."""
    if not any((folder / name).is_file() for name in CONVERTIBLE_FILES):
        looked_for = ", ".join(("tokenizer.json", *CONVERTIBLE_FILES))
        raise ModelError(f"The model {folder.name} has no tokenizer: looked for {looked_for}.")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # takes over a second to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each converter raises what it likes: OSError, ValueError, ImportError, KeyError
        raise ModelError(f"The tokenizer of the model {folder.name} can't be converted to a fast one.") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"The tokenizer of the model {folder.name} has no fast form that `tokenizers` can run.")
    return tokenizer.backend_tokenizer
