"""Online softmax whose weights use the range of e4m3: the largest weight of a row is 2^8, so that
weights down to 2^-14 times the largest keep four significant bits (as in FlashAttention-3).

The shift of a row, which `flash/device/overlapped_softmax.py` describes, is that of its largest score
less `LIFT`. The factor 2^LIFT is in the outputs and in their sum, and cancels in the result.

Outputs are divided by the sums of the weights as they were rounded (`rounded_sum`), which cancels what
the roundings of a row have in common: where all scores are alike, all are rounded alike. The
log-sum-exp is that of the weights before they are rounded.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from flash.device.fp8_values import rounded_word, words_of
from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.softmax import NO_TERMS, FinishedRow, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.types import f32

LIFT: Final = 8.0  # log2 of the largest weight


class RoundedSums(OverlappedSoftmax):
    """An `OverlappedSoftmax` whose largest weight is 2^LIFT, and whose outputs are divided by the sums of the
    rounded weights.
    """

    lift: ClassVar[float] = LIFT
    rounded_sum: list[Var]  # of all lanes

    def finish(self, i: int) -> FinishedRow:
        """End the softmax of row i: 1 / its sum of rounded weights, or 0 where it has seen no key; and its
        log-sum-exp, if it is wanted.
        """
        total = self.rounded_sum[i]
        lse = super().finish(i).lse if self.keeps_sums else total
        if self._sinks:
            return FinishedRow(self._with_sink(i, total)[0], lse)
        return FinishedRow(self.k.selp(0.0, self.k.rcp_rn(total), total == 0.0), lse)


class LiftedSoftmax(RoundedSums):
    """An `OverlappedSoftmax` whose largest weight is 2^LIFT. Its shifts move with every new maximum. The
    sums of weights before they are rounded serve the log-sum-exp alone, and exist only with `with_lse`.
    """

    def __init__(
        self,
        k: KernelBuilder,
        rows: int,
        distances: list[int],
        scale: Value | None,
        sinks: Sequence[FirstTerms] = (NO_TERMS,),
        *,
        with_lse: bool,
    ) -> None:
        super().__init__(k, rows, distances, scale, LIFT, sinks, sinks_last=True)
        self.keeps_sums = with_lse
        self.rounded_sum = [k.var(f32, 0.0) for _ in range(rows)]  # each lane keeps that of all lanes

    @marked("fp8 softmax: weigh")
    def weigh_into(self, S: Fragment, P: Fragment, again: Callable[[], None]) -> None:
        """Set the words of P, four for 32 keys of S, to exp2(scale * S - shift) rounded to e4m3, and add the
        weights to the sums, before they are rounded.

        S stays. No maxima are taken: where an exponent is above LIFT, or NaN, a shift may have to move, and
        the warp runs what `again` emits instead, which weighs S by its maxima and sets P. A shift moves for
        exponents above LIFT alone, so that all bits are those of `weigh`. The comparisons write predicates,
        and so delay no product, as registers that are written do.
        """
        k = self.k
        totals: list[Value] = list(self.row_sum)
        is_large: Value = self._has_rest
        for words, elements in zip(P, words_of(S), strict=True):
            for nth, (word, scores) in enumerate(zip(words, elements, strict=True)):
                i = nth % S.rows
                exponents = [self._shifted(score, i) for score in scores]
                for exponent in exponents:
                    is_large = is_large | k.setp(exponent, LIFT, cmp="gtu")
                weights = [k.ex2(exponent, ftz=True) for exponent in exponents]
                if self.keeps_sums:
                    totals[i] = functools.reduce(operator.add, weights, totals[i])
                word.set(rounded_word(k, weights))
        with k.when(k.vote(is_large, -1, mode="any")):
            again()
        if self.keeps_sums:
            with k.otherwise():
                for row_sum, total in zip(self.row_sum, totals, strict=True):
                    row_sum.set(total)

    def rescale(self, O: Fragment) -> None:
        """Multiply the outputs of each row, and the sum of its rounded weights, by the factor of the last
        `weigh`, if the shift of a row of the warp has moved.
        """
        super().rescale(Fragment.of([[*row, total] for row, total in zip(O, self.rounded_sum, strict=True)]))
