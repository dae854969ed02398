"""Online softmax that rescales rarely, on scores without their scale (FlashAttention-4, "Rescaling
only when necessary"; for the algorithm see `flash/device/softmax.py`).

Each row has a shift, which is subtracted from its scores before they are scaled: scaling first
would round the products, with errors of units where scores are large. The shift moves to the
maximum of the row only when that has outgrown it by more than `slack`, so that exp2 of a scaled
score is at most 2 ** slack. The result is that of exact softmax: the shift cancels between the
outputs and their sum.

The first shift is the lowest f32, so that a row that has seen no key needs no special case: hidden
scores of -inf stay -inf when it is subtracted. The first shift stays where the scale is so small
that no score can outgrow it; differences between scores vanish there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

from flash.device.softmax import LN2, NO_TERMS, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.types import f32

LOWEST: Final = -float.fromhex("0x1.fffffep127")
# A scale of 0 becomes this: 0 * -inf would be NaN, and exp2 of an ordinary score times this is 1.
LEAST_SCALE: Final = 2.0**-126


class LazySoftmax:
    """The running shift and sum of `rows` rows, and the step that takes in new scores.

    `distances` are the butterfly distances that join the lanes which share a row, each with its own
    keys. `scale`, positive, turns scores into units of log2; it is None if scores are in these
    units already. `slack` is in units of log2, shifts are in the units of the scores. `sinks` are
    made by `sink_terms` for scores in units of log2: one for each row, or one for all.
    """

    def __init__(
        self,
        k: KernelBuilder,
        rows: int,
        distances: list[int],
        scale: Value | None,
        slack: float,
        sinks: Sequence[FirstTerms] = (NO_TERMS,),
    ) -> None:
        self.k = k
        self.distances = distances
        self.scale = scale
        self.slack = slack
        first = [k.max(shift, LOWEST, NaN=True) if isinstance(shift, Value) else LOWEST for shift, _ in sinks]
        self.shift = [k.var(f32, first[i % len(first)]) for i in range(rows)]
        # Sums over this lane's keys only; `finish` joins the lanes.
        self.row_sum = [k.var(f32, sinks[i % len(sinks)][1]) for i in range(rows)]

    def _scaled(self, difference: Value) -> Value:
        """A difference of two scores, in units of log2."""
        return difference if self.scale is None else difference * self.scale

    @marked("lazy softmax: take")
    def take(self, S: Fragment, rescale: Callable[[list[Value]], None]) -> None:
        """Replace the scores by P = exp2(scale * (S - shift)).

        `rescale(factors)` emits the multiplication of each row of partial outputs by its factor; a
        warp runs it only when the shift of one of its rows has moved.
        """
        k = self.k
        largest = [self._largest(scores) for scores in S]
        outgrown = [
            self._scaled(top - shift) > self.slack for top, shift in zip(largest, self.shift, strict=True)
        ]
        some = outgrown[0]
        for more in outgrown[1:]:
            some = some | more
        with k.when(k.vote(some, -1, mode="any")):
            factors = [self._follow(i, top, outgrown[i]) for i, top in enumerate(largest)]
            rescale(factors)
        for scores, shift, row_sum in zip(S, self.shift, self.row_sum, strict=True):
            total: Value = row_sum
            for score in scores:
                k.sub(score, shift, into=score)
                if self.scale is not None:
                    k.mul(score, self.scale, into=score)
                k.ex2(score, ftz=True, into=score)
                total = total + score
            row_sum.set(total)

    def _largest(self, scores: list[Var]) -> Value:
        """The largest score of a row, over all lanes that share it."""
        k = self.k
        largest: Value = scores[0]
        for score in scores[1:]:
            largest = k.max(largest, score)
        return over_lanes(k, largest, self.distances, k.max)

    @marked("lazy softmax: new shift")
    def _follow(self, i: int, top: Value, outgrown: Value) -> Value:
        """Move the shift of row i to its maximum, `top`, if that has outgrown it. Returns the
        factor for the row's old sums.
        """
        k, shift = self.k, self.shift[i]
        moved = k.selp(top, shift, outgrown)
        factor = k.ex2(self._scaled(shift - moved), ftz=True)
        shift.set(moved)
        k.mul(self.row_sum[i], factor, into=self.row_sum[i])
        return factor

    @marked("lazy softmax: finish")
    def finish(self, i: int) -> tuple[Value, Value]:
        """1 / sum of row i, or 0 where it has seen no key; and its log-sum-exp in natural units, or
        -inf there.
        """
        k = self.k
        total = over_lanes(k, self.row_sum[i], self.distances, operator.add)
        inverse = k.selp(0.0, k.rcp_rn(total), total == 0.0)
        shift, log = self.shift[i], k.lg2(total)
        return inverse, (shift + log if self.scale is None else k.fma(shift, self.scale, log)) * LN2
