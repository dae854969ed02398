"""Attention to the keys of a KV cache on the host, without kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.cpu.paged_rows import KeyRows, PagedRows
from flash.decode.plan import CacheCall, Joining
from flash.host.stored_rows import loaded, stored, token_scales
from flash.mods.trace import AUX
from flash.problem.features import LENGTHS
from flash.problem.rotary import rotated
from flash.scores.aux_arrays import gathered
from flash.scores.features import CACHE_ARRAYS
from ptxgen.arrays.views import ArrayView, host_array

Array = NDArray[Any]
_SCALES: Final = ("k_scale", "v_scale")
Rows = Callable[[int], tuple[KeyRows, KeyRows]]  # keys and values of an item, [1, kv_heads, n, dim]


def attend_on_cpu(call: CacheCall, attend: Callable[..., None]) -> None:
    """Compute the call with `attend` (`on_cpu_of`), after new rows are written to the cache."""
    batch = call.q.shape[0]
    numbers = {
        name: np.broadcast_to(host_array(call.operands[name]), batch)
        for name in LENGTHS
        if name in call.operands
    }

    sequences = numbers.get("cache_batch_idx", np.arange(batch))
    padding = numbers.get("leftpad_k", np.zeros(batch, np.int64))
    used = numbers["seqused_k"]
    q = host_array(call.q)
    if call.new is not None:
        q = _join(call, call.new, (sequences, used, padding))

    def rows_of(b: int) -> tuple[KeyRows, KeyRows]:
        sequence, begin, end = int(sequences[b]), int(padding[b]), int(max(used[b], padding[b]))
        caches = host_array(call.k), host_array(call.v)
        if call.has_scales:
            places = _places(call, sequence, np.arange(begin, end))
            keys, values = (
                loaded(cache[places].swapaxes(0, 1), scale)[None]
                for cache, scale in zip(caches, _scales(call, places), strict=True)
            )
            return keys, values
        if not call.page_size:
            keys, values = (cache[sequence, None, :, begin:end] for cache in caches)
            return keys, values
        return paged_rows(*caches, host_array(call.operands["block_table"])[sequence], begin, end)

    names = (*CACHE_ARRAYS, *call.config.aux_operands)
    operands = gathered({name: host_array(call.operands[name]) for name in names if name in call.operands})
    outputs = {name: host_array(array) for name, array in call.outputs.items()}
    attend = functools.partial(attend, softmax_scale=call.scale)
    attend_to_rows(attend, q, rows_of, operands, host_array(call.out), outputs)


def _join(call: CacheCall, new: Joining, numbers: tuple[Array, Array, Array]) -> Array:
    """Write new rows to the cache, if there are any. Returns q, rotated if there are rotary tables."""
    sequences, used, padding = numbers

    def turned(array: ArrayView, dtype: Any) -> Array:
        """The rows of an array, rotated if there are rotary tables, and then rounded once."""
        rows = host_array(array)
        if new.cos is None or new.sin is None:
            return rows
        cos, sin, positions = (
            host_array(new.cos),
            host_array(new.sin),
            _positions(used - padding, rows.shape[2]),
        )
        found: Array = rotated(rows, cos, sin, positions, interleaved=new.interleaved).astype(dtype)
        return found

    q = turned(call.q, host_array(call.q).dtype)
    if new.k is None or new.v is None:
        return q
    k, v = turned(new.k, np.float32 if call.has_scales else host_array(new.k).dtype), host_array(new.v)
    n = k.shape[2]
    for b, sequence in enumerate(sequences):
        first = max(n - int(used[b]), 0)  # the first new row that lies in the sequence
        places = _places(call, int(sequence), np.arange(used[b] - n + first, used[b]))
        if call.per_token:
            for name, rows in zip(_SCALES, (k, v), strict=True):
                of_rows = token_scales(rows[b, :, first:], call.stored)[..., 0]
                host_array(call.operands[name])[places] = of_rows.T
        for cache, rows, scale in zip((call.k, call.v), (k, v), _scales(call, places), strict=True):
            host_array(cache)[places] = stored(rows[b, :, first:], call.stored, scale).swapaxes(0, 1)
    return q


def _scales(call: CacheCall, places: tuple[Any, ...]) -> tuple[Array | None, Array | None]:
    """The scales of K and V, [kv_heads, 1, 1], or of the rows at `places`, [kv_heads, rows, 1]; None for a
    cache without.
    """
    if not call.has_scales:
        return None, None
    k, v = (host_array(call.operands[name]) for name in _SCALES)
    if call.per_token:
        return k[places].T[..., None], v[places].T[..., None]
    k, v = (np.broadcast_to(array, (call.k.shape[1],)) for array in (k, v))
    return k[:, None, None], v[:, None, None]


def _positions(keys: Array, rows: int) -> Array:
    """Positions of the last `rows` rows of sequences of `keys` keys: [batch, rows], at least 0."""
    found: Array = np.maximum(keys.astype(np.int64)[:, None] + np.arange(-rows, 0), 0)
    return found


def attend_to_rows(
    attend: Callable[..., None],
    q: Array,
    rows_of: Rows,
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


def paged_rows(k: Array, v: Array, table: Array, begin: int, end: int) -> tuple[PagedRows, PagedRows]:
    """Rows `begin` to `end` - 1 of the sequence with these pages of `k` and `v`."""
    return PagedRows(k, table, end - begin, begin), PagedRows(v, table, end - begin, begin)


def _mask_of(mask: Array, b: int, keys: int) -> Array:
    """The mask of item `b`, which has `keys` keys: [1, heads or 1, seq_q or 1, keys]."""
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    own = wide[b : b + 1] if len(wide) > 1 else wide
    last = own.shape[3]
    if last >= keys:
        return own[..., last - keys :]
    return np.pad(own, ((0, 0), (0, 0), (0, 0), (keys - last, 0)), constant_values=True)


def _places(call: CacheCall, sequence: int, rows: Array) -> tuple[Any, ...]:
    """The numpy index of rows of a sequence in K or V; it selects [rows, kv_heads, dim]."""
    if not call.page_size:
        return sequence, slice(None), rows
    pages = host_array(call.operands["block_table"])[sequence, rows // call.page_size]
    return pages, slice(None), rows % call.page_size
