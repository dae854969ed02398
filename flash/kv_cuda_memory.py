"""The memory of a KV cache on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.arrays import HOST, UNKNOWN_DEVICE, ArrayView, host_array
from flash.device_numbers import DeviceNumbers, part_of
from flash.dlpack import LEGACY_DEFAULT_STREAM
from flash.dtypes import E4M3, F32, I32, DType
from flash.kv_memory import LayerArrays, Scales, SmallArrays, Write, loaded, scale_of, stored
from flash.placement import Copy, Run
from flash.results import DeviceArray
from ptxgen.runtime.cuda import CudaBackend

Array = NDArray[Any]


class CudaMemory:
    """On device `ordinal`, not initialised. Keys and values never come to the host but by `read`.

    Rows from the host are written by copies, which are complete on return, and rows on the device
    by copies in the order of the stream: one for each head of each run.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dims: tuple[int, int],
        dtype: DType,
        small: SmallArrays,
        cuda: CudaBackend,
        ordinal: int,
    ) -> None:
        self._cuda = cuda
        self._ordinal = ordinal
        self._dtype = dtype
        self._layers, self._places, self._kv_heads, self._rows = shape
        self._dims = dims
        self._sides = [self._new((*shape, dim), dtype) for dim in dims]
        self._scales: Scales | None = None
        self._small = small
        self._lengths = self._follower(small.lengths.shape, I32)
        self._table = None if small.table is None else self._follower(small.table.shape, I32)
        self._both_scales: tuple[DeviceNumbers, DeviceNumbers] | None = None
        self._layers_there: dict[int, LayerArrays] = {}
        self._named: dict[str, DeviceNumbers] = {}
        self._space = self._new((0,), F32)
        self._stream = 0  # of the last work

    @property
    def device(self) -> tuple[str, int]:
        """That it is on."""
        return ("cuda", self._ordinal)

    @property
    def nbytes(self) -> int:
        """Bytes of K and V."""
        rows = self._layers * self._places * self._kv_heads * self._rows
        return rows * sum(self._dims) * self._dtype.nbytes

    def why_not(self, array: ArrayView, *, by_kernel: bool) -> str:
        """Rows come from the host, or from this device if they are stored as they are or written by
        a kernel.
        """
        if array.device == HOST:
            return ""
        got = f"got {array.device_name}"
        if self._dtype is E4M3 and not by_kernel:
            return f"must be on the host, which rounds rows for a cache of 'e4m3', {got}; copy it"
        ordinal: int | None = array.device[1]
        if ordinal == UNKNOWN_DEVICE and array.pointer:
            ordinal = self._cuda.device_of_pointer(array.pointer)
        if array.size and ordinal != self._ordinal:
            return f"must be on cuda:{self._ordinal}, where the cache is, or on the host, {got}"
        if array.size and array.shape and array.shape[-1] > 1 and array.strides[-1] != 1:
            return (
                "must be dense in its last dimension (stride 1), got strides "
                f"{list(array.strides)}; copy it"
            )
        return ""

    def set_scales(self, scales: Scales) -> None:
        """Those that rows are stored with from now on."""
        self._scales = scales
        if self._both_scales is None:
            of_k, of_v = (self._follower(given.shape, F32) for given in scales)
            self._both_scales = of_k, of_v

    def copy(self, copies: Sequence[Copy], stream: int) -> None:
        """Copy rows between places, in every layer, in the order of `stream`."""
        self._stream = stream
        for source, target, rows in copies:
            for side, dim in enumerate(self._dims):
                nbytes = rows * dim * self._dtype.nbytes
                heads = range(self._kv_heads)
                if rows == self._rows:  # of all heads, one after another
                    nbytes, heads = nbytes * self._kv_heads, range(1)
                for layer in range(self._layers if nbytes else 0):
                    for head in heads:
                        into, of = (self._at(side, layer, p, head, 0) for p in (target, source))
                        self._cuda.copy_on_device(into, of, nbytes, stream, ordinal=self._ordinal)

    def write(
        self, layer: int, k: ArrayView, v: ArrayView, writes: Sequence[Write], stream: int
    ) -> None:
        """Write rows where `writes` says."""
        self._stream = stream
        for side, array in enumerate((k, v)):
            if array.device == HOST:
                self._write_from_host(side, layer, host_array(array), writes, stream)
            elif array.size:
                self._write_from_device(side, layer, array, writes, stream)

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """The rows of `runs`, copied to the host once all work on the last stream is done."""
        found = []
        for side, dim in enumerate(self._dims):
            count = sum(run.rows for run in runs)
            rows = np.empty((self._kv_heads, count, dim), self._dtype.numpy)
            first = 0
            for place, begin, n in runs:
                for head in range(self._kv_heads):
                    part = rows[head, first : first + n]
                    self._cuda.copy_to_host(
                        part.ctypes.data, self._at(side, layer, place, head, begin), part.nbytes,
                        self._stream, ordinal=self._ordinal,
                    )  # fmt: skip
                first += n
            found.append(rows)
        self._cuda.synchronize(self._stream, ordinal=self._ordinal)
        k, v = (loaded(rows, scale_of(self._scales, n, layer)) for n, rows in enumerate(found))
        return k, v

    def arrays(self, layer: int) -> LayerArrays:
        """The memory of a layer, as `update` left the small arrays."""
        found = self._layers_there.get(layer)
        if found is None:
            of_k, of_v = (part_of(s, layer, s.shape[1:], self._dtype) for s in self._sides)
            scales = [None, None] if self._both_scales is None else [
                each.row(layer) for each in self._both_scales
            ]  # fmt: skip
            table = None if self._table is None else self._table.view
            found = LayerArrays(of_k, of_v, self._lengths.row(layer), table, *scales)
            self._layers_there[layer] = found
        return found

    def update(self, changed: Iterable[int], stream: int) -> None:
        """Copy what has changed of the small arrays there, in the order of `stream`."""
        self._stream = stream
        self._lengths.follow(self._small.lengths, stream)
        if self._scales is not None and self._both_scales is not None:
            for there, scales in zip(self._both_scales, self._scales, strict=True):
                there.follow(scales, stream)
        if self._table is not None and self._small.table is not None:
            self._table.follow_rows(self._small.table, changed, stream)

    def numbers(self, count: int, name: str = "") -> DeviceNumbers:
        """Room for so many: by a name the same as last time, if there were as many."""
        found = self._named.get(name)
        if found is None or found.view.size != count:
            found = self._follower((count,), I32)
            if name:
                self._named[name] = found
        return found

    def workspace(self, count: int) -> ArrayView:
        """So many f32 numbers or more. What was given before stays as long as it is used."""
        if self._space.shape[0] < count:
            self._space = self._new((count,), F32)
        return part_of(self._space, 0, self._space.shape, F32)

    # ---------------------------------------------------------------------------------------------

    def _new(self, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        return DeviceArray(shape, dtype, self._ordinal, self._cuda, 0)

    def _follower(self, shape: tuple[int, ...], dtype: DType) -> DeviceNumbers:
        return DeviceNumbers(self._new(shape, dtype), dtype, self._cuda)

    def _at(self, side: int, layer: int, place: int, head: int, row: int) -> int:
        """The address of a row."""
        before = (layer * self._places + place) * self._kv_heads + head
        index = (before * self._rows + row) * self._dims[side]
        return self._sides[side].pointer + index * self._dtype.nbytes

    def _write_from_host(
        self, side: int, layer: int, rows: Array, writes: Sequence[Write], stream: int
    ) -> None:
        kept = []
        for item, first, (place, begin, count) in writes:
            scale = scale_of(self._scales, side, layer)
            new = stored(rows[item, :, first : first + count], self._dtype, scale)
            kept.append(np.ascontiguousarray(new))
            for head, of_head in enumerate(kept[-1]):
                self._cuda.copy_to_device(
                    self._at(side, layer, place, head, begin), of_head.ctypes.data, of_head.nbytes,
                    stream, ordinal=self._ordinal,
                )  # fmt: skip
        self._cuda.synchronize(stream, ordinal=self._ordinal)

    def _write_from_device(
        self, side: int, layer: int, rows: ArrayView, writes: Sequence[Write], stream: int
    ) -> None:
        if rows.stream is not None and rows.stream != (stream or LEGACY_DEFAULT_STREAM):
            self._cuda.synchronize(rows.stream, ordinal=self._ordinal)
        of_item, of_head, of_row, _ = rows.strides
        nbytes = self._dtype.nbytes
        dense = of_row == self._dims[side]
        for item, first, (place, begin, count) in writes:
            at_once = count if dense else 1
            for head in range(self._kv_heads):
                for n in range(0, count, at_once):
                    index = item * of_item + head * of_head + (first + n) * of_row
                    self._cuda.copy_on_device(
                        self._at(side, layer, place, head, begin + n),
                        rows.pointer + index * nbytes,
                        at_once * self._dims[side] * nbytes,
                        stream,
                        ordinal=self._ordinal,
                    )
