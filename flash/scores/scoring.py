"""From products of queries and keys to scores in units of log2: the scale, and each feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash.scores.feature import LN2, LOG2E, Applied
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.records import dataclass


@dataclass(frozen=True)
class Scoring:
    """The steps from products to scores, in their order; `scale` is in natural units."""

    k: KernelBuilder
    scale: Value
    steps: Sequence[Applied]

    def apply(self, S: Fragment, coordinates: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """Replace this thread's products by scores; multiply `slopes` by the derivatives of scores by
        scaled products.
        """
        scaled = any(step.scales for step in self.steps)
        natural = any(step.is_natural for step in self.steps)
        if not scaled:
            self._multiply(S, self.scale if natural else self.scale * LOG2E)
        for step in self.steps:
            if scaled and step.is_natural:
                self._multiply(S, LN2)
            step.change(S, coordinates, slopes)

    def times(self, factor: Value) -> Scoring:
        """The same steps for products that are multiplied by `factor` first."""
        return replace(self, scale=self.scale * factor, steps=[step.times(factor) for step in self.steps])

    def _multiply(self, S: Fragment, factor: Value | float) -> None:
        for score in S.all():
            self.k.mul(score, factor, into=score)
