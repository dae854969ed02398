"""Online softmax whose weights use the range of e4m3: the largest weight of a row is 2^8, so that
weights down to 2^-14 times the largest keep four significant bits (as in FlashAttention-3).

The shift of a row, which `flash/device/overlapped_softmax.py` describes, is that of its largest score
less `LIFT`. The factor 2^LIFT is in the outputs and in their sum, and cancels in the result.

Outputs are divided by the sums of the weights as they were rounded (`rounded_sum`), which cancels what
the roundings of a row have in common: where all scores are alike, all are rounded alike. The
log-sum-exp is that of the weights before they are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.softmax import NO_TERMS, FinishedRow, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var
from ptxgen.types import f32, u32

LIFT: Final = 8.0  # log2 of the largest weight
_SIGNS: Final = 0x8080_8080
_TO_SIGNS: Final = 0x0808_0808
_STEP: Final = 8  # elements of a thread's row in one register quartet of P
BYTES_OF_WORD: Final = 4


def steps_of(S: Fragment) -> Iterator[list[list[Var]]]:
    """The columns of S, by rows, in steps of 32 keys."""
    for first in range(0, S.columns, _STEP):
        yield [row[first : first + _STEP] for row in S]


def rounded_word(k: KernelBuilder, four: Sequence[Value]) -> Value:
    """Four weights, rounded to e4m3, in a word, the first one lowest."""
    low, high = (k.cvt_narrow(pair[1], pair[0], dtype="e4m3x2") for pair in (four[:2], four[2:]))
    word: Value = k.pack([low, high])
    return word.as_(u32)


class LiftedSoftmax(OverlappedSoftmax):
    """An `OverlappedSoftmax` whose largest weight is 2^LIFT. Its shifts move with every new maximum. The
    sums of weights before they are rounded serve the log-sum-exp alone, and exist only with `with_lse`.
    """

    lift: ClassVar[float] = LIFT

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

    def weigh_into(self, S: Fragment, P: Sequence[Sequence[Var]], again: Callable[[], None]) -> None:
        """Set the words of P, four for 32 keys, to exp2(scale * S - shift) rounded to e4m3, and add the
        weights to the sums, unrounded.

        S stays. Where a rounded weight is 2^LIFT or more, a shift may have to move: a warp runs what `again`
        emits instead, which weighs S and sets P. So the bits of all rows are those of `weigh`.
        """
        k = self.k
        sums: list[Value] = list(self.row_sum)
        too_large: Value | None = None
        for words, step in zip(P, steps_of(S), strict=True):
            for nth, word in enumerate(words):
                i, first = nth % S.rows, nth // S.rows * BYTES_OF_WORD
                weights = [k.ex2(self._shifted(score, i), ftz=True) for score in step[i][first : first + 4]]
                if self.keeps_sums:
                    for weight in weights:
                        sums[i] = sums[i] + weight
                word.set(rounded_word(k, weights))
                carried = word + _TO_SIGNS
                too_large = carried if too_large is None else too_large | carried
        assert too_large is not None
        some = ((too_large & _SIGNS) != 0) | self._has_rest
        with k.when(k.vote(some, -1, mode="any")):
            again()
        if self.keeps_sums:
            with k.otherwise():
                for row_sum, total in zip(self.row_sum, sums, strict=True):
                    row_sum.set(total)

    def _shifted(self, score: Value, i: int) -> Value:
        """A score of row i, which has no rest, less the shift, in units of log2."""
        if self._factor is None:
            return score - self.shift[i]
        return self.k.fma(score, self._factor, -self.shift[i])

    def rescale(self, O: Fragment) -> None:
        """Multiply the outputs of each row, and the sum of its rounded weights, by the factor of the last
        `weigh`, if the shift of a row of the warp has moved.
        """
        super().rescale(Fragment.of([[*row, total] for row, total in zip(O, self.rounded_sum, strict=True)]))

    def finish(self, i: int) -> FinishedRow:
        """1 / sum of the rounded weights of row i, or 0 where it has seen no key; and its log-sum-exp, if
        it is wanted.
        """
        total = self.rounded_sum[i]
        lse = super().finish(i).lse if self.keeps_sums else total
        if self._sinks:
            return FinishedRow(self._with_sink(i, total)[0], lse)
        return FinishedRow(self.k.selp(0.0, self.k.rcp_rn(total), total == 0.0), lse)
