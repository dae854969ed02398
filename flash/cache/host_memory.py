"""The memory of a KV cache: what is copied and written where `flash/pages/placement.py` says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flash.host.arrays import HOST, ArrayView, host_array, view
from flash.pages.placement import Copy, Placement, Run, Stretch
from flash.problem.dtypes import E4M3_MAX, DType

Array = NDArray[Any]


class LayerArrays(NamedTuple):
    """What a cache has of a layer, for kernels: K [places, kv_heads, rows, head_dim] and V, of
    which a place is a sequence or a page; lengths int32 [batch]; the block table, if there are
    pages, int32 [batch, ceil(capacity / page_size)], the same for all layers; and the scales of
    e4m3, float32 [kv_heads].
    """

    k: ArrayView
    v: ArrayView
    lengths: ArrayView
    block_table: ArrayView | None
    k_scale: ArrayView | None
    v_scale: ArrayView | None


class SmallArrays(NamedTuple):
    """The host's numbers that say where rows are and how they are stored, which a cache changes:
    `lengths` int32 [layers, batch]; the block table, int32 [batch, ceil(capacity / page_size)], if
    there are pages; and for e4m3 the scales of K and of V, float32 [2, layers, kv_heads].
    """

    lengths: Array
    table: Array | None
    scales: Array | None


class Numbers(Protocol):
    """Some int32 numbers, one for each item of a call, where the memory is."""

    @property
    def view(self) -> ArrayView:
        """Where they are, always the same."""

    def follow(self, values: Array, stream: int) -> None:
        """Be these from now on, in the order of `stream`."""


class KVMemory(Protocol):
    """K and V of all layers, [layers, places, kv_heads, rows, head_dim or head_dim_v], and what
    moves in it. Work on a GPU is put on the stream that a call names; on the host there is none.
    """

    small: SmallArrays
    stream: int  # of the last work

    @property
    def device(self) -> tuple[str, int]:
        """As in `ArrayView`."""

    @property
    def nbytes(self) -> int:
        """Bytes of K and V."""

    def why_not(self, array: ArrayView) -> str:
        """What an array must be that rows are written from, if it is not; else empty."""

    def copy(self, copies: Sequence[Copy], stream: int) -> None:
        """Copy rows between places, in every layer."""

    def wait(self, stream: int) -> None:
        """Wait until all work on a stream is done."""

    def write(
        self,
        layer: int,
        k: ArrayView,
        v: ArrayView,
        stretches: Sequence[Stretch],
        placement: Placement,
        stream: int,
    ) -> None:
        """Write the first rows of each item of k and v [items, kv_heads, n, dim], as many as its
        stretch has, there, where its sequence now ends.
        """

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """The rows of `runs`, one after another, on the host, as attention takes them: [kv_heads,
        rows, dim] of the cache's type, or f32 for e4m3, multiplied by their scales.
        """

    def arrays(self, layer: int) -> LayerArrays:
        """The memory of a layer, always the same."""

    def update(self, changed: Iterable[int], stream: int) -> None:
        """The small arrays have changed, the block table in these rows."""

    def numbers(self, count: int, name: str = "") -> Numbers:
        """Room for so many, of no value: by a name the same as last time, if there were as many."""

    def workspace(self, count: int) -> ArrayView:
        """So many f32 numbers, or more, of no value: the same memory for all who work one after
        another in this one.
        """


class HostMemory:
    """In numpy arrays, for the backends `cpu` and `interpreter`; new memory is not initialised."""

    device = HOST

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dims: tuple[int, int],
        dtype: DType,
        small: SmallArrays,
    ) -> None:
        self.k: Array
        self.v: Array
        self.k, self.v = (np.empty((*shape, dim), dtype.numpy) for dim in dims)
        self._dtype = dtype
        self.small = small
        self.stream = 0

    @property
    def nbytes(self) -> int:
        """Bytes of K and V."""
        return int(self.k.nbytes + self.v.nbytes)

    def why_not(self, array: ArrayView) -> str:
        """Rows come from the host."""
        if array.device == HOST:
            return ""
        return f"must be on the host, where the cache is, got {array.device_name}; copy it there"

    def copy(self, copies: Sequence[Copy], stream: int) -> None:  # noqa: ARG002  # there is none
        """Copy rows between places, in every layer."""
        for source, target, rows in copies:
            for memory in (self.k, self.v):
                memory[:, target, :, :rows] = memory[:, source, :, :rows]

    def wait(self, stream: int) -> None:
        """Nothing to do: all work is done."""

    def write(
        self,
        layer: int,
        k: ArrayView,
        v: ArrayView,
        stretches: Sequence[Stretch],
        placement: Placement,
        stream: int,  # noqa: ARG002  # there is none
    ) -> None:
        """Write the first rows of each item where its stretch is."""
        for side, (memory, array) in enumerate(((self.k, k), (self.v, v))):
            rows, scale = host_array(array), scale_of(self.small.scales, side, layer)
            for item, stretch in enumerate(stretches):
                first = 0
                for place, begin, count in placement.runs(stretch):
                    new = rows[item, :, first : first + count]
                    memory[layer, place, :, begin : begin + count] = stored(new, self._dtype, scale)
                    first += count

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """The rows of `runs`; without a copy if there is one run and no scale."""
        found = []
        for side, memory in enumerate((self.k, self.v)):
            parts = [memory[layer, run.place, :, run.first : run.first + run.rows] for run in runs]
            empty = memory[layer, 0, :, :0]
            whole = parts[0] if len(parts) == 1 else np.concatenate([empty, *parts], axis=1)
            found.append(loaded(whole, scale_of(self.small.scales, side, layer)))
        return found[0], found[1]

    def arrays(self, layer: int) -> LayerArrays:
        """The memory of a layer, not copied."""
        lengths, table, scales = self.small
        k_scale, v_scale = (None, None) if scales is None else scales[:, layer]
        return LayerArrays(
            view(self.k[layer], "k"),
            view(self.v[layer], "v"),
            view(lengths[layer], "lengths"),
            None if table is None else view(table, "block_table"),
            None if k_scale is None else view(k_scale, "k_scale"),
            None if v_scale is None else view(v_scale, "v_scale"),
        )

    def update(self, changed: Iterable[int], stream: int) -> None:
        """Nothing to do: they are here."""

    def numbers(self, count: int, name: str = "") -> HostNumbers:  # noqa: ARG002  # always new
        """Room for so many."""
        return HostNumbers(np.empty(count, np.int32))

    def workspace(self, count: int) -> ArrayView:
        """So many f32 numbers of no value."""
        return view(np.empty(count, np.float32), "workspace")


class HostNumbers:
    """In a numpy array."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self.view = view(values, "numbers")

    def follow(self, values: Array, stream: int) -> None:  # noqa: ARG002  # there is none
        """Be these from now on."""
        self._values[:] = values


def scale_of(scales: Array | None, side: int, layer: int) -> Array | None:
    """That of K or V of a layer, [kv_heads, 1, 1]; None if there is none."""
    return None if scales is None else scales[side, layer, :, None, None]


def stored(new: Array, dtype: DType, scale: Array | None) -> Array:
    """New rows, [kv_heads, rows, dim], as a cache of a type holds them; of e4m3 with a scale."""
    if scale is None:
        return new
    # Infinity is stored as the largest number, as `cvt.rn.satfinite` stores it; NaN stays NaN.
    # ml_dtypes makes NaN of what is too large.
    with np.errstate(over="ignore", under="ignore"):
        scaled = new.astype(np.float32) / scale
    return np.clip(scaled, -E4M3_MAX, E4M3_MAX).astype(dtype.numpy)


def loaded(rows: Array, scale: Array | None) -> Array:
    """Rows that a cache holds, as attention takes them: what `stored` rounded, or as it was."""
    return rows if scale is None else rows.astype(np.float32) * scale
