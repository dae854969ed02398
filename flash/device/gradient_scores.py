"""From products of a tile to weights and to gradients of scores, in a kernel of gradients."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

from flash.device.head_scores import HeadScores
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.mask import Mask
from flash.scores.feature import LOG2E, NEG_INF, Applied
from flash.scores.score_coordinates import ScoreCoordinates
from flash.scores.scoring import Scoring
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var
from ptxgen.dsl.source_regions import marked


@dataclass(frozen=True)
class ScoreGradients:
    """From scores to their gradients, for one head. Fragments have a row for each query; `scale` is
    softmax_scale, times the scales of Q and K if they have some. `product_scale` is that of products of dO
    and V; None: 1.
    """

    k: KernelBuilder
    scale: Value
    scoring: Scoring | None  # None where scores are products times a scale
    mask: Mask
    dropping: tuple[Applied, ...]
    by_rows: tuple[tuple[str, Applied], ...]  # those with numbers by rows that are wanted, by argument
    bends: bool  # whether scores have derivatives other than 1 by scaled products
    product_scale: Value | None = None

    @classmethod
    def of(
        cls, k: KernelBuilder, scores: HeadScores, mask: Mask, wanted: Container[str] = ()
    ) -> ScoreGradients:
        """The score gradients of a head, whose keys `mask` hides. `wanted` are the arguments of features
        whose arrays' gradients the kernel writes.
        """
        features = scores.features()
        steps = [applied for _, applied in features]
        changes = scores.config.features.changes_scores
        return cls(
            k,
            scores.scale,
            Scoring(k, scores.scale, steps) if changes else None,
            mask,
            tuple(a for feature, a in features if feature.changes_weights),
            tuple(
                (feature.argument, a)
                for feature, a in features
                if feature.argument in wanted and feature.gradient_of == "rows"
            ),
            any(step.bends for step in steps),
        )

    @property
    def factor(self) -> Value | None:
        """The factor of weights that dropout keeps; None without dropout."""
        result = [f for feature in self.dropping if (f := feature.output_factor) is not None]
        return result[0] if result else None

    def scaled(self, of_scores: Value, of_products: Value) -> ScoreGradients:
        """These gradients where products of Q and K are multiplied by `of_scores`, and those of dO and V by
        `of_products`.
        """
        scoring = None if self.scoring is None else self.scoring.times(of_scores)
        return replace(self, scale=self.scale * of_scores, scoring=scoring, product_scale=of_products)

    def _product_factor(self) -> Value | None:
        """The factor of products of dO and V; None if it is 1."""
        factor, scale = self.factor, self.product_scale
        if factor is None or scale is None:
            return scale if factor is None else factor
        return factor * scale

    def begin_loops(self) -> None:
        """Emit code whose results the loops over tiles share, before the first loop."""
        _ = self.factor

    @marked("gradients of scores: hidden keys")
    def score(
        self,
        S: Fragment,
        coordinates: Callable[[], ScoreCoordinates],
        cut: Value | Literal[True] | None,
        queries: Value | None = None,
    ) -> tuple[Fragment | None, ScoreCoordinates | None]:
        """Turn products of Q and K into scores, in units of log2, of which hidden ones are -inf; if
        `scoring` is None, without their scale, by which hidden ones become -inf. `cut`: whether keys
        of the tile may be hidden, True if they surely may; None: they may not. With `queries`, the number of
        queries, scores of others are hidden in tiles that are cut. Returns the derivatives of scores by
        scaled products, None if they are 1, and the coordinates if they were needed.
        """
        k, result, slopes = self.k, None, None
        if self.scoring is not None or self.dropping or self.by_rows:
            result = coordinates()
        if self.bends:
            slopes = k.fragment(S.rows, S.columns, initial=1.0)
        if self.scoring is not None:
            assert result is not None
            self.scoring.apply(S, result, slopes)
        if cut is not None:
            with nullcontext() if cut is True else k.when(cut, uniform=True):
                self._negate(S)
                where = coordinates() if result is None else result
                self.mask.apply(k, S, where)
                if queries is not None:
                    for i, row in enumerate(S):
                        with k.only_if(where.query(i) >= queries):
                            for score in row:
                                score.set(NEG_INF)
                self._negate(S)
        if slopes is not None:  # of hidden keys they may be NaN
            for score, slope in zip(S.all(), slopes.all(), strict=True):
                k.selp(0.0, slope, score == NEG_INF, into=slope)
        return slopes, result

    @marked("gradients of scores: signs")
    def _negate(self, S: Fragment) -> None:
        """Negate scores that are still to be multiplied by a scale, if the scale is negative."""
        if self.scoring is None:
            with self.k.when(self.scale < 0.0, uniform=True):
                for score in S.all():
                    self.k.neg(score, into=score)

    @marked("gradients of scores: weights")
    def differentiate(
        self,
        S: Fragment,
        dP: Fragment,
        rows: Callable[[int], tuple[Value, Value]],
        coordinates: ScoreCoordinates | None,
    ) -> None:
        """Turn scores into weights P, of which dropped ones are 0, and products of dO and V into dS,
        the gradients of scores. `rows(i)` gives of row i the shift, in units of log2, and D.
        """
        factor, scale_log2 = self._product_factor(), self._scale_log2()
        deltas: list[Value] = []
        for i in range(S.rows):
            shift, delta = rows(i)
            deltas.append(delta)
            for score, weight in zip(S.row(i), dP.row(i), strict=True):
                self._weigh(score, shift, scale_log2)
                self._differentiate(weight, score, delta, factor)
        self._drop(S, dP, deltas, coordinates)

    @marked("gradients of scores: weights")
    def weigh(self, S: Fragment, shifts: Sequence[Value]) -> None:
        """Turn scores into weights P, before dropout; `shifts` are those of the rows, in units of log2."""
        scale_log2 = self._scale_log2()
        for shift, scores in zip(shifts, S, strict=True):
            for score in scores:
                self._weigh(score, shift, scale_log2)

    @marked("gradients of scores: gradients")
    def differentiate_weighed(
        self,
        P: Fragment,
        dP: Fragment,
        deltas: Sequence[Value],
        coordinates: ScoreCoordinates | None,
        *,
        hides: bool,
    ) -> None:
        """Turn products of dO and V into dS, the gradients of scores, and take dropped weights out of P, the
        results of `weigh`. `deltas` are D of the rows. If the mask `hides` some scores, whose weights are 0,
        so are their gradients, whatever the products are.
        """
        factor = self._product_factor()
        for delta, gradients, weights in zip(deltas, dP, P, strict=True):
            for gradient, weight in zip(gradients, weights, strict=True):
                self._differentiate(gradient, weight, delta, factor)
                if hides:
                    self.k.selp(0.0, gradient, weight == 0.0, into=gradient)
        self._drop(P, dP, deltas, coordinates)

    def _scale_log2(self) -> Value | None:
        """The factor of products, in units of log2; None if they have become scores."""
        if self.scoring is not None:
            return None
        return self.k.selp(LEAST_SCALE, self.scale * LOG2E, self.scale == 0.0)

    def _weigh(self, score: Var, shift: Value, scale_log2: Value | None) -> None:
        """Replace a score by its weight, exp2 of the score less the shift of its row."""
        k = self.k
        if scale_log2 is None:
            k.sub(score, shift, into=score)
        else:
            k.fma(score, scale_log2, -shift, into=score)
        k.ex2(score, ftz=True, into=score)

    def _differentiate(self, gradient: Var, weight: Value, delta: Value, factor: Value | None) -> None:
        """Replace a product dP of dO and V by the gradient of a score, dS = P (dP - D)."""
        k = self.k
        if factor is None:
            k.sub(gradient, delta, into=gradient)
        else:
            k.fma(gradient, factor, -delta, into=gradient)
        k.mul(gradient, weight, into=gradient)

    @marked("gradients of scores: weights")
    def _drop(
        self, P: Fragment, dS: Fragment, deltas: Sequence[Value], coordinates: ScoreCoordinates | None
    ) -> None:
        """Set weights that dropout drops to 0, and their gradients to -P D."""
        k = self.k

        def take_off(i: int, j: int) -> None:
            k.mul(P[i, j], -deltas[i], into=dS[i, j])

        for feature in self.dropping:
            assert coordinates is not None
            feature.drop(P, coordinates, take_off)

    def bend(self, dS: Fragment, slopes: Fragment | None) -> None:
        """Multiply the gradients of scores by the slopes of features: those of scaled products."""
        if slopes is not None:
            for gradient, slope in zip(dS.all(), slopes.all(), strict=True):
                self.k.mul(gradient, slope, into=gradient)
