"""Online softmax whose outputs are rescaled later: while it runs, a product adds to them.

The shifts are in units of log2, so that an exponent is one multiply-add, whose product is not rounded:
exp2(scale * S - shift). Whatever a shift was rounded to, outputs and sums have the same one. But a shift
of 2^30 is rounded to a multiple of 64: a row whose shift is that large also has a rest, what the rounding
left, and its warp subtracts both. When a shift moves is the rule of `flash/device/lazy_softmax.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from flash.device.lazy_softmax import LazySoftmax
from flash.device.softmax import NO_TERMS, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.types import f32, pred, u32

LARGE: Final = 2.0**20  # smaller shifts are rounded by less than 2^-4


class OverlappedSoftmax(LazySoftmax):
    """`weigh` and `rescale` are the two halves of the step that takes in new scores. Arguments are those
    of `LazySoftmax`; shifts are in units of log2. Without `keeps_sums` sums of weights are not kept.
    """

    lift: ClassVar[float] = 0.0  # by which a shift that moves is below the maximum of its row
    keeps_sums: bool = True

    @marked("overlapped softmax: begin")
    def __init__(
        self,
        k: KernelBuilder,
        rows: int,
        distances: list[int],
        scale: Value | None,
        slack: float,
        sinks: Sequence[FirstTerms] = (NO_TERMS,),
        *,
        sinks_last: bool = False,
    ) -> None:
        super().__init__(k, rows, distances, None, slack, sinks, sinks_last=sinks_last)
        self._factor = scale
        self._rest = [k.var(f32, 0.0) for _ in range(rows if scale is not None else 0)]
        self._has_rest = k.var(pred, k.mov(0, type=u32) != 0)  # whether a row of the warp has a rest
        self._rescale = [k.var(f32, 1.0) for _ in range(rows)]
        self._moved: Value | None = None

    @marked("overlapped softmax: weigh")
    def weigh(self, S: Fragment) -> None:
        """Replace the scores by P = exp2(scale * S - shift), and add them to the sums."""
        self.move_shifts(S)
        self.exponentiate(S)

    @marked("overlapped softmax: weigh")
    def move_shifts(self, S: Fragment) -> None:
        """Move the softmax shifts that scores have outgrown, as the first half of `weigh`."""
        k = self.k
        tops = self._tops(S)
        outgrown = [self._exponent(top, i) > self.slack for i, top in enumerate(tops)]
        some = outgrown[0]
        for more in outgrown[1:]:
            some = some | more
        self._moved = k.vote(some, -1, mode="any")
        with k.when(self._moved):
            for i, top in enumerate(tops):
                self._move(i, top, outgrown[i])
            self._note_rests()

    @marked("overlapped softmax: weigh")
    def exponentiate(self, S: Fragment) -> None:
        """Replace scores that shifts have followed by weights, as the second half of `weigh`."""
        self._subtract(S)
        self._exponentials(S)

    def _exponentials(self, S: Fragment) -> None:
        """Replace the exponents by softmax weights (exp2), and add the weights to the row sums."""
        for scores, row_sum in zip(S, self.row_sum, strict=True):
            total: Value = row_sum
            for score in scores:
                self.k.ex2(score, ftz=True, into=score)
                if self.keeps_sums:
                    total = total + score
            if self.keeps_sums:
                row_sum.set(total)

    def _tops(self, S: Fragment) -> list[Value]:
        """The largest score of each row of a tile, for the softmax shift."""
        return [self._joined(self._largest(scores)) for scores in S]

    def _exponent(self, score: Value, i: int) -> Value:
        """The exponent of a weight: a score of row i less the row's shift, in units of log2."""
        if self._factor is None:
            return score - self.shift[i]
        return self.k.fma(score, self._factor, -self.shift[i]) - self._rest[i]

    def _shifted(self, score: Value, i: int) -> Value:
        """A score of row i, which has no rest, less the shift, in units of log2."""
        if self._factor is None:
            return score - self.shift[i]
        return self.k.fma(score, self._factor, -self.shift[i])

    @marked("overlapped softmax: move")
    def _move(self, i: int, top: Value, outgrown: Value) -> None:
        """Move the shift of row i to its maximum, `top`, less `lift`, if that has outgrown it."""
        k, shift, factor = self.k, self.shift[i], self._rescale[i]
        if self._factor is None:
            moved = k.selp(self._below(top), shift, outgrown)
            factor.set(k.ex2(shift - moved, ftz=True))
        else:
            rest = self._rest[i]
            if self.lift:
                scaled = k.fma(top, self._factor, k.mov(-self.lift, type=f32))
            else:
                scaled = top * self._factor
            moved = k.selp(scaled, shift, outgrown)
            left = self._below(k.fma(top, self._factor, -scaled))
            left = k.selp(left, 0.0, k.abs(scaled) >= LARGE)
            left = k.selp(left, rest, outgrown)
            factor.set(k.ex2((shift - moved) + (rest - left), ftz=True))
            rest.set(left)
        shift.set(moved)
        if self.keeps_sums:
            k.mul(self.row_sum[i], factor, into=self.row_sum[i])

    @marked("overlapped softmax: move")
    def _below(self, top: Value) -> Value:
        """The new softmax shift: the largest score `top` less the lift."""
        return top - self.lift if self.lift else top

    @marked("overlapped softmax: rests")
    def _note_rests(self) -> None:
        """Note whether a row of this warp has a rest, which the rounding of its shift left."""
        if not self._rest:
            return
        some = self._rest[0] != 0.0
        for rest in self._rest[1:]:
            some = some | (rest != 0.0)
        self._has_rest.set(self.k.vote(some, -1, mode="any"))

    @marked("overlapped softmax: subtract")
    def _subtract(self, S: Fragment) -> None:
        """Replace the scores by exponents: the scores less the shifts, in units of log2."""
        k = self.k
        if self._factor is None:
            for i, score in _each(S):
                k.sub(score, self.shift[i], into=score)
            return
        with k.when(self._has_rest):
            for i, score in _each(S):
                k.sub(k.fma(score, self._factor, -self.shift[i]), self._rest[i], into=score)
        with k.otherwise():
            less = [-shift for shift in self.shift]
            for i, score in _each(S):
                k.fma(score, self._factor, less[i], into=score)

    @marked("overlapped softmax: rescale")
    def rescale(self, O: Fragment) -> None:
        """Multiply the outputs of each row by the factor of the last `weigh`: a warp does so only when
        the shift of one of its rows has moved.
        """
        assert self._moved is not None  # `weigh` comes before
        with self.k.when(self._moved):
            for outputs, factor in zip(O, self._rescale, strict=True):
                for output in outputs:
                    self.k.mul(output, factor, into=output)


def _each(S: Fragment) -> Iterator[tuple[int, Var]]:
    """Each score of this thread with the index of its row."""
    for i, scores in enumerate(S):
        for score in scores:
            yield i, score
