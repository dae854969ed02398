"""Online softmax of rows that two warpgroups share, which take tiles of keys alternately. The shift of a row
passes from one to the other with each tile, through shared memory; their sums are added at the end.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Final

from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.softmax import FinishedRow, FirstTerms
from ptxgen.dsl import Fragment, KernelBuilder, Role, SharedTile, Value, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.records import dataclass
from ptxgen.types import b32, f32

_GROUPS: Final = 2


@dataclass(frozen=True)
class Exchange:
    """Where the two warpgroups of a role exchange numbers for each row of a thread, and how they alternate.
    `group` (u32, 0 or 1) is the warpgroup of the thread, `row` (u32) its first row, from which `rows` counts
    all of them; `leads` says whether the lane writes for those that share the row. `first` is the first of
    two named barriers: each warpgroup waits at one of them, where the other arrives.
    """

    k: KernelBuilder
    role: Role
    rooms: tuple[SharedTile, SharedTile]  # f32, [2, rows of a warpgroup]
    group: Value
    row: Value
    rows: tuple[int, ...]
    leads: Value
    first: int

    @classmethod
    def room(cls, k: KernelBuilder, name: str, rows: int) -> SharedTile:
        """Shared memory for a number of `rows` rows of each warpgroup."""
        return k.shared(name, (_GROUPS, rows), f32)

    def hand_on(self) -> None:
        """Let the other warpgroup go on, which sees what this one has written."""
        self.k.bar_arrive(self.first + 1 - self.group, self.role.threads)

    def wait(self) -> None:
        """Wait until the other warpgroup hands on: what it has written may be read then."""
        self.k.bar_sync(self.first + self.group, self.role.threads)

    @marked("shared rows: exchange")
    def write(self, *numbers: Sequence[Value]) -> None:
        """Write f32 numbers for each row to shared memory, as many as the other warpgroup reads."""
        k = self.k
        with k.when(self.leads):
            for room, mine in zip(self.rooms, numbers, strict=False):
                for down, value in zip(self.rows, mine, strict=True):
                    k.store(room.pointer(self.group, self.row + down), value)

    def read(self, count: int) -> list[list[Value]]:
        """`count` numbers of each row that the other warpgroup has written."""
        k, other = self.k, 1 - self.group
        return [
            [k.load(room.pointer(other, self.row + down)) for down in self.rows]
            for room in self.rooms[:count]
        ]


class SharedRowsSoftmax(OverlappedSoftmax):
    """The running shift of rows whose tiles of keys two warpgroups take alternately, and the sum of the
    weights of this one. `follow` comes before `weigh` of the tile that follows one of the other warpgroup.
    """

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

    @marked("shared rows: follow")
    def follow(self, O: Fragment) -> None:
        """Take over the shifts that the other warpgroup has handed on, and multiply the outputs and sums of
        each row accordingly: a warp does so only when the shift of one of its rows has moved.
        """
        k, has_rests = self.k, bool(self._rest)
        shifts, *rests = self.exchange.read(1 + has_rests)
        # Bits are compared: a shift that is NaN has moved, too.
        moved = [k.setp(mine, new, cmp="ne", type=b32) for mine, new in zip(self.shift, shifts, strict=True)]
        some = functools.reduce(operator.or_, moved)
        with k.when(k.vote(some, -1, mode="any")):
            for i, (outputs, new) in enumerate(zip(O, shifts, strict=True)):
                less = self.shift[i] - new
                if rests:
                    less = less + (self._rest[i] - rests[0][i])
                    self._rest[i].set(rests[0][i])
                factor = k.ex2(less, ftz=True)
                self.shift[i].set(new)
                for output in (self.row_sum[i], *outputs):
                    k.mul(output, factor, into=output)
            self._note_rests()

    def show(self) -> None:
        """Write the softmax shifts to shared memory, from which the other warpgroup reads them."""
        self.exchange.write(self.shift, *([self._rest] if self._rest else []))

    def finish(self, i: int) -> FinishedRow:
        """See `LazySoftmax`; with the first row the two warpgroups add their sums of all rows."""
        if i == 0:
            self._join()
        return super().finish(i)

    @marked("shared rows: join")
    def _join(self) -> None:
        """Add the softmax sums of the two warpgroups, whose shifts are the same."""
        k, barrier = self.k, self.exchange.role.barrier
        local = [over_lanes(k, total, self.distances, operator.add) for total in self.row_sum]
        barrier.sync()  # all have read the last shifts
        self.exchange.write(local)
        barrier.sync()
        (others,) = self.exchange.read(1)
        for row_sum, a, b in zip(self.row_sum, local, others, strict=True):
            row_sum.set(k.selp(a + b, 0.0, self.exchange.leads))  # `finish` adds over the lanes of a row
