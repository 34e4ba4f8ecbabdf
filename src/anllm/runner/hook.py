"""Putting a function of ours in the place of one of mlx_lm's, in every model module that uses it.

Models take such functions in by name (`from .base import …`), so each loaded module has its own reference. The stock
function stays reachable, for what ours does not handle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def replace_in_models(home: Any, name: str, make: Callable[[Function], Function]) -> None:
    """`make` gets the stock function `home.name` and returns what is to be called in its place.

    Call after a model is loaded, since its module must be there; calling again does no harm.
    """
    current = getattr(home, name)
    stock = getattr(current, "stock", current)
    replacement: Any = make(stock)
    replacement.stock = stock
    for module_name, module in list(sys.modules.items()):
        found = getattr(module, name, None) if module_name.startswith("mlx_lm.models") else None
        if found is not None and getattr(found, "stock", found) is stock:
            setattr(module, name, replacement)
