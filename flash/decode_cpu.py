"""Attention to the keys of a cache by numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.arrays import ArrayView, host_array
from flash.config import AttentionConfig
from flash.cpu import attention_cpu
from flash.decode import LENGTHS, CacheCall

Array = NDArray[Any]
Rows = Callable[[int], tuple[Array, Array]]  # keys and values of an item, [kv_heads, n, dim]


def attend_on_cpu(call: CacheCall) -> None:
    """Compute the call with numpy."""
    batch = call.q.shape[0]
    numbers = {
        name: np.broadcast_to(host_array(call.operands[name]), batch)
        for name in LENGTHS
        if name in call.operands
    }

    def rows_of(b: int) -> tuple[Array, Array]:
        sequence = int(numbers["cache_batch_idx"][b]) if "cache_batch_idx" in numbers else b
        padding = int(numbers["leftpad_k"][b]) if "leftpad_k" in numbers else 0
        rows = slice(padding, int(numbers["seqused_k"][b]))
        return _rows_of(call, call.k, sequence, rows), _rows_of(call, call.v, sequence, rows)

    operands = {
        name: host_array(call.operands[name])
        for name in ("alibi_slopes", "mask", "sink")
        if name in call.operands
    }
    lse = None if call.lse is None else host_array(call.lse)
    attend_to_rows(
        call.config, call.scale, host_array(call.q), rows_of, operands, host_array(call.out), lse
    )


def attend_to_rows(
    config: AttentionConfig,
    scale: float,
    q: Array,
    rows_of: Rows,
    operands: Mapping[str, Array],
    out: Array,
    lse: Array | None,
) -> None:
    """Attention of each item of q [batch, heads, seq_q, head_dim] to its own rows, and by itself,
    so that its bits do not depend on the others.

    `alibi_slopes` and `sink` broadcast to [batch, heads], and a `mask` to [batch, heads, seq_q, m]:
    it speaks of the last m rows of each item, and those before them are seen.
    """
    of_heads = {
        name: np.broadcast_to(array, q.shape[:2])
        for name, array in operands.items()
        if name != "mask"
    }
    for b in range(q.shape[0]):
        keys, values = rows_of(b)
        own: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        if "mask" in operands:
            own["mask"] = _mask_of(operands["mask"], b, keys.shape[1])
        attention_cpu(
            q[b : b + 1], keys[None], values[None], out[b : b + 1],
            None if lse is None else lse[b : b + 1],
            softmax_scale=scale,
            causal=config.causal,  # type: ignore[arg-type]  # one of the words the config allows
            window=config.window,
            softcap=config.softcap,
            **own,
        )  # fmt: skip


def _mask_of(mask: Array, b: int, keys: int) -> Array:
    """[1, heads or 1, seq_q or 1, keys]: that of a sequence with so many keys."""
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    own = wide[b : b + 1] if len(wide) > 1 else wide
    last = own.shape[3]
    if last >= keys:
        return own[..., last - keys :]
    return np.pad(own, ((0, 0), (0, 0), (0, 0), (keys - last, 0)), constant_values=True)


def _rows_of(call: CacheCall, cache: ArrayView, sequence: int, rows: slice) -> Array:
    """[kv_heads, n, dim]: rows of a sequence of K or V."""
    whole = host_array(cache)
    if not call.page_size:
        return whole[sequence, :, rows]
    table = host_array(call.operands["block_table"])
    places = np.arange(rows.start, max(rows.stop, rows.start))
    pages = table[sequence, places // call.page_size]
    return whole[pages, :, places % call.page_size].swapaxes(0, 1)
