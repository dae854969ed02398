"""How far from the exact result a right implementation of attention may be, element by element.

The bound is derived from the arithmetic, not from another implementation, so that neither the luck
of one nor the order in which a BLAS library adds affects a verdict. It is computed in float64,
whose own error is negligible compared with that of f32.

**Roundings are random, and some errors are not.** u = 2^-24 is the unit roundoff of f32. Rounding x
to nearest errs by at most u |x|, and the error is taken to be uniform in that range: its variance
is u² x² / 3, which is twice what it is on average, as half an ulp is u |x| for powers of two alone.
Independent variances add, so that errors grow with the square root of the number of roundings
(Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput.
41, 2019). `CONFIDENCE` such standard deviations are allowed, 6.8 of those that are to be expected;
the sum of many roundings has a normal distribution, which exceeds that once in 10^11 elements. An
error that has the same sign in many terms (of a scale that was rounded once; of a tensor core,
which truncates) is followed with its sign through the sum, and its size is added.

**A sum of n terms x**, with S = Σ x and X² = Σ x². If the order of the terms does not depend on
them, partial sums have E s_t² = t(t-1)/(n(n-1)) S² + t(n-t)/(n(n-1)) X² <= S² + X²/4 (about) = R².
So n roundings have the variance n R² u²/3, whatever the order is; products that are rounded before
they are added, and factors rounded before they are multiplied, add 3 X² u²/3.

**A sum on a tensor core** takes m products a step. It truncates these and the sum so far to F bits
below M, the power of two of the largest, adds exactly, and truncates to 24 bits of f32, of fp8 to 14,
for which what follows has another u (Fasi,
Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021).
Each of the m + 1 numbers loses 0 to 2^-F M, the sum 0 to 2^-23 |s|, all towards zero. With M = R
the variance of a step is (1 + (m + 1) 4^(24-F)) R² u²/3 at most. The means do not cancel, as
partial sums keep their sign for long: T steps lose u Σ s_t, whose mean is u T S at most, and whose
variance u² T² X² / 12 is that of the area under a random walk that ends in S (a Brownian bridge).
The means of n products add up to 2^-F R / 2 times the sum of their signs, about S sqrt(n) / X
(which is n where all are equal). Where a sum is made of chains of terms, which are added by
ordinary additions, R² is that of a chain, (S² + 5/4 X²) / chains, and these additions are a sum of
their own.

**Scores** are in natural units here. Score x_j of a row has the error e_j: that of the sum over
head_dim, times the scale and the slope of the softcap; a rounding after each step (scale, softcap
with a tanh of 3 ulp, ALiBi, bias, subtraction of the maximum and its scale); and that of `ex2`,
which errs by 2 ulp (PTX ISA; numpy's exp by 2.5 ulp) and makes of an absolute error of x_j a
relative one of its weight. Factors that were rounded (scale and log2(e), slope times log2(e), ...)
make errors c x_j with one c for all keys of a row. Elements that are split into f16 have a least error,
too, which their row shares: of both factors it adds least² / 3 times the sum of the other's squares.

**Outputs** are o = Σ p_j w_j v_j, where p is the softmax and w_j is 1, or the factor that dropout
gives a weight. An error e_j of score j moves o by p_j (w_j v_j - o) e_j, as the sum of the weights
moves, too. So softmax is its own condition number. P rounded to a type of unit roundoff u_P adds
p_j w_j v_j u_P at most, in the sum P V alone, or, where the sum of the weights is that of the rounded
ones, p_j (v_j - o) u_P; the sum P V and the sum of the weights are sums as
above, with a rounding for each tile that rescales them. log-sum-exp moves by p_j e_j. The result is
rounded once more, to its type, by half an ulp at most: that is added as it is. Keys of a row with
equal scores have equal errors: their terms are added before they are squared.

**Parts** of the keys are merged by their log-sum-exp L_i: rounding L_i scales all of part i by (1 +
e). With Jensen's inequality Σ_i P_i² (o_i - o)² e² <= e² Σ_j p_j (v_j - o)², however the keys are
dealt to parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Unpack

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flash.device.fp8_softmax import LIFT
from flash.families.mma import DEFAULT_TF32_TILES, LONGEST_GROUP
from flash.families.precision import HALF, IEEE, PAIRS, TF32
from flash.operands.dtype_names import Causal
from flash.operands.dtypes import DTYPES, E4M3, FP8_DTYPES
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.sequences import each_sequence
from flash.reference import attention_reference, first_scores, merged, weight_factors
from flash.score_errors import CONFIDENCE, ROUNDING, ScoreErrors, U, finite, square
from flash.scores.features import ScoreArguments, split_by_axes, takes
from ptxgen.isa import numeric
from ptxgen.target import target as find_target

Array = NDArray[Any]

_EXP: Final = 5.0  # error of exp and exp2, in u
_LOG2: Final = 4.0  # error of `lg2.approx`, in u; absolute for sums below 2 (PTX ISA, lg2)
_SLOPE: Final = 2.0  # roundings of a sink and of log2(e)
_FP8_DEPTH: Final = 32  # products of fp8 in a step of `wgmma`
_FP8_BITS: Final = 13  # after the first, of these products and of their sum (`ptxgen/isa/tensor_core.py`)
_LARGEST_TILE: Final = max(tile for tile, _ in DEFAULT_TF32_TILES[PAIRS.name].values())  # keys
_LEAST_TILE: Final = 16  # keys; each may bring a new maximum
_LAST_STEPS: Final = 4  # roundings: the sum, its reciprocal, the product with it, a scale of V
_LEAST: Final = 2.0**-149  # the least f32
_LEAST_WEIGHT: Final = 2.0**-126  # below, `ex2.approx.ftz` gives 0
_SM_OF_WHOLE_STEPS: Final = 90
_SM_OF_TENSOR_MEMORY: Final = 100
_BITS: Final = 25  # below the largest, of products since Hopper but those of fp8 by `wgmma`
# The error of a product of two f32 that is computed as three products of f16, in u of the product: a
# pair of f16 errs by at most 2 u and by u on the average of squares, and the fourth product, which is
# left out, is at most 4 u, evenly distributed (`flash/device/split_tile.py`).
_RESIDUE: Final = 3.5
_LEAST_LOW: Final = 2.0**-25  # half of the least f16: what the low part of a pair errs by at least
_UNSCALED: Final = (2.0**-7, 2.0**7)  # where the largest of a row may be that is split times 2**8
_PAIR_EXPONENT: Final = 8
_PAIR_TOP: Final = 14  # the exponent of the largest of another row, which is split times 2**120 at most
_PAIR_MOST: Final = 120
_LEAST_OF_PAIR: Final = _LEAST_LOW * 2.0**-_PAIR_TOP  # of P, whose largest is split times 2**14
_ROUNDED_PRODUCTS: Final = math.sqrt(3)  # roundings of a product and of factors multiplied later
_TF32_UNIT: Final = 2.0**-11
_LARGEST_TF32: Final = np.float32(float.fromhex("0x1.ffcp127"))


@dataclass(frozen=True, slots=True)
class TensorCore:
    """How products are summed: `products` of them in a step, truncated to `bits` bits below the
    largest, and to `significant` bits; `chain` terms of P V (0: all) before the sum goes on in f32. Each
    term errs by `residue` units u.
    """

    products: int
    bits: int
    chain: int = 0
    residue: float = _ROUNDED_PRODUCTS
    significant: int = 24

    def sum_error(self, count: Any, total: Array, squares: Array) -> tuple[Array, Array]:
        """The variance of the error of a sum of `count` terms, and its mean with the opposite sign,
        given the sum (`total`) and the sum of the terms' squares (`squares`).
        """
        count = np.maximum(count, 1)
        chains = np.ceil(count / self.chain) if self.chain else 1
        steps, additions = np.ceil(count / self.products) + 1, count / chains
        size = square(total) + squares / 4
        of_chain = size if self.chain == 0 else (square(total) + 1.25 * squares) / chains
        unit = 2.0**-self.significant
        of_step = square(unit) / 3 + ROUNDING * (self.products + 1) * 4.0 ** (24 - self.bits)
        random = steps * of_step * of_chain + ROUNDING * self.residue**2 * squares
        random = random + square(steps / chains * unit) / 12 * squares
        if self.chain:
            random = random + chains * ROUNDING * size
        like = np.minimum(_ratio(square(total), squares), additions)
        mean = steps / chains * unit + np.sqrt(additions) * 2.0**-self.bits / 2 * np.sqrt(1 + like)
        return random, mean * total


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an implementation differs from f32. `weights` is the unit roundoff of P as a factor of V, and
    `least_weight` the least error of P where the largest weight is 1, of a sink, too, unless `sinks_last`;
    `core` is None where sums are rounded to nearest. `operands` converts Q, K and V before anything else,
    exactly. `least` gives of an operand [..., n, dim] what each element of a row errs by at least, [...,
    n]. `parts` is the unit roundoff of the parts that are merged if the keys are shared out, else 0. With
    `sums_rounded` O is divided by the sum of the rounded weights, which the tensor core adds, too.
    """

    weights: float = 0.0
    least_weight: float = 0.0
    core: TensorCore | None = None
    operands: Callable[[Array], Array] | None = None
    least: Callable[[Array], Array] | None = None
    parts: float = 0.0
    sums_rounded: bool = False
    sinks_last: bool = False

    def sum_error(
        self, count: Any, total: Array, squares: Array, *, in_chains: bool = True
    ) -> tuple[Array, Array]:
        """See `TensorCore.sum_error`; without a tensor core, the sum is rounded to nearest and the
        mean is 0. `in_chains` is False for a score, all of which stays in the tensor core.
        """
        if self.core is not None:
            core = self.core if in_chains else replace(self.core, chain=0)
            return core.sum_error(count, total, squares)
        size = square(total) + squares / 4
        return ROUNDING * (count * size + _ROUNDED_PRODUCTS**2 * squares), np.zeros_like(total)


