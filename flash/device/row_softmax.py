"""Online softmax of a thread that has all scores of a row, as they come from tensor memory: no lane asks
another one.

The maxima and sums of 128 scores in one chain would take as long as all else; here they are chains of
neighbouring columns, which run at once.
"""

from __future__ import annotations

import functools
import operator
from typing import Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from ptxgen.dsl import Fragment, Value, Var, marked
from ptxgen.types import f32

_CHAINS: Final = 4


class RowSoftmax(OverlappedSoftmax):
    """An `OverlappedSoftmax` of one row in each thread."""

    def factor(self) -> Value:
        """The factor by which the outputs of this thread's row must be multiplied since the last
        `move_shifts`; 1 where no shift of the warp has moved.
        """
        assert self._moved is not None  # `move_shifts` comes before
        return self.k.selp(self._rescale[0], 1.0, self._moved)

    @marked("row softmax: largest")
    def _largest(self, scores: list[Var]) -> Value:
        """The largest of a row."""
        k = self.k
        return functools.reduce(k.max, (super(RowSoftmax, self)._largest(some) for some in _chains(scores)))

    @marked("row softmax: exponentials")
    def _exponentials(self, S: Fragment) -> None:
        """Replace the exponents by weights, and add these to the sums."""
        k = self.k
        for scores, row_sum in zip(S, self.row_sum, strict=True):
            totals: list[Value] = []
            for some in _chains(scores):
                total: Value | None = None
                for score in some:
                    k.ex2(score, ftz=True, into=score)
                    total = k.mov(score, type=f32) if total is None else total + score
                assert total is not None  # each chain has a score
                totals.append(total)
            row_sum.set(functools.reduce(operator.add, totals, row_sum))


def _chains(scores: list[Var]) -> list[list[Var]]:
    """Every fourth score, from each of the first four on."""
    return [scores[first::_CHAINS] for first in range(_CHAINS)]
