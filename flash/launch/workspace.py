"""Memory in which launches pass results on."""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np

from flash.host.results import DeviceArray, empty
from flash.operands.dtypes import F32, DType
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import HOST, ArrayView, host_array, view
from ptxgen.runtime.cuda import CudaBackend

_POOLS: Final = ("torch", "cupy")  # libraries with pools of memory that are in the order of a stream


class Workspace:
    """Memory of a GPU for partial results. `lock` is held from `room` until all work on the memory is on
    the stream: another thread may use the same memory behind it.
    """

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self.lock = threading.Lock()
        self._kept: dict[tuple[int, int], ArrayView] = {}

    def room(self, like: ArrayView, stream: int, count: int) -> ArrayView:
        """Memory for at least `count` f32 on the device of `like`, for work on `stream`: of the pool of its
        library, which also knows graphs that are being captured, if it has one.
        """
        if like.kind in _POOLS:
            return view(empty(like, (count,), F32, stream=stream), "workspace")
        return self.kept(like.device[1], stream, count)

    def kept(self, ordinal: int, stream: int, count: int) -> ArrayView:
        """Memory for at least `count` f32 on device `ordinal`, which is kept for the next calls on the same
        stream, whose work runs in order.
        """
        found = self._kept.get((ordinal, stream))
        if found is None or found.size < count:
            made = DeviceArray((count,), F32, ordinal, self._backend, stream)
            found = self._kept[ordinal, stream] = view(made, "workspace")
        return found


def piece(whole: ArrayView, first: int, shape: tuple[int, ...], dtype: DType) -> ArrayView:
    """An array in the f32 memory `whole`, from byte `first` on."""
    if whole.device == HOST:
        nbytes = math.prod(shape) * dtype.nbytes
        numbers = host_array(whole).view(np.uint8)[first : first + nbytes].view(dtype.numpy)
        return view(numbers.reshape(shape), "workspace")
    return whole._replace(
        pointer=whole.pointer + first, shape=shape, strides=dense_strides(shape), dtype=dtype.array_name
    )
