"""Attention and its gradients in numpy, dense and obviously right: every other implementation is
judged by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flash.mods.elements import differentiable
from flash.mods.record import SCORE_MOD
from flash.mods.trace import AUX
from flash.operands.dtype_names import Causal, ScaleBlock
from flash.operands.dtypes import BLOCK_FORMATS, MX_BLOCK
from flash.operands.fp4 import unpacked
from flash.problem.sequences import each_sequence
from flash.scores.aux_arrays import with_captured
from flash.scores.feature import Scored, ScoreFeature, summed_to
from flash.scores.features import ScoreArguments, asked, require_known, scored, split_by_axes, takes
from flash.scores.mods import ScoreMod
from flash.scores.window import position_offset
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
    first_query: int = 0,
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

    Scores are, in this order, scaled; capped to softcap * tanh(score / softcap); changed by
    score_mod(score, batch, head, query, key, arrays of aux by name); lessened by
    alibi_slopes [batch, heads] times the distance of query and key; added to bias [batch, heads,
    seq_q, seq_k] and key_bias [batch, heads, seq_k], where -inf hides the key. In these arrays and
    in sink, values of magnitude `FIRST_INFINITE` and more are infinite: a key with such a negative
    bias has weight 0. A query sees the keys that causality, the window (left, right), mask [batch,
    heads, seq_q, seq_k] and mask_mod(batch, head, query, key, arrays of aux) let it see. sink
    [batch, heads] is one more score of each row, whose value is 0. These arrays, except those of
    aux, may be of any shape that broadcasts so. With `dropout`, weights are set to 0 with that
    probability (`flash/scores/philox.py`) and the others divided by the probability to be kept; LSE
    counts all weights. Which weights are kept is as for batches from `first_batch` on. Functions of
    scores count batch items from `first_batch` and queries from `first_query`.

    Raises ConfigError when the shapes do not fit each other or `causal` is not a known word.
    """
    require_known("attention_reference", scores, ScoreArguments, attention_reference)
    scores = with_captured("attention_reference", scores)
    group = _heads_for_each_kv_head("attention_reference", q.shape, k.shape, v.shape)
    q, k, v, scale = _in_one_type(q, k, v, softmax_scale, group, dtype)
    of = scored((*q.shape[:3], k.shape[2]), causal, dtype, first_batch, scores, first_query)
    visible = visible_keys(of)

    with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN in gives NaN out
        score = _visible_scores(q, k, scale, of, visible)
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


@takes(ScoreArguments)
def max_logit_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
    first_batch: int = 0,
    first_query: int = 0,
    dtype: DTypeLike = np.float64,
    **scores: Unpack[ScoreArguments],
) -> NDArray[Any]:
    """The largest score of each head, [batch, heads], of the pairs of a query and a key that it sees: of what
    the softmax of `attention_reference` takes, whose arguments these are, but for its sink. -inf where there
    is no such pair; NaN if one of these scores is NaN.
    """
    require_known("max_logit_reference", scores, ScoreArguments, max_logit_reference)
    scores = with_captured("max_logit_reference", scores)
    group = _heads_for_each_kv_head("max_logit_reference", q.shape, k.shape, k.shape)
    q, k, _, scale = _in_one_type(q, k, k, softmax_scale, group, dtype)
    of = scored((*q.shape[:3], k.shape[2]), causal, dtype, first_batch, scores, first_query)
    with np.errstate(all="ignore"):
        score = _visible_scores(q, k, scale, of, visible_keys(of))
    largest: NDArray[Any] = score.max(axis=(2, 3), initial=-np.inf)
    return largest


def _visible_scores(
    q: NDArray[Any], k: NDArray[Any], scale: NDArray[Any], of: Scored, visible: NDArray[np.bool_]
) -> NDArray[Any]:
    """The scores of all pairs of a query and a key, -inf where it is not `visible`."""
    score = scale * (q @ k.swapaxes(2, 3))
    for step in score_steps(score, of):
        score = step.after
    return np.where(visible, score, -np.inf)


