"""Attention in numpy, dense and obviously right: every other implementation is judged by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flash.problem.sequences import each_sequence
from flash.scores.philox import STEPS, kept, threshold
from ptxgen.errors import ConfigError, shown

Causal = bool | Literal["bottom_right", "top_left"]
Window = tuple[int | None, int | None] | None

# The least f32 whose product with log2(e), in f32, is infinite: 2^128 ln 2, about 2.3587e38. A
# kernel adds scores in units of log2.
FIRST_INFINITE: Final = float.fromhex("0x1.62e43p127")


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
        f"attention: causal must be False, True, 'bottom_right' or 'top_left', got {shown(causal)}"
    )


def position_offset(causal: Causal, seq_q: int, seq_k: int) -> int:
    """The offset such that query i is at the position of key i + offset: the last query is at the
    last key, or with "top_left" the first query at the first key. Raises ConfigError for an unknown
    word.
    """
    causal_offset(causal, seq_q, seq_k)
    return 0 if causal == "top_left" else seq_k - seq_q


def key_limits(causal: Causal, window: Window) -> tuple[int | None, int | None]:
    """How many keys before its own position, and behind it, a query sees; None for all."""
    before, behind = window or (None, None)
    return before, behind if causal is False else 0


def as_scores(given: NDArray[Any]) -> NDArray[Any]:
    """A bias, sinks or slopes as every backend takes them: f32 or f64, where values of magnitude
    `FIRST_INFINITE` and more become infinity with their sign.
    """
    infinite = np.abs(given) >= FIRST_INFINITE
    return np.where(infinite, np.copysign(np.inf, given), given) if infinite.any() else given


def visible_keys(
    shape: Sequence[int],
    causal: Causal = False,
    window: Window = None,
    mask: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
) -> NDArray[np.bool_]:
    """Which keys each query sees, for scores of `shape` [batch, heads, seq_q, seq_k]; the other
    arguments are those of `attention_reference`.
    """
    seq_q, seq_k = shape[2:]
    position = np.arange(seq_q)[:, None] + position_offset(causal, seq_q, seq_k)
    distance = position - np.arange(seq_k)
    before, behind = key_limits(causal, window)
    visible = np.ones((seq_q, seq_k), bool)
    if before is not None:
        visible &= distance <= before
    if behind is not None:
        visible &= -distance <= behind
    if mask is not None:
        visible = visible & mask
    if bias is not None:
        visible = visible & ~np.isneginf(bias)
    return np.broadcast_to(visible, tuple(shape))


def attention_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
    window: Window = None,
    softcap: float | None = None,
    alibi_slopes: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
    mask: NDArray[Any] | None = None,
    sink: NDArray[Any] | None = None,
    dropout: float = 0.0,
    dropout_seed: int = 0,
    first_batch: int = 0,
    dtype: DTypeLike = np.float64,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """`softmax(score(scale * q @ k^T)) @ v` and the natural log of each row's sum, in `dtype`.

    Shapes: q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d], v [batch, kv_heads, seq_k,
    d_v], with heads a multiple of kv_heads. Returns out [batch, heads, seq_q, d_v] and lse [batch,
    heads, seq_q], both of `dtype`; `dtype=np.float32` is the same-precision reference of the tests.
    The scale defaults to 1 / sqrt(d). A row that sees no key gives 0 and -inf. Keys that a row does
    not see are left out of its sums, not multiplied by 0, so that NaN in them cannot matter. Memory
    is O(seq_q * seq_k).

    Scores are, in this order, scaled; capped to softcap * tanh(score / softcap); lessened by
    alibi_slopes [batch, heads] times the distance of query and key; added to bias [batch, heads,
    seq_q, seq_k], where -inf hides the key. In these arrays and in sink, values of magnitude
    `FIRST_INFINITE` and more are infinite: a key with such a negative bias has weight 0. A query
    sees the keys that causality, the window (left, right) and mask [batch, heads, seq_q, seq_k] let
    it see. sink [batch, heads] is one more score of each row, whose value is 0. These arrays may be
    of any shape that broadcasts so. With `dropout`, weights are set to 0 with that probability
    (`flash/scores/philox.py`) and the others divided by the probability to be kept; LSE counts all
    weights. Which weights are kept is as for batches from `first_batch` on.

    Raises ConfigError when the shapes do not fit each other or `causal` is not a known word.
    """
    group = _heads_for_each_kv_head(q.shape, k.shape, v.shape)
    scale = np.asarray(1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale)
    q, k, v, scale = (x.astype(dtype) for x in (q, k, v, scale))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    shape = (*q.shape[:3], k.shape[2])
    visible = visible_keys(shape, causal, window, mask, bias)

    with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN in gives NaN out
        scores = score_steps(
            scale * (q @ k.swapaxes(2, 3)), causal, softcap, alibi_slopes, bias
        ).biased
        scores = np.where(visible, scores, -np.inf)
        top = scores.max(axis=3, keepdims=True, initial=-np.inf)
        sinks = as_scores(np.asarray(-np.inf if sink is None else sink).astype(dtype))
        sinks = np.broadcast_to(sinks, shape[:2])[..., None, None]
        top = np.maximum(top, sinks)
        top[np.isneginf(top)] = 0  # no key: exp(-inf - 0) = 0, where -inf - -inf is NaN
        weight = np.exp(scores - top)
        total = weight.sum(axis=3, keepdims=True) + np.exp(sinks - top)
        if dropout:
            keep = kept_keys(shape, dropout, dropout_seed, first_batch)
            weight = np.where(keep, weight * (STEPS / threshold(dropout)), 0).astype(dtype)
        out = _weigh(weight, v, visible) / np.where(total == 0, 1, total)
        return out, (top + np.log(total))[..., 0]


class ScoreSteps(NamedTuple):
    """Scores [batch, heads, seq_q, seq_k] after each step; a step left out changes nothing."""

    scaled: NDArray[Any]
    capped: NDArray[Any]
    lessened: NDArray[Any]  # by ALiBi
    biased: NDArray[Any]


def score_steps(
    scaled: NDArray[Any],
    causal: Causal = False,
    softcap: float | None = None,
    alibi_slopes: NDArray[Any] | None = None,
    bias: NDArray[Any] | None = None,
) -> ScoreSteps:
    """The scores after each step, from `scaled`, the products of queries and keys times the scale,
    and in its type; the other arguments are those of `attention_reference`.
    """
    dtype, (seq_q, seq_k) = scaled.dtype, scaled.shape[2:]
    capped = scaled
    if softcap is not None:
        cap = np.asarray(softcap, dtype)
        capped = cap * np.tanh(scaled / cap)
    lessened = capped
    if alibi_slopes is not None:
        position = np.arange(seq_q)[:, None] + position_offset(causal, seq_q, seq_k)
        distance = np.abs(position - np.arange(seq_k)).astype(dtype)
        lessened = capped - as_scores(alibi_slopes.astype(dtype))[..., None, None] * distance
    biased = lessened if bias is None else lessened + as_scores(bias.astype(dtype))
    return ScoreSteps(scaled, capped, lessened, biased)


def kept_keys(
    shape: Sequence[int], dropout: float, dropout_seed: int, first_batch: int
) -> NDArray[np.bool_]:
    """Which weights of `shape` [batch, heads, seq_q, seq_k] dropout keeps."""
    heads = np.arange(shape[0] * shape[1]).reshape(shape[:2]) + first_batch * shape[1]
    return np.stack([kept(dropout, dropout_seed, n, *map(np.arange, shape[2:])) for n in heads])


def attention_varlen_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    cu_seqlens_q: NDArray[Any],
    cu_seqlens_k: NDArray[Any],
    *,
    seqused_q: NDArray[Any] | None = None,
    seqused_k: NDArray[Any] | None = None,
    alibi_slopes: NDArray[Any] | None = None,
    sink: NDArray[Any] | None = None,
    dtype: DTypeLike = np.float64,
    **how: Any,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """`attention_reference` of each sequence of a batch of packed sequences.

    Shapes: q [total_q, heads, d], k [total_k, kv_heads, d], v [total_k, kv_heads, d_v]. The queries
    of sequence b are rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q (int32, [batch + 1]), or
    the first seqused_q[b] of these ([batch]); its keys likewise. Causality, windows and ALiBi go by
    the sequence's own lengths, dropout by its index b and its own rows and keys. alibi_slopes and
    sink broadcast to [batch, heads]; `how` is the rest of `attention_reference`. Returns out
    [total_q, heads, d_v] and lse [heads, total_q]: 0 and -inf for rows of no sequence.
    """
    heads, batch = q.shape[1], len(cu_seqlens_q) - 1
    of_heads = {
        name: np.broadcast_to(array, (batch, heads))
        for name, array in (("alibi_slopes", alibi_slopes), ("sink", sink))
        if array is not None
    }
    out = np.zeros((q.shape[0], heads, v.shape[2]), dtype)
    lse = np.full((heads, q.shape[0]), -np.inf, dtype)
    for b, queries, keys in each_sequence(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        own: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        of_q, of_k, of_v = (x.swapaxes(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        found, sums = attention_reference(
            of_q, of_k, of_v, **own, first_batch=b, dtype=dtype, **how
        )
        out[queries], lse[:, queries] = found[0].swapaxes(0, 1), sums[0]
    return out, lse


def _weigh(weight: NDArray[Any], v: NDArray[Any], visible: NDArray[np.bool_]) -> NDArray[Any]:
    """`weight @ v`, to which keys that a row does not see add nothing: 0 * NaN would be NaN."""
    wild = ~np.isfinite(v)
    out = weight @ np.where(wild, 0, v)
    for key in np.flatnonzero(wild.any(axis=(0, 1, 3))):
        seen = visible[:, :, :, key, None] & wild[:, :, None, key]
        out += np.where(seen, weight[:, :, :, key, None] * v[:, :, None, key], 0)
    return out


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
