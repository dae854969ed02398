"""Attention in numpy, dense and obviously right: every other implementation is judged by it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flash.problem.sequences import each_sequence
from flash.scores.feature import Scored, ScoreFeature
from flash.scores.features import ScoreArguments, asked, require_known, scored, split_by_axes, takes
from flash.scores.window import Causal
from ptxgen.errors import ConfigError


@takes(ScoreArguments)
def attention_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
    first_batch: int = 0,
    dtype: DTypeLike = np.float64,
    **scores: Unpack[ScoreArguments],
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
    seq_q, seq_k] and key_bias [batch, heads, seq_k], where -inf hides the key. In these arrays and
    in sink, values of magnitude `FIRST_INFINITE` and more are infinite: a key with such a negative
    bias has weight 0. A query sees the keys that causality, the window (left, right) and mask
    [batch, heads, seq_q, seq_k] let it see. sink [batch, heads] is one more score of each row,
    whose value is 0. These arrays may be of any shape that broadcasts so. With `dropout`, weights
    are set to 0 with that probability (`flash/scores/philox.py`) and the others divided by the
    probability to be kept; LSE counts all weights. Which weights are kept is as for batches from
    `first_batch` on.

    Raises ConfigError when the shapes do not fit each other or `causal` is not a known word.
    """
    require_known("attention_reference", scores, ScoreArguments, attention_reference)
    group = _heads_for_each_kv_head(q.shape, k.shape, v.shape)
    scale = np.asarray(1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale)
    q, k, v, scale = (x.astype(dtype) for x in (q, k, v, scale))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    of = scored((*q.shape[:3], k.shape[2]), causal, dtype, first_batch, scores)
    visible = visible_keys(of)

    with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN in gives NaN out
        score = scale * (q @ k.swapaxes(2, 3))
        for step in score_steps(score, of):
            score = step.after
        score = np.where(visible, score, -np.inf)
        top = score.max(axis=3, keepdims=True, initial=-np.inf)
        sinks = first_scores(of)[..., None, None]
        top = np.maximum(top, sinks)
        top[np.isneginf(top)] = 0  # no key: exp(-inf - 0) = 0, where -inf - -inf is NaN
        weight = np.exp(score - top)
        total = weight.sum(axis=3, keepdims=True) + np.exp(sinks - top)
        factor = np.asarray(weight_factors(of), dtype)
        weight = np.where(factor == 0, 0, weight * factor).astype(dtype)
        out = _weigh(weight, v, visible) / np.where(total == 0, 1, total)
        return out, (top + np.log(total))[..., 0]


def score_steps(scaled: NDArray[Any], of: Scored) -> Iterator[ScoreStep]:
    """The steps from `scaled`, the products of queries and keys times the scale, to scores."""
    before = scaled
    for feature in asked(of.arguments):
        after = feature.changed(before, of)
        if after is not before:
            yield ScoreStep(feature, before, after)
        before = after


class ScoreStep(NamedTuple):
    """What one feature does to scores [batch, heads, seq_q, seq_k]."""

    feature: type[ScoreFeature]
    before: NDArray[Any]
    after: NDArray[Any]


def visible_keys(of: Scored) -> NDArray[np.bool_]:
    """Which keys each query sees, [batch, heads, seq_q, seq_k]."""
    visible = np.ones(of.shape, bool)
    for feature in asked(of.arguments):
        seen = feature.visible(of)
        if seen is not None:
            visible &= seen
    return visible


def weight_factors(of: Scored) -> NDArray[Any] | float:
    """The factor that each weight gets after the sum."""
    factors: NDArray[Any] | float = 1.0
    for feature in asked(of.arguments):
        factor = feature.weight_factor(of)
        if factor is not None:
            factors = factors * factor
    return factors


def first_scores(of: Scored) -> NDArray[Any]:
    """The score that each row has before any key, [batch, heads]; -inf if there is none."""
    for feature in asked(of.arguments):
        found = feature.first_scores(of)
        if found is not None:
            return found
    return np.full(of.shape[:2], -np.inf, of.dtype)


def attention_varlen_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    cu_seqlens_q: NDArray[Any],
    cu_seqlens_k: NDArray[Any],
    *,
    seqused_q: NDArray[Any] | None = None,
    seqused_k: NDArray[Any] | None = None,
    dtype: DTypeLike = np.float64,
    **how: Any,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """`attention_reference` of each sequence of a batch of packed sequences.

    Shapes: q [total_q, heads, d], k [total_k, kv_heads, d], v [total_k, kv_heads, d_v]. The queries
    of sequence b are rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q (int32, [batch + 1]), or
    the first seqused_q[b] of these ([batch]); its keys likewise. Causality, windows and ALiBi go by
    the sequence's own lengths, dropout by its index b and its own rows and keys. `how` are the
    other arguments of `attention_reference`. Returns out [total_q, heads, d_v] and lse [heads,
    total_q]: 0 and -inf for rows of no sequence.
    """
    heads, batch = q.shape[1], len(cu_seqlens_q) - 1
    of_heads, how = split_by_axes(how, (batch, heads))
    out = np.zeros((q.shape[0], heads, v.shape[2]), dtype)
    lse = np.full((heads, q.shape[0]), -np.inf, dtype)
    for b, queries, keys in each_sequence(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        own: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        of_q, of_k, of_v = (x.swapaxes(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        found, sums = attention_reference(of_q, of_k, of_v, **own, first_batch=b, dtype=dtype, **how)
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
