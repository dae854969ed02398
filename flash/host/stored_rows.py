"""Rows of keys and values as a cache stores them, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.host.blocks import in_blocks, of_blocks
from flash.operands.blocks import BlockType
from flash.operands.dtypes import LEAST_TOKEN_SCALE, NAN_CODE, DType

Array = NDArray[Any]


def token_scales(new: Array, dtype: DType) -> Array:
    """The scale of each of new rows [kv_heads, rows, dim] in a cache with one for each token, f32 [kv_heads,
    rows, 1]: the largest finite magnitude of the row / the largest number of `dtype`, in f32.
    """
    sizes = np.abs(new.astype(np.float32))
    largest = np.where(np.isfinite(sizes), sizes, np.float32(0)).max(axis=-1, keepdims=True)
    scales: Array = np.maximum(largest / np.float32(dtype.largest), np.float32(LEAST_TOKEN_SCALE))
    return scales


def stored(new: Array, dtype: DType, scale: Array | None) -> Array:
    """New rows [kv_heads, rows, dim] as a cache stores them: with a scale, divided and rounded."""
    if isinstance(dtype, BlockType):
        return in_blocks(new, dtype)
    if scale is None:
        return new
    # Infinity is stored as the largest finite number, as by `cvt.rn.satfinite`, and NaN as the same code.
    # The values are clamped because ml_dtypes converts values that are too large to NaN or infinity.
    with np.errstate(over="ignore", under="ignore"):
        scaled = new.astype(np.float32) / scale
    is_nan, limited = np.isnan(scaled), np.clip(scaled, -dtype.largest, dtype.largest)
    if dtype.is_finite:
        return np.where(is_nan, np.float32(0), np.rint(limited)).astype(dtype.numpy)
    codes = limited.astype(dtype.numpy)
    codes.view(np.uint8)[is_nan] = NAN_CODE
    return codes


def loaded(rows: Array, dtype: DType, scale: Array | None) -> Array:
    """Stored rows as attention takes them: with scales, as f32 multiplied by these."""
    if isinstance(dtype, BlockType):
        return of_blocks(rows, dtype)
    return rows if scale is None else rows.astype(np.float32) * scale
