"""A happens-before race detector for shared memory, by the clocks of
`ptxgen.interpreter.sanitizers.clocks`.

For each unit of memory, the shadow has the stamp of the last write, and of the last read of each
warp and of its twin. The destination of a copy under way is pending, also for the copy's own
thread, until the copy has been waited for; a copy that completes on an mbarrier is over for the
threads that come after a wait for this mbarrier. Volatile accesses are strong, except for those
that are not to flags (`ptxgen.interpreter.sanitizers.polls`): their loads are logged, and may not
race with volatile stores. Stores of the value that is already there, and of one value by several
threads, are no race.

Nearly always, all earlier accesses to a unit are older than the last barrier of its CTA. The
clocks' floor is the newest stamp that all warps know of all others, so one comparison shows this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.clocks import SHOWN
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict, Values, differing
from ptxgen.interpreter.sanitizers.operations import UnderWay
from ptxgen.interpreter.sanitizers.shared_blocks import Blocks
from ptxgen.interpreter.sanitizers.shared_reads import SharedReads
from ptxgen.interpreter.sanitizers.stamps import (
    ASYNC,
    ATOMIC,
    CLOCK,
    CLOCK_MASK,
    INSTR,
    INSTR_MASK,
    LANE_MASK,
    PENDING,
    first_conflict,
    first_race,
    out_of_scope,
    stamps_now,
    twin_stamps,
)
from ptxgen.interpreter.sanitizers.sum_order import unordered

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.exchanges import Exchanges
    from ptxgen.interpreter.sanitizers.operations import Operations
    from ptxgen.interpreter.sanitizers.shared_blocks import Product
    from ptxgen.interpreter.sanitizers.sum_order import SumOrder

    Lanes = np.ndarray[Any, np.dtype[Any]]


class RaceDetector:
    """The shadow of the shared memory of all CTAs of a batch; `units` is the number of units of a
    CTA, and units are counted through the whole batch. The methods for accesses return their
    conflicts.
    """

    def __init__(
        self, clocks: Clocks, operations: Operations, ctas: int, units: int, *, products: bool = False
    ) -> None:
        self._clocks = clocks
        self._operations = operations
        self._ctas = ctas
        self._units = ctas * units
        self._written = np.zeros(ctas * units, np.int64)
        # Copies of whole tiles are worth blocks where warps multiply them.
        self._blocks = Blocks(clocks, operations, self._written, units) if products else None
        self._reads = SharedReads(clocks, ctas, units, self._blocks)
        self._sources = UnderWay(operations, ctas * units, "was read by")
        self._updates = UnderWay(operations, ctas * units, "may still be updated by")
        # By instruction: whether it is a volatile access to an address that is not a flag.
        self._volatile: Lanes = np.zeros(1, np.bool_)
        self._scopes: Lanes | None = None  # by instruction, of strong accesses; None: all include all threads
        self._sums: SumOrder | None = None  # if their order is judged

    def read(self, access: Access, at: int, *, strong: bool = False) -> list[Conflict]:
        """The conflicts of a load by instruction `at`. A strong load may race with strong writes; a
        volatile load that does not poll may not race with volatile stores.
        """
        volatile = self._is_volatile(at)
        stamps = self._stamps(access)
        conflicts: list[Conflict] = []
        if not self._all_old(access, stamps):
            conflicts += self._pending(access, stamps) or self._unordered_writes(
                access, stamps, at, atomic=strong, volatile=volatile
            )
        conflicts = conflicts or self._updates.conflicts(access)
        if not strong or volatile:
            self._reads.log(access, at)
        return conflicts

    def visit(self, access: Access, at: int) -> list[Conflict]:
        """The conflicts of an operation on an mbarrier, which must come after its initialisation,
        and before other uses of its memory.
        """
        stamps = self._stamps(access)
        self._reads.log(access, at)
        if self._all_old(access, stamps):
            return []
        return self._unordered_writes(access, stamps, at, atomic=True)

    def write(
        self,
        access: Access,
        at: int,
        *,
        atomic: bool = False,
        pending: bool = False,
        strong: bool = False,
        values: Values | None = None,
    ) -> list[Conflict]:
        """The conflicts of a store, an atomic update or, if `pending`, the start of a copy, by
        instruction `at`. `values` gives the stored values and the old ones, `[lanes, width]`.
        """
        stamps = self._stamps(access)
        conflicts: list[Conflict] = []
        strong = atomic or strong
        if not self._all_old(access, stamps):
            conflicts += self._pending(access, stamps) or self._unordered_writes(
                access, stamps, at, atomic=strong, values=values
            )
        conflicts += self._unordered_reads(access, at, volatile=not strong or self._is_volatile(at))
        if not atomic:
            conflicts = conflicts or self._updates.conflicts(access)
            self._updates.written(access)
        elif self._sums is not None and (earlier := self._sums.earlier(at, stamps)) is not None:
            conflicts += unordered(self._unordered_writes(access, earlier, at, atomic=False))
        mine = stamps_now(self._clocks, access.ids, at)
        mine |= (ATOMIC if strong else 0) | (PENDING if pending else 0)
        self._put(access, mine)
        last = self._stamps(access)
        twice = last != mine[:, None]
        if not strong and twice.any():
            twice = differing(access, twice, values)
            conflicts += first_conflict("race", twice, access, last, "is written at the same time by")
        elif twice.any() and self._sums is not None and self._sums.adds(at):
            conflicts += unordered(first_conflict("race", twice, access, last, ""))
        return conflicts

    def end_copy(self, access: Access, at: int) -> None:
        """Record that a thread has waited for its copy, which instruction `at` started; the write
        counts as made now.
        """
        self._put(access, stamps_now(self._clocks, access.ids, at))

    # ---------------------------------------------------------------------- asynchronous operations

    def start_copy(self, access: Access, at: int, number: int, *, proxy: bool = True) -> list[Conflict]:
        """The conflicts of a write by the asynchronous operation `number`, through the asynchronous `proxy`
        or not. It is pending until `land`.
        """
        conflicts, stamps = [], None
        if self._blocks is None or not self._blocks.copy_is_after_writes(access):
            stamps = self._stamps(access)
            conflicts = self._pending(access, stamps) or self._unordered_writes(
                access, stamps, at, atomic=False
            )
        conflicts = conflicts or self._unordered_reads(access, at) or self._updates.conflicts(access)
        if proxy and stamps is not None:
            conflicts = conflicts or self._hidden(access, stamps)
        self._updates.written(access)
        self._put(access, PENDING | twin_stamps(access.ids, at, number), by_copy=True)
        return conflicts

    def land(self, access: Access, number: int) -> None:
        """Record that the write that `start_copy` began for the operation `number` is complete."""
        if self._blocks is not None and self._blocks.land(access, number):
            return
        for n in range(access.width):
            self._written[access.first + n] &= ~PENDING
        if self._blocks is not None:
            self._blocks.put(access)

    def start_read(self, access: Access, at: int, number: int) -> list[Conflict]:
        """The conflicts of a read by the asynchronous operation `number`."""
        conflicts = self._visit(access, at)
        self._sources.start(access, number, at)
        return conflicts or self._updates.conflicts(access)

    def start_update(self, access: Access, at: int, number: int, *, proxy: bool) -> list[Conflict]:
        """The conflicts of a reduction by the asynchronous operation `number`, through the asynchronous
        `proxy` or not. Others may update the same units at any time.
        """
        conflicts = self._visit(access, at, proxy=proxy) or self._unordered_reads(access, at, clear=False)
        self._updates.start(access, number, at)
        return conflicts

    def _visit(self, access: Access, at: int, *, proxy: bool = True) -> list[Conflict]:
        """The conflicts of an asynchronous operation with the last writes."""
        stamps = self._stamps(access)
        conflicts = self._pending(access, stamps) or self._unordered_writes(access, stamps, at, atomic=False)
        return conflicts or (self._hidden(access, stamps) if proxy else [])

    def start_product(self, product: Product, stamp: Lanes) -> list[Conflict]:
        """The conflicts of reads by multiplications; `stamp` has the stamp of its twin for each warp."""
        conflicts: list[Conflict] = []
        assert self._blocks is not None
        settled = self._blocks.product_is_after_writes(product)
        if not settled or self._updates.some:
            access, lanes = product.access(), product.lanes
            stamps = self._stamps(access)
            if not settled and not self._settled(access, stamps, lanes):
                conflicts += (
                    self._pending(access, stamps)
                    or self._unordered_writes(access, stamps, product.at, atomic=False, by_warp=True)
                    or self._hidden(access, stamps)
                )
            conflicts = conflicts or self._updates.conflicts(access)
        self._reads.start_product(product, stamp)
        return conflicts

    def _settled(self, access: Access, stamps: Lanes, lanes: Lanes) -> bool:
        """Whether one comparison shows that reads by multiplications of these lanes' warps have no
        conflict: all units were written by ordinary instructions, older than the writes that all
        warps know and that fences have made visible; or those of each lane by one copy that the
        lane comes after.
        """
        clocks, oldest, newest = self._clocks, int(stamps.min()), int(stamps.max())
        if newest < ASYNC:
            first = SHOWN["shared"] * clocks.group
            shown = clocks.known[lanes // WARP, first : first + clocks.group]
            return self._all_old(access, stamps) and newest >> CLOCK <= int(shown.min())
        if oldest < ASYNC or newest >= PENDING:
            return False
        of_lane = stamps.reshape(len(lanes), -1)
        one = of_lane[:, 0]
        if not (of_lane == one[:, None]).all():
            return False
        return bool(self._operations.after(lanes, one >> CLOCK & CLOCK_MASK).all())

    def hidden(self, access: Access) -> list[Conflict]:
        """The conflicts with ordinary writes that no fence has made visible to an asynchronous operation."""
        return self._hidden(access, self._stamps(access))

    def _hidden(self, access: Access, stamps: Lanes) -> list[Conflict]:
        """The conflicts with ordinary writes that no fence has made visible to asynchronous operations."""
        if int(stamps.min()) >= ASYNC:
            return []
        clocks = self._clocks
        column = SHOWN["shared"] * clocks.group + clocks.column(stamps & LANE_MASK, False)
        shown = clocks.known[(access.ids // WARP)[:, None], column]
        clock = (stamps >> CLOCK) & CLOCK_MASK
        wrong = (clock > shown) & (stamps < ASYNC) & (stamps > 0)
        if wrong.any():
            wrong &= ~clocks.shown_alone(access.ids[:, None], stamps & LANE_MASK, clock)
        return first_conflict("proxy", wrong, access, stamps, "was written by")

    # --------------------------------------------------------------------------------------- clocks

    # --------------------------------------------------------------------------------------- writes

    def _stamps(self, access: Access) -> Lanes:
        """The stamps of the last writes, `[lanes, width]`. Accesses are aligned, so the units of
        each are a whole row.
        """
        if access.span is not None:
            return self._written[access.span].reshape(-1, access.width).copy()
        rows = self._written.reshape(-1, access.width)
        return rows.take(access.first // access.width, axis=0)

    def _put(self, access: Access, stamp: Lanes, *, by_copy: bool = False) -> None:
        if access.span is not None:
            self._written[access.span] = stamp[0]  # that of the one lane
        else:
            for n in range(access.width):
                self._written[access.first + n] = stamp
        if self._blocks is not None:
            (self._blocks.put if by_copy else self._blocks.mix)(access)

    def _all_old(self, access: Access, stamps: Lanes) -> bool:
        return int(stamps.max()) < (self._reads.oldest(access.ids) + 1) << CLOCK

    def _pending(self, access: Access, stamps: Lanes) -> list[Conflict]:
        return first_conflict(
            "pending", stamps >= PENDING, access, stamps, "may still be written by the copy"
        )

    def _unordered_writes(
        self,
        access: Access,
        stamps: Lanes,
        at: int,
        *,
        atomic: bool,
        by_warp: bool = False,
        values: Values | None = None,
        volatile: bool = False,
    ) -> list[Conflict]:
        clocks = self._clocks
        writer = stamps & LANE_MASK
        twin = (stamps & ASYNC) != 0
        warp = (access.ids // WARP)[:, None]
        known = clocks.known[warp, clocks.column(writer, False)]
        same = writer // WARP == warp if by_warp else writer == access.ids[:, None]
        clock = (stamps >> CLOCK) & CLOCK_MASK
        wrong = (clock > known) & ~twin & ~same
        if twin.any():
            wrong[twin] = ~self._operations.after(
                np.broadcast_to(access.ids[:, None], twin.shape)[twin], clock[twin]
            )
        if wrong.any():
            wrong &= twin | ~clocks.met(access.ids[:, None], writer, clock)
        if wrong.any():
            wrong &= twin | ~clocks.released_in_part(
                access.ids[:, None], writer // WARP, writer % WARP, clock
            )
        if atomic:
            fine = (stamps & ATOMIC) != 0
            if self._scopes is not None:
                fine &= ~out_of_scope(clocks, self._scopes, at, access.ids, stamps)
            wrong &= ~(fine & ~self._is_volatile(stamps >> INSTR) if volatile else fine)
        if values is not None and wrong.any():
            new_values, there = values()
            wrong &= new_values != there
        return first_race(clocks, wrong, access, stamps, "was written by")

    # ---------------------------------------------------------------------------------------- reads

    def _unordered_reads(
        self, access: Access, at: int, *, volatile: bool = True, clear: bool = True
    ) -> list[Conflict]:
        """The conflicts with reads that a write does not come after; volatile reads count if `volatile`. With
        `clear`, asynchronous reads of the units are forgotten: later writes come after this one.
        """
        conflicts = self._sources.conflicts(access)
        if clear:
            self._sources.written(access)
        return conflicts or self._reads.conflicts(access, at, volatile=volatile)

    def follow(
        self, volatile: Lanes, scopes: Lanes | None, exchanges: Exchanges, sums: SumOrder | None
    ) -> None:
        """Take `volatile`, by instruction whether it is a volatile access to an address that is not a flag;
        `scopes`, the scope of each strong access (None: all scopes include all threads); `exchanges`, those
        between lanes of a warp; and `sums`, if their order is judged.
        """
        self._sums = sums
        self._volatile = self._reads.volatile = volatile
        self._reads.exchanges = exchanges
        self._scopes = scopes

    def _is_volatile(self, at: Lanes | int) -> Any:
        """Whether instructions, by number in the lowest bits, are volatile accesses to addresses
        that are not flags.
        """
        return self._volatile.take(at & INSTR_MASK, mode="clip")
