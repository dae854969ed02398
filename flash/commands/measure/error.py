"""The error of attention rows against float64, in units of the error of numpy in f32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.commands.measure.cpu import Array
from flash.reference import attention_reference

Rows = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


def sampled_rows(size: tuple[int, int, int, int], count: int = 32) -> Rows:
    """Indices (batch, head, row) of `count` rows of O [batch, heads, seq, d], with rows 0 and seq -
    1.
    """
    batch, heads, seq, _ = size
    rng = np.random.default_rng(0)
    rows = rng.integers(0, seq, count)
    rows[:2] = 0, seq - 1
    return rng.integers(0, batch, count), rng.integers(0, heads, count), rows


@dataclass(frozen=True, slots=True)
class Judge:
    """Rows of O in float64, and the error of the same-precision numpy reference against them."""

    exact: NDArray[np.float64]
    usual: float  # largest error of the f32 reference

    @classmethod
    def of(
        cls, arrays: tuple[Array, Array, Array], rows: Rows, causal: bool, window: int | None = None
    ) -> Judge:
        """The judge of some rows of attention of q, k and v, which have equal seqlens. Heads of q are a
        multiple of those of k and v; `window` is the number of keys that a query sees up to its own row.
        """
        exact, same = (
            np.stack([_row(arrays, b, h, i, (causal, window), dtype) for b, h, i in zip(*rows, strict=True)])
            for dtype in (np.float64, np.float32)
        )
        return cls(exact, float(np.abs(same - exact).max()))

    def ratio(self, out: NDArray[Any]) -> float:
        """The largest error of `out`, these rows of O, in units of `usual`; infinite for NaN."""
        error = float(np.abs(out - self.exact).max())
        if math.isnan(error):
            return math.inf
        return error / self.usual if self.usual else (0.0 if error == 0 else math.inf)


def _row(
    arrays: tuple[Array, Array, Array], b: int, h: int, i: int, sees: tuple[bool, int | None], dtype: Any
) -> NDArray[Any]:
    (q, k, v), (causal, window) = arrays, sees
    seen = slice(0 if window is None else max(i + 1 - window, 0), i + 1 if causal else None)
    of_keys = h // (q.shape[1] // k.shape[1])
    out, _ = attention_reference(
        q[b : b + 1, h : h + 1, i : i + 1],
        k[b : b + 1, of_keys : of_keys + 1, seen],
        v[b : b + 1, of_keys : of_keys + 1, seen],
        dtype=dtype,
    )
    return np.asarray(out[0, 0, 0])
