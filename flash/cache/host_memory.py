"""The memory of a KV cache. `flash/pages/placement.py` says which rows are copied and written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.host.stored_rows import loaded
from flash.operands.dtypes import DType
from flash.pages.placement import Copy, Run
from ptxgen.arrays.views import HOST, ArrayView, view

Array = NDArray[Any]


class LayerArrays(NamedTuple):
    """The arrays of a layer, for kernels: K [places, kv_heads, rows, head_dim] and V, where a place
    is a sequence or a page; lengths int32 [batch]; the block table, if there are pages, int32
    [batch, ceil(capacity / page_size)], the same for all layers; and the scales of a narrow type, float32
    [kv_heads], or [places, kv_heads, rows] if each token has its own.
    """

    k: ArrayView
    v: ArrayView
    lengths: ArrayView
    block_table: ArrayView | None
    k_scale: ArrayView | None
    v_scale: ArrayView | None


class SmallArrays(NamedTuple):
    """The host's arrays of lengths, pages and scales, which a cache changes in place: `lengths`
    int32 [layers, batch]; the block table, int32 [batch, ceil(capacity / page_size)], if there are
    pages; and for a narrow type the scales of K and of V, float32 [2, layers, kv_heads], unless each token
    has its own.
    """

    lengths: Array
    table: Array | None
    scales: Array | None


class HostMemory:
    """K and V in numpy arrays, not initialised, for the backends `cpu`, `compiled` and `interpreter`; with
    `per_token` also a scale for each of their rows. `CudaMemory` has the same methods, whose `stream`
    argument is for the work on a GPU.
    """

    device = HOST

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dims: tuple[int, int],
        dtype: DType,
        small: SmallArrays,
        *,
        per_token: bool = False,
    ) -> None:
        self.k: Array
        self.v: Array
        self.k, self.v = (np.empty((*shape, dim), dtype.numpy) for dim in dims)
        # The scales of tokens, f32 [layers, places, kv_heads, rows], of K and of V.
        self.token_scales = [np.empty(shape, np.float32) for _ in dims] if per_token else []
        self._dtype = dtype
        self.small = small
        self.stream = 0

    @property
    def nbytes(self) -> int:
        """Bytes of K and V of all layers, and of the scales of their tokens."""
        return sum(int(array.nbytes) for array in (self.k, self.v, *self.token_scales))

    def why_not(self, array: ArrayView) -> str:
        """Why new rows cannot be read from `array`; empty for an array on the host."""
        if array.device == HOST:
            return ""
        return f"must be on the host, where the cache is, got {array.device_name}; copy it there"

    def copy(self, copies: Sequence[Copy], stream: int) -> None:  # noqa: ARG002  # no stream on the host
        """Copy rows between pages or sequences, in every layer."""
        for source, target, rows in copies:
            for memory in (self.k, self.v, *self.token_scales):
                memory[:, target, :, :rows] = memory[:, source, :, :rows]

    def wait(self, stream: int) -> None:
        """Nothing to do: the host has no pending work."""

    def brought(self, k: ArrayView, v: ArrayView, stream: int) -> tuple[ArrayView, ArrayView]:  # noqa: ARG002
        """The arrays themselves, which are on the host."""
        return k, v

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """K and V of the rows of `runs`, on the host: [kv_heads, rows, dim] of the cache's dtype, or for a
        narrow type as f32, multiplied by the scales. They are copied unless there is one run and no scale.
        """
        both = zip((self.k, self.v), self.scales(layer, runs), strict=True)
        k, v = (loaded(_rows(memory[layer], runs), scale) for memory, scale in both)
        return k, v

    def scales(self, layer: int, runs: Sequence[Run]) -> tuple[Array | None, Array | None]:
        """The scales of K and V of the rows of `runs`, of a shape that broadcasts to [kv_heads, rows, 1];
        None without scales.
        """
        if not self.token_scales:
            k, v = (scale_of(self.small.scales, side, layer) for side in range(2))
            return k, v
        k, v = (_rows(memory[layer], runs)[..., None] for memory in self.token_scales)
        return k, v

    def raw(self, layer: int, runs: Sequence[Run]) -> list[Array]:
        """The rows of `runs` as they are stored, copies on the host: K and V [kv_heads, rows, dim] and, if
        each token has its own, their scales [kv_heads, rows, 1].
        """
        return [np.array(_rows(memory[layer], runs)) for memory in self._of_rows()]

    def set_raw(self, layer: int, runs: Sequence[Run], arrays: Sequence[Array]) -> None:
        """Write to `runs` what `raw` has returned."""
        for memory, rows in zip(self._of_rows(), arrays, strict=True):
            first = 0
            for place, begin, count in runs:
                memory[layer, place, :, begin : begin + count] = rows[:, first : first + count]
                first += count

    def _of_rows(self) -> list[Array]:
        """The arrays [layers, places, kv_heads, rows, n] with n elements for each row of a head."""
        return [self.k, self.v, *[scales[..., None] for scales in self.token_scales]]

    def arrays(self, layer: int) -> LayerArrays:
        """The memory of a layer, not copied."""
        lengths, table, scales = self.small
        k_scale, v_scale = (None, None) if scales is None else scales[:, layer]
        if self.token_scales:
            k_scale, v_scale = (memory[layer] for memory in self.token_scales)
        return LayerArrays(
            view(self.k[layer], "k"),
            view(self.v[layer], "v"),
            view(lengths[layer], "lengths"),
            None if table is None else view(table, "block_table"),
            None if k_scale is None else view(k_scale, "k_scale"),
            None if v_scale is None else view(v_scale, "v_scale"),
        )

    def update(self, changed: Iterable[int], stream: int) -> None:
        """Nothing to do: `arrays` are views of `small`."""

    def numbers(self, count: int, name: str = "") -> HostNumbers:  # noqa: ARG002  # always new memory
        """New memory for `count` int32, not initialised."""
        return HostNumbers(np.empty(count, np.int32))

    def workspace(self, count: int) -> ArrayView:
        """New memory for `count` f32, not initialised."""
        return view(np.empty(count, np.float32), "workspace")


class HostNumbers:
    """An int32 array in the memory of a cache, one element for each item of a call."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self.view = view(values, "numbers")

    def follow(self, values: Array, stream: int) -> None:  # noqa: ARG002  # no stream on the host
        """Write `values` to the array, which always has the same address."""
        self._values[:] = values


def _rows(memory: Array, runs: Sequence[Run]) -> Array:
    """The rows of `runs` of the memory of a layer [places, kv_heads, rows, ...]: [kv_heads, rows, ...]."""
    parts = [memory[run.place, :, run.first : run.first + run.rows] for run in runs]
    return parts[0] if len(parts) == 1 else np.concatenate([memory[0, :, :0], *parts], axis=1)


def scale_of(scales: Array | None, side: int, layer: int) -> Array | None:
    """Scales of K (`side` 0) or V (1) of a layer, [kv_heads, 1, 1]; None without scales."""
    return None if scales is None else scales[side, layer, :, None, None]
