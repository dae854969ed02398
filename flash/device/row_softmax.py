"""Online softmax of a thread that has all scores of a row, as they come from tensor memory: no lane asks
another one.

The maxima and sums of 128 scores in one chain would take as long as all else; here they are chains of every
fourth score, which run at once. Two neighbouring scores are a pair, which one instruction scales and adds;
of some pairs exp2 is a polynomial, while the unit of special functions computes others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.polynomial_exp2 import polynomial_exp2_of_pair
from flash.device.softmax import NO_TERMS, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Pair, Value, Var, marked
from ptxgen.types import f32

_CHAINS: Final = 4
_PAIR: Final = 2


class RowSoftmax(OverlappedSoftmax):
    """An `OverlappedSoftmax` of one row in each thread. Of `by_polynomial` pairs of exponentials one is a
    polynomial; 0: none is.
    """

    def __init__(
        self,
        k: KernelBuilder,
        scale: Value | None,
        slack: float,
        sinks: Sequence[FirstTerms] = (NO_TERMS,),
        *,
        by_polynomial: int = 0,
        sinks_last: bool = False,
    ) -> None:
        super().__init__(k, 1, [], scale, slack, sinks, sinks_last=sinks_last)
        self._by_polynomial = by_polynomial
        self._terms_of_exponent: tuple[Var, Var] | None = None
        self._totals: list[Pair] = []
        self._top: Value | None = None

    def factor(self) -> Value:
        """The factor by which the outputs of this thread's row must be multiplied since the last
        `move_shifts`; 1 where no shift of the warp has moved.
        """
        assert self._moved is not None  # `move_shifts` comes before
        return self.k.selp(self._rescale[0], 1.0, self._moved)

    @marked("row softmax: largest")
    def _tops(self, S: Fragment) -> list[Value]:
        """The largest score of this thread's row of a tile, for the softmax shift."""
        return [self.largest(S) if self._top is None else self._top]

    def largest(self, S: Fragment) -> Value:
        """The largest score of the row, in chains of maxima that are taken at once."""
        chains = (self._largest(S.row(0)[first::_CHAINS]) for first in range(_CHAINS))
        return functools.reduce(self.k.max, chains)

    @marked("row softmax: shift")
    def move_shifts(self, S: Fragment, top: Value | None = None) -> None:
        """Move the shift if scores, of which `top` is the largest if it is known, have outgrown it. Exponents
        are then taken to be S times a factor, less the shift. Where a row of the warp has a rest, the
        scores become exponents here, and the factor 1.
        """
        self._top = top
        super().move_shifts(S)
        k, shift = self.k, self.shift[0]
        less = k.var(f32, -shift)
        factor = k.var(f32, 1.0 if self._factor is None else self._factor)
        if self._factor is not None:
            with k.when(self._has_rest):
                for score in S.all():
                    k.sub(k.fma(score, factor, less), self._rest[0], into=score)
                less.set(0.0)
                factor.set(1.0)
        self._terms_of_exponent, self._totals = (factor, less), []

    @marked("row softmax: exponentials")
    def exponentiate(self, S: Fragment) -> None:
        """Replace scores, or those of some columns, by weights; `add` comes after the last ones."""
        k = self.k
        assert self._terms_of_exponent is not None  # `move_shifts` comes before
        factor, less = (k.pair(term, term) for term in self._terms_of_exponent)
        totals, row = self._totals, S.row(0)
        for number, first in enumerate(range(0, len(row), _PAIR)):
            scores = row[first : first + _PAIR]
            exponents = k.pair(*scores)
            exponents = exponents + less if self._factor is None else exponents.fma(factor, less)
            if self._by_polynomial and number % self._by_polynomial == self._by_polynomial - 1:
                weights = polynomial_exp2_of_pair(k, exponents)
                weights.halves(into=scores)
            else:
                for exponent, score in zip(exponents.halves(), scores, strict=True):
                    k.ex2(exponent, ftz=True, into=score)
                weights = k.pair(*scores)
            if not self.keeps_sums:
                continue
            if len(totals) < _CHAINS // _PAIR:
                totals.append(weights)
            else:
                totals[:] = [*totals[1:], totals[0] + weights]

    @marked("row softmax: sum")
    def add(self) -> None:
        """Add the softmax weights of a tile to the sum of this thread's row."""
        if self.keeps_sums:
            low, high = functools.reduce(Pair.__add__, self._totals).halves()
            self.row_sum[0].set(self.row_sum[0] + (low + high))
