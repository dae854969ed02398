"""Holds the rows of a KV cache in the memory of a GPU, and copies and writes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.cache.host_memory import HostMemory, HostNumbers, LayerArrays, Memory, SmallArrays
from flash.calls.gpu import launcher_of
from flash.decode.plan import oldest_target
from flash.host.mirrored_numbers import DeviceNumbers, part_of
from flash.host.results import DeviceArray
from flash.operands.dtypes import F32, I32, OF_ARRAYS, DType
from flash.pages.placement import Copy, Run
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView, host_array, view
from ptxgen.errors import ConfigError
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import Target

Array = NDArray[Any]

_ALIGNED: Final = 16  # bytes, the alignment of an array in the workspace


class CudaMemory(Memory):
    """The memory of a KV cache on device `ordinal`, not initialised. Only `stored`, and the methods that call
    it, copy keys and values to the host.

    A kernel writes new rows, in the order of the stream. New rows on the host are first copied to
    the device as whole arrays; this copy is complete on return.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dims: tuple[int, int],
        dtype: DType,
        small: SmallArrays,
        per_token: bool,
        cuda: CudaBackend,
        ordinal: int,
    ) -> None:
        super().__init__(small, dtype)
        if dtype.is_narrow:
            _require_conversions(dtype, launcher_of(cuda).target(ordinal))
        self._cuda = cuda
        self._ordinal = ordinal
        self.device = ("cuda", ordinal)
        self._layers, self._slots, self._kv_heads, self._rows = shape
        of_rows = [(dtype.in_row(dim), dtype) for dim in dims] + [(1, F32)] * (len(dims) if per_token else 0)
        # Arrays with n elements for each row of a head: n and the type of K, V and the scales of tokens.
        self._arrays = {self._new((*shape, n), of): (n, of) for n, of in of_rows}
        self._lengths = self._follower(small.lengths.shape, I32)
        self._table = None if small.table is None else self._follower(small.table.shape, I32)
        many = 2 * self._layers, self._kv_heads
        self._scales = None if small.scales is None else self._follower(many, F32)
        self._of_layers: dict[int, LayerArrays] = {}
        self._named: dict[str, DeviceNumbers] = {}
        self._space = part_of(self._new((0,), F32), 0, (0,), F32)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that K and V of all layers and their tokens' scales take."""
        rows = self._layers * self._slots * self._kv_heads * self._rows
        return rows * sum(n * of.nbytes for n, of in self._arrays.values())

    def why_not(self, array: ArrayView) -> str:
        """Why new rows cannot be read from `array`; empty for the host or this device, dense."""
        if array.device == HOST:
            return ""
        got = f"got {array.device_name}"
        ordinal: int | None = array.device[1]
        if ordinal == UNKNOWN_DEVICE and array.pointer:
            ordinal = self._cuda.device_of_pointer(array.pointer)
        if array.size and ordinal != self._ordinal:
            return f"must be on cuda:{self._ordinal}, where the cache is, or on the host, {got}"
        if array.size and array.shape and array.shape[-1] > 1 and array.strides[-1] != 1:
            return (
                f"must be dense in its last dimension (stride 1), got strides {list(array.strides)}; copy it"
            )
        return ""

    def copy(self, copies: Sequence[Copy], stream: int) -> None:
        """Copy rows between pages or sequences, in every layer, in the order of `stream`."""
        self.stream = stream
        for source, target, rows in copies:
            for memory, (n, of) in self._arrays.items():
                nbytes = rows * n * of.nbytes
                heads = range(self._kv_heads)
                if rows == self._rows:  # whole slots: all heads are contiguous
                    nbytes, heads = nbytes * self._kv_heads, range(1)
                for layer in range(self._layers if nbytes else 0):
                    for head in heads:
                        to, begin = (self._at(memory, layer, slot, head, 0) for slot in (target, source))
                        self._cuda.copy_on_device(to, begin, nbytes, stream, ordinal=self._ordinal)

    def wait(self, stream: int) -> None:
        """Wait on the host until all GPU work on a stream is done."""
        self._cuda.synchronize(stream, ordinal=self._ordinal)

    def brought(self, k: ArrayView, v: ArrayView, stream: int) -> tuple[ArrayView, ArrayView]:
        """New keys k and values v on this device; copies of arrays on the host are complete on return."""
        if k.dtype != v.dtype:  # both are on the host; the kernel takes one type
            k, v = (view(host_array(array).astype(np.float32), "rows") for array in (k, v))
        sizes = [-(-a.size * OF_ARRAYS[a.dtype].nbytes // _ALIGNED) * _ALIGNED for a in (k, v)]
        room = self.workspace(sum(sizes) // F32.nbytes)
        brought = []
        for array, at in ((k, room.pointer), (v, room.pointer + sizes[0])):
            if array.device != HOST:
                brought.append(array)
                continue
            dense = np.ascontiguousarray(host_array(array))
            self._cuda.copy_to_device(at, dense.ctypes.data, dense.nbytes, stream, ordinal=self._ordinal)
            # Pinned host memory is read asynchronously, until this returns.
            self._cuda.synchronize(stream, ordinal=self._ordinal)
            brought.append(
                room._replace(
                    pointer=at, shape=array.shape, strides=dense_strides(array.shape), dtype=array.dtype
                )
            )
        return brought[0], brought[1]

    def stored(self, layer: int, runs: Sequence[Run], first: int = 0) -> list[Array]:
        """See `Memory.stored`; copied to the host, in the order of the stream of the last work."""
        copies = []
        for memory, (n, of) in list(self._arrays.items())[first:]:
            rows = np.empty((self._kv_heads, sum(run.rows for run in runs), n), of.numpy)
            copies.append(rows)
            for piece, at in self._pieces(memory, layer, runs, rows):
                self._cuda.copy_to_host(
                    piece.ctypes.data, at, piece.nbytes, self.stream, ordinal=self._ordinal
                )
        self.wait(self.stream)
        return copies

    def set_raw(self, layer: int, runs: Sequence[Run], arrays: Sequence[Array]) -> None:
        """Write to `runs` rows in the form in which `raw` returns them; complete on return."""
        for memory, rows in zip(self._arrays, arrays, strict=True):
            for piece, at in self._pieces(memory, layer, runs, rows):
                dense = np.ascontiguousarray(piece)
                self._cuda.copy_to_device(
                    at, dense.ctypes.data, dense.nbytes, self.stream, ordinal=self._ordinal
                )
                self.wait(self.stream)  # `dense` is read until then

    def _pieces(
        self, memory: DeviceArray, layer: int, runs: Sequence[Run], rows: Array
    ) -> Iterator[tuple[Array, int]]:
        """The pieces of `rows` [kv_heads, rows, n] that are contiguous on the device, and their addresses."""
        first = 0
        for slot, begin, count in runs:
            for head in range(self._kv_heads):
                yield rows[head, first : first + count], self._at(memory, layer, slot, head, begin)
            first += count

    def arrays(self, layer: int) -> LayerArrays:
        """The memory of a layer; lengths, block table and scales are as `update` left them."""
        of_layer = self._of_layers.get(layer)
        if of_layer is None:
            k, v, *of_tokens = (part_of(a, layer, a.shape[1:], of) for a, (_, of) in self._arrays.items())
            scales: list[ArrayView | None] = [None, None]
            if self._scales is not None:
                scales = [self._scales.row(side * self._layers + layer) for side in range(2)]
            if of_tokens:
                scales = [
                    array._replace(shape=array.shape[:-1], strides=array.strides[:-1]) for array in of_tokens
                ]
            table = None if self._table is None else self._table.view
            of_layer = LayerArrays(k, v, self._lengths.row(layer), table, *scales)
            self._of_layers[layer] = of_layer
        return of_layer

    def update(self, changed: Collection[int], stream: int) -> None:
        """Copy lengths, scales and `changed` rows of the block table to the GPU, in the order of `stream`."""
        self._lengths.follow(self.small.lengths, stream)
        if self._scales is not None and self.small.scales is not None:
            self._scales.follow(self.small.scales, stream)
        if self._table is not None and self.small.table is not None:
            self._table.follow_rows(self.small.table, changed, stream)
        self.stream = stream

    def numbers(self, count: int, name: str = "") -> DeviceNumbers:
        """Memory for `count` int32, not initialised; reused if the last call with this `name` had the same
        count.
        """
        array = self._named.get(name)
        if array is None or array.view.size != count:
            array = self._follower((count,), I32)
            if name:
                self._named[name] = array
        return array

    def workspace(self, count: int) -> ArrayView:
        """Memory for at least `count` f32, not initialised. Calls may get the same memory, so their work must
        run one after another; earlier workspaces live as long as they are used.
        """
        if self._space.shape[0] < count:
            self._space = part_of(self._new((count,), F32), 0, (count,), F32)
        return self._space

    # ---------------------------------------------------------------------------------------------

    def _new(self, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        return DeviceArray(shape, dtype, self._ordinal, self._cuda, 0)

    def _follower(self, shape: tuple[int, ...], dtype: DType) -> DeviceNumbers:
        return DeviceNumbers(self._new(shape, dtype), dtype, self._cuda)

    def _at(self, memory: DeviceArray, layer: int, slot: int, head: int, row: int) -> int:
        """The address in device memory of a row of K or V, or of a token's scale."""
        n, of = self._arrays[memory]
        before = (layer * self._slots + slot) * self._kv_heads + head
        return memory.pointer + (before * self._rows + row) * n * of.nbytes


def _require_conversions(dtype: DType, target: Target) -> None:
    """Raise `ConfigError` if kernels for the target do not convert to and from a type."""
    least = oldest_target(dtype)
    if target.sm < least.sm:
        raise ConfigError(
            f"KVCache: dtype={dtype.name!r} needs a GPU of {least.name} or later, which rounds and widens "
            f"its numbers, got {target.name}; use dtype='bf16', or backend='cpu'"
        )


KVMemory = HostMemory | CudaMemory
Numbers = HostNumbers | DeviceNumbers
