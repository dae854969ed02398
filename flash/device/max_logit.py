"""The largest score of each head of a sequence (`flash/problem/outputs.py`): the largest of each row, which
is followed where scores are final, and of the rows one number for each head, which is joined in memory.

Shifts of a softmax are not these maxima: they follow scores late, or begin with a sink.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

from flash.device.softmax import LN2, larger
from flash.operands.dtypes import F32_BYTES
from flash.scores.feature import NEG_INF
from flash.scores.heads import Packing
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.records import dataclass
from ptxgen.types import f32, s32, s64, u32, u64

_NAN: Final = 0x7FFF_FFFF  # the largest s32: no score takes its place
_WARP: Final = [16, 8, 4, 2, 1]  # butterfly distances to all lanes of a warp


class RowTops:
    """The largest score of each of `rows` rows that this lane has met, in units of log2; NaN if one was NaN.

    `scale`, positive, turns scores into these units, those of all rows or of each; None if scores are in
    these units already.
    """

    def __init__(self, k: KernelBuilder, rows: int, scale: Value | Sequence[Value] | None) -> None:
        self.k = k
        self._scales = [scale] * rows if isinstance(scale, Value) else scale
        self._tops = [k.var(f32, NEG_INF) for _ in range(rows)]

    @marked("max logit: take")
    def take(self, S: Fragment) -> None:
        """Follow the scores of a tile of keys, of which hidden ones are -inf."""
        k = self.k
        for i, (scores, top) in enumerate(zip(S, self._tops, strict=True)):
            largest: Value = scores[0]
            for score in scores[1:]:
                largest = larger(k, largest, score)
            if self._scales is not None:
                largest = largest * self._scales[i]
            top.set(larger(k, top, largest))

    def joined(self, i: int, distances: Sequence[int]) -> Value:
        """The largest score of row i over the lanes at these butterfly distances."""
        return over_lanes(self.k, self._tops[i], distances, functools.partial(larger, self.k))

    @marked("max logit: all rows")
    def over_rows(self, exist: Sequence[Value]) -> Value:
        """The largest score of the rows of this warp that `exist`."""
        k = self.k
        tops = [k.selp(top, NEG_INF, there) for top, there in zip(self._tops, exist, strict=True)]
        of_two = functools.partial(larger, k)
        return over_lanes(k, functools.reduce(of_two, tops), _WARP, of_two)


@dataclass(frozen=True)
class MaxLogits:
    """Where a CTA writes the largest scores of its heads: f32, one for each head of each sequence. `head` is
    the number of its head of Q over all sequences; with packing that of its head of K and V.

    The array holds -inf before a launch, and a CTA replaces a number in it by a larger one of its own by
    comparing them as integers: of f32 that are not negative the order is that of their bits, of others it is
    the reverse of that as unsigned numbers. No order of CTAs changes the bits of the result.
    """

    first: Pointer
    head: Value
    packing: Packing | None

    @marked("max logit: store")
    def store(
        self,
        k: KernelBuilder,
        tops: RowTops,
        rows: Sequence[tuple[Value, Value]],
        distances: Sequence[int],
        writes: Callable[[Value], Value],
    ) -> None:
        """Combine the largest scores of this lane's `rows`, each with whether it exists, with those in
        memory. `distances` are the butterfly distances to the lanes that share them, `writes` adds the
        condition that the CTA writes to another one.
        """
        k.note("the largest score of each head")
        thread = k.thread_id()
        if self.packing is None:
            top = tops.over_rows([exists for _, exists in rows])
            self._join(k, k.cvt(self.head, dtype=s64), top, writes(thread & sum(_WARP) == 0))
            return
        for i, (row, exists) in enumerate(rows):
            in_group = k.cvt(self.packing.head(row), dtype=s64)
            head = k.mad_wide(self.head, self.packing.group, in_group)
            leads = exists & (thread & sum(distances) == 0)
            self._join(k, head, tops.joined(i, distances), writes(leads))

    @marked("max logit: join")
    def _join(self, k: KernelBuilder, head: Value, top: Value, where: Value) -> None:
        """Raise a head's largest score in memory, held as s64, to `top` (units of log2) if it is less."""
        logit = top * LN2
        bits = k.selp(logit.as_(u32), _NAN, k.setp(logit, logit, cmp="num"))
        at = self.first.plus((head * F32_BYTES).as_(u64))
        with k.when(where & k.setp(logit, NEG_INF, cmp="neu")):
            with k.when(bits.as_(s32) >= 0):
                k.red(at, bits.as_(s32), op="max", type=s32)
            with k.otherwise():
                k.red(at, bits, op="min", type=u32)
