"""Trees of arrays, as MLX nests them: dicts and lists of parameters or of cache states."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten


def flat_arrays(tree: Any) -> list[tuple[str, mx.array]]:
    """The arrays of a tree with their dotted paths, in its order. What is no array (an empty state) is left out."""
    leaves = cast("list[tuple[str, Any]]", tree_flatten(tree))  # a dict only where one is handed in to be filled
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, mx.array)]
