"""The steps of a block by loops that Numba compiles, for the `numba` backend.

The products of few queries read K and V once, where they lie, in pages or not, and widen numbers of 16 bits in
registers. Those of many queries are left to BLAS, whose weights are computed and added in one pass. What is
not of f32 arithmetic, or of types of other sizes, is left to numpy.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from flash.cpu import loops, products
from flash.cpu.blocks import Workspace
from flash.cpu.engine import Engine
from flash.cpu.paged_rows import KeyPlace, KeyRows, PagedRows

Array = NDArray[Any]

# The type by which the loops know numbers of a type.
_KNOWN_AS: Final = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.uint16),
    np.dtype(np.float16): np.dtype(np.int16),
}
_F32: Final = np.dtype(np.float32)

# With more rows for each head of K, BLAS multiplies in less time.
_FEW_ROWS: Final = 8


def _scores_of_keys(space: Workspace, source: KeyRows, place: KeyPlace, q: Array, out: Array) -> None:
    if not _is_for_loops(space, source, q.shape[1]):
        products.scores_of_keys(space, source, place, q, out)
        return
    loops.products(q, *_in_memory(space, "k", source, place), out)


def _weigh(space: Workspace, score: Array, total: Array) -> None:
    if space.dtype != _F32:
        products.weigh(space, score, total)
        return
    loops.exponentials(score, total)


def _outputs_of_values(
    space: Workspace, source: KeyRows, place: KeyPlace, weight: Array, hidden: Array | None, out: Array
) -> None:
    if not _is_for_loops(space, source, weight.shape[1]):
        products.outputs_of_values(space, source, place, weight, hidden, out)
        return
    loops.sums(weight, *_in_memory(space, "v", source, place), out)  # what is hidden has weight 0


# A task of so many elements of K, 4 MiB of f32, takes long enough for a thread of its own.
COMPILED: Final = Engine(_scores_of_keys, _weigh, _outputs_of_values, most_elements=2**20)


def _is_for_loops(space: Workspace, source: KeyRows, rows: int) -> bool:
    return rows <= _FEW_ROWS and space.dtype == _F32 and source.dtype in _KNOWN_AS and source.shape[3] > 0


def _in_memory(space: Workspace, name: str, source: KeyRows, place: KeyPlace) -> tuple[Array, Array, int]:
    """The memory with the keys or values at `place`, where in it each begins, and how far apart heads are, in
    elements. Buffer `name` has a copy of those that have no dense rows in memory.
    """
    kind = _KNOWN_AS[source.dtype]
    if isinstance(source, PagedRows):
        found = source.in_memory(place.heads, place.keys)
        if found is not None:
            memory, places, apart = found
            return memory.view(kind), places, apart
        x = space.planes(
            name, place.heads.stop - place.heads.start, place.length, source.shape[3], source.dtype
        )
        source.read(place.heads, place.keys, x)
    else:
        x = source[place]
        if not _has_dense_rows(x):
            copy = space.planes(name, *x.shape, source.dtype)
            copy[...] = x
            x = copy
    unit = x.itemsize
    apart, step = x.strides[0] // unit, x.strides[1] // unit
    end = (len(x) - 1) * apart + (x.shape[1] - 1) * step + x.shape[2]
    memory = as_strided(x, (max(0, end),), (unit,), writeable=False)
    return memory.view(kind), np.arange(place.length) * step, apart


def _has_dense_rows(x: Array) -> bool:
    """Whether rows of `x` are dense, and whole elements apart."""
    *outer, unit = x.strides
    dense = unit == x.itemsize or x.shape[2] == 1
    return dense and x.flags.aligned and all(stride >= 0 and not stride % x.itemsize for stride in outer)
