"""Runs of attention on the host, and arrays for them, for the tests of `flash.cpu`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flash.cpu.attention import attention_cpu

Array = np.ndarray[Any, Any]
CAUSAL = [False, "bottom_right", "top_left"]
DTYPES = [np.float32, np.float16, "bf16"]


def attended(q: Any, k: Any, v: Any, *, softmax_scale: Any = None, causal: Any = False, **how: Any) -> Any:
    """Output and LSE from memory full of NaN, so that what is not written shows."""
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float64 if q.dtype == np.float64 else np.float32)
    attention_cpu(q, k, v, out, lse, softmax_scale=softmax_scale, causal=causal, **how)
    return out, lse


def assert_same(one: Any, other: Any) -> None:
    """Two sequences, or mappings, of arrays have the same bits."""
    names = one.keys() if isinstance(one, Mapping) else range(len(one))
    assert len(one) == len(other)
    for name in names:
        np.testing.assert_array_equal(one[name], other[name], err_msg=str(name))


def placed(x: Array, offset: int, gap: int) -> Array:
    """A copy of x that begins `offset` elements after a multiple of 64 bytes, each of whose rows ends `gap`
    elements before the next.
    """
    *outer, columns = x.shape
    nbytes = math.prod(outer) * (columns + gap) * x.itemsize
    room = np.zeros(nbytes + 64 + offset * x.itemsize, np.uint8)
    first = -room.ctypes.data % 64 + offset * x.itemsize
    there = room[first : first + nbytes].view(x.dtype).reshape(*outer, columns + gap)
    there[..., :columns] = x
    return there[..., :columns]


def score_features(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The feature of this name, or all, for scores of a shape; none for another name."""
    rng = np.random.default_rng(0)
    hidden = rng.random(shape) < 0.2
    features: dict[str, Any] = {
        "window": (30, 25),
        "softcap": 2.0,
        "alibi_slopes": rng.random(shape[1], dtype=np.float32),
        "bias": np.where(hidden, np.float32(-np.inf), rng.standard_normal(shape, np.float32)),
        "mask": rng.random(shape) < 0.7,
        "sink": rng.standard_normal(shape[:2], dtype=np.float32),
    }
    return {key: value for key, value in features.items() if name in (key, "all")}
