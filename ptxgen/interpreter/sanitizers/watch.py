"""The run-time sanitizers of a batch; memory, barriers and asynchronous copies report their events
to them.

`bounds` finds accesses outside the shared variable that their address is computed from; `race` finds
accesses of two threads that nothing orders, in shared and global memory; `sync` finds barriers,
asynchronous operations and `setmaxnreg` used against their rules; `proxy` finds ordinary writes that
asynchronous operations may not see yet; `determinism` finds sums whose order nothing fixes. An access
outside all memory, or one that is not aligned, stops a kernel in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.observer import Observer, TensorObserver
from ptxgen.interpreter.sanitizers.accesses import Accesses, positions_of
from ptxgen.interpreter.sanitizers.async_rules import broken_rules
from ptxgen.interpreter.sanitizers.clocks import SHOWN
from ptxgen.interpreter.sanitizers.conflicts import Access
from ptxgen.interpreter.sanitizers.exchanges import Exchanges, mixing
from ptxgen.interpreter.sanitizers.grid_order import GridOrder
from ptxgen.interpreter.sanitizers.names import DETERMINISM
from ptxgen.interpreter.sanitizers.orders import (
    ALL,
    CLUSTER,
    Order,
    optimistic,
    order_of,
    scope_of,
    scopes_of,
)
from ptxgen.interpreter.sanitizers.polls import tickets, unpolled
from ptxgen.interpreter.sanitizers.shared_blocks import Product
from ptxgen.interpreter.sanitizers.shown_mbarriers import ShownMbarriers
from ptxgen.interpreter.sanitizers.stored_values import StoredValues
from ptxgen.interpreter.sanitizers.sum_order import SumOrder
from ptxgen.interpreter.sanitizers.unused_loads import unused_loads
from ptxgen.interpreter.sanitizers.watch_bulk import BulkWatch
from ptxgen.interpreter.sanitizers.watch_cluster import ClusterWatch
from ptxgen.interpreter.sanitizers.watch_tensor import TensorWatch
from ptxgen.interpreter.sanitizers.wgmma import WgmmaChecks
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.machine.memory import Plan
    from ptxgen.interpreter.machine.observer import Accessing, Copied
    from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters
    from ptxgen.interpreter.program.linking import Linked
    from ptxgen.interpreter.sanitizers.bounds import AllowedAllocations
    from ptxgen.interpreter.sanitizers.findings import Findings
    from ptxgen.interpreter.sanitizers.grid_order import Span
    from ptxgen.ir import Instr
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

_PHASE_BIT: Final = np.uint64(63)


class _NoTensors(TensorObserver):
    """Watches a program without tensor memory."""


class Watch(Accesses, Observer):
    """All sanitizers that watch memory, for one batch. `grain` and `global_grain` are the bytes of
    their units in shared and global memory; `allocations` has the allocations that shared addresses may
    lie in, if bounds are checked; `in_flight` are the arrays that the previous grid may still write.
    """

    exchanges: Exchanges

    def __init__(
        self,
        names: frozenset[str],
        batch: Batch,
        instrs: tuple[Instr, ...],
        faults: Findings,
        grain: int,
        global_grain: int,
        allocations: AllowedAllocations | None,
        in_flight: Sequence[Span] = (),
    ) -> None:
        super().__init__(names, batch, instrs, faults, grain, global_grain, allocations)
        self._orders: list[Order | None] = [None] * len(instrs)
        self._rows: dict[int, str] = {}  # by number of an instruction: the name of its row
        self._optimistic = optimistic(instrs)
        self._tickets: frozenset[int] = frozenset()
        self._copies = {
            n for n, x in enumerate(instrs) if x.opcode.startswith(("cp.async.ca.", "cp.async.cg."))
        }
        self._mixing = mixing(instrs)
        self._copied: list[tuple[Buffer, Access]] = []  # what a `cp.async` reads that is about to start
        self.wgmma: WgmmaChecks | None = None
        self.shown = ShownMbarriers(self.clocks, self.race, batch)
        if batch.cluster_size > 1 or any(x.opcode.startswith("barrier.cluster") for x in instrs):
            self.cluster = ClusterWatch(self, self.shown, batch, faults, wanted="sync" in names)
        self.bulk = BulkWatch(self, self.cluster, self.shown, batch)
        self.tensor: TensorObserver = TensorWatch(self, batch) if self.has_tensors else _NoTensors()
        if in_flight and "race" in names:
            self.grids = GridOrder(self.clocks, batch.lanes, in_flight, faults)

    def order(self, at: int) -> Order:
        """The effect of instruction `at` on the order of accesses."""
        order = self._orders[at]
        if order is None:
            guesses = at in self._optimistic
            order = Order(True) if guesses else order_of(self.instrs[at])
            self._orders[at] = order
        return order

    # -------------------------------------------------------------------------------------- memory

    def load(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """A load is about to happen."""
        self._early(machine, plan, offset, total)
        order = self.order(machine.at)
        if plan.watched:
            access = self._access(machine, plan, offset, total)
            self._bounds(machine.at, plan, offset, total, access)
            used = self._used(machine.at, access)
            if len(used.ids):
                self.judge(machine.at, self.race.read(used, machine.at, strong=order.strong), used)
            if self._near_mbarrier(plan, offset, total):
                self.mbarriers.read(machine.at, access.ids, positions_of(plan, offset), total)
        elif self._follows(plan):
            used = self._used(machine.at, self._far_access(machine, plan, offset, total))
            if len(used.ids):
                self._far_load(machine.at, plan.buffer, used, strong=order.strong)
        if order.strong:
            self._acquire(machine, plan, offset, order)

    def _far_load(self, at: int, buffer: Buffer | None, access: Access, *, strong: bool) -> None:
        assert buffer is not None
        copied = at in self._copies
        if copied:
            self._copied.append((buffer, access))
        conflicts = self.global_races.read(buffer, access, at, strong=strong, copied=copied)
        self.judge_global(at, conflicts, access, buffer)

    def store(
        self, machine: Accessing, plan: Plan, offset: int, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """A store is about to happen."""
        order, at, total = self.order(machine.at), machine.at, type.nbytes * len(values)
        self._early(machine, plan, offset, total)
        if plan.watched:
            access = self._access(machine, plan, offset, total)
            self._bounds(at, plan, offset, total, access)
            stored = StoredValues(machine.shared.window.data, 0, self.grain, access, plan, values)
            conflicts = self.race.write(access, at, strong=order.strong, values=stored)
            self.judge(at, conflicts, access)
            if order.mbarrier:
                positions = positions_of(plan, offset)
                self.mbarriers.initialised(at, access.ids, positions)
                self.shown.initialised(access.ids, positions)
                if self.cluster is not None:
                    self.cluster.initialised(positions)
            elif self._near_mbarrier(plan, offset, total):
                self.mbarriers.written(at, access.ids, positions_of(plan, offset), total)
        elif self._follows(plan):
            access = self._far_access(machine, plan, offset, total)
            buffer = plan.buffer
            assert buffer is not None
            shift = buffer.base % self.global_grain
            stored = StoredValues(buffer.window.data, shift, self.global_grain, access, plan, values)
            conflicts = self.global_races.write(buffer, access, at, strong=order.strong, values=stored)
            self.judge_global(at, conflicts, access, buffer)
        if order.strong:
            self._release(machine, plan, offset, order)

    def before_atomic(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """An atomic operation, or an operation on an mbarrier, is about to happen."""
        self._early(machine, plan, offset, total)
        order, at = self.order(machine.at), machine.at
        if plan.watched:
            access = self._access(machine, plan, offset, total)
            self._bounds(at, plan, offset, total, access)
            if order.mbarrier:
                conflicts, positions = self.race.visit(access, at), positions_of(plan, offset)
                if not (conflicts and self.cluster is not None and self.cluster.public(positions)):
                    self.judge(at, conflicts, access)
                self.mbarriers.used(at, access.ids, positions, machine.shared.window.data)
                if order.mbarrier == "mbarrier_inval":
                    self.mbarriers.ended(at, positions)
            else:
                if self._near_mbarrier(plan, offset, total):
                    self.mbarriers.written(at, access.ids, positions_of(plan, offset), total)
                self.judge(at, self.race.write(access, at, atomic=True), access)
        elif self._follows(plan):
            access = self._far_access(machine, plan, offset, total)
            assert plan.buffer is not None
            conflicts = self.global_races.write(plan.buffer, access, at, strong=True, atomic=True)
            self.judge_global(at, conflicts, access, plan.buffer)
        if order.strong:
            self._release(machine, plan, offset, order)

    def after_atomic(self, machine: Accessing, plan: Plan, offset: int, old: Lanes) -> None:
        """An atomic operation has happened; `old` are the values before it."""
        order = self.order(machine.at)
        if order.mbarrier and plan.watched:
            positions = positions_of(plan, offset)
            words = machine.shared.window.elements(old.dtype, 1, 0)[positions // old.itemsize]
            was = old if plan.mask is None else old[plan.mask]
            over = (words ^ was) >> _PHASE_BIT != 0
            if over.any():
                self.objects.phase(positions[over])
                if order.mbarrier.startswith("mbarrier_arrive"):
                    ids = machine.active_ids(plan.mask)
                    self.mbarriers.arrived(machine.at, ids, positions, was, words)
        if order.strong and (order.acquire or not order.mbarrier):
            self._acquire(machine, plan, offset, order)

    def _early(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """Check an access against the previous grid, which may still run."""
        if self.grids is not None and plan.buffer is not None:
            ids = machine.active_ids(plan.mask)
            self.grids.access(machine.at, ids, plan.buffer, positions_of(plan, offset), total)

    def _acquire(self, machine: Accessing, plan: Plan, offset: int, order: Order) -> None:
        ids, ticket = machine.active_ids(plan.mask), machine.at in self._tickets
        if plan.watched:
            self.objects.acquire_shared(ids, positions_of(plan, offset), order, ticket=ticket)
        elif plan.buffer is not None:
            self.objects.acquire_global(ids, positions_of(plan, offset), order, ticket=ticket)

    def _release(self, machine: Accessing, plan: Plan, offset: int, order: Order) -> None:
        ids = machine.active_ids(plan.mask)
        if plan.watched:
            if order.release or not order.mbarrier:
                phased = bool(order.mbarrier)
                positions = positions_of(plan, offset)
                self.objects.release_shared(ids, positions, order, phased=phased)
        elif plan.buffer is not None:
            self.objects.release_global(ids, positions_of(plan, offset), order)

    # ------------------------------------------------------------------------------------ barriers

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Lanes arrive at barriers of their CTA without waiting."""
        self.objects.arrive(*self.clocks.each(ids, barrier))
        self.clocks.release(ids, barrier)

    def join(self, ids: Lanes, barrier: Lanes, since: Lanes, exited: Lanes) -> None:
        """Barriers release lanes, which arrived at the instructions `since`; `exited` says which
        lanes of the batch have ended, bool.
        """
        self.sync.barrier(ids, since, exited)
        self.objects.join(*self.clocks.each(ids, barrier))
        self.clocks.join(ids, barrier)

    def too_many(self, at: int, lane: int, barrier: int, came: int, wanted: int) -> None:
        """More threads have arrived at a barrier than its count."""
        self.sync.too_many(at, lane, barrier, came, wanted)

    def twice(self, at: int, lane: int, barrier: int) -> None:
        """A lane arrives again at a barrier that is not complete yet."""
        self.sync.twice(at, lane, barrier)

    def fence(self, ids: Lanes, scope: str) -> None:
        """Lanes execute a fence."""
        if scope.startswith("proxy.async"):
            space = scope.removeprefix("proxy.async").partition("::")[0].strip(".")
            self.clocks.show(ids, (space,) if space else SHOWN)
        elif scope == "mbarrier_init":
            self.shown.fence(ids)
        elif scope == "grids":
            self.objects.fence(ids, ALL)
            if self.grids is not None:
                self.grids.wait(ids)
        elif scope.startswith("tensor_"):
            self.tensor.fence(ids, scope.removeprefix("tensor_"))
        elif not scope.startswith("proxy."):
            self.objects.fence(ids, scope_of(scope))

    def warp_sync(self, at: int, ids: Lanes, members: Lanes, exited: Lanes) -> None:
        """Lanes execute an instruction together, each with the lanes of its membermask;
        `bar.warp.sync` orders the memory accesses of these lanes.
        """
        name = self._row(at)
        if name == "bar_warp_sync":
            self.clocks.sync_members(ids, members, exited)
        elif at in self._mixing:
            self.exchanges.mix(ids, members)
        elif name.startswith(("wgmma_", "setmaxnreg")):
            self.sync.warpgroup(name, ids)
            if self.wgmma is not None:
                self.wgmma.warpgroup(at, name, self.clocks.warps(ids))

    def exchange(self, ids: Lanes, sources: Lanes) -> None:
        """Each of these lanes receives a register of the lane of its warp with that index."""
        self.exchanges.pass_on(ids, sources)

    def retired(self, warp: int, count: int, members: range) -> None:
        """A warp has waited for the first `count` groups of its warpgroup; `members` are the
        warpgroup's warps.
        """
        self.sync.retired(warp, count, members)

    def touch(self, numbers: tuple[int, ...], ids: Lanes) -> None:
        """Lanes are about to execute ordinary instructions that name registers of `wgmma`."""
        if self.wgmma is not None:
            self.wgmma.touch(numbers, ids)

    def registers(self, at: int, lane: int, why: str) -> None:
        """A warp, given by one lane, breaks a rule of `setmaxnreg`."""
        self.sync.registers(at, lane, why)

    def follow(self, linked: Linked) -> None:
        """Take from a program's text what the race detectors need: volatile accesses, exchanges between
        lanes, unused loads, scopes and tickets.
        """
        volatile = np.zeros(len(self.instrs) + 1, np.bool_)
        volatile[list(linked.analysis(unpolled))] = True
        self.exchanges = Exchanges(self.clocks, linked)
        self.unused = linked.analysis(unused_loads, self._batch.block)
        scopes = scopes_of(self.instrs)
        sums = SumOrder(self.instrs) if self.wants(DETERMINISM) else None
        self.race.follow(volatile, scopes, self.exchanges, sums)
        self.global_races.follow(volatile, scopes, self.exchanges, sums)
        self._tickets = linked.analysis(tickets)

    def follow_registers(self, registers: WgmmaRegisters | None) -> None:
        """Check the registers of `wgmma` from now on, if `sync` is asked for and the program has any."""
        if "sync" in self._names and registers is not None:
            self.wgmma = WgmmaChecks(registers, self._batch.lanes // WARP, self.faults)

    def check_text(self, linked: Linked) -> None:
        """Report the instructions that break a rule on some path, which the text shows."""
        if "sync" in self._names:
            for at, why in linked.analysis(broken_rules):
                self.faults.sync(at, 0, "sync", why)

    def cluster_arrive(self, at: int, ids: Lanes) -> None:
        """Lanes arrive at the barrier of their cluster."""
        if self.cluster is not None:
            self.cluster.arrive(at, ids)
        release = op_of(self.instrs[at]).modifiers.get("sem") != "relaxed"
        rounds = self.clocks.arrive_cluster(ids, release=release)
        if self.cluster is not None:
            self.cluster.arrived(ids, rounds)

    def cluster_wait(self, at: int, ids: Lanes) -> None:
        """Lanes come to wait for the barrier of their cluster."""
        if self.cluster is not None:
            self.cluster.wait(at, ids)

    def cluster_leave(self, ids: Lanes) -> None:
        """The barrier of the cluster releases lanes."""
        self.objects.share(self.clocks.warps(ids), self.clocks.group)
        rounds = self.clocks.leave_cluster(ids)
        if self.cluster is not None:
            self.cluster.leave(ids, rounds)

    def ended(self, mask: Lanes, exited: Lanes) -> None:
        """The lanes of a mask have ended; `exited` has all lanes that have ended."""
        if self.cluster is not None:
            self.cluster.ended(mask, exited)

    def all_ended(self) -> None:
        """All threads have ended."""
        self.sync.over = True
        self.tensor.ended()

    def waited(self, at: int, ids: Lanes, positions: Lanes) -> None:
        """Lanes have waited for mbarriers at these positions."""
        order = self.order(at)
        if order.acquire:
            self.objects.acquire_shared(ids, positions, order)

    def arrived(self, ids: Lanes, position: int) -> None:
        """Threads arrive at an mbarrier because the copies by `cp.async` that they started are complete."""
        order = Order(True, release=True, scope=CLUSTER, mbarrier="cp_async_mbarrier_arrive")
        self.objects.release_shared(ids, np.full(len(ids), position), order, phased=True)

    def changes(self, at: int, lane: int, position: int, data: Lanes) -> None:
        """An operation that a lane started is about to change the mbarrier at a position; `data` is
        the shared memory.
        """
        self.mbarriers.used(at, np.array([lane]), np.array([position]), data)

    def phase(self, position: int) -> None:
        """The mbarrier at a position has begun its next phase."""
        self.objects.phase(np.array([position]))

    # ------------------------------------------------------------------------- asynchronous copies

    def copy_async(self, machine: Accessing, plan: Plan, offset: int, nbytes: int) -> Copied | None:
        """A `cp.async` starts; its destination is pending until its thread has waited, and its source is
        read until then.
        """
        sources, self._copied = self._copied, []
        access = self._access(machine, plan, offset, nbytes)
        self._bounds(machine.at, plan, offset, nbytes, access)
        self.judge(machine.at, self.race.write(access, machine.at, pending=True), access)
        if self._near_mbarrier(plan, offset, nbytes):
            self.mbarriers.written(machine.at, access.ids, positions_of(plan, offset), nbytes)
        copied = [self.global_races.start_copy(*source, machine.at) for source in sources]
        if not copied:
            return None

        def waited(ids: Lanes) -> None:
            for finish in copied:
                finish(ids)

        return waited

    def end_copy(self, at: int, ids: Lanes, word: Lanes, words: int) -> None:
        """Threads have waited for a `cp.async` of `words` words to the words from `word` on."""
        per_word = 4 // self.grain
        self.race.end_copy(Access(ids, word * per_word, words * per_word, 0, 0), at)

    def matrices(self, at: int, ids: Lanes, words: Lanes, rows: Lanes, bases: Lanes, nbytes: int) -> None:
        """Warps start to multiply matrices; the arguments are those of `Observer.matrices`."""
        if not self._row(at).startswith("wgmma_"):
            return
        stamps = self.sync.started(ids)
        if len(each := np.unique(rows)) < len(words):  # else some are of inactive warps
            words, rows = words[each], np.searchsorted(each, rows)
        evens, odds = words[:, ::2], words[:, 1::2]
        if evens.shape == odds.shape and ((evens % (2 * nbytes) == 0) & (odds == evens + nbytes)).all():
            words, nbytes = evens, 2 * nbytes  # the words are in pairs; this saves half of the work
        grain = self.grain
        product = Product(at, ids, words // grain, rows, bases // grain, nbytes // grain)
        if conflicts := self.race.start_product(product, stamps):
            self.judge(at, conflicts, product.access())

    def _row(self, at: int) -> str:
        """The name of an instruction's row."""
        name = self._rows.get(at)
        if name is None:
            name = self._rows[at] = op_of(self.instrs[at]).row.name
        return name
