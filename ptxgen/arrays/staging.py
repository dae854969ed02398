"""Copies of host arrays on a GPU, for one launch."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.memory import Owned
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.runtime.cuda import CudaBackend


class Staging:
    """Dense copies of host arrays on device `ordinal`; freed at the end of the `with` block.

    All copies are in the order of `stream`.
    """

    def __init__(self, backend: CudaBackend, stream: int, ordinal: int) -> None:
        self._backend = backend
        self._stream = stream
        self._ordinal = ordinal
        self._copies = ExitStack()  # frees all copies, even if one free fails
        self._sources: list[NDArray[Any]] = []  # sources of copies, kept until `wait`

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._copies.close()

    def room_for(self, array: ArrayView) -> ArrayView:
        """A dense array of the shape and dtype of `array` on the device, not initialised; its
        pointer is 0 if it has no element.
        """
        address = 0
        if array.size:
            nbytes = array.size * numpy_type(array.dtype).itemsize
            owned = Owned(self._backend, self._ordinal)
            self._copies.callback(owned.free)
            address = owned.allocate(nbytes)
        return array._replace(
            pointer=address,
            strides=dense_strides(tuple(array.shape)),
            device=("cuda", self._ordinal),
            kind="numpy",  # the caller's library did not allocate it, and knows no stream of it
        )

    def copy_of(self, array: ArrayView) -> ArrayView:
        """A copy of the array on the device."""
        there = self.room_for(array)
        if there.pointer:
            source = np.ascontiguousarray(host_array(array))
            self._sources.append(source)
            self._backend.copy_to_device(
                there.pointer, source.ctypes.data, source.nbytes, self._stream, ordinal=self._ordinal
            )
        return there

    def fetch(self, there: ArrayView) -> NDArray[Any]:
        """A host copy of a device array, complete after `wait`."""
        host = np.empty(there.shape, numpy_type(there.dtype))
        if there.pointer:
            self._backend.copy_to_host(
                host.ctypes.data, there.pointer, host.nbytes, self._stream, ordinal=self._ordinal
            )
        return host

    def wait(self) -> None:
        """Wait until everything on the stream is done."""
        self._backend.synchronize(self._stream, ordinal=self._ordinal)
        self._sources.clear()
