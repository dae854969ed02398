"""The scales of a KV cache of one-byte elements: those of heads are set, those of tokens read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.cache.cuda_memory import KVMemory
from flash.operands.dtypes import FP8_NAMES, DType
from flash.pages import numbers as arguments
from flash.pages.placement import Run
from flash.problem.narrow import HEAD, TOKEN
from ptxgen.errors import LaunchError

Array = NDArray[Any]


def set_scales_of_heads(
    scales: Array | None, dtype: DType, tokens: int, k_scale: object, v_scale: object
) -> None:
    """Set the `scales` of a cache, [2, layers, kv_heads], whose longest sequence has so many `tokens`; None
    if there are no scales of heads. Raises what `KVCache.set_scales` does.
    """
    caller = "KVCache.set_scales"
    if scales is None and dtype.is_narrow:
        raise LaunchError(
            f"{caller}: scales are set for heads, but this cache has scale_per={TOKEN!r}: each token gets "
            f"its own when it is appended; leave out set_scales, or make a cache with scale_per={HEAD!r}"
        )
    if scales is None:
        raise LaunchError(
            f"{caller}: scales are for dtype={FP8_NAMES}, but this cache is of {dtype.name!r}; append to it "
            "without scales"
        )
    if tokens:
        raise LaunchError(
            f"{caller}: scales must be set before anything is appended, but sequences have up to "
            f"{tokens} tokens; reset() the cache first"
        )
    given = {"k_scale": k_scale, "v_scale": v_scale}
    _, layers, kv_heads = scales.shape
    scales[...] = np.stack([arguments.scale(caller, *named, (layers, kv_heads)) for named in given.items()])


def scales_of_tokens(
    caller: str, per_token: bool, memory: KVMemory, layer: int, runs: Sequence[Run]
) -> tuple[Array, Array]:
    """Scales of K and V of the rows of `runs`, f32 [kv_heads, rows], copies. Raises `LaunchError` unless the
    cache is `per_token`.
    """
    k, v = memory.scales(layer, runs)
    if not per_token or k is None or v is None:
        raise LaunchError(
            f"{caller}: tokens have scales in a cache with scale_per={TOKEN!r}, which this one has not; see "
            "KVCache.scales"
        )
    return k[..., 0].copy(), v[..., 0].copy()
