"""The observers of a batch of CTAs: the events that the machine reports to sanitizers and meters.

The machine has an `Observer`, a `Meter`, both or neither, and uses only the methods below. `at` is
the number of an instruction, a lane is the number of a thread in the batch; `ids` are such numbers,
int64. A position is the index of a byte in the batch's shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.machine.memory import Address, Plan, SharedMemory, Space
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

Tell = Callable[[], None]  # reports an event to an observer
Copied = Callable[["Lanes"], None]  # tells an observer which lanes have waited for a copy


class Accessing(Protocol):
    """The state of the machine that an observer may read about the lanes that are accessing memory."""

    @property
    def at(self) -> int:
        """The number of the instruction."""

    @property
    def shared(self) -> SharedMemory:
        """The shared memory of the batch."""

    @property
    def spaces(self) -> Mapping[str, Space]:
        """Local, param and constant memory, by name."""

    def active(self) -> Lanes:
        """Which of the picked lanes execute the instruction, bool."""

    def active_ids(self, mask: Lanes | None) -> Lanes:
        """The numbers in the batch of the lanes that are active under a mask."""


class Meter(Protocol):
    """Counts accesses to memory."""

    def access(self, machine: Accessing, plan: Plan, offset: int, total: int, verb: str) -> None:
        """Count a planned access of `total` bytes; `verb` says whether it reads, writes or updates."""

    def copy(
        self, machine: Accessing, plan: Plan, offset: int, nbytes: int, src: Address, src_nbytes: Lanes | None
    ) -> None:
        """Count a `cp.async` of `nbytes` from global `src` to the shared memory that the plan is
        for; lanes with 0 `src_nbytes` read nothing.
        """


class BulkObserver(Protocol):
    """Observes bulk copies. Each access by a copy begins and ends by itself, and has a number from 1 in
    between. An observer that inherits from this class ignores the events for which it has no method.
    """

    def know(self, lane: int, number: int) -> None:
        """A lane has waited for the access `number`."""
        return

    def start_write(
        self, at: int, lane: int, first: Lanes, nbytes: int, position: int, *, source: int, update: bool
    ) -> int:
        """A copy starts to write `nbytes` at each of the positions `first`, or with `update` a reduction to
        change them, with completion on the mbarrier at `position`. `source` is the number of the access that
        reads what it writes, 0 if that has none. Returns its number.
        """

    def written(self, at: int, lane: int, position: int, number: int) -> None:
        """The access `number` wrote or changed its bytes, and completes on the mbarrier at `position`."""
        return

    def start_read(self, at: int, lane: int, first: Lanes, nbytes: int, position: int | None) -> int:
        """A copy starts to read `nbytes` at each of the positions `first`, with completion on the
        mbarrier at `position`, if it has one. Returns its number.
        """

    def was_read(self, at: int, lane: int, position: int | None, number: int) -> None:
        """The access `number` has read its bytes, and completes on the mbarrier at `position`, if any."""
        return

    def start_global_read(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> int:
        """A copy starts to read `nbytes` of an array at each of the addresses `first`. Returns its number,
        0 if nobody has to wait for it.
        """
        return 0

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
    ) -> Tell | None:
        """A copy, or a reduction if `atomic`, starts to write `nbytes` of an array at each of the addresses
        `first`; `sums` says whether it adds floating-point numbers. `again`: an earlier lane of the warp has
        started the same copy with this instruction. Returns the message for the time when the lane has
        waited for it.
        """


class Observer(Protocol):
    """Observes the accesses of threads to memory, barriers, copies and registers. An observer that
    inherits from this class ignores the events for which it has no method.
    """

    bulk: BulkObserver

    # ------------------------------------------------------------------------------------ accesses

    def load(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """A load of `total` bytes is about to happen."""
        return

    def store(
        self, machine: Accessing, plan: Plan, offset: int, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """A store of consecutive values of `type` is about to happen."""
        return

    def before_atomic(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """An atomic operation, or an operation on an mbarrier, is about to happen."""
        return

    def after_atomic(self, machine: Accessing, plan: Plan, offset: int, old: Lanes) -> None:
        """An atomic operation has happened; `old` are the values before it."""
        return

    def copy_async(self, machine: Accessing, plan: Plan, offset: int, nbytes: int) -> Copied | None:
        """A `cp.async` starts to copy `nbytes` to the addresses that the plan is for; the machine has just
        loaded its source. Returns the message for the lanes that have waited for it.
        """

    def end_copy(self, at: int, ids: Lanes, word: Lanes, words: int) -> None:
        """Threads have waited for a `cp.async` of `words` words to the words of shared memory from
        `word` on.
        """
        return

    def matrices(self, at: int, ids: Lanes, words: Lanes, rows: Lanes, bases: Lanes, nbytes: int) -> None:
        """Warps, each given by one lane, read matrices from shared memory: `nbytes` at each of the
        addresses `words`, `[matrices, n]`. For each warp, `rows` has the number of its matrix and `bases`
        the position of its CTA's memory.
        """
        return

    # ------------------------------------------------------------------------------------ barriers

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Lanes arrive at barriers of their CTA without waiting."""
        return

    def join(self, ids: Lanes, barrier: Lanes, since: Lanes, exited: Lanes) -> None:
        """Barriers of CTAs release lanes that arrived at the instructions `since`; `exited` says
        which lanes of the batch have ended, bool.
        """
        return

    def too_many(self, at: int, lane: int, barrier: int, came: int, wanted: int) -> None:
        """More threads have arrived at a barrier than its count."""
        return

    def twice(self, at: int, lane: int, barrier: int) -> None:
        """A lane arrives again at a barrier that is not complete yet."""
        return

    def cluster_arrive(self, at: int, ids: Lanes) -> None:
        """Lanes arrive at the barrier of their cluster."""
        return

    def cluster_wait(self, at: int, ids: Lanes) -> None:
        """Lanes come to wait for the barrier of their cluster."""
        return

    def cluster_leave(self, ids: Lanes) -> None:
        """The barrier of the cluster releases lanes."""
        return

    def fence(self, ids: Lanes, scope: str) -> None:
        """Lanes execute a fence."""
        return

    # ----------------------------------------------------------------------------------- mbarriers

    def waited(self, at: int, ids: Lanes, positions: Lanes) -> None:
        """Lanes have waited for the mbarriers at these positions."""
        return

    def arrived(self, ids: Lanes, position: int) -> None:
        """Threads arrive at an mbarrier because the copies by `cp.async` that they started are complete."""
        return

    def changes(self, at: int, lane: int, position: int, data: Lanes) -> None:
        """An operation that a lane started is about to change the mbarrier at a position; `data` is
        the shared memory.
        """
        return

    def phase(self, position: int) -> None:
        """The mbarrier at a position has begun its next phase."""
        return

    # --------------------------------------------------------------------------- warps and threads

    def warp_sync(self, at: int, ids: Lanes, members: Lanes, exited: Lanes) -> None:
        """Lanes execute an instruction together, each with the lanes of its membermask."""
        return

    def exchange(self, ids: Lanes, sources: Lanes) -> None:
        """Each of these lanes receives a register of the lane of its warp with that index."""
        return

    def retired(self, warp: int, count: int, members: range) -> None:
        """A warp has waited for the first `count` groups of `wgmma` of its warpgroup; `members` are
        the warpgroup's warps.
        """
        return

    def touch(self, numbers: tuple[int, ...], ids: Lanes) -> None:
        """Lanes are about to execute ordinary instructions that name registers of `wgmma`."""
        return

    def registers(self, at: int, lane: int, why: str) -> None:
        """A warp, given by one lane, breaks a rule of `setmaxnreg`."""
        return

    def ended(self, mask: Lanes, exited: Lanes) -> None:
        """The lanes of a mask have ended; `exited` has all lanes that have ended."""
        return

    def all_ended(self) -> None:
        """All threads have ended; asynchronous copies may still be under way."""
        return
