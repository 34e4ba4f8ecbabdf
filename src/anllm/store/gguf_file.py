"""An open GGUF file: its tensors, mapped from disk, and its metadata with types.

Knows the container only, not what any key or tensor means.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from gguf import GGUFReader, ReaderTensor

from anllm.errors import ModelError

T = TypeVar("T")


class GGUFFile:
    """tensors: by name; their data is read from disk when it is touched. name: the file's name, for messages."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError if `path` is not a whole GGUF file of this machine's byte order."""
        self.name = path.name
        try:
            reader = GGUFReader(path)
        except (ValueError, KeyError, IndexError) as error:
            raise ModelError(
                f"'{self.name}' is not a whole GGUF file ({error}); it may be half downloaded: download it again."
            ) from error
        if reader.byte_order != "I":
            raise ModelError(
                f"'{self.name}' is a GGUF file of the other byte order; convert it on a machine like this."
            )
        self._fields = reader.fields
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.string("general.architecture") or "none"

    def value(self, key: str) -> object:
        """The value as the file has it; None where there is no such key."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def string(self, key: str) -> str | None:
        return self._typed(key, str)

    def flag(self, key: str) -> bool | None:
        return self._typed(key, bool)

    def integer(self, key: str) -> int | None:
        return self._typed(key, int)

    def number(self, key: str) -> float | None:
        value = self.value(key)
        return float(value) if isinstance(value, int) else self._typed(key, float)

    def required_integer(self, key: str) -> int:
        value = self.integer(key)
        if value is None:
            raise ModelError(f"'{self.name}' has no {key}; it is no complete model.")
        return value

    def strings(self, key: str) -> list[str]:
        """Empty where there is no such key."""
        return [value for value in self._array(key) if isinstance(value, str)]

    def integers(self, key: str) -> list[int]:
        return [value for value in self._array(key) if isinstance(value, int)]

    def numbers(self, key: str) -> list[float]:
        return [float(value) for value in self._array(key) if isinstance(value, int | float)]

    def _array(self, key: str) -> list[object]:
        return self._typed(key, list) or []

    def _typed(self, key: str, kind: type[T]) -> T | None:
        value = self.value(key)
        if value is None or isinstance(value, kind):
            return value
        raise ModelError(f"'{self.name}' has {key} of type {type(value).__name__}; {kind.__name__} was expected.")
