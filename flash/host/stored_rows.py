"""Rows of keys and values as a cache stores them, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.operands.dtypes import E4M3_MAX, DType

Array = NDArray[Any]


def stored(new: Array, dtype: DType, scale: Array | None) -> Array:
    """New rows [kv_heads, rows, dim] as a cache stores them: with a scale, divided and rounded."""
    if scale is None:
        return new
    # Infinity is stored as the largest finite number, as by `cvt.rn.satfinite`; NaN stays NaN. The
    # values are clamped because ml_dtypes converts values that are too large to NaN.
    with np.errstate(over="ignore", under="ignore"):
        scaled = new.astype(np.float32) / scale
    return np.clip(scaled, -E4M3_MAX, E4M3_MAX).astype(dtype.numpy)


def loaded(rows: Array, scale: Array | None) -> Array:
    """Stored rows as attention takes them: with a scale, as f32 multiplied by it."""
    return rows if scale is None else rows.astype(np.float32) * scale
