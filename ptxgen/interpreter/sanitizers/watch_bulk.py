"""The checks of bulk copies, in shared and in global memory.

Each access by a copy, to its source and to each destination, is an operation of its own
(`ptxgen.interpreter.sanitizers.operations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.observer import BulkObserver
from ptxgen.interpreter.sanitizers.conflicts import Access

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.sanitizers.detectors import Detectors
    from ptxgen.interpreter.sanitizers.shown_mbarriers import ShownMbarriers
    from ptxgen.interpreter.sanitizers.watch_cluster import ClusterWatch

    Lanes = np.ndarray[Any, np.dtype[Any]]

_MBARRIER_BYTES: Final = 8
_UNIT: Final = 16  # bytes: the size of the pieces that are copied to and from shared memory


class BulkWatch(BulkObserver):
    """The part of `Watch` that follows bulk copies of a batch."""

    def __init__(
        self, watch: Detectors, cluster: ClusterWatch | None, shown: ShownMbarriers, batch: Batch
    ) -> None:
        self._watch = watch
        self._cluster = cluster
        self._shown = shown
        self._stride = batch.shared_stride
        self._width = batch.width
        self._writing: dict[int, Access] = {}  # by operation under way that is no reduction

    def know(self, lane: int, number: int) -> None:
        """A lane has waited for the operation `number`."""
        self._watch.operations.wait_for_group(lane, number)

    # ------------------------------------------------------------------------------- shared memory

    def start_write(
        self, at: int, lane: int, first: Lanes, nbytes: int, position: int, *, source: int, update: bool
    ) -> int:
        """A copy starts to write `nbytes` at each of these positions, or with `update` a reduction to change
        them, with completion on the mbarrier at `position`. `source` is the number of the access that reads
        what it writes, 0 if that has none. Returns its number.
        """
        watch = self._watch
        number = watch.operations.start(position, source)
        # PTX ISA, "Async proxy": instructions that send values of registers do not use it.
        proxy = watch.instrs[at].opcode.startswith("cp.")
        mbarrier = self._range(lane, np.array([position]), _MBARRIER_BYTES)
        if self._cluster is not None and lane // self._width != position // self._stride:
            self._cluster.counts(at, lane, mbarrier, position)
        elif proxy:
            watch.judge(at, self._shown.hidden(mbarrier, lane, position), mbarrier)
        if self._cluster is not None:
            self._cluster.copied(at, lane, int(first[0]), number)
        access = self._range(lane, first, nbytes)
        self._bounds(at, access, "dst")
        start = watch.race.start_update
        if not update:
            start = watch.race.start_copy
            self._writing[number] = access
        watch.judge(at, start(access, at, number, proxy=proxy), access)
        watch.mbarriers.written(at, np.full(len(first), lane), first, nbytes)
        return number

    def written(self, at: int, lane: int, position: int, number: int) -> None:
        """The operation `number` has written, or changed, its bytes and completes on the mbarrier at
        `position`.
        """
        self._watch.sync.landed(at, lane)
        access = self._writing.pop(number, None)
        if access is not None:
            self._watch.race.land(access, number)
        self._watch.objects.landed(position, number)

    def start_read(self, at: int, lane: int, first: Lanes, nbytes: int, position: int | None) -> int:
        """A copy starts to read `nbytes` at each of these positions, with completion on the
        mbarrier at `position`, if it has one. Returns its number.
        """
        watch = self._watch
        number = watch.operations.start(position)
        access = self._range(lane, first, nbytes)
        self._bounds(at, access, "src")
        watch.judge(at, watch.race.start_read(access, at, number), access)
        return number

    def was_read(self, at: int, lane: int, position: int | None, number: int) -> None:
        """The operation `number` has read its bytes and completes on the mbarrier at `position`, if it has
        one.
        """
        self._watch.sync.landed(at, lane)
        if position is not None:
            self._watch.objects.landed(position, number)

    # ------------------------------------------------------------------------------- global memory

    def start_global_read(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> int:
        """A copy starts to read `nbytes` of an array at each of these addresses; its write to
        shared memory starts later. Returns its number, 0 if nobody may write there.
        """
        watch, access = self._watch, self._rows(lane, buffer, first, nbytes)
        self._early(at, lane, buffer, first, nbytes)
        if access is None or not buffer.writable:
            return 0
        number = watch.operations.start()
        conflicts = watch.global_races.start_read(buffer, access, at, number)
        watch.judge_global(at, conflicts, access, buffer)
        return number

    def start_global_write(
        self,
        at: int,
        lane: int,
        buffer: Buffer,
        first: Lanes,
        nbytes: int,
        *,
        atomic: bool,
        sums: bool,
        again: bool,
    ) -> Callable[[], None] | None:
        """A copy, or a reduction if `atomic`, starts to write `nbytes` of an array at each of these
        addresses; `sums` says whether it adds floating-point numbers. `again`: an earlier lane of the warp
        has started the same copy with this instruction. Returns the message for the time when the lane has
        waited for it.
        """
        watch, access = self._watch, self._rows(lane, buffer, first, nbytes)
        self._early(at, lane, buffer, first, nbytes)
        if access is None:
            return None
        number = watch.operations.start()
        conflicts = watch.global_races.start_write(buffer, access, at, number, atomic=atomic, sums=sums)
        if not again:  # else it is judged with that one, and both write the same bytes
            watch.judge_global(at, conflicts, access, buffer)

        def finish() -> None:
            watch.global_races.finish_write(buffer, access, number)
            self.know(lane, number)

        return finish

    def _early(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> None:
        """Check an access of one lane against the previous grid, which may still run."""
        if self._watch.grids is not None:
            self._watch.grids.access(at, np.full(len(first), lane), buffer, first, nbytes)

    # -------------------------------------------------------------------------------------- ranges

    def _range(self, lane: int, first: Lanes, nbytes: int) -> Access:
        """The access of one lane to the bytes from each of these positions on, in pieces."""
        grain = self._watch.grain
        unit = min(_UNIT, nbytes)
        starts = (first[:, None] + np.arange(0, nbytes, unit)).reshape(-1)
        units, width = starts // grain, unit // grain
        span = None
        if (starts[1:] - starts[:-1] == unit).all():
            least, most = int(starts[0]), int(starts[-1])
            span = slice(least // grain, most // grain + width)
        else:
            least, most = int(starts.min()), int(starts.max())
        low, high = least % self._stride // grain, (most % self._stride + unit) // grain
        return Access(np.full(len(starts), lane), units, width, low, high, span)

    def _bounds(self, at: int, access: Access, operand: str) -> None:
        watch = self._watch
        low, high = access.low * watch.grain, access.high * watch.grain
        watch.bounds.check(at, low, high, access, watch.grain, operand)

    def _rows(self, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> Access | None:
        """The access of one lane to the bytes from each of these addresses on, in the units that
        lie wholly inside.
        """
        grain = self._watch.global_grain
        low, high = -(-first // grain), (first + nbytes) // grain
        width = int((high - low).min())
        if width <= 0 or not self._watch.follows_global:
            return None
        return Access(np.full(len(first), lane), low - buffer.base // grain, width, 0, 0)
