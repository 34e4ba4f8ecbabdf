"""How MLX is brought to call the native library: by products with matrices that are none.

Such a matrix is a view of the words that the library is told (native/task.h), of a size which it only claims. Nothing
but a product may read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from anllm.runner.native_library import NativeLibrary

# Kinds, as native/task.h has them.
SEVERAL, ATTENTION, RMS_NORM, SWIGLU, NOTHING = 63, 64, 65, 66, 67


def header(native: NativeLibrary, *numbers: int, size: int = 16) -> np.ndarray:
    """uint32 [size]: what such a matrix begins with, and these numbers, the first of which says what it is."""
    words = np.zeros(size, np.uint32)
    words[: 4 + len(numbers)] = (*native.magic, *numbers)
    return words


def matrix(told: mx.array, height: int, width: int) -> mx.array:
    """told: uint32. float32 [height, width], for the right side of a product."""
    return mx.as_strided(told.view(mx.float32), (height, width), (width, 1), 0)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Such a matrix for a module to keep: what is no array is no parameter of it. arrays: those that it tells of by
    their addresses."""

    matrix: mx.array
    arrays: tuple[mx.array, ...] = ()
