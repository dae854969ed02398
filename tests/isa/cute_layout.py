"""Layouts as NVIDIA's CuTe writes them, a shape and a stride of nested tuples."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Nested = int | tuple["Nested", ...]


def flat(x: Nested) -> list[int]:
    """The numbers of a nested tuple."""
    return [x] if isinstance(x, int) else [n for inner in x for n in flat(inner)]


def at(shape: Nested, stride: Nested, index: Array) -> Array:
    """The offsets of linear indices, the first mode fastest."""
    total, rest = np.zeros_like(index), index
    for size, step in zip(flat(shape), flat(stride), strict=True):
        total, rest = total + rest % size * step, rest // size
    return total


def table(rows: int, columns: int, shape: Nested, stride: Nested) -> Array:
    """The offset of each element of a matrix, `[rows, columns]`, the row fastest."""
    return at(shape, stride, np.arange(rows * columns)).reshape(rows, columns, order="F")
