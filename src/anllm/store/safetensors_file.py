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
DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8"},
    **{"I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32"},
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array and the name of its type in the file. bfloat16 ("BF16") travels as uint16, a float32's upper half."""

    dtype: str
    array: npt.NDArray[Any]


def expected_size(path: Path) -> int | None:
    """The size in bytes that the header promises; None where there is no readable header. Reads the header only."""
    read = _read_header(path)
    if read is None:
        return None
    num_bytes, entries = read
    try:
        return 8 + num_bytes + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (KeyError, IndexError, TypeError):
        return None


def dtype_sizes(path: Path) -> dict[str, int]:
    """Bytes of the tensors of each type, by its name in MLX and NumPy ("bfloat16"). Reads the header only; empty where
    there is no readable one."""
    sizes: dict[str, int] = {}
    _, entries = _read_header(path) or (0, {})
    for entry in entries.values():
        name = DTYPES.get(entry["dtype"], entry["dtype"])
        start, end = entry["data_offsets"]
        sizes[name] = sizes.get(name, 0) + end - start
    return sizes


def _read_header(path: Path) -> tuple[int, dict[str, Any]] | None:
    """Its length in bytes, and an entry for each tensor."""
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8 or (num_bytes := struct.unpack("<Q", prefix)[0]) > MAX_HEADER_BYTES:
            return None
        header = file.read(num_bytes)
    try:
        entries = json.loads(header)
        return int(num_bytes), {name: entry for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, AttributeError):
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
