"""The memory of a KV cache on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.cache.host_memory import HostMemory, HostNumbers, LayerArrays, SmallArrays, scale_of
from flash.calls.gpu import launcher_of
from flash.decode.plan import oldest_target
from flash.host.mirrored_numbers import DeviceNumbers, part_of
from flash.host.results import DeviceArray
from flash.host.stored_rows import loaded
from flash.operands.dtypes import F32, I32, OF_ARRAYS, DType
from flash.pages.placement import Copy, Run
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView, host_array, view
from ptxgen.errors import ConfigError
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import Target

Array = NDArray[Any]

_ALIGNED: Final = 16  # bytes, the alignment of an array in the workspace


class CudaMemory:
    """The memory of a KV cache on device `ordinal`, not initialised. Only `read` copies keys and
    values to the host.

    A kernel writes new rows, in the order of the stream. New rows on the host are first copied to
    the device as whole arrays; this copy is complete on return.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dims: tuple[int, int],
        dtype: DType,
        small: SmallArrays,
        cuda: CudaBackend,
        ordinal: int,
        *,
        per_token: bool = False,
    ) -> None:
        if dtype.is_narrow:
            _require_conversions(dtype, launcher_of(cuda).target(ordinal))
        self._cuda = cuda
        self._ordinal = ordinal
        self._dtype = dtype
        self._layers, self._places, self._kv_heads, self._rows = shape
        self._dims = dims
        self._sides = [self._new((*shape, dim), dtype) for dim in dims]
        self._token_scales = [self._new(shape, F32) for _ in dims] if per_token else []
        # The arrays with an item for each row: K, V and the scales of tokens; and the bytes of an item.
        self._row_bytes = dict(zip(self._sides, [dim * dtype.nbytes for dim in dims], strict=True))
        self._row_bytes |= dict.fromkeys(self._token_scales, F32.nbytes)
        self.small = small
        self._lengths = self._follower(small.lengths.shape, I32)
        self._table = None if small.table is None else self._follower(small.table.shape, I32)
        many = 2 * self._layers, self._kv_heads
        self._scales = None if small.scales is None else self._follower(many, F32)
        self._layers_there: dict[int, LayerArrays] = {}
        self._named: dict[str, DeviceNumbers] = {}
        self._space = self._new((0,), F32)
        self.stream = 0

    @property
    def device(self) -> tuple[str, int]:
        """The device of the memory: ("cuda", ordinal)."""
        return ("cuda", self._ordinal)

    @property
    def nbytes(self) -> int:
        """Bytes of K and V of all layers, and of the scales of their tokens."""
        rows = self._layers * self._places * self._kv_heads * self._rows
        return rows * sum(self._row_bytes.values())

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
            for memory, row_bytes in self._row_bytes.items():
                nbytes = rows * row_bytes
                heads = range(self._kv_heads)
                if rows == self._rows:  # whole places: all heads are contiguous
                    nbytes, heads = nbytes * self._kv_heads, range(1)
                for layer in range(self._layers if nbytes else 0):
                    for head in heads:
                        into, of = (self._at(memory, layer, p, head, 0) for p in (target, source))
                        self._cuda.copy_on_device(into, of, nbytes, stream, ordinal=self._ordinal)

    def wait(self, stream: int) -> None:
        """Wait until all work on a stream is done."""
        self._cuda.synchronize(stream, ordinal=self._ordinal)

    def brought(self, k: ArrayView, v: ArrayView, stream: int) -> tuple[ArrayView, ArrayView]:
        """k and v on this device: arrays on the host are copied, which is complete on return."""
        if k.dtype != v.dtype:  # both are on the host; the kernel takes one type
            k, v = (view(host_array(array).astype(np.float32), "rows") for array in (k, v))
        sizes = [-(-a.size * OF_ARRAYS[a.dtype].nbytes // _ALIGNED) * _ALIGNED for a in (k, v)]
        room = self.workspace(sum(sizes) // F32.nbytes)
        found = []
        for array, at in ((k, room.pointer), (v, room.pointer + sizes[0])):
            if array.device != HOST:
                found.append(array)
                continue
            dense = np.ascontiguousarray(host_array(array))
            self._cuda.copy_to_device(at, dense.ctypes.data, dense.nbytes, stream, ordinal=self._ordinal)
            # Pinned host memory is read asynchronously, until this returns.
            self._cuda.synchronize(stream, ordinal=self._ordinal)
            found.append(
                room._replace(
                    pointer=at, shape=array.shape, strides=dense_strides(array.shape), dtype=array.dtype
                )
            )
        return found[0], found[1]

    def read(self, layer: int, runs: Sequence[Run]) -> tuple[Array, Array]:
        """The rows of `runs`, copied to the host, in the order of the stream of the last work."""
        found = [
            self._fetched(side, layer, runs, dim, self._dtype)
            for side, dim in zip(self._sides, self._dims, strict=True)
        ]
        scales = self.scales(layer, runs)
        self.wait(self.stream)
        k, v = (loaded(rows, scale) for rows, scale in zip(found, scales, strict=True))
        return k, v

    def scales(self, layer: int, runs: Sequence[Run]) -> tuple[Array | None, Array | None]:
        """The scales of the rows of `runs`, those of tokens copied to the host as rows are."""
        if not self._token_scales:
            k, v = (scale_of(self.small.scales, side, layer) for side in range(2))
            return k, v
        k, v = (self._fetched(of_rows, layer, runs, 1, F32) for of_rows in self._token_scales)
        self.wait(self.stream)
        return k, v

    def _fetched(self, memory: DeviceArray, layer: int, runs: Sequence[Run], dim: int, dtype: DType) -> Array:
        """The rows of `runs` of one array, [kv_heads, rows, dim], whose copy to the host has begun."""
        rows = np.empty((self._kv_heads, sum(run.rows for run in runs), dim), dtype.numpy)
        first = 0
        for place, begin, n in runs:
            for head in range(self._kv_heads):
                part = rows[head, first : first + n]
                self._cuda.copy_to_host(
                    part.ctypes.data,
                    self._at(memory, layer, place, head, begin),
                    part.nbytes,
                    self.stream,
                    ordinal=self._ordinal,
                )
            first += n
        return rows

    def raw(self, layer: int, runs: Sequence[Run]) -> list[Array]:
        """The rows of `runs` as they are stored, copied to the host."""
        found = [self._fetched(memory, layer, runs, *of) for memory, of in self._of_rows()]
        self.wait(self.stream)
        return found

    def set_raw(self, layer: int, runs: Sequence[Run], arrays: Sequence[Array]) -> None:
        """Write to `runs` what `raw` has returned; complete on return."""
        for (memory, _), rows in zip(self._of_rows(), arrays, strict=True):
            first = 0
            for place, begin, count in runs:
                for head in range(self._kv_heads):
                    part = np.ascontiguousarray(rows[head, first : first + count])
                    at = self._at(memory, layer, place, head, begin)
                    self._cuda.copy_to_device(
                        at, part.ctypes.data, part.nbytes, self.stream, ordinal=self._ordinal
                    )
                    self.wait(self.stream)  # `part` is read until then
                first += count

    def _of_rows(self) -> list[tuple[DeviceArray, tuple[int, DType]]]:
        """The arrays with an item for each row, and the elements of an item and their type."""
        sides = [(side, (dim, self._dtype)) for side, dim in zip(self._sides, self._dims, strict=True)]
        return [*sides, *[(scales, (1, F32)) for scales in self._token_scales]]

    def arrays(self, layer: int) -> LayerArrays:
        """The memory of a layer; lengths, block table and scales are as `update` left them."""
        found = self._layers_there.get(layer)
        if found is None:
            of_k, of_v = (part_of(s, layer, s.shape[1:], self._dtype) for s in self._sides)
            scales = (
                [None, None]
                if self._scales is None
                else [self._scales.row(side * self._layers + layer) for side in range(2)]
            )
            if self._token_scales:
                scales = [part_of(s, layer, s.shape[1:], F32) for s in self._token_scales]
            table = None if self._table is None else self._table.view
            found = LayerArrays(of_k, of_v, self._lengths.row(layer), table, *scales)
            self._layers_there[layer] = found
        return found

    def update(self, changed: Iterable[int], stream: int) -> None:
        """Copy changed lengths, scales and block table rows there, in the order of `stream`."""
        self._lengths.follow(self.small.lengths, stream)
        if self._scales is not None and self.small.scales is not None:
            self._scales.follow(self.small.scales, stream)
        if self._table is not None and self.small.table is not None:
            self._table.follow_rows(self.small.table, changed, stream)
        self.stream = stream

    def numbers(self, count: int, name: str = "") -> DeviceNumbers:
        """Memory for `count` int32, not initialised: the last of this name, if it had the same count."""
        found = self._named.get(name)
        if found is None or found.view.size != count:
            found = self._follower((count,), I32)
            if name:
                self._named[name] = found
        return found

    def workspace(self, count: int) -> ArrayView:
        """Memory for at least `count` f32, not initialised. Calls may get the same memory, so their work must
        run one after another; earlier workspaces live as long as they are used.
        """
        if self._space.shape[0] < count:
            self._space = self._new((count,), F32)
        return part_of(self._space, 0, self._space.shape, F32)

    # ---------------------------------------------------------------------------------------------

    def _new(self, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        return DeviceArray(shape, dtype, self._ordinal, self._cuda, 0)

    def _follower(self, shape: tuple[int, ...], dtype: DType) -> DeviceNumbers:
        return DeviceNumbers(self._new(shape, dtype), dtype, self._cuda)

    def _at(self, memory: DeviceArray, layer: int, place: int, head: int, row: int) -> int:
        """The address of a row of K or V, or of a token's scale."""
        before = (layer * self._places + place) * self._kv_heads + head
        return memory.pointer + (before * self._rows + row) * self._row_bytes[memory]


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
