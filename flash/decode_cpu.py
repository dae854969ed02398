"""Attention to the keys of a cache by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.arrays import ArrayView, host_array
from flash.cpu import attention_cpu
from flash.decode import LENGTHS, CacheCall

Array = NDArray[Any]


def attend_on_cpu(call: CacheCall) -> None:
    """Each sequence by itself, so that its bits do not depend on the others."""
    q, out = host_array(call.q), host_array(call.out)
    lse = None if call.lse is None else host_array(call.lse)
    batch = q.shape[0]
    numbers = {
        name: np.broadcast_to(host_array(call.operands[name]), batch)
        for name in LENGTHS
        if name in call.operands
    }
    of_heads: dict[str, Any] = {
        name: np.broadcast_to(host_array(call.operands[name]), q.shape[:2])
        for name in ("alibi_slopes", "sink")
        if name in call.operands
    }
    for b in range(batch):
        sequence = int(numbers["cache_batch_idx"][b]) if "cache_batch_idx" in numbers else b
        padding = int(numbers["leftpad_k"][b]) if "leftpad_k" in numbers else 0
        own = {name: array[b : b + 1] for name, array in of_heads.items()}
        rows = slice(padding, int(numbers["seqused_k"][b]))
        keys, values = (_rows_of(call, array, sequence, rows) for array in (call.k, call.v))
        attention_cpu(
            q[b : b + 1], keys[None], values[None], out[b : b + 1],
            None if lse is None else lse[b : b + 1],
            softmax_scale=call.scale,
            causal=call.config.causal,  # type: ignore[arg-type]  # a word the config allows
            window=call.config.window,
            softcap=call.config.softcap,
            **own,
        )  # fmt: skip


def _rows_of(call: CacheCall, cache: ArrayView, sequence: int, rows: slice) -> Array:
    """[kv_heads, n, dim]: rows of a sequence of K or V."""
    whole = host_array(cache)
    if not call.page_size:
        return whole[sequence, :, rows]
    table = host_array(call.operands["block_table"])
    places = np.arange(rows.start, max(rows.stop, rows.start))
    pages = table[sequence, places // call.page_size]
    return whole[pages, :, places % call.page_size].swapaxes(0, 1)
