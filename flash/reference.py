"""Attention in numpy, dense and obviously right: what every other implementation is judged by."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptxgen.errors import ConfigError

Causal = bool | Literal["bottom_right", "top_left"]


def causal_offset(causal: Causal, seq_q: int, seq_k: int) -> int:
    """`offset` such that query i sees the keys j <= i + offset.

    `True` and `"bottom_right"` let the last query see every key, as flash-attn and decoding with
    a KV cache do; `"top_left"` lets query i see keys 0 to i, as PyTorch SDPA's `is_causal` does;
    `False` lets every query see every key. Raises ConfigError for any other word.
    """
    if causal is False:
        return seq_k
    if causal is True or causal == "bottom_right":
        return seq_k - seq_q
    if causal == "top_left":
        return 0
    raise ConfigError(
        f"attention: causal must be False, True, 'bottom_right' or 'top_left', got {causal!r}"
    )


def attention_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
    dtype: DTypeLike = np.float64,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """`softmax(scale * q @ k^T) @ v` and the natural log of each row's sum, computed in `dtype`.

    Shapes: q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d], v [batch, kv_heads, seq_k,
    d_v], with heads a multiple of kv_heads. Returns out [batch, heads, seq_q, d_v] and lse [batch,
    heads, seq_q], both of `dtype`; `dtype=np.float32` is the same-precision reference of the
    tests. The scale defaults to 1 / sqrt(d). A row that sees no key gives 0 and -inf. What a row
    does not see is left out of its sums, not multiplied by 0, so that NaN there cannot matter.
    Memory is O(seq_q * seq_k).

    Raises ConfigError when the shapes do not fit each other or `causal` is not a known word.
    """
    group = _heads_for_each_kv_head(q.shape, k.shape, v.shape)
    scale = np.asarray(1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale)
    q, k, v, scale = (x.astype(dtype) for x in (q, k, v, scale))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    seq_q, seq_k = q.shape[2], k.shape[2]
    out, lse = np.empty((*q.shape[:3], v.shape[3]), dtype), np.empty(q.shape[:3], dtype)

    last = np.arange(seq_q) + causal_offset(causal, seq_q, seq_k)
    seen = np.clip(last + 1, 0, seq_k)  # query i sees the keys 0 .. seen[i] - 1
    with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN in gives NaN out
        scores = scale * (q @ k.swapaxes(2, 3))
        for n in np.unique(seen):
            rows = seen == n
            score = scores[:, :, rows, :n]
            top = score.max(axis=3, keepdims=True, initial=-np.inf)
            top[np.isneginf(top)] = 0  # no key: exp(-inf - 0) = 0, where -inf - -inf is NaN
            weight = np.exp(score - top)
            total = weight.sum(axis=3, keepdims=True)
            out[:, :, rows] = weight @ v[:, :, :n] / np.where(total == 0, 1, total)
            lse[:, :, rows] = (top + np.log(total))[..., 0]
    return out, lse


def _heads_for_each_kv_head(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> int:
    """Query heads that share one key/value head; ConfigError when the shapes do not fit."""
    fits = len(q) == len(k) == len(v) == 4 and k[:3] == v[:3] and (q[0], q[3]) == (k[0], k[3])
    if not fits or k[1] == 0 or q[1] % k[1]:
        raise ConfigError(
            "attention_reference: wanted q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d] "
            "and v [batch, kv_heads, seq_k, d_v] with heads a multiple of kv_heads, "
            f"got q {list(q)}, k {list(k)}, v {list(v)}"
        )
    return q[1] // k[1]
