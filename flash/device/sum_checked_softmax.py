"""Online softmax that takes the maxima of few tiles: weights are computed with the shift that there is, and
their sums say whether it still was large enough.

Weights are not negative: where a sum is at most 2 ** slack, so is each weight in it. Only where the sum of
a lane is larger, or a row has a rest, does a warp weigh the scores again, which are still there, as
`flash/device/overlapped_softmax.py` does: it takes maxima and moves shifts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.polynomial_exp2 import polynomial_exp2
from ptxgen.dsl import Fragment, Value, Var
from ptxgen.dsl.matrices.products import PAIRS
from ptxgen.types import ScalarType, u32

_PAIR: Final = 2  # neighbouring columns of a row, which a word holds
_BY_POLYNOMIAL: Final = 2  # the first exponential of `by_polynomial` that is a polynomial


class SumCheckedSoftmax(OverlappedSoftmax):
    """An `OverlappedSoftmax` that also weighs scores into other registers."""

    def weigh_into(
        self,
        S: Fragment,
        P: Sequence[Sequence[Var]],
        dtype: ScalarType,
        by_polynomial: int,
        again: Callable[[], None],
    ) -> None:
        """Set the words of P, four for 16 columns of S, to exp2(scale * S - shift) rounded to `dtype`, and
        add these to the sums, unrounded. Of each `by_polynomial` exponentials a polynomial computes one; with
        0 it computes none.

        S stays. Where a shift has to move first, a warp runs what `again` emits instead, which weighs S and
        sets P.
        """
        k, count = self.k, 0
        sums: list[list[Value]] = [[] for _ in range(S.rows)]  # of each row, one after the other
        for words, step in zip(P, _steps(S, len(P)), strict=True):
            for nth, word in enumerate(words):
                i, column = nth % S.rows, nth // S.rows * _PAIR
                pair = []
                for score in step[i][column : column + _PAIR]:
                    exponent = self._shifted(score, i)
                    is_polynomial = by_polynomial and count % by_polynomial == _BY_POLYNOMIAL
                    weight = polynomial_exp2(k, exponent) if is_polynomial else k.ex2(exponent, ftz=True)
                    sums[i].append(sums[i][-1] + weight if sums[i] else weight)
                    count += 1
                    pair.append(weight)
                word.set(k.cvt(pair[1], pair[0], rnd="rn", dtype=PAIRS[dtype]).as_(u32))
        some: Value = self._has_rest
        for of_row in sums:
            some = some | (of_row[-1] > 2.0**self.slack)
        with k.when(k.vote(some, -1, mode="any")):
            again()
        with k.otherwise():
            for row_sum, of_row in zip(self.row_sum, sums, strict=True):
                row_sum.set(row_sum + of_row[-1])

    def _shifted(self, score: Value, i: int) -> Value:
        """A score of row i, which has no rest, less the shift, in units of log2."""
        if self._factor is None:
            return score - self.shift[i]
        return self.k.fma(score, self._factor, -self.shift[i])


def _steps(S: Fragment, steps: int) -> Iterator[list[list[Var]]]:
    """The columns of S, by rows, in so many parts."""
    size = S.columns // steps
    for first in range(0, S.columns, size):
        yield [row[first : first + size] for row in S]
