"""Memory in which the launches of a call pass results on: workspace, not arrays of the caller."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from flash.host.results import DeviceArray, empty
from flash.operands.dtypes import F32, F32_BYTES, DType
from ptxgen.arrays import streams
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import ArrayView, view

if TYPE_CHECKING:
    from ptxgen.runtime.cuda import CudaBackend

# Libraries whose allocators give memory that was used on a stream to its next work again. Those of torch
# keep apart what a captured CUDA graph uses.
_POOLING: Final = ("torch", "cupy")
ALIGNED: Final = 16  # bytes, the alignment of an array in the memory of a call


class Memory(Protocol):
    """An allocator of workspace for the launches of a call."""

    def array(self, shape: tuple[int, ...], dtype: DType, *, is_cleared: bool = False) -> ArrayView:
        """A dense array. Before the first launch its elements are 0 if it `is_cleared`, else anything."""


class HostMemory:
    """Memory on the host, for launches that are interpreted."""

    def array(self, shape: tuple[int, ...], dtype: DType, *, is_cleared: bool = False) -> ArrayView:  # noqa: ARG002
        """A dense array, of zeros or uninitialized; see `Memory`."""
        return view(np.zeros(shape, dtype.numpy), "memory")


class PlannedMemory:
    """Memory of `nbytes` that begins at the planned address `base`; each later launch has memory elsewhere.
    `cleared` holds where ranges of zeros begin, in bytes from `base`, and their lengths.
    """

    def __init__(self, base: int, device: tuple[str, int]) -> None:
        self._base = base
        self._device = device
        self.nbytes = 0
        self.cleared: list[tuple[int, int]] = []

    def array(self, shape: tuple[int, ...], dtype: DType, *, is_cleared: bool = False) -> ArrayView:
        """A dense array, of zeros or uninitialized; see `Memory`."""
        first, nbytes = self.nbytes, math.prod(shape) * dtype.nbytes
        self.nbytes += max(-(-nbytes // ALIGNED), 1) * ALIGNED  # an empty array has an address, too
        if is_cleared and nbytes:
            self.cleared.append((first, nbytes))
        strides, name = dense_strides(shape), dtype.array_name
        return ArrayView(self._base + first, shape, strides, name, self._device, False, "memory", None)


class StreamMemory:
    """Memory of GPUs for the work of streams, whose work runs in order. `lock` is held from `room` until all
    work on the memory is on the stream: another thread may use the same memory after it.
    """

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self.lock = threading.Lock()
        self._by_stream: dict[tuple[int, int], ArrayView] = {}

    def room(self, like: ArrayView, ordinal: int, stream: int, nbytes: int) -> ArrayView:
        """Memory for work on `stream`: of the pool of the library of `like`, if it has one, which also
        knows graphs that are being captured; else it is reused by the next calls on the stream.
        """
        count = -(-nbytes // F32_BYTES)
        if like.kind in _POOLING:
            on = None if stream == streams.current_stream(like) else stream
            return view(empty(like, (count,), F32, stream=on), "memory")
        memory = self._by_stream.get((ordinal, stream))
        if memory is None or memory.size < count:
            array = DeviceArray((count,), F32, ordinal, self._backend, stream)
            memory = self._by_stream[ordinal, stream] = view(array, "memory")
        return memory
