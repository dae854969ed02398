"""Online softmax of rows that two warpgroups share, each with its own keys: they exchange the maxima and
sums of rows through shared memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.softmax import FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Role, SharedTile, Value, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.records import dataclass
from ptxgen.types import f32

_GROUPS: Final = 2


@dataclass(frozen=True)
class Exchange:
    """Where the two warpgroups of a role find a number of each other for each row of a thread.

    `group` (u32, 0 or 1) is the warpgroup of the thread, `row` (u32) its first row, from which `rows` counts
    all of them; `leads` says whether the lane writes for those that share the row.
    """

    k: KernelBuilder
    role: Role
    numbers: SharedTile  # f32, [2, rows of a warpgroup]
    group: Value
    row: Value
    rows: tuple[int, ...]
    leads: Value

    @classmethod
    def room(cls, k: KernelBuilder, rows: int) -> SharedTile:
        """Shared memory for the numbers of `rows` rows."""
        return k.shared("of_rows", (_GROUPS, rows), f32)

    @marked("shared rows: exchange")
    def __call__(self, mine: list[Value]) -> list[Value]:
        """The numbers of the other warpgroup. All threads of the role come here, and meet again before the
        next time.
        """
        k = self.k
        with k.when(self.leads):
            for down, value in zip(self.rows, mine, strict=True):
                k.store(self.numbers.pointer(self.group, self.row + down), value)
        self.role.barrier.sync()
        return [k.load(self.numbers.pointer(1 - self.group, self.row + down)) for down in self.rows]


class SharedRowsSoftmax(OverlappedSoftmax):
    """The running shift and sum of rows whose keys two warpgroups share; both have the same shifts."""

    def __init__(
        self,
        k: KernelBuilder,
        exchange: Exchange,
        distances: list[int],
        scale: Value | None,
        slack: float,
        sinks: Sequence[FirstTerms],
    ) -> None:
        super().__init__(k, len(exchange.rows), distances, scale, slack, sinks)
        self.exchange = exchange

    def _tops(self, S: Fragment) -> list[Value]:
        own = super()._tops(S)
        return [self.k.max(a, b) for a, b in zip(own, self.exchange(own), strict=True)]

    def join(self) -> None:
        """Add the sums of both warpgroups, before `finish`."""
        k = self.k
        own = [over_lanes(k, total, self.distances, operator.add) for total in self.row_sum]
        for row_sum, a, b in zip(self.row_sum, own, self.exchange(own), strict=True):
            row_sum.set(k.selp(a + b, 0.0, self.exchange.leads))  # `finish` adds over the lanes of a row
