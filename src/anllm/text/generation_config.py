"""The sampling that a model's makers suggest: generation_config.json, as far as it says how to draw.

Only the keys count that vLLM takes too, without max_new_tokens: files carry stale limits such as 20.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from anllm.core.request import SamplingDefaults
from anllm.text.special_tokens import read_json_object

logger = logging.getLogger(__name__)

FILE = "generation_config.json"
NEUTRAL = SamplingDefaults()

# Key -> whether a value is in the range that requests have too.
RANGES: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value <= 2,
    "top_p": lambda value: 0 <= value <= 1,
    "top_k": lambda value: value >= -1 and value.is_integer(),
    "min_p": lambda value: 0 <= value <= 1,
    "repetition_penalty": lambda value: value > 0,
}


def load_sampling_defaults(folder: Path) -> SamplingDefaults:
    """What the model in `folder` suggests; neutral where it says nothing. A value out of range is left out, with a
    warning. Raises ModelError for a file that is no JSON object."""
    given = read_json_object(folder, FILE)
    found: dict[str, float] = {}
    for key, is_in_range in RANGES.items():
        value = given.get(key)
        if value is None:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            number = float(value)
        else:
            number = math.nan
        if is_in_range(number):
            found[key] = number
        else:
            logger.warning(
                "%s of the model %s: %s is %r, which is out of range; left out", FILE, folder.name, key, value
            )
    top_k = max(int(found.pop("top_k", 0)), 0)  # -1 is all, as 0
    return SamplingDefaults(top_k=top_k, **found)
