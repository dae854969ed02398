"""Whether strided arrays share memory, by arithmetic on addresses alone, and copies that share it, too."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ptxgen.arrays.views import ArrayView, array_interface

# numpy's exact solver gives up after this many candidates; views of one buffer need a handful.
# Typed Any, because the stub of numpy allows only the two special values.
_MOST_WORK: Final[Any] = 10_000
_ALIGN: Final = 256  # bytes, what an allocation of CUDA is aligned to

Array = np.ndarray[Any, Any]


def reach(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The bytes that an array spans, as offsets from its pointer: of the first byte, and of the
    byte after the last one.
    """
    if 0 in shape:
        return 0, 0
    ends = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return itemsize * sum(e for e in ends if e < 0), itemsize * (1 + sum(e for e in ends if e > 0))


def may_overlap_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two indices may address one element; False is certain.

    There is no overlap if, with dimensions sorted by stride, each stride exceeds the span of all
    dimensions before it. Every slice, transposition or reversal of a dense array passes.
    """
    if 0 in shape:
        return False
    spanned = 1
    for stride, length in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < spanned:
            return True
        spanned += stride * (length - 1)
    return False


def may_share_elements(a: ArrayView, b: ArrayView) -> bool:
    """Whether an element of `a` and one of `b` share a byte. False is certain; True is wrong only
    if the exact test would take too long.
    """
    if not a.size or not b.size:
        return False
    try:
        return bool(
            np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)), max_work=_MOST_WORK)
        )
    except np.exceptions.TooHardError:
        return True


def copied_together(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Copies of those arrays of the host whose bytes lie among the bytes of others: parts of one copy of all
    these bytes, as far apart as the arrays and with the same alignment. Arrays that lie apart are left out.
    """
    copies: dict[str, Array] = {}
    for start, end, names in _groups(arrays):
        if len(names) > 1:
            room = np.zeros(end - start + _ALIGN, np.uint8)
            shift = (start - room.ctypes.data) % _ALIGN
            held = (ctypes.c_uint8 * (end - start)).from_address(start)
            room[shift : shift + end - start] = np.ctypeslib.as_array(held)
            for name in names:
                array = arrays[name]
                offset = shift + array.ctypes.data - start
                copies[name] = np.ndarray(array.shape, array.dtype, room.data, offset, array.strides)
    return copies


def _groups(arrays: Mapping[str, Array]) -> list[tuple[int, int, list[str]]]:
    """The addresses of bytes without a gap, from the first to that after the last, with the names of the
    arrays there.
    """
    bounds = {name: byte_bounds(array) for name, array in arrays.items() if array.size}
    groups: list[tuple[int, int, list[str]]] = []
    for name, (low, high) in sorted(bounds.items(), key=lambda item: item[1]):
        if groups and low < groups[-1][1]:
            start, end, names = groups.pop()
            groups.append((start, max(end, high), [*names, name]))
        else:
            groups.append((low, high, [name]))
    return groups


class _Addresses:
    """A view as an array for numpy; its memory, which may be on a GPU, is never read."""

    def __init__(self, of: ArrayView) -> None:
        self.__array_interface__ = array_interface(of)
