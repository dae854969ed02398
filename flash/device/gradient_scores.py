"""From products of a tile to weights and to gradients of scores, in a kernel of gradients."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from flash.device.head_scores import HeadScores
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.mask import Mask
from flash.scores.feature import LOG2E, NEG_INF, Applied
from flash.scores.score_coordinates import ScoreCoordinates
from flash.scores.scoring import Scoring
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.dsl.source_regions import marked


@dataclass(frozen=True)
class ScoreGradients:
    """From scores to their gradients, for one head. Fragments have a row for each query; `scale` is
    softmax_scale.
    """

    k: KernelBuilder
    scale: Value
    scoring: Scoring | None  # None where scores are products times a scale
    mask: Mask
    dropping: tuple[Applied, ...]
    by_rows: tuple[tuple[str, Applied], ...]  # those with numbers by rows that are wanted, by argument
    bends: bool  # whether scores have derivatives other than 1 by scaled products

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

    @marked("gradients of scores: hidden keys")
    def score(
        self,
        S: Fragment,
        coordinates: Callable[[], ScoreCoordinates],
        cut: Value | None,
        queries: Value | None = None,
    ) -> tuple[Fragment | None, ScoreCoordinates | None]:
        """Turn products of Q and K into scores, in units of log2, of which hidden ones are -inf; if
        `scoring` is None, without their scale, by which hidden ones become -inf. `cut`: whether keys
        of the tile may be hidden; None: they may not. With `queries`, the number of queries, scores of
        others are hidden in tiles that are cut. Returns the derivatives of scores by scaled products,
        None if they are 1, and the coordinates if they were needed.
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
            with k.when(cut, uniform=True):
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
        k, scale_log2, factor = self.k, None, self.factor
        if self.scoring is None:
            scale_log2 = k.selp(LEAST_SCALE, self.scale * LOG2E, self.scale == 0.0)
        deltas: list[Value] = []
        for i in range(S.rows):
            shift, delta = rows(i)
            deltas.append(delta)
            for score, weight in zip(S.row(i), dP.row(i), strict=True):
                if scale_log2 is None:
                    k.sub(score, shift, into=score)
                else:
                    k.fma(score, scale_log2, -shift, into=score)
                k.ex2(score, ftz=True, into=score)
                if factor is None:
                    k.sub(weight, delta, into=weight)
                else:
                    k.fma(weight, factor, -delta, into=weight)
                k.mul(weight, score, into=weight)

        def take_off(i: int, j: int) -> None:
            k.mul(S[i, j], -deltas[i], into=dP[i, j])

        for feature in self.dropping:
            assert coordinates is not None
            feature.drop(S, coordinates, take_off)

    def bend(self, dS: Fragment, slopes: Fragment | None) -> None:
        """Turn gradients of scores into those of scaled products."""
        if slopes is not None:
            for gradient, slope in zip(dS.all(), slopes.all(), strict=True):
                self.k.mul(gradient, slope, into=gradient)
