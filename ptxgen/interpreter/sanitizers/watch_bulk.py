"""What the sanitizers are told of bulk copies, in shared and in global memory.

A copy is the work of the twin of the warp that starts it: each of its parts has a stamp of the
twin's own, in rising order. Who waits for a part comes after it and all parts before it.
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
    from ptxgen.interpreter.sanitizers.detectors import Detectors
    from ptxgen.interpreter.sanitizers.watch_cluster import ClusterWatch

    Lanes = np.ndarray[Any, np.dtype[Any]]

_UNIT: Final = 16  # bytes: what is copied to and from shared memory is made of such pieces


class BulkWatch(BulkObserver):
    """The part of `Watch` that follows bulk copies. `stride` is the shared memory of a CTA in the
    batch's, in bytes.
    """

    def __init__(self, watch: Detectors, cluster: ClusterWatch | None, stride: int) -> None:
        self._watch = watch
        self._cluster = cluster
        self._stride = stride

    def start(self, lane: int) -> int:
        """The stamp of what a lane's warp starts now."""
        return int(self._watch.clocks.start(np.array([lane // WARP]))[0])

    def know(self, lane: int, stamp: int) -> None:
        """A lane has waited for what its warp started with this stamp."""
        self._watch.clocks.learn_twin(lane // WARP, lane // WARP, stamp)

    # ------------------------------------------------------------------------------- shared memory

    def start_write(self, at: int, lane: int, first: Lanes, nbytes: int, place: int) -> int:
        """A copy starts to write `nbytes` at each of these positions, which the mbarrier at `place`
        counts; its stamp.
        """
        watch = self._watch
        stamp = watch.count(lane, self.start(lane), place)
        if self._cluster is not None:
            self._cluster.counts(at, lane, place)
            self._cluster.copied(at, lane, int(first[0]), stamp)
        access = self._range(lane, first, nbytes)
        self._bounds(at, access, "dst")
        # PTX ISA, "Async proxy": what sends values of registers is none of its operations.
        proxy = watch.instrs[at].opcode.startswith("cp.")
        watch.judge(at, watch.race.start_copy(access, at, stamp, proxy=proxy), access)
        watch.mbarriers.written(at, np.full(len(first), lane), first, nbytes)
        return stamp

    def start_update(self, at: int, lane: int, first: Lanes, nbytes: int) -> None:
        """A reduction starts to change `nbytes` at each of these positions."""
        self._bounds(at, self._range(lane, first, nbytes), "dst")

    def written(self, at: int, lane: int, first: Lanes, nbytes: int, place: int, stamp: int) -> None:
        """A copy has written; the mbarrier at `place` counts it."""
        self._watch.sync.landed(at, lane)
        self._watch.race.land(self._range(lane, first, nbytes))
        self._watch.objects.landed(place, lane // WARP, stamp)

    def start_read(self, at: int, lane: int, first: Lanes, nbytes: int, place: int | None) -> int:
        """A copy starts to read `nbytes` at each of these positions, which the mbarrier at `place`
        counts, if there is one; its stamp.
        """
        watch = self._watch
        stamp = watch.count(lane, self.start(lane), place)
        access = self._range(lane, first, nbytes)
        self._bounds(at, access, "src")
        watch.judge(at, watch.race.start_read(access, at, np.array([stamp])), access)
        return stamp

    def was_read(self, at: int, lane: int, place: int | None, stamp: int) -> None:
        """A copy has read; the mbarrier at `place` counts it, if there is one."""
        self._watch.sync.landed(at, lane)
        if place is not None:
            self._watch.objects.landed(place, lane // WARP, stamp)

    # ------------------------------------------------------------------------------- global memory

    def start_global_read(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> None:
        """A copy starts to read `nbytes` of an array at each of these addresses; what it then
        writes to shared memory starts later.
        """
        watch, access = self._watch, self._rows(lane, buffer, first, nbytes)
        if access is not None and buffer.writable:
            stamp = self.start(lane)
            found = watch.global_races.start_read(buffer, access, at, stamp)
            watch.judge_global(at, found, access, buffer)

    def start_global_write(
        self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int, *, atomic: bool
    ) -> Callable[[], None] | None:
        """The same of writes, or of reductions if `atomic`. Returns what is to be told once the
        lane has waited for them.
        """
        watch, access = self._watch, self._rows(lane, buffer, first, nbytes)
        if access is None:
            return None
        stamp = self.start(lane)
        found = watch.global_races.start_write(buffer, access, at, stamp, atomic=atomic)
        watch.judge_global(at, found, access, buffer)

        def finish() -> None:
            watch.global_races.finish_write(buffer, access, stamp)
            self.know(lane, stamp)

        return finish

    # -------------------------------------------------------------------------------------- ranges

    def _range(self, lane: int, first: Lanes, nbytes: int) -> Access:
        """Bytes from each of these positions on, in pieces, of one lane."""
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
        """Bytes from each of these addresses on, in the units that lie wholly inside."""
        grain = self._watch.global_grain
        low, high = -(-first // grain), (first + nbytes) // grain
        width = int((high - low).min())
        if width <= 0 or not self._watch.follows_global:
            return None
        return Access(np.full(len(first), lane), low - buffer.base // grain, width, 0, 0)
