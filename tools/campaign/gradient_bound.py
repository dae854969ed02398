"""How far from the exact gradients a right implementation may be, element by element.

Each gradient is a sum of terms; its error is the sum of the errors of the terms: those of weights
and gradients of scores that enter products, of f32 between, and of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.mods.elements import element_reads
from flash.mods.record import SCORE_MOD
from flash.operands.dtypes import BF16, DTYPES, F16, F32
from flash.problem.config import AttentionConfig
from flash.problem.gradients import SUMS_OF_QUERIES, term_of
from flash.reference import (
    attention_reference,
    attention_reference_gradients,
    score_steps,
    visible_keys,
    weight_factors,
)
from flash.scores.aux_arrays import flattened
from flash.scores.feature import Scored, ScoreFeature, summed_to
from flash.scores.features import asked, scored
from flash.scores.mods import ScoreMod

Array = NDArray[Any]

# By type and precision: the relative error of an element that enters a product of Q, K, V or dO, and
# that of a weight or a gradient of a score.
_UNITS: Final = {
    ("f16", None): (0.0, F16.rounding[0]),
    ("bf16", None): (0.0, BF16.rounding[0]),
    ("f32", "ieee"): (0.0, 0.0),
    ("f32", "tf32"): (2.0**-11, 2.0**-11),
    ("f32", "f32_grade"): (2.0**-21, 2.0**-21),
    # Factors of sums are bf16; in scores and dP, sums of products of fp8 keep 13 bits.
    ("e4m3", None): (BF16.rounding[0], BF16.rounding[0]),
    ("e5m2", None): (BF16.rounding[0], BF16.rounding[0]),
}
# By type: the relative error of a result, and the error of results and weights below normal ones.
_RESULT: Final = {t.numpy: t.rounding[0] for t in DTYPES.values()}
_TINY: Final = {np.dtype(np.float16): 2.0**-25}
_LEAST_NORMAL: Final = 2.0**-126  # of f32 and bf16
_ROUNDINGS: Final = 32 * 2.0**-24  # of f32, on the way from products to gradients of scores
_OF_SUMS: Final = 1.01  # times the error of the terms: that of their sum


class GradientBound(NamedTuple):
    """An exact gradient in float64, and the largest error that each element may have."""

    gradient: Array
    error: Array


@dataclass(frozen=True)
class GradientInputs:
    """The arrays of a call for gradients, [batch, heads, rows, columns]; `out` and `lse` are results of an
    implementation of the forward pass, and `arguments` the other arguments of the reference.

    Gradients are functions of `out`, which may be rounded to 16 bits: a change of O by e changes
    them as a change of `dlse` by -sum(dout * e) does. What `out` holds of rows whose LSE is -inf
    does not matter. `bend` is a bound of the derivative of scores by scaled products, and of its
    derivative. Of fp8, dout, q, k and v are the numbers that they stand for, and `written` is the type of the
    gradients; else they have that of q.
    """

    config: AttentionConfig
    dout: Array
    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    dlse: Array | None
    arguments: Mapping[str, Any]
    bend: float = 1.0
    written: np.dtype[Any] | None = None

    def bounds(self, wanted: Sequence[str] = ()) -> dict[str, GradientBound]:
        """The bounds of the gradients of "q", "k" and "v" and of the `wanted` arrays of scores by
        their names, of D, and of what rows or keys add to gradients of wanted arrays, by the names
        of the kernels' pointers in two sweeps (`flash.problem.gradients.term_of`): [batch, heads, rows];
        and of the sums of dQ in one sweep, which are right if scores are scaled products.
        """
        with np.errstate(all="ignore"):  # of what does not matter
            return self._bounds(wanted)

    def _bounds(self, wanted: Sequence[str]) -> dict[str, GradientBound]:
        right = attention_reference_gradients(
            self.dout, self.q, self.k, self.v, dlse=self._as_dlse(), **self.arguments
        )
        sums = _Terms.of(self)
        errors = sums.of_matrices(self)
        errors |= {name: sums.of_array(self, name) for name in wanted}
        exact = {"q": right.dq, "k": right.dk, "v": right.dv, **right.arrays}
        arrays = flattened("the campaign", self.arguments)
        types = {name: np.asarray(arrays[name]).dtype for name in wanted}
        bounds = {
            name: _rounded(exact[name], error, types.get(name, self.written or self.q.dtype))
            for name, error in errors.items()
        }
        single = np.dtype(np.float32)
        delta = GradientBound(np.where(sums.seen_rows, sums.delta, 0), sums.delta_error)
        bounds["D"] = _rounded(*delta, single)
        bounds[SUMS_OF_QUERIES] = _rounded(*sums.sums_of_queries(self), single)
        for name in wanted:
            feature = sums.features.get(name)
            if feature is not None and feature.gradient_of in ("rows", "first", "keys"):
                terms = sums.terms(self, feature)
                bounds[term_of(feature, one_sweep=False)] = _rounded(*terms, single)
        return bounds

    def _as_dlse(self) -> Array:
        """The gradient of LSE with which the exact O leads to the gradients that `out` leads to."""
        exact, _ = attention_reference(self.q, self.k, self.v, **self.arguments)
        difference = np.where(np.isneginf(self.lse)[..., None], 0, self.out - exact)
        terms = self.dout.astype(np.float64) * difference
        less: Array = np.where(np.isneginf(self.lse), 0, terms.sum(axis=3))
        return -less if self.dlse is None else self.dlse - less


def _rounded(gradient: Array, error: Array, dtype: np.dtype[Any]) -> GradientBound:
    """The bound of a gradient that is rounded to a type, by the errors of its terms."""
    of_result = _RESULT[dtype] * np.abs(gradient) + _TINY.get(dtype, _LEAST_NORMAL)
    return GradientBound(gradient, _OF_SUMS * error + of_result)


@dataclass(frozen=True)
class _Terms:
    """The gradients of scores, [batch, heads, queries, keys], and the errors on the way to them."""

    at: Scored
    features: Mapping[str, type[ScoreFeature]]
    seen_rows: Array  # rows that see a key, or have a sink
    delta: Array  # D of each row
    delta_error: Array
    gradient: Array  # dS, of scores after all their steps
    gradient_error: Array
    product_error: Array  # of gradients of scaled products, as factors of Q and K
    weight_error: Array  # of weights, as factors of dO
    first_error: Array  # of what a row adds to the gradient of its first score
    score_error: Array
    unmodified: Array  # scores before a `score_mod`
    elements: Mapping[str, Array]  # the arrays of the call, by the names of their operands

    @classmethod
    def of(cls, call: GradientInputs) -> _Terms:
        """The terms of the error bounds of a call."""
        config, inputs = call.config, call.arguments
        precision = config.precision if config.element is F32 else None
        entering, stored = _UNITS[config.element.name, precision]
        tiny = _TINY.get(call.q.dtype, _LEAST_NORMAL)
        q, k, v = _in_float64(call)
        dout, scale = call.dout.astype(np.float64), config.scale
        at = scored(
            (*q.shape[:3], k.shape[2]), config.causal, np.float64, inputs.get("first_batch", 0), inputs
        )
        visible = visible_keys(at)
        none = np.isneginf(call.lse)
        score = scale * (q @ k.swapaxes(2, 3))
        unmodified = score
        for step in score_steps(score, at):
            unmodified = step.before if step.feature is ScoreMod else unmodified
            score = step.after
        score = np.where(visible, score, -np.inf)
        rows = np.where(none, np.inf, call.lse.astype(np.float64))[..., None]
        weight, factor = np.where(visible, np.exp(score - rows), 0), weight_factors(at)
        out = np.where(none[..., None], 0, call.out)
        dlse = 0.0 if call.dlse is None else call.dlse
        delta = (dout * out).sum(axis=3) - dlse
        of_values = np.where(visible, dout @ v.swapaxes(2, 3), 0)
        gradient = np.where(visible, weight * (factor * of_values - delta[..., None]), 0)

        q, k, v, dout = (np.abs(x) for x in (q, k, v, dout))
        products = np.where(visible, abs(scale) * (q @ k.swapaxes(2, 3)), 0)
        sizes = np.where(visible, np.abs(score), 0) + np.where(np.isinf(rows), 0, np.abs(rows))
        of_scores = call.bend * (2 * entering + _ROUNDINGS) * products + _ROUNDINGS * (1 + sizes)
        of_deltas = _ROUNDINGS + (entering if config.is_fp8 else 0)
        delta_error = of_deltas * ((dout * np.abs(out)).sum(axis=3) + np.abs(dlse))
        ends = factor * np.where(visible, dout @ v.swapaxes(2, 3), 0) * (2 * entering + _ROUNDINGS)
        ends = ends + delta_error[..., None]
        size = np.abs(gradient)
        of_gradients = np.where(visible, size * of_scores + weight * np.exp(of_scores) * ends, 0)
        of_products = call.bend * (of_gradients + size * (2 * of_scores + _ROUNDINGS))
        most = np.max(factor, initial=0)
        of_products = of_products + call.bend * size * (stored + entering + _ROUNDINGS) + tiny
        of_weights = factor * weight * (of_scores + stored + entering + _ROUNDINGS) + tiny * most
        first = _ROUNDINGS * (1 + sizes.max(axis=3, initial=0)) * np.abs(delta)
        return cls(
            at,
            {feature.argument: feature for feature in asked(inputs)},
            ~none,
            delta,
            delta_error,
            gradient,
            # In rows with NaN, the errors of hidden pairs are NaN, too.
            np.where(visible, of_gradients + _ROUNDINGS * size, 0),
            np.where(visible, of_products, 0),
            np.where(visible, of_weights, 0),
            first + ends[..., :1].max(axis=3, initial=0),
            np.where(visible, of_scores, 0),
            unmodified,
            flattened("the campaign", inputs),
        )

    def of_matrices(self, call: GradientInputs) -> dict[str, Array]:
        """The errors of the gradients of Q, K and V before they are rounded. Errors that are not finite count
        as 0: the exact gradients of such pairs are not finite either.
        """
        q, k, _ = _in_float64(call)
        q, k, dout = (np.where(np.isfinite(x), np.abs(x), 0) for x in (q, k, call.dout.astype(np.float64)))
        group, scale = call.q.shape[1] // max(call.k.shape[1], 1), abs(call.config.scale)
        return {
            "q": scale * (self.product_error @ k),
            "k": scale * _over_groups(self.product_error.swapaxes(2, 3) @ q, group),
            "v": _over_groups(self.weight_error.swapaxes(2, 3) @ dout, group),
        }

    def sums_of_queries(self, call: GradientInputs) -> GradientBound:
        """The gradient of Q before its scale, if scores are scaled products."""
        k = _in_float64(call)[1]
        k = np.where(np.isfinite(k), k, 0)  # pairs that have what is not finite have such gradients
        return GradientBound(self.gradient @ k, self.product_error @ np.abs(k))

    def of_array(self, call: GradientInputs, name: str) -> Array:
        """The error of the gradient of an array of scores before it is rounded."""
        if name not in self.features:
            return self._of_elements(name)
        feature = self.features[name]
        parts = (
            feature.array_gradient(self.gradient_error, self.at),
            feature.first_gradient(call.lse, self.first_error, self.at),
        )
        first = next(part for part in parts if part is not None)
        return summed_to(np.abs(first), np.shape(call.arguments[name]))

    def _of_elements(self, name: str) -> Array:
        """The error of the gradient of an array of `aux`: that of gradients of scores, times the derivative
        by an element, and that of the derivative, whose own derivative by the score `bend` bounds.
        """
        total = np.zeros_like(self.elements[name], np.float64)
        for read in element_reads(self.at.arguments[SCORE_MOD]):
            if read.array.operand == name:
                slope = np.abs(ScoreMod.evaluated(read.slope, self.unmodified, self.at).result)
                error = slope * (self.gradient_error + _ROUNDINGS * np.abs(self.gradient))
                error += np.abs(self.gradient) * self.score_error
                read.add(
                    total,
                    np.where(self.gradient_error > 0, error, 0),
                    ScoreMod.of_element(read, self.unmodified, self.at),
                )
        return total

    def terms(self, call: GradientInputs, feature: type[ScoreFeature]) -> GradientBound:
        """The terms, one for each row or key, whose sum is the gradient of a feature's array."""
        if feature.gradient_of == "keys":
            pair = (feature.array_gradient(x, self.at) for x in (self.gradient, self.gradient_error))
        elif feature.gradient_of == "rows":
            pair = (self._by_rows(call, feature, x) for x in (self.gradient, self.gradient_error))
        else:
            pair = (self._by_rows(call, feature, x) for x in (self.delta, self.first_error))
        exact, error = (np.asarray(one) for one in pair)
        return GradientBound(exact, np.abs(error))

    def _by_rows(self, call: GradientInputs, feature: type[ScoreFeature], of: Array) -> Array:
        """The terms of a sum over rows, computed from `of`, row by row: [batch, heads, rows]."""
        total = np.zeros(self.delta.shape)
        for row in range(self.delta.shape[2]):
            alone = np.zeros_like(of)
            alone[:, :, row] = of[:, :, row]
            if feature.gradient_of == "rows":
                total[:, :, row] = feature.array_gradient(alone, self.at)
            else:
                lse = np.full_like(call.lse, np.inf)  # LSE of rows that add nothing
                lse[:, :, row] = call.lse[:, :, row]
                total[:, :, row] = feature.first_gradient(lse, alone, self.at)
        return total


def _in_float64(call: GradientInputs) -> tuple[Array, Array, Array]:
    """Q, K and V with a head of K and V for each of Q."""
    group = call.q.shape[1] // max(call.k.shape[1], 1)
    q, k, v = (
        np.repeat(x.astype(np.float64), n, axis=1) for x, n in ((call.q, 1), (call.k, group), (call.v, group))
    )
    return q, k, v


def _over_groups(gradient: Array, group: int) -> Array:
    batch, heads, *sizes = gradient.shape
    summed: Array = gradient.reshape(batch, heads // max(group, 1), max(group, 1), *sizes).sum(axis=2)
    return summed
