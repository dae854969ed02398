"""Sets the scales that each head of a KV cache of one-byte elements (fp8, int8) has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.operands.blocks import SCALED_NAMES
from flash.operands.dtypes import DType
from flash.pages import numbers as arguments
from flash.problem.narrow import HEAD, TOKEN
from ptxgen.errors import LaunchError

Array = NDArray[Any]


def set_scales_of_heads(
    scales: Array | None, dtype: DType, tokens: int, k_scale: object, v_scale: object
) -> None:
    """Set the `scales` of a cache, [2, layers, kv_heads], whose longest sequence has `tokens` tokens; None if
    heads have no scales. Raises what `KVCache.set_scales` does.
    """
    caller = "KVCache.set_scales"
    if scales is None and dtype.has_scales:
        raise LaunchError(
            f"{caller}: scales are set for heads, but this cache has scale_per={TOKEN!r}: each token gets "
            f"its own when it is appended; leave out set_scales, or make a cache with scale_per={HEAD!r}"
        )
    if scales is None:
        raise LaunchError(
            f"{caller}: scales are for dtype={SCALED_NAMES}, but this cache is of {dtype.name!r}; append to "
            "it without scales"
        )
    if tokens:
        raise LaunchError(
            f"{caller}: scales must be set before anything is appended, but sequences have up to "
            f"{tokens} tokens; reset() the cache first"
        )
    _, layers, kv_heads = scales.shape
    of_sides = {"k_scale": k_scale, "v_scale": v_scale}
    scales[...] = np.stack([arguments.scale(caller, *side, (layers, kv_heads)) for side in of_sides.items()])
