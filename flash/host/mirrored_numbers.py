"""Small arrays on a GPU that mirror arrays on the host, and are copied only on a change."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.host.results import DeviceArray
from flash.operands.dtypes import DType
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import ArrayView
from ptxgen.runtime.cuda import CudaBackend

Array = NDArray[Any]


class DeviceNumbers:
    """A GPU array `there` that mirrors a host array. Its initial contents are unknown.

    The host array need not outlive a copy: pageable memory is read before the copy returns
    (CUDA Driver API, "API synchronization behavior").
    """

    def __init__(self, there: DeviceArray, dtype: DType, cuda: CudaBackend) -> None:
        self._there = there
        self._dtype = dtype
        self._cuda = cuda
        self._last: bytes | None = None  # the contents of `there`, if known
        self._source: tuple[Array | None, int] = None, 0  # the last dense array on the host, and its address
        self.view = part_of(there, 0, there.shape, dtype)

    def row(self, index: int) -> ArrayView:
        """Item `index` of the GPU array along its first axis."""
        return part_of(self._there, index, self._there.shape[1:], self._dtype)

    def follow(self, values: Array, stream: int) -> None:
        """Copy `values` to the GPU if they differ from the last ones, in the order of `stream`."""
        contents = values.tobytes()
        if contents != self._last:
            self._last = None  # unknown if the copy fails
            self._copy(self._there.pointer, values, stream)
            self._last = contents

    def follow_rows(self, values: Array, rows: Collection[int], stream: int) -> None:
        """Copy only `rows` of `values` [n, m] to the GPU, in the order of `stream`."""
        for begin, end in _stretches(sorted(rows)) if rows else ():
            at = self._there.pointer + begin * values[begin].nbytes
            self._copy(at, values[begin:end], stream)

    def _copy(self, to: int, values: Array, stream: int) -> None:
        source, address = self._source
        if source is not values:
            source = np.ascontiguousarray(values)
            self._source = source, address = source, source.ctypes.data
        self._cuda.copy_to_device(to, address, values.nbytes, stream, ordinal=self._there.ordinal)


def part_of(of: DeviceArray, item: int, shape: tuple[int, ...], dtype: DType) -> ArrayView:
    """The array number `item` of the dense arrays of this shape that are contiguous in `of`."""
    first = item * math.prod(shape)
    return ArrayView(
        of.pointer + first * dtype.nbytes,
        shape,
        dense_strides(shape),
        dtype.array_name,
        ("cuda", of.ordinal),
        False,
        "cuda_array_interface",
        of,
    )


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of consecutive integers in sorted `numbers`."""
    begin = 0
    for n in range(1, len(numbers) + 1):
        if n == len(numbers) or numbers[n] != numbers[n - 1] + 1:
            yield numbers[begin], numbers[n - 1] + 1
            begin = n
