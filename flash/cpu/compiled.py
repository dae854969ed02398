"""The steps of a block by loops that Numba compiles, for the `compiled` backend.

The products of few queries read keys and values once, where they lie, in pages or not, and widen those of 16
bits in registers. Those of many queries are left to BLAS, as on the `cpu` backend. Weights are computed and
added in one pass. What is not of f32 arithmetic is left to numpy.
"""

from __future__ import annotations

import functools
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
_InMemory = tuple[Array, Array, int]  # what `loops.products` calls memory, places and apart

# The type by which the loops know numbers of a type.
_KNOWN_AS: Final[dict[np.dtype[Any], np.dtype[Any]]] = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.uint16),
    np.dtype(np.float16): np.dtype(np.int16),
}
_IS_KNOWN_AS: Final = {known: kind for kind, known in _KNOWN_AS.items()}
_F32: Final = np.dtype(np.float32)

# With more rows for each head of K, BLAS multiplies in less time, also if it needs a copy of K as f32.
_FEW_ROWS: Final = 8


def _scores_of_keys(space: Workspace, source: KeyRows, place: KeyPlace, q: Array, out: Array) -> None:
    if not _is_for_loops(space, source, q.shape[1]):
        products.scores_of_keys(space, source, place, q, out)
        return
    loops.products(q, *_in_memory(space, "k", source, place), out)


def _weigh(space: Workspace, score: Array, hidden: Array | None, total: Array) -> None:
    if space.dtype != _F32:
        products.weigh(space, score, hidden, total)
    elif hidden is None:
        loops.weights(score, total)
    else:
        loops.weights_of_seen(score, np.ascontiguousarray(hidden), total)


def _outputs_of_values(
    space: Workspace, source: KeyRows, place: KeyPlace, weight: Array, hidden: Array | None, out: Array
) -> None:
    if not _is_for_loops(space, source, weight.shape[1]):
        products.outputs_of_values(space, source, place, weight, hidden, out)
        return
    found = _in_memory(space, "v", source, place)
    loops.sums(weight, *found, out)
    # A hidden key has weight 0, but 0 * NaN is NaN.
    if hidden is not None and not np.isfinite(out).all():
        _sums_of_seen(found, weight, hidden, out)


def _attend(
    space: Workspace,
    k: KeyRows,
    v: KeyRows,
    place: KeyPlace,
    q: Array,
    total: Array,
    out: Array,
    least_total: float,
    least_sum: float,
) -> bool | None:
    if not (_is_for_loops(space, k, q.shape[1]) and _is_for_loops(space, v, q.shape[1])):
        return None
    k_found, v_found = _in_memory(space, "k", k, place), _in_memory(space, "v", v, place)
    return bool(loops.attend(q, *k_found, *v_found, total, out, least_total, least_sum))


ENGINE: Final = Engine(_scores_of_keys, _weigh, _outputs_of_values, 4, _attend, _FEW_ROWS)


def _sums_of_seen(found: _InMemory, weight: Array, hidden: Array, out: Array) -> None:
    """Write the weighted sums of V to `out`, where some values are no numbers, and add only keys that are not
    `hidden`: by the rules of `flash.cpu.blocks.product_of_seen`, and the sums of the loops.
    """
    memory, places, apart = found
    kv_heads, _, dim = out.shape
    for head in range(kv_heads):
        rows = memory[(places + head * apart)[:, None] + np.arange(dim)]
        values = rows.view(_IS_KNOWN_AS[memory.dtype])
        wild = ~np.isfinite(values).all(axis=-1)
        odd = values[wild].astype(_F32)
        values[wild] = 0
        here = slice(head, head + 1)
        loops.sums(weight[here], _fixed(rows.reshape(-1)), np.arange(len(places)) * dim, 0, out[here])
        for n, row in zip(np.flatnonzero(wild), odd, strict=True):
            at = head, slice(None), n, None
            out[head] += np.where(hidden[at], 0, weight[at] * row)


def _is_for_loops(space: Workspace, source: KeyRows, rows: int) -> bool:
    return rows <= _FEW_ROWS and space.dtype == _F32 and source.dtype in _KNOWN_AS and source.shape[3] > 0


def _in_memory(space: Workspace, name: str, source: KeyRows, place: KeyPlace) -> _InMemory:
    """The memory with the keys or values at `place`, where in it each begins, and how far apart heads are, in
    elements. Buffer `name` has a copy of those that have no dense rows in memory.
    """
    kind = _KNOWN_AS[source.dtype]
    if isinstance(source, PagedRows):
        found = source.in_memory(place.heads, place.keys)
        if found is not None:
            memory, places, apart = found
            return _fixed(memory.view(kind)), places, apart
        x = space.planes(
            name, place.heads.stop - place.heads.start, place.length, source.shape[3], source.dtype
        )
        source.read(place.heads, place.keys, x)
    else:
        x = source[place]
        if not (x.flags.c_contiguous and x.flags.aligned) and not _has_dense_rows(x):
            copy = space.planes(name, len(x), x.shape[1], x.shape[2], source.dtype)
            copy[...] = x
            x = copy
    if x.flags.c_contiguous:
        return _fixed(x.reshape(-1).view(kind)), _places(place.length, x.shape[2]), x.shape[1] * x.shape[2]
    unit = x.itemsize
    apart, step = x.strides[0] // unit, x.strides[1] // unit
    end = (len(x) - 1) * apart + (x.shape[1] - 1) * step + x.shape[2]
    memory = as_strided(x, (max(0, end),), (unit,), writeable=False)
    return memory.view(kind), _places(place.length, step), apart


def _places(count: int, step: int) -> Array:
    """So many multiples of a number, from 0 on."""
    return _more_places(1 << count.bit_length(), step)[:count]


@functools.lru_cache(maxsize=8)  # a step of decoding asks for the same in each layer
def _more_places(count: int, step: int) -> Array:
    return np.arange(count) * step


def _fixed(memory: Array) -> Array:
    """A view that cannot be written: the loops are compiled for such memory only."""
    found = memory.view()
    found.flags.writeable = False
    return found


def _has_dense_rows(x: Array) -> bool:
    """Whether rows of `x` are dense, and whole elements apart."""
    *outer, unit = x.strides
    dense = unit == x.itemsize or x.shape[2] == 1
    return dense and x.flags.aligned and all(stride >= 0 and not stride % x.itemsize for stride in outer)
