"""Attention to the keys of a KV cache on the host, and appending to it, without kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.cpu.paged_rows import KeyRows, PagedRows
from flash.decode.append_launch import AppendCall
from flash.decode.plan import CacheCall, appending
from flash.host.stored_rows import loaded, stored, token_scales
from flash.kernels.append import COUNTS
from flash.mods.trace import AUX
from flash.operands.dtypes import OF_ARRAYS
from flash.problem.features import ANGLES, LENGTHS
from flash.problem.rotary import rotated
from flash.scores.aux_arrays import gathered
from ptxgen.arrays.views import ArrayView, host_array, view

Array = NDArray[Any]
_SCALES: Final = ("k_scale", "v_scale")
# The operands that no score depends on.
_OF_CACHE: Final = frozenset(("k_new", "v_new", *ANGLES, *LENGTHS, "block_table", *_SCALES))
Operands = Mapping[str, ArrayView]


def attend_on_cpu(call: CacheCall, attend: Callable[..., None]) -> None:
    """Compute the call with `attend` (`on_cpu_of`), after new rows are written to the cache."""
    q = joined_on_cpu(call)
    if not q.size:
        return
    operands, caches = call.operands, (host_array(call.k), host_array(call.v))
    sequences, used, padding = _numbers(operands, len(q))

    def rows_of(b: int) -> tuple[KeyRows, KeyRows]:
        sequence, begin, end = int(sequences[b]), int(padding[b]), int(max(used[b], padding[b]))
        if call.has_scales:
            at = _places(operands, call.page_size, sequence, begin, end)
            rows = [cache.swapaxes(1, 2)[at].swapaxes(0, 1) for cache in caches]
            keys, values = (
                loaded(of, _scale(host_array(operands[name]), at))[None]
                for of, name in zip(rows, _SCALES, strict=True)
            )
            return keys, values
        if not call.page_size:
            keys, values = (cache[sequence, None, :, begin:end] for cache in caches)
            return keys, values
        table = host_array(operands["block_table"])[sequence]
        paged = [PagedRows(cache, table, end - begin, begin) for cache in caches]
        return paged[0], paged[1]

    of_scores: dict[str, Any] = {n: host_array(a) for n, a in operands.items() if n not in _OF_CACHE}
    of_scores = gathered(of_scores) if of_scores else of_scores
    outputs = {name: host_array(array) for name, array in call.outputs.items()}
    attend = functools.partial(attend, softmax_scale=call.scale)
    _attend_to_rows(attend, q, rows_of, of_scores, host_array(call.out), outputs)


def joined_on_cpu(call: CacheCall) -> Array:
    """Write new rows to the cache, if there are any. Returns q, rotated if there are rotary tables."""
    q, turns = host_array(call.q), call.turned is not None
    if "k_new" in call.operands:
        queries = view(np.empty(q.shape, q.dtype), "q") if turns else None
        append_on_cpu(appending(call, queries))
        return q if queries is None else host_array(queries)
    return _rotated(q, call.operands, ANGLES, call.interleaved).astype(q.dtype) if turns else q


def append_on_cpu(call: AppendCall) -> None:
    """Write new rows to a cache, and rotated q to the array for it."""
    operands, element = call.arrays, OF_ARRAYS[call.arrays["K"].dtype]
    k, v = host_array(operands["K_NEW"]), host_array(operands["V_NEW"])
    if "COS" in operands:
        q, turned = (
            _rotated(host_array(operands[name]), operands, ("COS", "SIN"), call.interleaved)
            for name in ("Q", "K_NEW")
        )
        host_array(operands["Q_OUT"])[...] = q
        k = turned.astype(np.float32 if element.is_narrow else k.dtype)
    sequences, used, _ = _numbers(operands, len(k))
    counts = [k.shape[2]] * len(k) if COUNTS.name not in operands else host_array(operands[COUNTS.name])
    for b, (sequence, end, count) in enumerate(zip(sequences, used, counts, strict=True)):
        first = max(int(count - end), 0)  # the first new row that lies in the sequence
        at = _places(operands, call.page_size, int(sequence), int(end - count) + first, int(end))
        for name, cache, of_all in zip(_SCALES, (operands["K"], operands["V"]), (k, v), strict=True):
            rows = of_all[b, :, first:count]
            if name in operands:
                scales = host_array(operands[name])
                if scales.ndim > 1:
                    scales.swapaxes(1, 2)[at] = token_scales(rows, element)[..., 0].T
                rows = stored(rows, element, _scale(scales, at))
            host_array(cache).swapaxes(1, 2)[at] = rows.swapaxes(0, 1)


def _numbers(operands: Operands, batch: int) -> tuple[Array, Array, Array]:
    """The sequence of each item, the number of its rows, and how many of these are padding."""
    usual: dict[str, Any] = {"cache_batch_idx": np.arange(batch), "seqused_k": 0, "leftpad_k": 0}
    given = {name: host_array(operands[name]) for name in usual.keys() & operands.keys()}
    sequences, used, padding = (np.broadcast_to(given.get(name, x), batch) for name, x in usual.items())
    return sequences, used, padding


def _rotated(array: Array, operands: Operands, tables: tuple[str, str], interleaved: bool) -> Array:
    """The last rows of sequences, rotated by their positions: at least 0, as rows of padding have."""
    _, used, padding = _numbers(operands, len(array))
    ends = used.astype(np.int64) - padding
    positions = np.maximum(ends[:, None] + np.arange(-array.shape[2], 0), 0)
    cos, sin = (host_array(operands[name]) for name in tables)
    return rotated(array, cos, sin, positions, interleaved=interleaved)


def _scale(scales: Array, at: tuple[Any, ...]) -> Array:
    """The scales of the rows at `at`, [kv_heads, rows, 1], or those of heads, which broadcast to it."""
    return (scales.swapaxes(1, 2)[at].T if scales.ndim > 1 else scales[..., None])[..., None]


def _places(operands: Operands, page_size: int, sequence: int, begin: int, end: int) -> tuple[Any, ...]:
    """The numpy index of rows of a sequence in K or V as [places, rows, kv_heads, dim]; it selects [rows,
    kv_heads, dim].
    """
    if not page_size:
        return sequence, slice(begin, end)
    pages, rows = np.divmod(np.arange(begin, end), page_size)
    return host_array(operands["block_table"])[sequence, pages], rows


def _attend_to_rows(
    attend: Callable[..., None],
    q: Array,
    rows_of: Callable[[int], tuple[KeyRows, KeyRows]],
    operands: Mapping[str, Array],
    out: Array,
    outputs: Mapping[str, Array],
) -> None:
    """`attend` with each item of q [batch, heads, seq_q, head_dim] to its own rows. Items are
    computed separately, so that the bits of an item do not depend on the others.

    `alibi_slopes` and `sink` broadcast to [batch, heads], and a `mask` to [batch, heads, seq_q, m]:
    it covers the last m rows of each item, and rows before them are visible.
    """
    of_heads = {
        name: np.broadcast_to(array, q.shape[:2])
        for name, array in operands.items()
        if name not in ("mask", AUX)
    }
    of_all: dict[str, Any] = {AUX: operands[AUX]} if AUX in operands else {}
    for b in range(q.shape[0]):
        keys, values = rows_of(b)
        own: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        if "mask" in operands:
            own["mask"] = _mask_of(operands["mask"], b, keys.shape[2])
        attend(
            q[b : b + 1],
            keys,
            values,
            out[b : b + 1],
            **{name: array[b : b + 1] for name, array in outputs.items()},
            first_batch=b,
            first_query=keys.shape[2] - q.shape[2],
            **own,
            **of_all,
        )


def _mask_of(mask: Array, b: int, keys: int) -> Array:
    """The mask of item `b`, which has `keys` keys: [1, heads or 1, seq_q or 1, keys]."""
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    own = wide[b : b + 1] if len(wide) > 1 else wide
    last = own.shape[3]
    if last >= keys:
        return own[..., last - keys :]
    return np.pad(own, ((0, 0), (0, 0), (0, 0), (keys - last, 0)), constant_values=True)
