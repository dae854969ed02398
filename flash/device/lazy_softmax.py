"""Online softmax that rescales rarely, on scores without their scale (FlashAttention-4, "Rescaling
only when necessary"; for the algorithm see `flash/device/softmax.py`).

Each row has a shift, which is subtracted from its scores before they are scaled: scaling first
would round the products, with errors of units where scores are large. `fused` computes the same as

    exp2(fma(score - less, scale, base))    with base = -(shift * scale) rounded, less = 0

so that a score costs one instruction instead of two. The rounding of base is the same for all weights of a
row: it cancels between the outputs and their sum, and the factors that rescale these are made of the
same rounded numbers. Above `LARGE_BASE` it would not be small; there base = 0, and less = shift is
subtracted from the scores first, which costs a subtraction for each score in such tiles only.

The shift moves to the maximum of the row only when that has outgrown it by more than `slack`, so that
exp2 of a scaled score is at most 2 ** slack. The result is that of exact softmax: the shift cancels
between the outputs and their sum.

The first shift is the lowest f32, so that a row that has seen no key needs no special case: hidden
scores of -inf stay -inf when it is subtracted. The first shift stays where the scale is so small
that no score can outgrow it; differences between scores vanish there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

from flash.device.softmax import LN2, NO_TERMS, FinishedRow, FirstTerms, larger
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.types import f32

LOWEST: Final = -float.fromhex("0x1.fffffep127")
# A scale of 0 becomes this: 0 * -inf would be NaN, and exp2 of an ordinary score times this is 1.
LEAST_SCALE: Final = 2.0**-126
# A base above this, in units of log2, is not used: rounded, it may be off by 2**-8 here.
LARGE_BASE: Final = 2.0**16


class LazySoftmax:
    """The running shift and sum of `rows` rows, and the two steps that take in new scores.

    `distances` are the butterfly distances that join the lanes which share a row, each with its own
    keys. `scale`, positive, turns scores into units of log2, those of all rows or of each; it is
    None if scores are in these units already. `slack` is in units of log2, shifts are in the units
    of the scores. `sinks` are made by `sink_terms` for scores in units of log2: one for each row,
    or one for all. With `sinks_last` rows begin without them, and `finish` adds them: a type with
    few exponents would lose the weights of keys that a sink outweighs. With `joins_first` lanes
    join their maxima for every tile, not only where a shift moves: more instructions, which take
    fewer registers.
    """

    def __init__(
        self,
        k: KernelBuilder,
        rows: int,
        distances: list[int],
        scale: Value | Sequence[Value] | None,
        slack: float,
        sinks: Sequence[FirstTerms] = (NO_TERMS,),
        *,
        fused: bool = False,
        joins_first: bool = False,
        sinks_last: bool = False,
    ) -> None:
        self.k = k
        self.distances = distances
        self.scales = [scale] * rows if isinstance(scale, Value) else scale
        self.slack = slack
        self._fused = fused and scale is not None
        self._joins_first = joins_first
        self._sinks = [top for top, _ in sinks if sinks_last and isinstance(top, Value)]
        if self._sinks:
            assert scale is None, "features that begin the softmax make scores in units of log2"
            sinks = (NO_TERMS,)
        first = [larger(k, shift, LOWEST) if isinstance(shift, Value) else LOWEST for shift, _ in sinks]
        self.shift = [k.var(f32, first[i % len(first)]) for i in range(rows)]
        # Sums over this lane's keys only; `finish` joins the lanes.
        self.row_sum = [k.var(f32, sinks[i % len(sinks)][1]) for i in range(rows)]
        self._bases: list[Var] = []  # of the tile that `take` has taken in

    def _scaled(self, difference: Value, i: int) -> Value:
        """The difference of two scores of row i, times the scale: in units of log2."""
        return difference if self.scales is None else difference * self.scales[i]

    @marked("lazy softmax: take")
    def take(self, S: Fragment, rescale: Callable[[list[Value]], None]) -> None:
        """Move the shifts that scores have outgrown; `weigh` then turns the scores into weights.

        `rescale(factors)` emits the multiplication of each row of partial outputs by its factor; a
        warp runs it only when the shift of one of its rows has moved, or is large.
        """
        k = self.k
        joined = self._joined if self._joins_first else lambda largest: largest
        largest = [joined(self._largest(scores)) for scores in S]
        if self._fused:
            self._bases = [k.var(f32, self._base(shift, i)) for i, shift in enumerate(self.shift)]
        outgrown = [self._exponent(top, i) > self.slack for i, top in enumerate(largest)]
        some = outgrown[0]
        for more in [*outgrown[1:], *(k.abs(base) > LARGE_BASE for base in self._bases)]:
            some = some | more
        with k.when(k.vote(some, -1, mode="any")):
            # A row has outgrown its shift if one of its lanes says so: only here must lanes ask each other.
            if not self._joins_first:
                largest = [self._joined(top) for top in largest]
            if self._fused:
                rescale([self._follow_fused(i, top, S.row(i)) for i, top in enumerate(largest)])
            else:
                rescale([self._follow(i, top) for i, top in enumerate(largest)])

    def weigh(self, S: Fragment) -> None:
        """Replace scores that were taken in, or some columns of them, by P = exp2(scale * (S - shift))."""
        k = self.k
        for i, (scores, row_sum) in enumerate(zip(S, self.row_sum, strict=True)):
            total: Value = row_sum
            for score in scores:
                if self._fused:
                    k.fma(score, self._scale(i), self._bases[i], into=score)
                else:
                    k.sub(score, self.shift[i], into=score)
                    if self.scales is not None:
                        k.mul(score, self.scales[i], into=score)
                k.ex2(score, ftz=True, into=score)
                total = total + score
            row_sum.set(total)

    def _scale(self, i: int) -> Value:
        assert self.scales is not None
        return self.scales[i]

    def _exponent(self, score: Value, i: int) -> Value:
        """The exponent of a score of row i, in units of log2; only rough where the row's base is large."""
        if self._fused:
            return self.k.fma(score, self._scale(i), self._bases[i])
        return self._scaled(score - self.shift[i], i)

    def _base(self, shift: Value, i: int) -> Value:
        """The base of row i, in units of log2: minus the scaled shift, rounded to f32."""
        return -(shift * self._scale(i))

    @marked("lazy softmax: terms")
    def _terms(self, shift: Value, i: int) -> tuple[Value, Value]:
        """The shift and the base that scores of row i get: a score becomes (score - shift) * scale + base.
        One of the two is 0: the shift, unless the base would be large.
        """
        k, base = self.k, self._base(shift, i)
        is_large = k.abs(base) > LARGE_BASE
        return k.selp(shift, 0.0, is_large), k.selp(0.0, base, is_large)

    def _largest(self, scores: list[Var]) -> Value:
        """The largest score of a row among those that this lane holds."""
        largest: Value = scores[0]
        for score in scores[1:]:
            largest = self.k.max(largest, score)
        return largest

    def _joined(self, largest: Value) -> Value:
        """The largest score of a row over all lanes that share the row."""
        return over_lanes(self.k, largest, self.distances, self.k.max)

    @marked("lazy softmax: new shift")
    def _follow(self, i: int, top: Value) -> Value:
        """Move the shift of row i to its maximum, `top`, if that has outgrown it. Returns the
        factor for the row's old sums.
        """
        k, shift = self.k, self.shift[i]
        moved = k.selp(top, shift, self._exponent(top, i) > self.slack)
        factor = k.ex2(self._scaled(shift - moved, i), ftz=True)
        shift.set(moved)
        k.mul(self.row_sum[i], factor, into=self.row_sum[i])
        return factor

    @marked("lazy softmax: new base")
    def _follow_fused(self, i: int, top: Value, scores: list[Var]) -> Value:
        """Move the shift of row i as `_follow` does, and its base with it; subtract from the row's
        scores what their base leaves out.

        The exponents are those by which `take` judges, so that it does not matter for which row the warp
        is here; but where the base is large, which brings it here in any case, those would be too coarse.
        """
        k, shift = self.k, self.shift[i]
        old_less, old_base = self._terms(shift, i)
        exponent = k.fma(top - old_less, self._scale(i), old_base)
        moved = k.selp(top, shift, exponent > self.slack)
        less, base = self._terms(moved, i)
        factor = k.ex2(k.fma(old_less - less, self._scale(i), base - old_base), ftz=True)
        shift.set(moved)
        self._bases[i].set(base)
        for score in scores:
            k.sub(score, less, into=score)
        k.mul(self.row_sum[i], factor, into=self.row_sum[i])
        return factor

    @marked("lazy softmax: finish")
    def finish(self, i: int) -> FinishedRow:
        """End the softmax of row i: 1 / its sum of weights, or 0 where it has seen no key; and its
        log-sum-exp in natural units, or
        -inf there.
        """
        k = self.k
        total = over_lanes(k, self.row_sum[i], self.distances, operator.add)
        if self._sinks:
            inverse, top, whole = self._with_sink(i, total)
            return FinishedRow(inverse, (top + k.lg2(whole)) * LN2)
        inverse = k.selp(0.0, k.rcp_rn(total), total == 0.0)
        shift, log = self.shift[i], k.lg2(total)
        if self._fused:
            less, base = self._terms(shift, i)
            return FinishedRow(inverse, (k.fma(less, self._scale(i), log) - base) * LN2)
        log2 = shift + log if self.scales is None else k.fma(shift, self.scales[i], log)
        return FinishedRow(inverse, log2 * LN2)

    def _with_sink(self, i: int, total: Value) -> tuple[Value, Value, Value]:
        """Add the sink of row i to the `total` of its keys. Returns what O is to be multiplied by, 0 where
        nothing was added; the larger of shift and sink; and the sum of all weights under that.
        """
        k, shift, sink = self.k, self.shift[i], self._sinks[i % len(self._sinks)]
        above = sink - shift
        is_above = above > 0.0
        of_keys = k.selp(k.ex2(-above, ftz=True), 1.0, is_above)
        whole = k.fma(total, of_keys, k.selp(1.0, k.ex2(above, ftz=True), is_above))
        inverse = k.selp(0.0, k.rcp_rn(whole) * of_keys, whole == 0.0)
        return inverse, k.selp(sink, shift, is_above), whole