def scaled_numbers(
    x: NDArray[Any], scale: NDArray[Any], scale_block: ScaleBlock | None = None, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """The numbers that x [batch, heads, rows, dim] of fp8 stands for, in `dtype`: each times its scale.

    `scale` is [batch, n], where each number is the scale of heads / n heads; with `scale_block` it is [batch,
    heads, ceil(rows / scale_block)], where each is the scale of `scale_block` rows. With "mx" it is [batch,
    heads, rows, dim / 32], of 32 elements of a row, or [batch, heads, ceil(rows / 32), dim], of 32 elements
    of a column. With "nv" x may also be [batch, heads, rows, dim / 2] of bytes with two elements of e2m1
    each, the first in the lower half, and `scale` [batch, heads, rows, dim / 16].
    """
    batch, heads, rows, dim = x.shape
    of = BLOCK_FORMATS.get(scale_block)
    if of is not None and scale.shape[-1] == dim:
        wide = np.repeat(scale, MX_BLOCK, axis=-2)[:, :, :rows]
    elif of is not None:
        x, wide = x if of.element is None else unpacked(x), np.repeat(scale, of.size, axis=-1)
    elif scale_block is None:
        wide = np.repeat(scale, heads // scale.shape[1], axis=1).reshape(batch, heads, 1, 1)
    else:
        assert isinstance(scale_block, int)  # of the words each is a format
        wide = np.repeat(scale, scale_block, axis=2)[:, :, :rows, np.newaxis]
    numbers: NDArray[Any] = x.astype(dtype) * wide.astype(dtype)
    return numbers


def score_steps(scaled: NDArray[Any], of: Scored) -> Iterator[ScoreStep]:
    """The steps from `scaled`, the products of queries and keys times the scale, to scores."""
    before = scaled
    for feature in asked(of.arguments):
        after = feature.changed(before, of)
        if after is not before:
            yield ScoreStep(feature, before, after)
        before = after


class ScoreStep(NamedTuple):
    """The scores [batch, heads, seq_q, seq_k] before and after one feature."""

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
        scores = feature.first_scores(of)
        if scores is not None:
            return scores
    return np.full(of.shape[:2], -np.inf, of.dtype)


def attention_varlen_reference(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    cu_seqlens_q: NDArray[Any],
    cu_seqlens_k: NDArray[Any] | None = None,
    *,
    block_table: NDArray[Any] | None = None,
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

    With `block_table` [batch, n] there is no `cu_seqlens_k`, k is [pages, page_size, kv_heads, d]
    and v likewise: key r of sequence b, of seqused_k[b] keys, is row r % page_size of page
    block_table[b, r // page_size]. Functions of scores then get the positions of queries.
    """
    heads, batch = q.shape[1], len(cu_seqlens_q) - 1
    of_heads, how = split_by_axes(how, (batch, heads))
    out = np.zeros((q.shape[0], heads, v.shape[-1]), dtype)
    lse = np.full((heads, q.shape[0]), -np.inf, dtype)
    for b, queries, keys in each_sequence(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        of_sequence: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        rows: Any = keys
        if block_table is not None:
            nth = np.arange(keys.stop)
            rows = block_table[b, nth // k.shape[1]], nth % k.shape[1]
            of_sequence["first_query"] = position_offset(
                how.get("causal", False), queries.stop - queries.start, keys.stop
            )
        of_q, of_k, of_v = (x.swapaxes(0, 1)[None] for x in (q[queries], k[rows], v[rows]))
        result, sums = attention_reference(of_q, of_k, of_v, **of_sequence, first_batch=b, dtype=dtype, **how)
        out[queries], lse[:, queries] = result[0].swapaxes(0, 1), sums[0]
    return out, lse


class ReferenceGradients(NamedTuple):
    """The gradients of Q, K and V, and of the arrays of scores by the names of their arguments:
    `alibi_slopes`, `bias`, `key_bias` and `sink`, those that were given, and `aux_` with the name of
    an array of numbers in `aux` that score_mod reads.
    """

    dq: NDArray[Any]
    dk: NDArray[Any]
    dv: NDArray[Any]
    arrays: dict[str, NDArray[Any]]


@takes(ScoreArguments)
def attention_reference_gradients(
    dout: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    dlse: NDArray[Any] | None = None,
    softmax_scale: float | None = None,
    causal: Causal = False,
    first_batch: int = 0,
    first_query: int = 0,
    dtype: DTypeLike = np.float64,
    **scores: Unpack[ScoreArguments],
) -> ReferenceGradients:
    """The gradients of `attention_reference` for the inputs of a call, in `dtype`: of a number whose
    gradients are `dout` for O and `dlse` for LSE, or 0 if that is None.

    Shapes: dout [batch, heads, seq_q, d_v], dlse [batch, heads, seq_q]; the other arguments are
    those of `attention_reference`. Each gradient has the shape of its input as the caller gave it:
    those of keys and values are sums over the heads that share them, those of arrays of scores sums
    over what they were broadcast to. Memory is O(seq_q * seq_k).

    With P = exp(S - LSE) of scores S, the factors Z of dropout and delta = sum(dO * O) - dLSE of
    each row, dV = (Z P)^T dO and dS = P (Z dO V^T - delta), from which the features lead back to
    the scaled products, and these to dQ and dK (arXiv:2205.14135, appendix B; arXiv:2307.08691,
    section 2.3). A row whose LSE is -inf, as that of one that sees no key and has no sink, adds 0
    to all gradients. What a row does not see cannot matter: NaN in keys and values that a row does
    not see, and in rows of `q` and `dout` that do not see a key, is left out of the sums.

    Raises ConfigError when the shapes do not fit each other or `causal` is not a known word.
    """
    caller = "attention_reference_gradients"
    require_known(caller, scores, ScoreArguments, attention_reference_gradients)
    scores = with_captured(caller, scores)
    group = _heads_for_each_kv_head(caller, q.shape, k.shape, v.shape)
    _require_shape(caller, "dout", dout, "batch, heads, seq_q, d_v", (*q.shape[:3], v.shape[3]))
    _require_shape(caller, "dlse", dlse, "batch, heads, seq_q", q.shape[:3])
    how: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "dtype": dtype}
    how |= {"first_batch": first_batch, "first_query": first_query}
    out, lse = attention_reference(q, k, v, **how, **scores)
    shape_of_keys, shape_of_values = k.shape, v.shape
    q, k, v, scale = _in_one_type(q, k, v, softmax_scale, group, dtype)
    dout = dout.astype(dtype)
    dlse = np.zeros_like(lse) if dlse is None else dlse.astype(dtype)
    of = scored((*q.shape[:3], k.shape[2]), causal, dtype, first_batch, scores, first_query)
    seen = visible_keys(of) & ~np.isneginf(lse)[..., None]
    inputs: Mapping[str, Any] = scores
    arrays: dict[str, NDArray[Any]] = {}

    with np.errstate(all="ignore"):  # NaN in gives NaN out
        score = scale * (q @ k.swapaxes(2, 3))
        steps = [*score_steps(score, of)]
        if steps:
            score = steps[-1].after
        weight = np.where(seen, np.exp(score - lse[..., None]), 0)
        factor = np.asarray(weight_factors(of), dtype)
        delta = (dout * out).sum(axis=3) - dlse
        dweight = factor * (dout @ v.swapaxes(2, 3))
        dscore = np.where(seen, weight * (dweight - delta[..., None]), 0)
        elements = {
            a.operand: np.zeros(inputs[AUX][a.name].shape) for a in differentiable(of.arguments[SCORE_MOD])
        }
        for step in reversed(steps):
            if step.feature is ScoreMod:
                ScoreMod.add_element_gradients(elements, dscore, step.before, of, None)
            gradient = step.feature.array_gradient(dscore, of)
            if gradient is not None:
                arrays[step.feature.argument] = gradient
            before = step.feature.gradient(dscore, step.before, step.after, of)
            dscore = np.where(seen, before, 0)
        for feature in asked(scores):
            gradient = feature.first_gradient(lse, delta, of)
            if gradient is not None:
                arrays[feature.argument] = gradient
        dq = scale * _weigh(dscore, k, seen)
        by_key = seen.swapaxes(2, 3)
        dk = scale * _weigh(dscore.swapaxes(2, 3), q, by_key)
        dv = _weigh((factor * weight).swapaxes(2, 3), dout, by_key)
        return ReferenceGradients(
            dq,
            _over_groups(dk, shape_of_keys),
            _over_groups(dv, shape_of_values),
            {name: summed_to(gradient, np.shape(inputs[name])) for name, gradient in arrays.items()}
            | elements,
        )


def attention_varlen_reference_gradients(
    dout: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    cu_seqlens_q: NDArray[Any],
    cu_seqlens_k: NDArray[Any],
    *,
    dlse: NDArray[Any] | None = None,
    seqused_q: NDArray[Any] | None = None,
    seqused_k: NDArray[Any] | None = None,
    dtype: DTypeLike = np.float64,
    **how: Any,
) -> ReferenceGradients:
    """`attention_reference_gradients` of each sequence of a batch of packed sequences.

    Shapes: dout [total_q, heads, d_v], dlse [heads, total_q]; the other arguments are those of
    `attention_varlen_reference`. Returns dq [total_q, heads, d], dk [total_k, kv_heads, d] and dv
    [total_k, kv_heads, d_v], 0 for rows of no sequence, and the gradients of arrays of scores in
    the shapes in which these were given, as sums over all sequences that share their elements.

    Raises ConfigError when the shapes do not fit each other or `causal` is not a known word.
    """
    caller, heads, batch = "attention_varlen_reference_gradients", q.shape[1], len(cu_seqlens_q) - 1
    _require_shape(caller, "dout", dout, "total_q, heads, d_v", (*q.shape[:2], v.shape[2]))
    _require_shape(caller, "dlse", dlse, "heads, total_q", (heads, q.shape[0]))
    of_heads, others = split_by_axes(how, (batch, heads))
    dq, dk, dv = (np.zeros(x.shape, dtype) for x in (q, k, v))
    arrays: dict[str, NDArray[Any]] = {name: np.zeros((batch, heads), dtype) for name in of_heads}
    for b, queries, keys in each_sequence(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        of_sequence: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        of_q, of_k, of_v = (x.swapaxes(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        gradients = attention_reference_gradients(
            dout[queries].swapaxes(0, 1)[None],
            of_q,
            of_k,
            of_v,
            dlse=None if dlse is None else dlse[None, :, queries],
            first_batch=b,
            dtype=dtype,
            **of_sequence,
            **others,
        )
        dq[queries] = gradients.dq[0].swapaxes(0, 1)
        dk[keys], dv[keys] = gradients.dk[0].swapaxes(0, 1), gradients.dv[0].swapaxes(0, 1)
        for name, part in gradients.arrays.items():
            if name in of_heads:
                arrays[name][b] = part[0]
            else:
                arrays[name] = arrays.get(name, 0) + part
    return ReferenceGradients(
        dq, dk, dv, {name: summed_to(array, np.shape(how.get(name, array))) for name, array in arrays.items()}
    )


def _in_one_type(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    softmax_scale: float | None,
    group: int,
    dtype: DTypeLike,
) -> list[NDArray[Any]]:
    """Q, K and V, with a head of K and V for each of Q, and the scale, all of `dtype`."""
    scale = np.asarray(1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale)
    q, k, v, scale = (x.astype(dtype) for x in (q, k, v, scale))
    return [q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1), scale]


def _over_groups(gradient: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The sum over the heads of Q that share a head of K and V, whose gradient has `shape`."""
    batch, kv_heads, *rows = shape
    group = gradient.shape[1] // kv_heads
    total: NDArray[Any] = gradient.reshape(batch, kv_heads, group, *rows).sum(axis=2)
    return total


def _weigh(weight: NDArray[Any], v: NDArray[Any], visible: NDArray[np.bool_]) -> NDArray[Any]:
    """`weight @ v`, to which keys that a row does not see add nothing: 0 * NaN would be NaN."""
    wild = ~np.isfinite(v)
    out = weight @ np.where(wild, 0, v)
    for key in np.flatnonzero(wild.any(axis=(0, 1, 3))):
        seen = visible[:, :, :, key, None] & wild[:, :, None, key]
        out += np.where(seen, weight[:, :, :, key, None] * v[:, :, None, key], 0)
    return out


def _heads_for_each_kv_head(caller: str, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> int:
    """Query heads that share one key/value head; ConfigError when the shapes do not fit."""
    fits = len(q) == len(k) == len(v) == 4 and k[:3] == v[:3] and (q[0], q[3]) == (k[0], k[3])
    if not fits or k[1] == 0 or q[1] % k[1]:
        raise ConfigError(
            f"{caller}: wanted q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d] "
            "and v [batch, kv_heads, seq_k, d_v] with heads a multiple of kv_heads, "
            f"got q {list(q)}, k {list(k)}, v {list(v)}"
        )
    return q[1] // k[1]


def _require_shape(
    caller: str, name: str, array: NDArray[Any] | None, axes: str, shape: tuple[int, ...]
) -> None:
    """ConfigError unless the array called `name`, if there is one, has this shape of these axes."""
    if array is not None and array.shape != shape:
        raise ConfigError(f"{caller}: wanted {name} [{axes}], here {list(shape)}, got {list(array.shape)}")


def merged(parts: NDArray[Any], lses: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """O and LSE merged from `parts` [..., splits, columns] and `lses` [..., splits], by the formula
    as it is written, in their precision. A part that has seen no key may hold anything.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        top = lses.max(axis=-1, keepdims=True)
        base = np.where(np.isneginf(top), 0, top)
        weights = np.exp(lses - base)
        total = weights.sum(axis=-1, keepdims=True)
        shares = np.where(total == 0, 0, weights / total)[..., None]
        out: NDArray[Any] = np.where(shares == 0, 0, shares * parts).sum(axis=-2)
        lse: NDArray[Any] = (base + np.log(total))[..., 0]
    return out, lse
