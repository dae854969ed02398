"""Whether strided arrays share memory, by arithmetic on addresses alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from flash.host.arrays import ArrayView, array_interface

# numpy's exact solver gives up after so many candidates; views of one buffer need a handful.
# Any, because its stub knows only the two special values.
_MOST_WORK: Final[Any] = 10_000


def reach(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The bytes an array spans, from its pointer: offset of the first, and of the one after the
    last.
    """
    if 0 in shape:
        return 0, 0
    ends = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return itemsize * sum(e for e in ends if e < 0), itemsize * (1 + sum(e for e in ends if e > 0))


def may_overlap_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two indices could name one element; False is certain.

    Sufficient for no overlap: by rising stride, each dimension steps beyond all that the ones
    before it span. Every slice, transposition or reversal of a dense array passes.
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
    """Whether an element of `a` and one of `b` share a byte; False is certain, and so, nearly
    always, is True.
    """
    if not a.size or not b.size:
        return False
    try:
        return bool(
            np.shares_memory(
                np.asarray(_Addresses(a)), np.asarray(_Addresses(b)), max_work=_MOST_WORK
            )
        )
    except np.exceptions.TooHardError:
        return True


class _Addresses:
    """A view as numpy sees it; its memory, which may be a GPU's, is never read."""

    def __init__(self, of: ArrayView) -> None:
        self.__array_interface__ = array_interface(of)
