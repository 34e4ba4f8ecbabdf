"""The safetensors format: read a header, write a file.

The writing is here because the library's numpy side has no bfloat16. Knows nothing of models. Format:
little-endian uint64 length of the header, JSON header, the tensors' bytes; https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading headers needs no numpy, and importing it costs 0.2 s
    import numpy.typing as npt

MAX_HEADER_BYTES = 100_000_000  # the library's own limit


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array and the name of its type in the file. bfloat16 ("BF16") travels as uint16, a float32's upper half."""

    dtype: str
    array: npt.NDArray[Any]


def expected_size(path: Path) -> int | None:
    """The size in bytes that the header promises; None where there is no readable header. Reads the header only."""
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8 or (num_bytes := struct.unpack("<Q", prefix)[0]) > MAX_HEADER_BYTES:
            return None
        header = file.read(num_bytes)
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        return 8 + int(num_bytes) + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` to `path`, in their order."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.array.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            tensor.array.tofile(file)
