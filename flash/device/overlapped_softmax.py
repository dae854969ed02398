"""Online softmax whose outputs are rescaled later: while it runs, a product adds to them.

The shifts are in units of log2, so that an exponent is one multiply-add, whose product is not rounded:
exp2(scale * S - shift). Whatever a shift was rounded to, outputs and sums have the same one. When it
moves is the rule of `flash/device/lazy_softmax.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flash.device.lazy_softmax import LazySoftmax
from flash.device.softmax import NO_TERMS, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Value, marked


class OverlappedSoftmax(LazySoftmax):
    """`take` and `rescale` are the two halves of the step that takes in new scores. Arguments are those
    of `LazySoftmax`; shifts are in units of log2.
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
        super().__init__(k, rows, distances, None, slack, sinks)
        self._factor = scale
        self._moved: Value | None = None
        self._rescale: list[Value] = []

    @marked("overlapped softmax: take")
    def weigh(self, S: Fragment) -> None:
        """Replace the scores by P = exp2(scale * S - shift), and add them to the sums."""
        k = self.k
        outgrown, self._rescale = [], []
        for i, scores in enumerate(S):
            top = self._largest(scores)
            if self._factor is not None:
                top = top * self._factor
            grown = top - self.shift[i] > self.slack
            moved = k.selp(top, self.shift[i], grown)
            self._rescale.append(k.ex2(self.shift[i] - moved, ftz=True))
            self.shift[i].set(moved)
            outgrown.append(grown)
        some = outgrown[0]
        for more in outgrown[1:]:
            some = some | more
        self._moved = k.vote(some, -1, mode="any")
        for i, scores in enumerate(S):
            total, shift = self.row_sum[i] * self._rescale[i], -self.shift[i]
            for score in scores:
                if self._factor is None:
                    k.add(score, shift, into=score)
                else:
                    k.fma(score, self._factor, shift, into=score)
                k.ex2(score, ftz=True, into=score)
                total = total + score
            self.row_sum[i].set(total)

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
