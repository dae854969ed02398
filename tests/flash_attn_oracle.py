"""What flash-attn 2.8 computes, by its documentation, in float64 and one row at a time; written for
tests, from nothing of `flash`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
) -> tuple[Array, Array]:
    """out [batch, seqlen_q, heads, dim_v] and lse [batch, heads, seqlen_q] of q [batch, seqlen_q,
    heads, dim] and k, v [batch, seqlen_k, kv_heads, ...]; 0 and -inf for a row that sees no key.
    """
    batch, seqlen_q, heads, dim = q.shape
    seqlen_k, kv_heads = k.shape[1:3]
    scale = 1 / math.sqrt(dim) if softmax_scale is None else softmax_scale
    out = np.zeros((batch, seqlen_q, heads, v.shape[3]))
    lse = np.full((batch, heads, seqlen_q), -np.inf)
    for b in range(batch):
        for h in range(heads):
            keys, values = (x[b, :, h // (heads // kv_heads)].astype(np.float64) for x in (k, v))
            slope = 0.0
            if alibi_slopes is not None:
                slope = float(alibi_slopes[h] if alibi_slopes.ndim == 1 else alibi_slopes[b, h])
            for i in range(seqlen_q):
                here = i + seqlen_k - seqlen_q
                left, right = window_size
                first = 0 if left < 0 else max(here - left, 0)
                last = seqlen_k - 1 if right < 0 else min(here + right, seqlen_k - 1)
                if causal:
                    last = min(last, here)
                if last < first:
                    continue
                seen = np.arange(first, last + 1)
                score = scale * (keys[seen] @ q[b, i, h].astype(np.float64))
                if softcap > 0:
                    score = softcap * np.tanh(score / softcap)
                score = score - slope * abs(here - seen)
                top = score.max()
                weight = np.exp(score - top)
                out[b, i, h] = weight @ values[seen] / weight.sum()
                lse[b, h, i] = top + math.log(weight.sum())
    return out, lse


def attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **how: Any
) -> tuple[Array, Array]:
    """out [total_q, heads, dim_v] and lse [heads, total_q] of packed sequences; 0 and -inf for rows
    of no sequence.
    """
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full((q.shape[1], q.shape[0]), -np.inf)
    slopes = how.pop("alibi_slopes", None)
    for b in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        keys = slice(cu_seqlens_k[b], cu_seqlens_k[b + 1])
        own = None if slopes is None else np.broadcast_to(slopes, (len(cu_seqlens_q) - 1, q.shape[1]))[b]
        result, sums = attention(q[rows][None], k[keys][None], v[keys][None], alibi_slopes=own, **how)
        out[rows], lse[:, rows] = result[0], sums[0]
    return out, lse


def rotated(row: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """A row [heads, dim] rotated by the angles of one position, cos and sin [rotary_dim / 2]."""
    turned = row.astype(np.float64)
    half = len(cos)
    for i in range(half):
        one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        a, b = turned[:, one].copy(), turned[:, two].copy()
        turned[:, one], turned[:, two] = a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]
    return turned


def cache_step(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array | None = None,
    v: Array | None = None,
    *,
    cache_seqlens: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    cache_batch_idx: Array | None = None,
    cache_leftpad: Array | None = None,
    block_table: Array | None = None,
    rotary_interleaved: bool = True,
    positions_increase: bool = True,
) -> list[tuple[Array, Array, Array]]:
    """What each batch item of a call of `flash_attn_with_kvcache` attends with, and to: queries
    [seqlen_q, heads, dim], rotated, and keys and values [rows, kv_heads, ...] of its sequence. New
    rows are written to the caches; `cache_seqlens` does not count them. `positions_increase`: the
    call is causal or local.
    """
    items = []
    for b in range(q.shape[0]):
        before = int(cache_seqlens[b])
        sequence = b if cache_batch_idx is None else int(cache_batch_idx[b])
        new = 0 if k is None else k.shape[1]
        places: list[tuple[int, int]] = []
        for row in range(before + new):
            if block_table is None:
                places.append((sequence, row))
            else:
                page_size = k_cache.shape[1]
                places.append((int(block_table[sequence, row // page_size]), row % page_size))
        queries = q[b]
        if cos is not None and sin is not None:
            at = [before + (i if positions_increase else 0) for i in range(q.shape[1])]
            turned = [
                rotated(row, cos[p], sin[p], rotary_interleaved) for row, p in zip(q[b], at, strict=True)
            ]
            queries = np.array(turned).astype(q.dtype)
        for i in range(new):
            assert k is not None
            assert v is not None
            row_of_k = k[b, i]
            if cos is not None and sin is not None:
                row_of_k = rotated(row_of_k, cos[before + i], sin[before + i], rotary_interleaved)
            k_cache[places[before + i]] = row_of_k.astype(k_cache.dtype)
            v_cache[places[before + i]] = v[b, i]
        first = 0 if cache_leftpad is None else int(cache_leftpad[b])
        keys, values = (
            np.array([cache[location] for location in places[first:]], cache.dtype).reshape(
                -1, *cache.shape[2:]
            )
            for cache in (k_cache, v_cache)
        )
        items.append((queries, keys, values))
    return items
