"""The memory of a KV cache on the host. `flash/pages/placement.py` says which rows are copied and written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.host.stored_rows import loaded
from flash.operands.dtypes import DType
from flash.pages.placement import Copy, Run
from ptxgen.arrays.views import HOST, ArrayView, view

Array = NDArray[Any]
TOKEN_SCALES: Final = 2  # the number of the first array with scales of tokens in `Memory.stored`


class LayerArrays(NamedTuple):
    """The arrays of a layer, for kernels: K [slots, kv_heads, rows, head_dim] and V, where a slot
    is a sequence or a page; lengths int32 [batch]; the block table, if there are pages, int32
    [batch, ceil(capacity / page_size)], the same for all layers; and the scales of a narrow type, float32
    [kv_heads], or [slots, kv_heads, rows] if each token has its own.
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


class Memory(ABC):
    """Keys, values and scales of a KV cache, on the host or on a GPU. `small` holds the host's arrays of
    lengths, pages and scales of heads; `stream` is the stream of the last work on a GPU.
    """

    def __init__(self, small: SmallArrays, element: DType) -> None:
        self.small = small
        self.element = element
        self._is_narrow = element.is_narrow
        self.stream = 0

    @abstractmethod
    def stored(self, layer: int, runs: Sequence[Run], first: int = 0) -> list[Array]:
        """The rows of `runs` as they are stored, on the host: K and V [kv_heads, rows, dim] and, if each
        token has its own scale, the scales of K and V [kv_heads, rows, 1]; of these arrays only those from
        number `first` on. A caller must not write to them.
        """

    def raw(self, layer: int, runs: Sequence[Run]) -> list[Array]:
        """Copies of the rows of `runs` as the cache stores them, in the arrays that `stored` returns."""
        return [np.array(rows) for rows in self.stored(layer, runs)]

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """K and V of the rows of `runs`, on the host: [kv_heads, rows, dim] of the cache's dtype, or for a
        narrow type as f32, multiplied by the scales. On the host they are copied unless there is one run and
        no scale; from a GPU they are copied in the order of the stream of the last work.
        """
        k, v, *scales = self.stored(layer, runs)
        if self.small.scales is not None:  # of heads
            scales = list(self.small.scales[:, layer, :, None, None])
        of_k, of_v = scales or (None, None)
        if not self._is_narrow:
            return k, v
        return loaded(k, self.element, of_k), loaded(v, self.element, of_v)


class HostMemory(Memory):
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
        per_token: bool,
    ) -> None:
        super().__init__(small, dtype)
        self.k: Array
        self.v: Array
        self.k, self.v = (np.empty((*shape, dtype.in_row(dim)), dtype.numpy) for dim in dims)
        # Arrays [layers, slots, kv_heads, rows, n] with n elements for each row of a head.
        self._arrays = [self.k, self.v]
        if per_token:
            self._arrays += [np.empty((*shape, 1), np.float32) for _ in dims]

    @property
    def nbytes(self) -> int:
        """The bytes of memory that K and V of all layers and their tokens' scales take."""
        return sum(int(array.nbytes) for array in self._arrays)

    def why_not(self, array: ArrayView) -> str:
        """Why new rows cannot be read from `array`; empty for an array on the host."""
        if array.device == HOST:
            return ""
        return f"must be on the host, where the cache is, got {array.device_name}; copy it there"

    def copy(self, copies: Sequence[Copy], stream: int) -> None:  # noqa: ARG002  # no stream on the host
        """Copy rows between pages or sequences, in every layer."""
        for source, target, rows in copies:
            for array in self._arrays:
                array[:, target, :, :rows] = array[:, source, :, :rows]

    def wait(self, stream: int) -> None:
        """Do nothing: work on the host is complete when a call returns."""

    def brought(self, k: ArrayView, v: ArrayView, stream: int) -> tuple[ArrayView, ArrayView]:  # noqa: ARG002
        """New keys k and values v without a copy: they are on the host, as this memory is."""
        return k, v

    def stored(self, layer: int, runs: Sequence[Run], first: int = 0) -> list[Array]:
        """See `Memory.stored`; views where the rows are contiguous."""
        return [_rows(array[layer], runs) for array in self._arrays[first:]]

    def set_raw(self, layer: int, runs: Sequence[Run], arrays: Sequence[Array]) -> None:
        """Write to `runs` rows in the form in which `raw` returns them."""
        for array, rows in zip(self._arrays, arrays, strict=True):
            first = 0
            for slot, begin, count in runs:
                array[layer, slot, :, begin : begin + count] = rows[:, first : first + count]
                first += count

    def arrays(self, layer: int) -> LayerArrays:
        """The arrays of a layer, not copied."""
        lengths, table, scales = self.small
        k, v, *of_tokens = (array[layer] for array in self._arrays)
        k_scale, v_scale = (None, None) if scales is None else scales[:, layer]
        if of_tokens:
            k_scale, v_scale = (array[..., 0] for array in of_tokens)
        return LayerArrays(
            view(k, "k"),
            view(v, "v"),
            view(lengths[layer], "lengths"),
            None if table is None else view(table, "block_table"),
            None if k_scale is None else view(k_scale, "k_scale"),
            None if v_scale is None else view(v_scale, "v_scale"),
        )

    def update(self, changed: Collection[int], stream: int) -> None:
        """Do nothing: the host's lengths and block table, `small`, are what `arrays` returns."""

    def numbers(self, count: int, name: str = "") -> HostNumbers:  # noqa: ARG002  # always new memory
        """Allocate host memory for `count` int32, not initialised."""
        return HostNumbers(np.empty(count, np.int32))

    def workspace(self, count: int) -> ArrayView:
        """Allocate host memory for `count` f32, not initialised."""
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
    """The rows of `runs` of the memory of a layer [slots, kv_heads, rows, ...]: [kv_heads, rows, ...]."""
    pieces = [memory[run.slot, :, run.first : run.first + run.rows] for run in runs]
    return pieces[0] if len(pieces) == 1 else np.concatenate([memory[0, :, :0], *pieces], axis=1)
