"""Online softmax whose weights use the range of e4m3: the largest weight of a row is 2^8, so that
weights down to 2^-14 times the largest keep four significant bits (as in FlashAttention-3).

The shift of a row, which `flash/device/overlapped_softmax.py` describes, is that of its largest score
less `LIFT`. The factor 2^LIFT is in the outputs and in their sum, and cancels in the result.

Outputs are divided by the sums of the weights as they were rounded (`rounded_sum`), which cancels what
the roundings of a row have in common: where all scores are alike, all are rounded alike. The
log-sum-exp is that of the weights before they are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.softmax import NO_TERMS, FinishedRow, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.types import f32

LIFT: Final = 8.0  # log2 of the largest weight


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
