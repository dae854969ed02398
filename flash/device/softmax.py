"""Online softmax in base 2 (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Final, NamedTuple

from flash.scores.feature import NEG_INF
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.types import f32

LN2 = math.log(2.0)

FirstTerms = tuple[Value | float, Value | float]  # a row's maximum and a lane's sum before any key
NO_TERMS: Final[FirstTerms] = (NEG_INF, 0.0)
_FIRST_WITH_NAN: Final = 80  # the first target whose `max` can give NaN


class FinishedRow(NamedTuple):
    """The results of the softmax for a row that has taken in all of its keys."""

    inverse: Value  # 1 / sum of its weights, 0 if it has seen no key
    lse: Value  # log-sum-exp in natural units, -inf if it has seen no key


@marked("softmax: sink")
def sink_terms(k: KernelBuilder, sink: Value | None, lane: Value) -> FirstTerms:
    """The first maximum and sum of a row's softmax. The sink is a score, in units of log2, that every row has
    in addition to those of its keys; None if there is none. `lane` is this lane's index among those that
    share a row; lane 0 counts the sink.
    """
    if sink is None:
        return NO_TERMS
    return sink, k.selp(1.0, 0.0, (lane == 0) & (sink != NEG_INF), type=f32)


@marked("softmax: larger")
def larger(k: KernelBuilder, a: Value, b: Value | float) -> Value:
    """Emit the larger of two f32 numbers; NaN if one of them is NaN."""
    if k.target.sm >= _FIRST_WITH_NAN:
        return k.max(a, b, NaN=True)
    return k.selp(b, a, k.setp(b, a, cmp="gtu") & k.setp(a, a, cmp="num"))


class OnlineSoftmax:
    """The running maximum and sum of `rows` rows, and the step that takes in new scores.

    `distances` are the butterfly distances that join the lanes which share a row, each with its own
    keys. Scores are in units of log2. `sinks` are made by `sink_terms`: one for each row, or one
    for all.
    """

    def __init__(
        self, k: KernelBuilder, rows: int, distances: list[int], sinks: Sequence[FirstTerms] = (NO_TERMS,)
    ) -> None:
        self.k = k
        self.distances = distances
        self.row_max = [k.var(f32, sinks[i % len(sinks)][0]) for i in range(rows)]  # over all lanes
        # Sums over this lane's keys only; `finish` joins the lanes.
        self.row_sum = [k.var(f32, sinks[i % len(sinks)][1]) for i in range(rows)]

    def take(self, S: Fragment) -> list[Value]:
        """Replace the scores by P = exp2(S - max), and return the factor of each row by which its
        partial outputs must be multiplied.
        """
        return [self._take_row(i, scores) for i, scores in enumerate(S)]

    def _take_row(self, i: int, scores: list[Var]) -> Value:
        k, row_max, row_sum = self.k, self.row_max[i], self.row_sum[i]
        largest: Value = row_max
        for score in scores:
            largest = k.max(largest, score)
        largest = over_lanes(k, largest, self.distances, k.max)
        # A row that has seen no key yet: exp2(-inf - 0) is 0, where exp2(-inf - -inf) would be NaN.
        base = k.selp(0.0, largest, largest == NEG_INF)
        rescale = k.ex2(row_max - base, ftz=True)
        total = row_sum * rescale
        for score in scores:
            k.ex2(score - base, ftz=True, into=score)
            total = total + score
        row_sum.set(total)
        row_max.set(largest)
        return rescale

    @marked("softmax: finish")
    def finish(self, i: int) -> FinishedRow:
        """End the softmax of row i: 1 / its sum of weights, or 0 where it has seen no key; and its
        log-sum-exp in natural units, or
        -inf there.
        """
        k = self.k
        total = over_lanes(k, self.row_sum[i], self.distances, operator.add)
        empty = total == 0.0
        inverse = k.selp(0.0, k.rcp_rn(total), empty)
        base = k.selp(0.0, self.row_max[i], empty)
        return FinishedRow(inverse, (base + k.lg2(total)) * LN2)
