"""Who watches a batch of CTAs: what the machine says of each event to whoever listens.

The machine has an `Observer`, a `Meter`, both or neither, and knows no more of them than is written
here. `at` is the number of an instruction, a lane that of a thread in the batch; `ids` are such
lanes, int64. A place is a byte of the batch's shared memory.
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

Tell = Callable[[], None]  # tells an observer something


class Accessing(Protocol):
    """What an observer may ask of the machine about the lanes that access memory just now."""

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
        """Which of the lanes that were picked execute the instruction, bool."""

    def active_ids(self, mask: Lanes | None) -> Lanes:
        """The numbers in the batch of the lanes that are active under a mask."""


class Meter(Protocol):
    """Who counts accesses to memory."""

    def access(self, machine: Accessing, plan: Plan, offset: int, total: int, verb: str) -> None:
        """A planned access of `total` bytes, which reads, writes or updates."""

    def copy(
        self, machine: Accessing, plan: Plan, offset: int, nbytes: int, src: Address, src_nbytes: Lanes | None
    ) -> None:
        """A `cp.async` of `nbytes` from global `src` to shared memory, where the plan is for; lanes
        with 0 `src_nbytes` read nothing.
        """


class FrameObserver(Protocol):
    """Who watches the bytes of local memory that calls hand over."""

    def enter(self, number: int, lanes: Lanes, start: Lanes) -> None:
        """These lanes have called the routine of this number; its frame begins at `start` of each
        lane's memory.
        """

    def written(self, lanes: Lanes, start: Lanes, nbytes: int) -> Lanes:
        """Which of the bytes from `start` on are written, `[lanes, bytes]` bool."""

    def write(self, lanes: Lanes, start: Lanes, written: Lanes) -> None:
        """A call hands bytes over, from `start` on; `written` as `written` gave it."""


class BulkObserver(Protocol):
    """Who watches bulk copies: each begins and ends by itself, and has a stamp between the two."""

    def know(self, lane: int, stamp: int) -> None:
        """A lane has waited for what its warp started with this stamp."""

    def start_write(self, at: int, lane: int, first: Lanes, nbytes: int, place: int) -> int:
        """A copy starts to write `nbytes` at each of the places `first`, which the mbarrier at
        `place` counts; its stamp.
        """

    def start_update(self, at: int, lane: int, first: Lanes, nbytes: int) -> None:
        """A reduction starts to change `nbytes` at each of the places `first`."""

    def written(self, at: int, lane: int, first: Lanes, nbytes: int, place: int, stamp: int) -> None:
        """A copy has written; the mbarrier at `place` counts it."""

    def start_read(self, at: int, lane: int, first: Lanes, nbytes: int, place: int | None) -> int:
        """A copy starts to read `nbytes` at each of the places `first`, which the mbarrier at
        `place` counts, if there is one; its stamp.
        """

    def was_read(self, at: int, lane: int, place: int | None, stamp: int) -> None:
        """A copy has read; the mbarrier at `place` counts it, if there is one."""

    def start_global_read(self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int) -> None:
        """A copy starts to read `nbytes` of an array at each of the addresses `first`."""

    def start_global_write(
        self, at: int, lane: int, buffer: Buffer, first: Lanes, nbytes: int, *, atomic: bool
    ) -> Tell | None:
        """A copy starts to write `nbytes` of an array at each of the addresses `first`, or a
        reduction if `atomic`. Returns what is to be told once the lane has waited for it.
        """


class Observer(Protocol):
    """Who watches what threads do with memory, barriers, copies and registers. `local` watches
    what calls hand over, if anybody does.
    """

    bulk: BulkObserver
    local: FrameObserver | None

    # ------------------------------------------------------------------------------------ accesses

    def load(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """A load of `total` bytes is about to happen."""

    def store(
        self, machine: Accessing, plan: Plan, offset: int, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """A store is about to happen."""

    def before_atomic(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """An atomic operation, or one on mbarriers, is about to happen."""

    def after_atomic(self, machine: Accessing, plan: Plan, offset: int, old: Lanes) -> None:
        """An atomic operation has happened; `old` are the values before."""

    def copy_async(self, machine: Accessing, plan: Plan, offset: int, nbytes: int) -> None:
        """`cp.async` starts to copy `nbytes` to where the plan is for."""

    def end_copy(self, at: int, ids: Lanes, word: Lanes, words: int) -> None:
        """Threads have waited for what `cp.async` brought to each `word` of shared memory on."""

    def matrices(self, at: int, ids: Lanes, words: Lanes, nbytes: int) -> None:
        """Warps, by a lane each, read matrices from shared memory: `nbytes` at each of the places
        `words`, `[warps, n]`.
        """

    def undefined(self, at: int, register: str, lane: int) -> None:
        """A lane reads a register that it has not written."""

    # ------------------------------------------------------------------------------------ barriers

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Lanes arrive at barriers of their CTA without waiting."""

    def join(self, ids: Lanes, barrier: Lanes, since: Lanes, exited: Lanes) -> None:
        """Barriers of CTAs let lanes go, which came to them by the instructions `since`; `exited`
        says which lanes of the batch have ended, bool.
        """

    def too_many(self, at: int, lane: int, barrier: int, came: int, wanted: int) -> None:
        """More threads have come to a barrier than it was to wait for."""

    def twice(self, at: int, lane: int, barrier: int) -> None:
        """A lane comes to a barrier at which it has arrived, and which is not complete yet."""

    def cluster_arrive(self, at: int, ids: Lanes) -> None:
        """Lanes arrive at the barrier of their cluster."""

    def cluster_wait(self, at: int, ids: Lanes) -> None:
        """Lanes come to wait for the barrier of their cluster."""

    def cluster_leave(self, ids: Lanes) -> None:
        """The barrier of the cluster lets lanes go."""

    def fence(self, ids: Lanes, scope: str) -> None:
        """A fence of lanes."""

    # ----------------------------------------------------------------------------------- mbarriers

    def waited(self, at: int, ids: Lanes, places: Lanes) -> None:
        """Lanes have waited for mbarriers at these places."""

    def arrived(self, ids: Lanes, place: int) -> None:
        """Threads arrive at an mbarrier because the copies by `cp.async` that they started are
        done.
        """

    def changes(self, at: int, lane: int, place: int, data: Lanes) -> None:
        """What a lane has started is about to change the mbarrier at a place; `data` is the shared
        memory.
        """

    def phase(self, place: int) -> None:
        """The mbarrier at a place is in its next phase."""

    # --------------------------------------------------------------------------- warps and threads

    def warp_sync(self, at: int, ids: Lanes, members: Lanes, exited: Lanes) -> None:
        """Lanes of warps execute an instruction together, each with those of a membermask."""

    def retired(self, warp: int, count: int, members: range) -> None:
        """A warp has waited for the first `count` groups of `wgmma` of its warpgroup, of these
        warps.
        """

    def touch(self, numbers: tuple[int, ...], ids: Lanes) -> None:
        """Lanes are about to execute ordinary instructions that name registers of `wgmma`."""

    def registers(self, at: int, lane: int, why: str) -> None:
        """A warp, by a lane, uses `setmaxnreg` against its rules."""

    def ended(self, mask: Lanes, exited: Lanes) -> None:
        """The lanes of a mask have ended; `exited` has all that have."""

    def all_ended(self) -> None:
        """All threads have ended; asynchronous copies may still be under way."""
