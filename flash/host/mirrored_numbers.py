"""Small arrays on a GPU that follow some on the host, and are copied only when these change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.host.arrays import ArrayView
from flash.host.dlpack import dense_strides
from flash.host.results import DeviceArray
from flash.problem.dtypes import DType
from ptxgen.runtime.cuda import CudaBackend

Array = NDArray[Any]


class DeviceNumbers:
    """Numbers in `there`, of which nothing is known to begin with.

    The host's need not be kept: what is not pinned is read before a copy of it returns (CUDA Driver
    API, "API synchronization behavior").
    """

    def __init__(self, there: DeviceArray, dtype: DType, cuda: CudaBackend) -> None:
        self._there = there
        self._dtype = dtype
        self._cuda = cuda
        self._last: bytes | None = None  # what is there, if that is known
        self.view = part_of(there, 0, there.shape, dtype)

    def row(self, index: int) -> ArrayView:
        """One of them along the first axis."""
        return part_of(self._there, index, self._there.shape[1:], self._dtype)

    def follow(self, values: Array, stream: int) -> None:
        """Be these from now on, in the order of `stream`."""
        given = values.tobytes()
        if given != self._last:
            self._last = None  # until the copy has come through
            self._copy(self._there.pointer, values, stream)
            self._last = given

    def follow_rows(self, values: Array, rows: Iterable[int], stream: int) -> None:
        """The same of an array [n, m], of which only these rows are looked at, and copied."""
        for begin, end in _stretches(sorted(rows)):
            at = self._there.pointer + begin * values[begin].nbytes
            self._copy(at, values[begin:end], stream)

    def _copy(self, to: int, values: Array, stream: int) -> None:
        dense = np.ascontiguousarray(values)
        self._cuda.copy_to_device(
            to, dense.ctypes.data, dense.nbytes, stream, ordinal=self._there.ordinal
        )


def part_of(of: DeviceArray, item: int, shape: tuple[int, ...], dtype: DType) -> ArrayView:
    """One of the dense arrays of this shape that lie one after another in another array."""
    first = item * math.prod(shape)
    return ArrayView(
        of.pointer + first * dtype.nbytes, shape, dense_strides(shape), dtype.array_name,
        ("cuda", of.ordinal), False, "cuda_array_interface", of,
    )  # fmt: skip


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of those that follow one another."""
    begin = 0
    for n in range(1, len(numbers) + 1):
        if n == len(numbers) or numbers[n] != numbers[n - 1] + 1:
            yield numbers[begin], numbers[n - 1] + 1
            begin = n
