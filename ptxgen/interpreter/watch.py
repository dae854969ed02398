"""The run-time sanitizers of a batch: what memory, barriers and asynchronous copies tell them.

`bounds` finds accesses outside of the variable of shared memory that their address is computed
from; `init` reads of registers, shared and local memory and memory from `malloc` before they were
written; `race` accesses of two threads that nothing orders, in shared and global memory; `sync`
barriers, asynchronous operations and `setmaxnreg` used against their rules; `proxy` ordinary writes
that asynchronous operations may not see yet. An access outside of all memory, or not aligned, stops
a kernel in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.interpreter.async_rules import broken_rules
from ptxgen.interpreter.bounds_checks import BoundsChecks, Spans
from ptxgen.interpreter.clocks import SHOWN, Clocks
from ptxgen.interpreter.conflicts import Access
from ptxgen.interpreter.global_race import GlobalRaces
from ptxgen.interpreter.lanes import WARP
from ptxgen.interpreter.local_init import LocalInit
from ptxgen.interpreter.mbarrier_checks import MBarriers
from ptxgen.interpreter.orders import Objects, Order, optimistic, order_of
from ptxgen.interpreter.polls import unpolled
from ptxgen.interpreter.race import RaceDetector
from ptxgen.interpreter.sync_checks import SyncChecks
from ptxgen.interpreter.watch_bulk import BulkWatch
from ptxgen.interpreter.watch_cluster import ClusterWatch
from ptxgen.interpreter.wgmma_checks import WgmmaChecks
from ptxgen.ir import Instr, Note
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from ptxgen.interpreter.access import MemoryAccess
    from ptxgen.interpreter.arena import Buffer
    from ptxgen.interpreter.conflicts import Conflict
    from ptxgen.interpreter.faults import Faults
    from ptxgen.interpreter.lanes import Batch
    from ptxgen.interpreter.linking import Linked
    from ptxgen.interpreter.memory import Plan
    from ptxgen.interpreter.wgmma_registers import WgmmaRegisters
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

SANITIZERS: Final = ("bounds", "init", "race", "sync", "proxy")
ALL: Final = "all"
# Which sanitizers look for a kind of report.
_OF_KIND: Final = {
    "race": {"race"}, "pending": {"race", "sync"}, "uninitialised": {"init"},
    "proxy": {"proxy"},
}  # fmt: skip
_PHASE_BIT: Final = np.uint64(63)


def sanitizers(asked: object) -> frozenset[str]:
    """The names of the sanitizers that `sanitize=` asks for. Raises `LaunchError` for others."""
    if isinstance(asked, bool):
        return frozenset(SANITIZERS) if asked else frozenset()
    known = (*SANITIZERS, ALL)
    names: list[object] = [asked]
    if isinstance(asked, str):
        names = [*asked.split(",")]
    elif isinstance(asked, Iterable) and not isinstance(asked, np.ndarray):
        names = list(asked)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise LaunchError(
                f"sanitize must be True, False or names among {', '.join(known)}, got {shown(name)}"
                f"{did_you_mean(name, known)}"
            )
    return frozenset(SANITIZERS) if ALL in names else frozenset(map(str, names))


class Watch:
    """All sanitizers that watch memory, for one batch. `grain` and `global_grain` are the bytes of
    their units in shared and global memory; `spans`, if bounds are watched, what addresses are
    meant for.
    """

    def __init__(
        self, names: frozenset[str], batch: Batch, instrs: tuple[Instr, ...], faults: Faults,
        grain: int, global_grain: int, heap: dict[int, Lanes], spans: Spans | None,
    ) -> None:  # fmt: skip
        self._names = names
        self._batch = batch
        self.faults = faults
        self.instrs = instrs
        self._orders: list[Order | None] = [None] * len(instrs)
        self._optimistic = optimistic(instrs)
        self.grain = grain
        self.global_grain = global_grain
        warps = batch.width // WARP
        asynchronous = any(_is_asynchronous(x.opcode) for x in instrs)
        self.clocks = Clocks(
            batch.lanes // WARP, warps * batch.cluster_size, warps, twins=asynchronous
        )
        self.objects = Objects(self.clocks)
        self.race = RaceDetector(self.clocks, batch.ctas, batch.shared_stride // grain)
        self.global_races = GlobalRaces(self.clocks, global_grain, heap)
        wanted = {"race", "init", *({"sync", "proxy"} if asynchronous else ())}
        self.follows_global = bool(wanted & names)
        self.mbarriers = MBarriers(faults, batch.shared_stride, wanted="sync" in names)
        self.local: LocalInit | None = None
        self.wgmma: WgmmaChecks | None = None
        self.bulk = BulkWatch(self, batch.shared_stride)
        self.cluster: ClusterWatch | None = None
        if batch.cluster_size > 1 or any(x.opcode.startswith("barrier.cluster") for x in instrs):
            self.cluster = ClusterWatch(self, batch, faults, wanted="sync" in names)
        self.sync = SyncChecks(self.clocks, instrs, faults, wanted="sync" in names)
        self.bounds = BoundsChecks(spans, faults, batch.shared_stride)

    # ------------------------------------------------------------------------------------- reports

    def wants(self, kind: str) -> bool:
        """Whether reports of this kind were asked for."""
        return bool(_OF_KIND[kind] & self._names)

    def order(self, at: int) -> Order:
        """What instruction `at` does to the order of accesses."""
        found = self._orders[at]
        if found is None:
            guesses = at in self._optimistic
            found = Order(True) if guesses else order_of(self.instrs[at])
            self._orders[at] = found
        return found

    def judge(self, at: int, conflicts: list[Conflict], access: Access) -> None:
        """Report what was found of an access to shared memory, if it was asked for."""
        for c in conflicts:
            if self.wants(c.kind):
                place = c.unit * self.grain
                cta, address = divmod(place, self._batch.shared_stride)
                lane = int(access.ids[c.position])
                lacking = self.bulk.lacking(c, lane)
                self.faults.memory(at, c, "shared", address, lane, cta, lacking=lacking)

    def judge_global(
        self, at: int, conflicts: list[Conflict], access: Access, buffer: Buffer
    ) -> None:
        """The same of an access to an array in global memory."""
        first = buffer.base // self.global_grain
        for c in conflicts:
            if self.wants(c.kind):
                address = max((c.unit + first) * self.global_grain, buffer.base)
                lane = int(access.ids[c.position])
                lacking = self.bulk.lacking(c, lane)
                self.faults.memory(at, c, "global", address, lane, -1, buffer, lacking=lacking)

    # -------------------------------------------------------------------------------------- memory

    def load(self, machine: MemoryAccess, plan: Plan, offset: int, total: int) -> None:
        """A load is about to happen."""
        order = self.order(machine.at)
        if plan.watched:
            access = self._access(machine, plan, offset, total)
            self._bounds(machine.at, plan, offset, total, access)
            self.judge(machine.at, self.race.read(access, machine.at, strong=order.strong), access)
            if self._near_mbarrier(plan, offset, total):
                self.mbarriers.read(machine.at, access.ids, _places(plan, offset), total)
        elif self._follows(plan):
            access = self._far_access(machine, plan, offset, total)
            assert plan.buffer is not None
            found = self.global_races.read(plan.buffer, access, machine.at, strong=order.strong)
            self.judge_global(machine.at, found, access, plan.buffer)
        if self.local is not None:
            self._local_load(machine, plan, offset, total)
        if order.strong:
            self._acquire(machine, plan, offset, order)

    def store(
        self, machine: MemoryAccess, plan: Plan, offset: int, type: ScalarType,
        values: tuple[Lanes, ...],
    ) -> None:  # fmt: skip
        """A store is about to happen."""
        order, at, total = self.order(machine.at), machine.at, type.nbytes * len(values)
        if plan.watched:
            access = self._access(machine, plan, offset, total)
            self._bounds(at, plan, offset, total, access)
            given = _Given(machine.shared.window.data, 0, self.grain, access, plan, values)
            found = self.race.write(access, at, strong=order.strong, values=given)
            self.judge(at, found, access)
            if order.mbarrier:
                self.mbarriers.made(at, access.ids, _places(plan, offset))
                if self.cluster is not None:
                    self.cluster.made(access.ids, _places(plan, offset))
            elif self._near_mbarrier(plan, offset, total):
                self.mbarriers.written(at, access.ids, _places(plan, offset), total)
        elif self._follows(plan):
            access = self._far_access(machine, plan, offset, total)
            buffer = plan.buffer
            assert buffer is not None
            shift = buffer.base % self.global_grain
            given = _Given(buffer.window.data, shift, self.global_grain, access, plan, values)
            found = self.global_races.write(buffer, access, at, strong=order.strong, values=given)
            self.judge_global(at, found, access, buffer)
        if self.local is not None:
            self._local_store(machine, plan, offset, total)
        if order.strong:
            self._release(machine, plan, offset, order)

    def before_atomic(self, machine: MemoryAccess, plan: Plan, offset: int, total: int) -> None:
        """An atomic operation, or one on mbarriers, is about to happen."""
        order, at = self.order(machine.at), machine.at
        if plan.watched:
            access = self._access(machine, plan, offset, total)
            self._bounds(at, plan, offset, total, access)
            if order.mbarrier:
                found, places = self.race.visit(access, at), _places(plan, offset)
                if not (found and self.cluster is not None and self.cluster.public(places)):
                    self.judge(at, found, access)
                self.mbarriers.used(at, access.ids, places, machine.shared.window.data)
                if order.mbarrier == "mbarrier_inval":
                    self.mbarriers.ended(at, places)
            else:
                if self._near_mbarrier(plan, offset, total):
                    self.mbarriers.written(at, access.ids, _places(plan, offset), total)
                self.judge(at, self.race.write(access, at, atomic=True), access)
        elif self._follows(plan):
            access = self._far_access(machine, plan, offset, total)
            assert plan.buffer is not None
            found = self.global_races.write(plan.buffer, access, at, strong=True, atomic=True)
            self.judge_global(at, found, access, plan.buffer)
        if self.local is not None:
            self._local_load(machine, plan, offset, total)
            self._local_store(machine, plan, offset, total)
        if order.strong:
            self._release(machine, plan, offset, order)

    def after_atomic(self, machine: MemoryAccess, plan: Plan, offset: int, old: Lanes) -> None:
        """An atomic operation has happened; `old` are the values before."""
        order = self.order(machine.at)
        if order.mbarrier and plan.watched:
            places = _places(plan, offset)
            words = machine.shared.window.elements(old.dtype, 1, 0)[places // old.itemsize]
            was = old if plan.mask is None else old[plan.mask]
            over = (words ^ was) >> _PHASE_BIT != 0
            if over.any():
                self.objects.phase(places[over])
        if order.strong and (order.acquire or not order.mbarrier):
            self._acquire(machine, plan, offset, order)

    def _local_load(self, machine: MemoryAccess, plan: Plan, offset: int, total: int) -> None:
        assert self.local is not None
        ids, space = machine.active_ids(plan.mask), machine.spaces["local"]
        if plan.window is space.window:
            self.local.load(machine.at, ids, plan, space, offset, total)
        else:
            self.local.loaded_elsewhere(machine.at, ids)

    def _local_store(self, machine: MemoryAccess, plan: Plan, offset: int, total: int) -> None:
        assert self.local is not None
        ids, space = machine.active_ids(plan.mask), machine.spaces["local"]
        if plan.window is space.window:
            self.local.store(machine.at, ids, plan, space, offset, total)
        else:
            self.local.store_elsewhere(machine.at, ids)

    def _near_mbarrier(self, plan: Plan, offset: int, total: int) -> bool:
        return self.mbarriers.near(plan.low + offset, plan.high + offset + total)

    def _follows(self, plan: Plan) -> bool:
        return self.follows_global and plan.buffer is not None and plan.writable

    def _acquire(self, machine: MemoryAccess, plan: Plan, offset: int, order: Order) -> None:
        ids = machine.active_ids(plan.mask)
        if plan.watched:
            self.objects.acquire_shared(ids, _places(plan, offset), order)
        elif plan.buffer is not None:
            self.objects.acquire_global(ids, _places(plan, offset), order)

    def _release(self, machine: MemoryAccess, plan: Plan, offset: int, order: Order) -> None:
        ids = machine.active_ids(plan.mask)
        if plan.watched:
            if order.release or not order.mbarrier:
                phased = bool(order.mbarrier)
                places = _places(plan, offset)
                self.objects.release_shared(ids, places, order, phased=phased)
        elif plan.buffer is not None:
            self.objects.release_global(ids, _places(plan, offset), order)

    def _access(self, machine: MemoryAccess, plan: Plan, offset: int, total: int) -> Access:
        """What the race detector has to know of an access to shared memory."""
        if plan.ids is None:
            plan.ids = machine.active_ids(plan.mask)
            units = plan.index(self.grain)
            plan.units = units if plan.mask is None else units[plan.mask]
        assert plan.units is not None
        low, high = plan.low + offset, plan.high + offset + total
        grain = self.grain
        if self.cluster is not None:
            self.cluster.accessed(machine.at, plan.ids, _places(plan, offset))
        return Access(
            plan.ids, plan.units + low // grain, total // grain, low // grain, high // grain
        )

    def _far_access(self, machine: MemoryAccess, plan: Plan, offset: int, total: int) -> Access:
        if plan.ids is None:
            plan.ids = machine.active_ids(plan.mask)
            units = plan.index(self.global_grain)
            plan.units = units if plan.mask is None else units[plan.mask]
        assert plan.units is not None
        assert plan.buffer is not None
        grain = self.global_grain
        first = (plan.low + offset) // grain - plan.buffer.base // grain
        return Access(plan.ids, plan.units + first, total // grain, 0, 0)

    def _bounds(self, at: int, plan: Plan, offset: int, total: int, access: Access) -> None:
        low, high = plan.low + offset, plan.high + offset + total
        self.bounds.check(at, low, high, access, self.grain)

    # ------------------------------------------------------------------------------------ barriers

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Lanes arrive at barriers of their CTA without waiting."""
        self.clocks.release(ids, barrier)

    def join(self, ids: Lanes, barrier: Lanes) -> None:
        """Barriers let lanes go."""
        warps = self.clocks.warps(ids)
        self.objects.finish(warps)
        self.objects.share(warps)
        self.clocks.join(ids, barrier)

    def fence(self, ids: Lanes, scope: str) -> None:
        """A fence of lanes."""
        if scope.startswith("proxy.async"):
            space = scope.removeprefix("proxy.async").partition("::")[0].strip(".")
            self.clocks.show(ids, (space,) if space else SHOWN)
        elif scope == "mbarrier_init":
            if self.cluster is not None:
                self.cluster.fence(ids)
        elif not scope.startswith("proxy."):
            self.objects.fence(ids, scope)

    def warp_sync(self, at: int, ids: Lanes, members: Lanes, exited: Lanes) -> None:
        """Lanes of warps execute an instruction together, each with those of a membermask;
        `bar.warp.sync` orders the memory accesses of these lanes.
        """
        name = op_of(self.instrs[at]).row.name
        if name == "bar_warp_sync":
            self.objects.finish(self.clocks.warps(ids))
            self.clocks.sync_members(ids, members, exited)
        elif name.startswith(("wgmma_", "setmaxnreg")):
            self.sync.warpgroup(name, ids)
            if self.wgmma is not None:
                self.wgmma.warpgroup(at, name, self.clocks.warps(ids))

    def follow(self, linked: Linked) -> None:
        """Follow a program's local memory and its volatile accesses. What the driver reserves of
        shared memory is initialised.
        """
        self.race.initialise(-(-linked.reserved_bytes // self.grain))
        volatile = np.zeros(len(self.instrs) + 1, np.bool_)
        volatile[list(unpolled(linked))] = True
        self.race.volatile = self.global_races.volatile = volatile
        counted = ["mbarrier::complete_tx" in x.opcode for x in self.instrs]
        self.race.counted = np.array([*counted, False])
        if "init" in self._names and linked.local_bytes:
            self.local = LocalInit(linked, self._batch.lanes, self.faults)

    def follow_registers(self, registers: WgmmaRegisters | None) -> None:
        """Follow what `wgmma` does to registers."""
        if "sync" in self._names and registers is not None:
            self.wgmma = WgmmaChecks(registers, self._batch.lanes // WARP, self.faults)

    def check_text(self, linked: Linked) -> None:
        """Report the instructions that break a rule whichever way threads go."""
        if "sync" in self._names:
            for at, why in broken_rules(linked):
                self.faults.sync(at, 0, "sync", why)

    def cluster_arrive(self, at: int, ids: Lanes) -> None:
        """Lanes arrive at the barrier of their cluster."""
        if op_of(self.instrs[at]).modifiers.get("sem") != "relaxed":
            self.clocks.arrive_cluster(ids)
        if self.cluster is not None:
            self.cluster.arrive(at, ids)

    def cluster_wait(self, at: int, ids: Lanes) -> None:
        """Lanes come to wait for the barrier of their cluster."""
        if self.cluster is not None:
            self.cluster.wait(at, ids)

    def cluster_leave(self, ids: Lanes) -> None:
        """The barrier of the cluster lets lanes go."""
        self.objects.finish(self.clocks.warps(ids))
        self.clocks.leave_cluster(ids)
        if self.cluster is not None:
            self.cluster.leave(ids)

    def ended(self, mask: Lanes, exited: Lanes) -> None:
        """The lanes of a mask have ended; `exited` has all that have."""
        if self.cluster is not None:
            self.cluster.ended(mask, exited)

    def waited(self, at: int, ids: Lanes, places: Lanes) -> None:
        """Lanes have waited for mbarriers at these places."""
        order = self.order(at)
        if order.acquire:
            self.objects.acquire_shared(ids, places, order)

    def arrived(self, ids: Lanes, place: int) -> None:
        """Threads arrive at an mbarrier because the copies by `cp.async` that they started are
        done.
        """
        order = Order(True, release=True, mbarrier="cp_async_mbarrier_arrive")
        self.objects.release_shared(ids, np.full(len(ids), place), order, phased=True)

    # ------------------------------------------------------------------------- asynchronous copies

    def copy_async(self, machine: MemoryAccess, plan: Plan, offset: int, nbytes: int) -> None:
        """`cp.async` starts; its destination is pending until its thread has waited."""
        access = self._access(machine, plan, offset, nbytes)
        self._bounds(machine.at, plan, offset, nbytes, access)
        self.judge(machine.at, self.race.write(access, machine.at, pending=True), access)
        if self._near_mbarrier(plan, offset, nbytes):
            self.mbarriers.written(machine.at, access.ids, _places(plan, offset), nbytes)

    def end_copy(self, at: int, ids: Lanes, word: Lanes, words: int) -> None:
        """Threads have waited for what `cp.async` brought to each `word` on."""
        per_word = 4 // self.grain
        self.race.end_copy(Access(ids, word * per_word, words * per_word, 0, 0), at)

    def matrices(self, at: int, ids: Lanes, words: Lanes, nbytes: int) -> None:
        """Warps, by a lane each, start to multiply what lies at these positions, `[warps, n]`."""
        if not op_of(self.instrs[at]).row.name.startswith("wgmma_"):
            return
        stamps = self.sync.started(ids)
        evens, odds = words[:, ::2], words[:, 1::2]
        if (
            evens.shape == odds.shape
            and ((evens % (2 * nbytes) == 0) & (odds == evens + nbytes)).all()
        ):
            words, nbytes = evens, 2 * nbytes  # they lie by two, which saves half of the work
        width = nbytes // self.grain
        lanes = np.repeat(ids, words.shape[1])
        first = words.reshape(-1) // self.grain
        inside = first % (self._batch.shared_stride // self.grain)
        low, high = int(inside.min()), int(inside.max()) + width
        access = Access(lanes, first, width, low, high)
        found = self.race.start_read(access, at, stamps, by_warp=True)
        self.judge(at, found, access)


def notes_of(linked: Linked) -> tuple[str, ...]:
    """For each instruction of a program, the text of the last note before it in its routine."""
    notes: list[str] = []
    for routine in linked.routines:
        note = ""
        for statement in routine.source.body or ():
            if isinstance(statement, Note):
                note = statement.text
            elif isinstance(statement, Instr):
                notes.append(note)
    return tuple(notes)


class _Given:
    """What is stored and what is there, in units; called only where a race is suspected."""

    def __init__(
        self, data: Lanes, shift: int, grain: int, access: Access, plan: Plan,
        values: tuple[Lanes, ...],
    ) -> None:  # fmt: skip
        self._parts = data, shift, grain, access, plan, values

    def __call__(self) -> tuple[Lanes, Lanes]:
        data, shift, grain, access, plan, values = self._parts
        lanes = len(access.ids)
        columns = []
        for value in values:
            value = np.asarray(value)
            if value.ndim and plan.mask is not None:
                value = value[plan.mask]
            columns.append(np.broadcast_to(value, lanes))
        given = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
        given = given.reshape(lanes, access.width, grain)
        byte = access.units()[:, :, None] * grain - shift + np.arange(grain)
        there = data[byte]
        dtype = f"u{grain}"
        return (
            np.ascontiguousarray(given).view(dtype)[..., 0],
            np.ascontiguousarray(there).view(dtype)[..., 0],
        )


def _places(plan: Plan, offset: int) -> Lanes:
    """For each active lane, its address, in shared memory the position in the batch's."""
    flat: Lanes = plan.relative + (plan.low + offset)
    return flat if plan.mask is None else flat[plan.mask]


def _is_asynchronous(opcode: str) -> bool:
    heads = "cp.async.bulk", "cp.reduce.async", "cp.async.mbarrier", "wgmma.mma"
    return opcode.startswith((*heads, "st.async", "red.async"))