F32_ARITHMETIC: Final = Arithmetic()
PARTS_OF_F32: Final = U


def arithmetic_of(kind: str, sm: int = 80, parts: float = 0.0, tile: int = _LARGEST_TILE) -> Arithmetic:
    """The arithmetic of kernels for a GPU sm_NN by the name of their type, or the precision of
    f32: "ieee", "f32_grade" or "tf32". `parts` is as in `Arithmetic`; `tile`
    is the keys whose products stay in a tensor core with "f32_grade", and those of fp8.
    """
    if kind in ("f32", IEEE):
        return Arithmetic(parts=parts)
    if kind in FP8_DTYPES:
        # P is of e4m3 with any of them; the largest is 2^LIFT.
        relative, least = E4M3.rounding
        core = TensorCore(_FP8_DEPTH, _FP8_BITS, tile, significant=_FP8_BITS + 1)
        if sm >= _SM_OF_TENSOR_MEMORY:
            core = TensorCore(_FP8_DEPTH, _BITS)
        least *= 2.0**-LIFT
        return Arithmetic(relative, least, core, parts=parts, sums_rounded=True, sinks_last=True)
    halves = sm < _SM_OF_WHOLE_STEPS  # the tensor core takes two steps for one `mma`
    bits = _BITS - halves
    if kind == PAIRS.name:
        products = PAIRS.depth // 2 if halves else PAIRS.depth
        core = TensorCore(products, bits, tile, _RESIDUE)
        return Arithmetic(0.0, _LEAST_OF_PAIR, core, None, least_of_pairs, parts, sinks_last=True)
    if kind == TF32.name:
        core = TensorCore(TF32.depth // 2 if halves else TF32.depth, bits, TF32.depth * LONGEST_GROUP)
        return Arithmetic(_TF32_UNIT, core=core, operands=as_tf32, parts=parts)
    products = HALF.depth // 2 if halves else HALF.depth
    return Arithmetic(*DTYPES[kind].rounding, TensorCore(products, bits), parts=parts)


def arithmetic_of_config(config: AttentionConfig, parts: float = 0.0) -> Arithmetic:
    """The arithmetic of the kernels that a configuration gets."""
    sm = find_target(config.target or DEFAULT_TARGET).sm
    kernel = config.kernel()
    keys = kernel.family.chained_keys(kernel.tiling, None if config.tile == "auto" else int(config.tile))
    return arithmetic_of(config.precision or config.element.name, sm, parts, keys or _LARGEST_TILE)


def as_tf32(x: Array) -> Array:
    """x as f32, rounded to tf32 (`flash/device/tf32_products.py`); finite if x is."""
    single = np.ascontiguousarray(x, np.float32)
    rounded = numeric.to_tf32(single, "rna")
    clipped = np.clip(rounded, -_LARGEST_TF32, _LARGEST_TF32)
    return np.where(np.isfinite(single), clipped, rounded)


def least_of_pairs(x: Array) -> Array:
    """The least errors of elements of rows [..., n, dim] that are split into pairs of f16, [..., n]."""
    largest = np.abs(finite(x)).max(axis=-1, initial=0)
    usual = (_UNSCALED[0] <= largest) & (largest < _UNSCALED[1])
    exponent = np.where(usual, _PAIR_EXPONENT, np.minimum(_PAIR_TOP + 1 - np.frexp(largest)[1], _PAIR_MOST))
    return np.where(largest > 0, np.ldexp(_LEAST_LOW, -exponent), 0)


class Bound(NamedTuple):
    """Exact results in float64, and the largest error that each element may have; NaN and infinity
    may have none.
    """

    out: Array
    lse: Array
    out_error: Array
    lse_error: Array


@takes(ScoreArguments)
def attention_bound(
    q: Array,
    k: Array,
    v: Array,
    out_dtype: Any,
    arithmetic: Arithmetic = F32_ARITHMETIC,
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
    first_batch: int = 0,
    first_query: int = 0,
    **scores: Unpack[ScoreArguments],
) -> Bound:
    """The bound of results with O of type `out_dtype` and LSE of f32; the other arguments are those
    of `attention_reference`.
    """
    if arithmetic.operands is not None:
        q, k, v = map(arithmetic.operands, (q, k, v))
    how: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, **scores}
    how |= {"first_batch": first_batch, "first_query": first_query}
    out, lse = attention_reference(q, k, v, **how)
    v = np.repeat(v.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    least_v = np.zeros(v.shape[:-1]) if arithmetic.least is None else arithmetic.least(v)
    with np.errstate(all="ignore"):  # results that are not finite have no bound
        score, random, shared, of, visible = _scores(q, k, arithmetic, how)
        p = finite(np.where(visible, np.exp(score - lse[..., None]), 0))
        sinks = first_scores(of).astype(np.float64)[..., None]
        factors = weight_factors(of)
        row = _Row(p, score, random, shared, visible, finite(v), least_v)
        errors = row.errors(out, lse, factors, sinks, arithmetic)
    return _bound(out, lse, *errors, out_dtype)


def max_logit_bound(
    q: Array, k: Array, arithmetic: Arithmetic = F32_ARITHMETIC, **how: Any
) -> tuple[Array, Array]:
    """The largest score of each head in float64, and the largest error that it may have; `how` are arguments
    of `max_logit_reference`.
    """
    if arithmetic.operands is not None:
        q, k = map(arithmetic.operands, (q, k))
    with np.errstate(all="ignore"):
        return _scores(q, k, arithmetic, how).largest()


def _scores(q: Array, k: Array, arithmetic: Arithmetic, how: dict[str, Any]) -> ScoreErrors:
    return ScoreErrors.of_products(q, k, arithmetic.sum_error, arithmetic.least, **how)


def varlen_bound(
    q: Array,
    k: Array,
    v: Array,
    out_dtype: Any,
    arithmetic: Arithmetic,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    **how: Any,
) -> Bound:
    """`attention_bound` of each sequence of a batch, laid out as in `attention_varlen_reference`,
    except O and LSE: [1, heads, total_q, d_v] and [1, heads, total_q].
    """
    heads, batch = q.shape[1], len(cu_seqlens_q) - 1
    of_heads, how = split_by_axes(how, (batch, heads))
    shape = (1, heads, len(q), v.shape[2])
    bound = Bound(np.zeros(shape), np.full(shape[:3], -np.inf), np.zeros(shape), np.zeros(shape[:3]))
    for b, queries, keys in each_sequence(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
        of_sequence = {name: array[b : b + 1] for name, array in of_heads.items()}
        of_q, of_k, of_v = (x.swapaxes(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        one = attention_bound(of_q, of_k, of_v, out_dtype, arithmetic, first_batch=b, **of_sequence, **how)
        for whole, part in zip(bound, one, strict=True):
            whole[:, :, queries] = part
    return bound


def merge_bound(outs: Array, lses: Array, out_dtype: Any, arithmetic: Arithmetic = F32_ARITHMETIC) -> Bound:
    """The bound of merging parts: `outs` [..., splits, columns] with the log-sum-exps `lses` [...,
    splits]. Parts are treated as keys whose values are `outs` and whose scores, without an error,
    are `lses`. A part that has seen no key may hold anything.
    """
    outs, lses = outs.astype(np.float64), lses.astype(np.float64)
    with np.errstate(all="ignore"):
        out, lse = merged(outs, lses)
        p = np.exp(lses - lse[..., None])[..., None, :]
        p = finite(p)
        scores, none = lses[..., None, :], np.zeros_like(p)
        shared = [2 * U * (scores - scores.max(axis=-1, keepdims=True))]  # errors of log2(e)
        row = _Row(p, scores, none, shared, p > 0, finite(outs), np.zeros(outs.shape[:-1]))
        nothing = np.full(lse[..., None].shape, -np.inf)
        errors = row.errors(out[..., None, :], lse[..., None], 1.0, nothing, arithmetic)
    return _bound(out, lse, errors[0][..., 0, :], errors[1][..., 0], out_dtype)


@dataclass(frozen=True, slots=True)
class _Row:
    """Weights `p` [..., rows, keys] of scores `x`, whose errors have the variance `random` and the
    means `shared`, and values `v` [..., keys, columns], which err by `least` [..., keys] at least.
    """

    p: Array
    x: Array
    random: Array
    shared: list[Array]
    visible: Array
    v: Array
    least: Array

    def errors(
        self, out: Array, lse: Array, factors: Any, sink: Array, arithmetic: Arithmetic
    ) -> tuple[Array, Array]:
        """The errors of O before it is rounded, and of LSE. `factors` are the factors that dropout gives
        to each weight, 0 where it drops the weight.
        """
        p, v, squares = self.p, self.v, square(self.v)
        seen = np.isfinite(self.x) & self.visible
        x = np.where(seen, self.x, 0)
        top = np.max(np.where(seen, x, -np.inf), axis=-1, initial=-np.inf)
        top = np.maximum(top, sink)
        apart = np.where(seen, x - finite(top)[..., None], 0)
        e2 = finite(self.random) + ROUNDING * (2 * square(apart) + _EXP**2)
        e2 = np.where(p > 0, e2, 0)
        p_sink, sink = finite(np.exp(sink - lse)), finite(sink)
        of_sink = square(p_sink) * ROUNDING * (5 * square(sink) + _EXP**2)

        count = seen.sum(axis=-1)
        steps = count * (1 + 1 / _LEAST_TILE) + _LAST_STEPS
        mass, p2 = p * factors, square(p)
        squared_sum = square(mass) @ squares
        in_sum, cut = arithmetic.sum_error(steps[..., None], out, squared_sum)
        total = F32_ARITHMETIC.sum_error(steps, np.ones_like(lse), p2.sum(axis=-1))[0]
        a = p2 * e2 * factors
        moved = (p2 * e2).sum(axis=-1) + of_sink
        of_scores = (a * factors) @ squares - 2 * out * (a @ v) + square(out) * moved[..., None]
        largest = np.maximum(p.max(axis=-1, initial=0), 0 if arithmetic.sinks_last else p_sink)[..., None]
        of_weights = arithmetic.weights**2 / 3 * squared_sum + (
            square(arithmetic.least_weight * largest) / 3 * (self.visible @ squares)
        )
        if arithmetic.sums_rounded:
            # The tensor core cuts both sums, and a rounding of P is in both.
            of_sum, cut_sum = arithmetic.sum_error(steps, np.ones_like(lse), p2.sum(axis=-1))
            in_sum = in_sum + square(out) * of_sum[..., None]
            cut = np.abs(cut) + np.abs(out) * cut_sum[..., None]
            each = square(arithmetic.weights) / 3 * p2 + square(arithmetic.least_weight * largest) / 3 * seen
            of_weights = each @ squares - 2 * out * (each @ v) + square(out) * each.sum(axis=-1)[..., None]
            of_weights = of_weights.clip(0)
        alike, alike_sums = self._alike(mass, e2, out, arithmetic)
        of_split = square(mass) @ square(self.least)[..., None] / 3
        random = in_sum + of_split + of_scores.clip(0) + of_weights + square(out) * total[..., None] + alike
        of_lse, apart_sums = moved + total + alike_sums, 0.0
        if arithmetic.parts:
            each = ROUNDING * (3 * square(finite(lse)) + _EXP**2 + _LOG2**2)
            spread = mass @ squares - square(out) * (2 * mass.sum(axis=-1) - 1)[..., None]
            random = random + each[..., None] * spread.clip(0)
            apart_sums = arithmetic.parts * (mass @ np.abs(v))
            of_lse = of_lse + each
        out_error = CONFIDENCE * np.sqrt(random) + np.abs(cut) + apart_sums
        lse_error = CONFIDENCE * np.sqrt(of_lse)
        for means in self.shared:
            of = p * finite(means)
            alone = of.sum(axis=-1)
            out_error = out_error + np.abs((of * factors) @ v - out * alone[..., None])
            lse_error = lse_error + np.abs(alone)
        sink_mean = np.abs(p_sink * sink) * _SLOPE * U
        out_error = out_error + np.abs(out) * sink_mean[..., None]
        lost = _LEAST_WEIGHT * (seen @ np.abs(v)) + _LEAST * steps[..., None]
        log = np.abs(lse - finite(top)) / math.log(2)
        lse_error = lse_error + sink_mean + U * (3 * np.abs(lse) + np.abs(top) + _LOG2 * np.maximum(log, 1))
        return out_error + lost, lse_error

    def _alike(self, mass: Array, e2: Array, out: Array, how: Arithmetic) -> tuple[Array, Array]:
        """The additions to the variances of O and of the sum of the weights for keys of a row with
        equal scores, whose errors are equal.
        """
        more, sums = np.zeros_like(out), np.zeros(out.shape[:-1])
        scores = np.where(self.p > 0, self.x, np.nan).astype(np.float32)
        ordered = np.sort(scores, axis=-1)
        for at in map(tuple, np.argwhere((ordered[..., 1:] == ordered[..., :-1]).any(axis=-1))):
            keys = np.flatnonzero(self.p[at] > 0)
            _, group, size = np.unique(scores[at][keys], return_inverse=True, return_counts=True)
            one = (group == np.flatnonzero(size > 1)[:, None]).astype(np.float64)
            values = (one * mass[at][keys]) @ self.v[at[:-1]][keys]
            weights, error = one @ self.p[at][keys], one @ e2[at][keys] / one.sum(axis=1)
            moved = values - weights[:, None] * out[at]
            rounded = moved if how.sums_rounded else values
            more[at] = how.weights**2 / 3 * square(rounded).sum(axis=0) + error @ square(moved)
            sums[at] = error @ square(weights)
        return more, sums


def _bound(out: Array, lse: Array, out_error: Array, lse_error: Array, out_dtype: Any) -> Bound:
    """The bound with the rounding of O to its type; results that are not finite have no error."""
    info = ml_dtypes.finfo(out_dtype)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        rounding = float(info.eps) / 2 * (np.abs(out) + out_error)
        rounding = np.maximum(rounding, float(info.smallest_subnormal) / 2)
        inexact = np.isfinite(out) & ~np.isneginf(lse)[..., None]  # without a key O is 0
        out_error = np.where(inexact, out_error + rounding, 0)
        lse_error = np.where(np.isfinite(lse), lse_error, 0)
    return Bound(out, lse, out_error, lse_error)


def _ratio(a: Array, b: Array) -> Array:
    return np.where(b > 0, a / np.where(b > 0, b, 1), 0)
