"""From products of queries and keys to scores in units of log2: the scale, and each feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flash.scores.feature import LOG2E, Applied
from flash.scores.places import ScorePlaces
from ptxgen.dsl import Fragment, KernelBuilder, Value


@dataclass(frozen=True)
class Scoring:
    """The steps from products to scores, in their order; `scale` is in natural units."""

    k: KernelBuilder
    scale: Value
    steps: Sequence[Applied]

    def apply(self, S: Fragment, places: ScorePlaces) -> None:
        """Replace this thread's products by scores."""
        if not any(step.scales for step in self.steps):
            factor = self.scale * LOG2E
            for score in S.all():
                self.k.mul(score, factor, into=score)
        for step in self.steps:
            step.change(S, places)
