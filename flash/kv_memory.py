"""The memory of a KV cache: what is copied and written where `flash/placement.py` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flash.arrays import ArrayView, host_array
from flash.dtypes import E4M3, E4M3_MAX, DType
from flash.placement import Copy, Run

Array = NDArray[Any]


class Write(NamedTuple):
    """Rows of the arrays given to an append, from `first` of its item `item` on, go to `run`."""

    item: int
    first: int
    run: Run


class KVMemory(Protocol):
    """K and V of all layers, and what moves in it.

    `k` is [layers, places, kv_heads, rows, head_dim], `v` the same with head_dim_v.
    """

    k: Any
    v: Any

    @property
    def nbytes(self) -> int:
        """Bytes of both."""

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy rows between places, in every layer, one after another."""

    def write(self, layer: int, k: ArrayView, v: ArrayView, writes: Sequence[Write]) -> None:
        """Write rows of k and v [items, kv_heads, n, dim] where `writes` says."""


class HostMemory:
    """In numpy arrays, for the backends `cpu` and `interpreter`; new memory is not initialised.

    `scales` are those of K and V, f32 [layers, kv_heads], of the type e4m3: x is stored as x /
    scale, divided in f32, at most 448 either way, rounded to nearest even.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], dims: tuple[int, int], dtype: DType
    ) -> None:
        self.k: Array
        self.v: Array
        self.k, self.v = (np.empty((*shape, dim), dtype.numpy) for dim in dims)
        self.dtype = dtype
        self.scales: tuple[Array, Array] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of K and V."""
        return self.k.nbytes + self.v.nbytes

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy rows between places, in every layer."""
        for source, target, rows in copies:
            for memory in (self.k, self.v):
                memory[:, target, :, :rows] = memory[:, source, :, :rows]

    def write(self, layer: int, k: ArrayView, v: ArrayView, writes: Sequence[Write]) -> None:
        """Write rows where `writes` says."""
        for side, (memory, array) in enumerate(((self.k, k), (self.v, v))):
            rows = host_array(array)
            for item, first, (place, begin, count) in writes:
                new = rows[item, :, first : first + count]
                memory[layer, place, :, begin : begin + count] = self._stored(new, layer, side)

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """The rows of `runs`, one after another, as attention takes them: [kv_heads, rows, dim] of
        the cache's type, or f32 for e4m3. Without a copy if there is one run and no scale.
        """
        return self._dense(self.k, layer, runs, 0), self._dense(self.v, layer, runs, 1)

    def _dense(self, memory: Array, layer: int, runs: Sequence[Run], side: int) -> Array:
        parts = [memory[layer, run.place, :, run.first : run.first + run.rows] for run in runs]
        if len(parts) != 1:
            nothing = memory[layer, 0, :, :0]
            parts = [np.concatenate([nothing, *parts], axis=1)]
        if self.scales is None:
            return parts[0]
        wide: Array = parts[0].astype(np.float32) * self._scale(layer, side)
        return wide

    def _stored(self, new: Array, layer: int, side: int) -> Array:
        if self.dtype is not E4M3:
            return new
        # Infinity is stored as the largest number, as `cvt.rn.satfinite` stores it; NaN stays NaN.
        # ml_dtypes makes NaN of what is too large.
        with np.errstate(over="ignore", under="ignore"):
            scaled = new.astype(np.float32) / self._scale(layer, side)
        return np.clip(scaled, -E4M3_MAX, E4M3_MAX).astype(self.dtype.numpy)

    def _scale(self, layer: int, side: int) -> Array:
        """[kv_heads, 1, 1]."""
        assert self.scales is not None  # a cache of e4m3 has them from the start
        scale: Array = self.scales[side][layer, :, None, None]
        return scale
