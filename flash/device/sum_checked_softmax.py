"""Online softmax that takes the maxima of few tiles: weights are computed with the shift that there is, and
their sums say whether it still was large enough.

Weights are not negative: where a sum is at most 2 ** slack, so is each weight in it. Only where the sum of
a lane is larger, or an exponent is more than one multiply-add, does a warp weigh the scores again, which are
still there, as the softmax does that takes maxima of every tile: it moves shifts. Kernels with `wgmma` extend
`flash/device/overlapped_softmax.py`, those with `mma.sync` `flash/device/lazy_softmax.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from flash.device.lazy_softmax import LARGE_BASE, LazySoftmax
from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.polynomial_exp2 import polynomial_exp2
from flash.device.rounded_pair import rounded_pair
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.types import PAIRS, ScalarType, u32

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
        sums = _weights_into(self.k, S, P, self._shifted, dtype, by_polynomial)
        _add_or_weigh_again(
            self, sums, chain([self._has_rest], (_is_too_large(self, of_row) for of_row in sums)), again
        )


class SumCheckedLazySoftmax(LazySoftmax):
    """A fused `LazySoftmax` that also weighs scores into other registers."""

    @marked("sum-checked softmax: weigh")
    def weigh_into(
        self, S: Fragment, P: Sequence[Sequence[Var]], dtype: ScalarType, again: Callable[[], None]
    ) -> None:
        """Set the words of P, as many for 16 columns of S as these have pairs, to exp2(scale * (S - shift))
        rounded to `dtype`, and add these to the sums, unrounded.

        S stays. Where a shift has to move first, or is large, a warp runs what `again` emits instead, which
        takes S in, weighs it and sets P.
        """
        k = self.k
        bases = [self._base(shift, i) for i, shift in enumerate(self.shift)]
        sums = _weights_into(k, S, P, lambda score, i: k.fma(score, self._scale(i), bases[i]), dtype, 0)
        are_large = (k.abs(base) > LARGE_BASE for base in bases)
        _add_or_weigh_again(
            self, sums, chain((_is_too_large(self, of_row) for of_row in sums), are_large), again
        )


def _weights_into(
    k: KernelBuilder,
    S: Fragment,
    P: Sequence[Sequence[Var]],
    exponent: Callable[[Value, int], Value],
    dtype: ScalarType,
    by_polynomial: int,
) -> list[Value]:
    """Set the words of P to exp2(exponent(score, row)) rounded to `dtype`; returns the sum of each row, of
    weights that are not rounded.
    """
    count = 0
    sums: list[Value | None] = [None] * S.rows
    for words, step in zip(P, _steps(S, len(P)), strict=True):
        for nth, word in enumerate(words):
            i, column = nth % S.rows, nth // S.rows * _PAIR
            pair = []
            for score in step[i][column : column + _PAIR]:
                shifted = exponent(score, i)
                is_polynomial = by_polynomial and count % by_polynomial == _BY_POLYNOMIAL
                weight = polynomial_exp2(k, shifted) if is_polynomial else k.ex2(shifted, ftz=True)
                of_row = sums[i]
                sums[i] = weight if of_row is None else of_row + weight
                count += 1
                pair.append(weight)
            word.set(rounded_pair(k, pair[0], pair[1], PAIRS[dtype]).as_(u32))
    return [of_row for of_row in sums if of_row is not None]


@marked("sum-checked softmax: too large")
def _is_too_large(softmax: LazySoftmax, of_row: Value) -> Value:
    """Whether `of_row`, the sum of a row's weights, is so large that one of them may exceed what the slack
    allows.
    """
    is_above: Value = of_row > 2.0**softmax.slack
    return is_above


@marked("sum-checked softmax: again")
def _add_or_weigh_again(
    softmax: LazySoftmax, sums: Sequence[Value], conditions: Iterator[Value], again: Callable[[], None]
) -> None:
    """Add the sums of a tile to those of the rows; where one of the conditions holds for a lane, its warp
    runs what `again` emits instead.
    """
    k = softmax.k
    some = next(conditions)
    for more in conditions:
        some = some | more
    with k.when(k.vote(some, -1, mode="any")):
        again()
    with k.otherwise():
        for row_sum, of_row in zip(softmax.row_sum, sums, strict=True):
            row_sum.set(row_sum + of_row)


def _steps(S: Fragment, steps: int) -> Iterator[list[list[Var]]]:
    """The variables of S, cut along its columns into `steps` equal parts, each by rows."""
    size = S.columns // steps
    for first in range(0, S.columns, size):
        yield [row[first : first + size] for row in S]
