"""Whether strided arrays share memory, by arithmetic on addresses alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ptxgen.arrays.views import ArrayView, array_interface

# numpy's exact solver gives up after this many candidates; views of one buffer need a handful.
# Typed Any, because the stub of numpy allows only the two special values.
_MOST_WORK: Final[Any] = 10_000


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


class _Addresses:
    """A view as an array for numpy; its memory, which may be on a GPU, is never read."""

    def __init__(self, of: ArrayView) -> None:
        self.__array_interface__ = array_interface(of)
