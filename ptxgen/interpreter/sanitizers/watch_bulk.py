"""The checks of bulk copies, in shared and in global memory.

A copy is an operation of the twin of the warp that starts it: each of its parts has its own stamp
of the twin, in rising order. A wait for a part orders the waiting thread after it and after all
parts before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
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

    def start(self, lane: int) -> int:
        """The stamp of the operation that a lane's warp starts now."""
        return int(self._watch.clocks.start(np.array([lane // WARP]))[0])

    def know(self, lane: int, stamp: int) -> None:
        """A lane has waited for the operation that its warp started with this stamp."""
        self._watch.clocks.learn_twin(lane // WARP, lane // WARP, stamp)

    # ------------------------------------------------------------------------------- shared memory

    def start_write(self, at: int, lane: int, first: Lanes, nbytes: int, position: int) -> int:
        """A copy starts to write `nbytes` at each of these positions, with completion on the
        mbarrier at `position`. Returns its stamp.
        """
        watch = self._watch
        stamp = watch.count(lane, self.start(lane), position)
        # PTX ISA, "Async proxy": instructions that send values of registers do not use it.
        proxy = watch.instrs[at].opcode.startswith("cp.")
        mbarrier = self._range(lane, np.array([position]), _MBARRIER_BYTES)
        if self._cluster is not None and lane // self._width != position // self._stride:
            self._cluster.counts(at, lane, mbarrier, position)
        elif proxy:
            watch.judge(at, self._shown.hidden(mbarrier, lane, position), mbarrier)
        if self._cluster is not None:
            self._cluster.copied(at, lane, int(first[0]), stamp)
        access = self._range(lane, first, nbytes)
        self._bounds(at, access, "dst")
        watch.judge(at, watch.race.start_copy(access, at, stamp, proxy=proxy), access)
        watch.mbarriers.written(at, np.full(len(first), lane), first, nbytes)
        return stamp

    def start_update(self, at: int, lane: int, first: Lanes, nbytes: int) -> None:
        """A reduction starts to change `nbytes` at each of these positions."""
        self._bounds(at, self._range(lane, first, nbytes), "dst")

    def written(self, at: int, lane: int, first: Lanes, nbytes: int, position: int, stamp: int) -> None:
        """A copy has written its bytes and completes on the mbarrier at `position`."""
        self._watch.sync.landed(at, lane)
        self._watch.race.land(self._range(lane, first, nbytes))
        self._watch.objects.landed(position, lane // WARP, stamp)

    def start_read(self, at: int, lane: int, first: Lanes, nbytes: int, position: int | None) -> int:
        """A copy starts to read `nbytes` at each of these positions, with completion on the
        mbarrier at `position`, if it has one. Returns its stamp.
        """
        watch = self._watch
        stamp = watch.count(lane, self.start(lane), position)
        access = self._range(lane, first, nbytes)
        self._bounds(at, access, "src")
        watch.judge(at, watch.race.start_read(access, at, np.array([stamp])), access)
        return stamp

    def was_read(self, at: int, lane: int, position: int | None, stamp: int) -> None:
        """A copy has read its bytes and completes on the mbarrier at `position`, if it has one."""
        self._watch.sync.landed(at, lane)
        if position is not None:
            self._watch.objects.landed(position, lane // WARP, stamp)

    # ------------------------------------------------------------------------------- global memory

    def start_global_read(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> None:
        """A copy starts to read `nbytes` of an array at each of these addresses; its write to
        shared memory starts later.
        """
        watch, access = self._watch, self._rows(lane, buffer, first, nbytes)
        self._early(at, lane, buffer, first, nbytes)
        if access is not None and buffer.writable:
            stamp = self.start(lane)
            found = watch.global_races.start_read(buffer, access, at, stamp)
            watch.judge_global(at, found, access, buffer)

    def start_global_write(
        self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int, *, atomic: bool, again: bool
    ) -> Callable[[], None] | None:
        """A copy, or a reduction if `atomic`, starts to write `nbytes` of an array at each of these
        addresses. `again`: it is the one that a lane of the warp before has started with it. Returns the
        message for the time when the lane has waited for it.
        """
        watch, access = self._watch, self._rows(lane, buffer, first, nbytes)
        self._early(at, lane, buffer, first, nbytes)
        if access is None:
            return None
        stamp = self.start(lane)
        found = watch.global_races.start_write(buffer, access, at, stamp, atomic=atomic)
        if not again:  # else it is judged with that one, and both write the same bytes
            watch.judge_global(at, found, access, buffer)

        def finish() -> None:
            watch.global_races.finish_write(buffer, access, stamp)
            self.know(lane, stamp)

        return finish

    def _early(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> None:
        """Check an access of one lane against the grid before, which may still run."""
        if self._watch.grids is not None:
            self._watch.grids.access(at, np.full(len(first), lane), buffer, first, nbytes)

    # -------------------------------------------------------------------------------------- ranges

    def _range(self, lane: int, first: Lanes, nbytes: int) -> Access:
        """The access of one lane to the bytes from each of these positions on, in pieces."""
        grain = self._watch.grain
        unit = min(_UNIT, nbytes)
        starts = (first[:, None] + np.arange(0, nbytes, unit)).reshape(-1)
        low = int(starts.min()) % self._stride // grain
        high = (int(starts.max()) % self._stride + unit) // grain
        return Access(np.full(len(starts), lane), starts // grain, unit // grain, low, high)

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
