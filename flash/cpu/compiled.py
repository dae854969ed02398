"""The steps of a block by loops that Numba compiles, for the `compiled` backend.

The products of few queries read keys and values once, where they lie, in pages or not, and widen those of 16
bits in registers. Those of many queries are left to BLAS, as on the `cpu` backend. Weights are computed and
added in one pass. Calls whose arithmetic is not f32 are left to numpy.
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
from flash.cpu.engine import Engine, Limits
from flash.cpu.paged_rows import KeyIndex, KeyRows, PagedRows
from flash.cpu.threads import Bell

Array = NDArray[Any]
_InMemory = tuple[Array, Array, int]  # `memory`, `offsets` and `head_stride` of `loops.products`
_AllInMemory = tuple[Array, Array, tuple[int, int]]  # `k`, `k_offsets` and `k_strides` of `loops.attend`

# The element type of the loops' memory for each element type of K and V.
_KNOWN_AS: Final[dict[np.dtype[Any], np.dtype[Any]]] = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.uint16),
    np.dtype(np.float16): np.dtype(np.int16),
}
_IS_KNOWN_AS: Final = {known: kind for kind, known in _KNOWN_AS.items()}
_F32: Final = np.dtype(np.float32)

# Looks at a number that another thread changes, 1.5 ms if nobody else wants the core. To be woken takes a
# thread 0.1 ms, and in a virtual machine it often gets the core of the one that wakes it first. (libgomp's
# threads wait 5 ms.)
_LOOKS: Final = 2**20

# With more rows for each head of K, BLAS multiplies in less time, also if it needs a copy of K as f32.
_FEW_ROWS: Final = 8


def _scores_of_keys(space: Workspace, source: KeyRows, index: KeyIndex, q: Array, out: Array) -> None:
    if not _is_for_loops(space, source, q.shape[1]):
        products.scores_of_keys(space, source, index, q, out)
        return
    loops.products(q, *_in_memory(space, "k", source, index), out)


def _weigh(space: Workspace, score: Array, hidden: Array | None, total: Array) -> None:
    if space.dtype != _F32:
        products.weigh(space, score, hidden, total)
    elif hidden is None:
        loops.weights(score, total)
    else:
        loops.weights_of_seen(score, np.ascontiguousarray(hidden), total)


def _outputs_of_values(
    space: Workspace, source: KeyRows, index: KeyIndex, weight: Array, hidden: Array | None, out: Array
) -> None:
    if not _is_for_loops(space, source, weight.shape[1]):
        products.outputs_of_values(space, source, index, weight, hidden, out)
        return
    location = _in_memory(space, "v", source, index)
    loops.sums(weight, *location, out)
    # A hidden key has weight 0, but 0 * NaN is NaN.
    if hidden is not None and not np.isfinite(out).all():
        _sums_of_seen(location, weight, hidden, out)


def _weights_again(space: Workspace, score: Array, hidden: Array | None, lse: Array) -> None:
    if space.dtype != _F32:
        products.weights_again(space, score, hidden, lse)
    elif hidden is None:
        loops.weights_again(score, lse)
    else:
        loops.weights_again_of_seen(score, np.ascontiguousarray(hidden), lse)


def _score_gradients(
    space: Workspace, dweight: Array, hidden: Array | None, weight: Array, delta: Array
) -> None:
    if space.dtype != _F32:
        products.score_gradients(space, dweight, hidden, weight, delta)
    elif hidden is None:
        loops.score_gradients(dweight, weight, delta)
    else:
        loops.score_gradients_of_seen(dweight, np.ascontiguousarray(hidden), weight, delta)


class _Heads:
    """The work of a call, whose heads are shared out among threads; `arguments` are those of `loops.attend`
    that follow those about threads.
    """

    def __init__(self, count: int, *arguments: Any) -> None:
        self._count = count
        self._progress = np.zeros(3, np.int64)
        self._arguments = arguments

    def lead(self, bell: Bell) -> bool:
        """See `Shared`."""
        return bool(loops.attend(True, bell, self._progress, _LOOKS, *self._arguments))

    def help(self, bell: Bell) -> None:
        """See `Shared`."""
        loops.attend(False, bell, self._progress, _LOOKS, *self._arguments)

    def is_begun(self) -> bool:
        """See `Shared`."""
        return bool(self._progress[0] >= self._count)


def _attend(
    k: KeyRows, v: KeyRows, keys: slice, q: Array, total: Array, out: Array, limits: Limits, threads: int
) -> tuple[_Heads, Array] | None:
    if out.dtype != _F32 or not all(source.dtype in _KNOWN_AS and source.shape[3] for source in (k, v)):
        return None
    of_k, of_v = (_all_in_memory(source, keys) for source in (k, v))
    batch, kv_heads = total.shape[:2]
    is_safe = np.empty((batch, kv_heads), np.bool_)
    together = -(-kv_heads // threads) if _are_side_by_side(of_k) else 1
    parts = batch * -(-kv_heads // together)
    return _Heads(parts, together, q, *of_k, *of_v, total, out, is_safe, *limits), is_safe


def _are_side_by_side(rows: _AllInMemory) -> bool:
    """Whether rows of the heads lie between those of a head: the fewer of them a thread reads together, the
    longer each takes, up to 1.7 times.
    """
    _, offsets, (_, of_head) = rows
    return len(offsets) > 1 and bool(of_head < offsets[1] - offsets[0])


ENGINE: Final = Engine(
    _scores_of_keys,
    _weigh,
    _outputs_of_values,
    _weights_again,
    _score_gradients,
    together=4,
    attend=_attend,
    few_rows=_FEW_ROWS,
)


def _sums_of_seen(location: _InMemory, weight: Array, hidden: Array, out: Array) -> None:
    """Write the weighted sums of V to `out`, where V has NaN or infinity, of the keys that are not `hidden`
    alone: by the rules of `flash.cpu.blocks.product_of_seen`, with the sums of the loops.
    """
    memory, offsets, head_stride = location
    kv_heads, _, dim = out.shape
    for head in range(kv_heads):
        rows = memory[(offsets + head * head_stride)[:, None] + np.arange(dim)]
        values = rows.view(_IS_KNOWN_AS[memory.dtype])
        wild = ~np.isfinite(values).all(axis=-1)
        nonfinite = values[wild].astype(_F32)
        values[wild] = 0
        here = slice(head, head + 1)
        loops.sums(weight[here], _fixed(values.reshape(-1)), np.arange(len(offsets)) * dim, 0, out[here])
        for n, row in zip(np.flatnonzero(wild), nonfinite, strict=True):
            at = head, slice(None), n, None
            out[head] += np.where(hidden[at], 0, weight[at] * row)


def _is_for_loops(space: Workspace, source: KeyRows, rows: int) -> bool:
    return rows <= _FEW_ROWS and space.dtype == _F32 and source.dtype in _KNOWN_AS and source.shape[3] > 0


def _in_memory(space: Workspace, name: str, source: KeyRows, index: KeyIndex) -> _InMemory:
    """The memory that holds the keys or values at `index`, the offset of each in it, and the stride of heads,
    in elements. Buffer `name` gets a copy of keys that have no dense rows in memory.
    """
    if isinstance(source, PagedRows):
        location = source.in_memory(index.heads, index.keys)
        if location is not None:
            memory, offsets, head_stride = location
            return _fixed(memory), offsets, head_stride
        x = space.planes(
            name, index.heads.stop - index.heads.start, index.length, source.shape[3], source.dtype
        )
        source.read(index.heads, index.keys, x)
    else:
        x = source[index]
        if not _has_dense_rows(x):
            copy = space.planes(name, len(x), x.shape[1], x.shape[2], source.dtype)
            copy[...] = x
            x = copy
    return _rows_in_memory(x)


def _all_in_memory(source: KeyRows, keys: slice) -> _AllInMemory:
    """The memory that holds `keys` of all heads, the offset of each key of the first head in it, and the
    strides of batch items and of heads, in elements. It is that of a copy if the keys have no dense rows in
    memory.
    """
    if isinstance(source, PagedRows):
        heads = slice(0, source.shape[1])
        location = source.in_memory(heads, keys)
        if location is not None:
            memory, offsets, head_stride = location
            return _fixed(memory), offsets, (0, head_stride)
        x = np.empty((1, heads.stop, keys.stop - keys.start, source.shape[3]), source.dtype)
        source.read(heads, keys, x[0])
    else:
        x = source[:, :, keys]
        if not _has_dense_rows(x):
            x = np.array(x, order="C")
    memory, offsets, head_stride = _rows_in_memory(x)
    return memory, offsets, (x.strides[0] // x.itemsize, head_stride)


def _rows_in_memory(x: Array) -> _InMemory:
    """The result of `_in_memory` for x [..., kv_heads, n, dim] with dense rows."""
    size, (head_stride, step) = x.itemsize, x.strides[-3:-1]
    if x.flags.c_contiguous:
        memory = x.reshape(-1)
    else:
        ends = ((n - 1) * stride for n, stride in zip(x.shape[:-1], x.strides, strict=False))
        memory = as_strided(x, (sum(ends) // size + x.shape[-1],), (size,), writeable=False)
    return _fixed(memory), _offsets(x.shape[-2], step // size), head_stride // size


def _offsets(count: int, step: int) -> Array:
    """The first `count` multiples of `step`, from 0 on."""
    return _cached_offsets(1 << count.bit_length(), step)[:count]


@functools.lru_cache(maxsize=8)  # a step of decoding asks for the same in each layer
def _cached_offsets(count: int, step: int) -> Array:
    return np.arange(count) * step


def _fixed(memory: Array) -> Array:
    """A read-only view of `memory` with the element type of the loops, which are compiled for such arrays."""
    view = memory.view(_KNOWN_AS[memory.dtype])
    view.flags.writeable = False
    return view


def _has_dense_rows(x: Array) -> bool:
    """Whether rows of `x` are dense, and whole elements apart."""
    *outer, unit = x.strides
    size = x.itemsize
    dense = unit == size or x.shape[-1] == 1
    return dense and x.flags.aligned and all(stride >= 0 and not stride % size for stride in outer)
