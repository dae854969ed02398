"""A cache of the results of checks, for later calls with arguments that all checks treat alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from flash.problem.config import ALIGNMENTS
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.overlap import reach
from ptxgen.arrays.views import ArrayView
from ptxgen.runtime.bounded_cache import Kept

V = TypeVar("V")
Reaches = list[tuple[int, int]]


class Known(Generic[V]):
    """Results for calls, by what else they depend on (`of`), and by their arrays: shapes, strides, types
    and devices, and of the addresses their alignment and how far those lie from one another that share bytes
    with an array that is `written`.
    """

    def __init__(self) -> None:
        self._reaches = Kept[tuple[object, ...], Reaches]()
        self._results = Kept[tuple[object, ...], V]()

    def get(
        self, of: tuple[object, ...], views: Mapping[str, ArrayView], written: Collection[str]
    ) -> V | None:
        """The cached result for a call; None if there is none."""
        key = _key(of, views)
        reaches = self._reaches.get(key)
        return None if reaches is None else self._results.get((key, _near(views, reaches, written)))

    def keep(
        self, of: tuple[object, ...], views: Mapping[str, ArrayView], written: Collection[str], result: V
    ) -> V:
        """Cache the result for a call whose arrays are right, and return it."""
        key = _key(of, views)
        reaches = [reach(a.shape, a.strides, numpy_type(a.dtype).itemsize) for a in views.values()]
        self._reaches.keep(key, reaches)
        return self._results.keep((key, _near(views, reaches, written)), result)


def _key(of: tuple[object, ...], views: Mapping[str, ArrayView]) -> tuple[object, ...]:
    # [1:6] is all that checks read in addition to the address: shape, strides, dtype, device, read_only.
    return of, tuple([(name, array[1:6], array.pointer % ALIGNMENTS[0]) for name, array in views.items()])


def _near(
    views: Mapping[str, ArrayView], reaches: Sequence[tuple[int, int]], written: Collection[str]
) -> tuple[tuple[str, str, int], ...]:
    """(written, other, distance) for each array that is written and each other array whose span of
    bytes overlaps it, even if they share no element; distance is between their addresses, in bytes.
    """
    spans = [
        (name, array.pointer, array.pointer + low, array.pointer + high)
        for (name, array), (low, high) in zip(views.items(), reaches, strict=True)
    ]
    return tuple(
        [
            (one, other, there - here)
            for one, here, begin, end in spans
            if one in written
            for other, there, low, high in spans
            if low < end and begin < high and other != one
        ]
    )
