"""Rows of keys and values as a cache stores them, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.operands.dtypes import NAN_CODE, DType

Array = NDArray[Any]


def stored(new: Array, dtype: DType, scale: Array | None) -> Array:
    """New rows [kv_heads, rows, dim] as a cache stores them: with a scale, divided and rounded."""
    if scale is None:
        return new
    assert dtype.largest is not None  # scales are of narrow types
    # Infinity is stored as the largest finite number, as by `cvt.rn.satfinite`, and NaN as the same code.
    # The values are clamped because ml_dtypes converts values that are too large to NaN or infinity.
    with np.errstate(over="ignore", under="ignore"):
        scaled = new.astype(np.float32) / scale
    found = np.clip(scaled, -dtype.largest, dtype.largest).astype(dtype.numpy)
    found.view(np.uint8)[np.isnan(scaled)] = NAN_CODE
    return found


def loaded(rows: Array, scale: Array | None) -> Array:
    """Stored rows as attention takes them: with a scale, as f32 multiplied by it."""
    return rows if scale is None else rows.astype(np.float32) * scale
