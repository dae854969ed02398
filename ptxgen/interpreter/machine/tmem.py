"""Tensor memory of sm_100 and later: its cells, and the operations of instructions that use it.

Each CTA has 128 lanes of 512 columns of 32 bits; an address is a lane times 65,536 plus a column. Warp `w` of
a CTA loads and stores lanes 32 * (w % 4) to 32 * (w % 4) + 31.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.access import as_address, fresh
from ptxgen.interpreter.machine.bulk import BulkMachine
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.memory import POISON
from ptxgen.interpreter.machine.tmem_allocator import (
    ALLOCATE,
    FREE,
    RELINQUISH,
    Request,
    TensorAllocator,
    unpaired,
)
from ptxgen.interpreter.machine.tmem_late import TensorQueues
from ptxgen.interpreter.machine.tmem_shapes import extents, offsets
from ptxgen.isa import mbarrier_word
from ptxgen.isa.tensor_agent import Memories
from ptxgen.isa.tensor_memory import COLUMNS, LANES, QUARTER, QUARTERS, split_address
from ptxgen.types import b32

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.machine.bulk_start import Start
    from ptxgen.interpreter.machine.faults import Faults
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.machine.memory import Address
    from ptxgen.interpreter.machine.waiting import Delays
    from ptxgen.isa.tensor_agent import Operation, RegisterShape

    Lanes = np.ndarray[Any, np.dtype[Any]]


class TensorMemory:
    """The tensor memory of a batch: `cells` of all CTAs, uint32 `[ctas, 128, 512]`, the `allocator`, the
    asynchronous operations of each thread, `queues`, the stores of each warp, `stores`, and the arrivals of
    each thread's commits at mbarriers of each CTA, `arrivals`.
    """

    def __init__(self, batch: Batch, faults: Faults, delays: Delays | None) -> None:
        self.cells: Lanes = np.full((batch.ctas, LANES, COLUMNS), POISON, np.uint32)
        self.allocator = TensorAllocator(batch, faults)
        self.queues = TensorQueues(delays)
        self.stores = TensorQueues(delays)
        self.arrivals = TensorQueues(None)  # agents draw their times

    def work(self) -> None:
        """Do the operations and stores that are due."""
        self.queues.work()
        self.stores.work()


class TmemMachine(BulkMachine):
    """The operations of instructions that use tensor memory. `tensor` is None until the first of them;
    `tensor_delays` are the times of asynchronous operations, None if each is as late as its commit allows.
    `tensor_macs` are the multiply-adds of products by the number of their instruction, `tensor_columns` the
    most columns that a CTA had at once.
    """

    tensor: TensorMemory | None = None
    tensor_delays: Delays | None = None
    tensor_macs: dict[int, int]
    tensor_columns: int = 0

    # ----------------------------------------------------------------------------------- allocation

    def allocate_tensor(self, space: str, dst: Lanes | Address, columns: Lanes, *, pair: bool) -> None:
        """Have each warp wait for `columns` of tensor memory, and write their address to shared memory."""
        dst = as_address(dst)
        selection, at = self.selection, self.at
        for ids, active in self._warps():
            number = self._same(columns, active, "number of columns")
            mask = np.zeros(selection.count, np.bool_)
            mask[active] = True
            cta = int(ids[0]) // self.batch.width

            def done(first: int, mask: Lanes = mask, cta: int = cta, number: int = number) -> None:
                self._tensor.cells[cta, :, first : first + number] = POISON
                taken = int(self._tensor.allocator.allocated[cta][COLUMNS])
                self.tensor_columns = max(self.tensor_columns, taken)
                if self.definedness is not None:
                    self.definedness.tensor.allocates(cta, first, number)
                before = self.selection, self.mask, self.at
                self.selection, self.mask, self.at = selection, mask, at
                try:
                    self.store(space, fresh(dst), b32, (np.full(selection.count, first, np.uint32),))
                finally:
                    self.selection, self.mask, self.at = before

            self._tensor.allocator.ask(Request(ALLOCATE, at, ids, number, pair=pair, done=done))

    def free_tensor(self, address: Lanes, columns: Lanes, *, pair: bool) -> None:
        """Have each warp free the columns of tensor memory that were allocated at an address."""
        for ids, active in self._warps():
            first = self._same(address, active, "address of tensor memory")
            number = self._same(columns, active, "number of columns")
            if self.watch is not None:
                lane = int(ids[0])
                self.watch.tensor.frees(self.at, lane, lane // self.batch.width, first, number)
            self._tensor.allocator.ask(Request(FREE, self.at, ids, number, first, pair))

    def relinquish_tensor(self, *, pair: bool) -> None:
        """Have the CTA of each warp allocate no more tensor memory."""
        for ids, _ in self._warps():
            self._tensor.allocator.ask(Request(RELINQUISH, self.at, ids, pair=pair))

    def finish_tensor(self) -> None:
        """Raise `TrapError` at the end of all threads if a CTA has not freed its tensor memory."""
        unfreed = None if self.tensor is None else self.tensor.allocator.finish()
        if unfreed is not None:
            self.at = unfreed[0]
            raise TrapError(unfreed[1])

    # ---------------------------------------------------------------------------- loads and stores

    def load_cells(self, address: Lanes, of: RegisterShape) -> tuple[Lanes, ...]:
        """The cells of a shape at each warp's address of tensor memory, as registers, uint32."""
        index = self.cells_of(address, of)
        if self.watch is not None:
            self._tell(self.watch.tensor.loads, address, of)
        if self.definedness is not None:
            self.definedness.tensor.loads(index[:, self._whole_warps()])
        values = self._tensor.cells.reshape(-1).take(index)
        return tuple(values.reshape(len(values), -1))

    def store_cells(self, address: Lanes, of: RegisterShape, values: tuple[Lanes, ...]) -> None:
        """Write registers to the cells of a shape at each warp's address of tensor memory, at the latest when
        the warp waits for its stores.
        """
        index = self.cells_of(address, of)
        if self.watch is not None:
            self._tell(self.watch.tensor.stores, address, of)
        if self.definedness is not None:
            self.definedness.tensor.stores(index[:, self._whole_warps()])
        count = self.selection.count
        rows = np.stack([np.broadcast_to(v, count) for v in values]).view(np.uint32).reshape(index.shape)
        cells = self._tensor.cells.reshape(-1)
        for n in np.flatnonzero(self._whole_warps()).tolist():
            warp = int(self.selection.ids[n * WARP]) // WARP
            self._tensor.stores.start(warp, partial(cells.__setitem__, index[:, n], rows[:, n]))

    def wait_for_cells(self, way: str) -> None:
        """Complete the stores of each warp to tensor memory if `way` is "st", or its loads if it is "ld": a
        load is complete at once, as an instruction that reads its registers waits for it.
        """
        for ids, _ in self._warps():
            warp = int(ids[0]) // WARP
            if way == "st":
                self._tensor.stores.complete(warp, self._tensor.stores.started(warp))
            if self.watch is not None:
                self.watch.tensor.waits(int(ids[0]), way)

    def _tell(
        self, tell: Callable[[int, int, int, RegisterShape], None], address: Lanes, of: RegisterShape
    ) -> None:
        """Tell the sanitizers of the accesses of warps, each by its first active lane."""
        at = np.broadcast_to(address, self.selection.count)
        for ids, lanes in self._warps():
            row, column = split_address(int(at[lanes[0]]) & 0xFFFFFFFF)
            first = int(ids[0])
            tell(self.at, first, (first // self.batch.width * LANES + row) * COLUMNS + column, of)

    def cells_of(self, address: Lanes, of: RegisterShape) -> Lanes:
        """The indices of cells, `[registers, warps, 32]`, of no use for warps without active lanes."""
        at = np.broadcast_to(address, self.selection.count).astype(np.int64) & 0xFFFFFFFF
        by_warp = at.reshape(-1, WARP)
        here = self._whole_warps()
        warps = self.selection.ids[::WARP] // WARP
        for n in np.flatnonzero(here).tolist():
            self._check_cells(int(warps[n]), by_warp[n], of)
        first = np.where(here, by_warp[:, 0], 0)
        cta = warps // (self.batch.width // WARP)
        lane, column = np.divmod(first, 1 << 16)
        base = np.where(here, (cta * LANES + lane) * COLUMNS + column, 0)
        index: Lanes = base[None, :, None] + offsets(of)[:, None, :]
        return index

    def _check_cells(self, warp: int, addresses: Lanes, of: RegisterShape) -> None:
        """Raise `TrapError` for cells that a warp of the batch may not reach."""
        mine = self.active_ids(self.mask)
        lane = int(mine[mine // WARP == warp][0])
        address = int(addresses[lane % WARP])
        active = mine[mine // WARP == warp] % WARP
        if (addresses[active] != address).any():
            other = int(addresses[active][addresses[active] != address][0])
            self._start_of(lane).refuse(
                f"expected one address of tensor memory for all threads of a warp, got {address:#x} "
                f"and {other:#x}"
            )
        row, column = split_address(address)
        quarter = warp % (self.batch.width // WARP) % QUARTERS * QUARTER
        lanes, runs = extents(of)
        if row < quarter or row + lanes > quarter + QUARTER:
            self._start_of(lane).refuse(
                f"reaches lanes {row} to {row + lanes - 1} of tensor memory at {address:#x}, but warp "
                f"{warp % (self.batch.width // WARP)} of a CTA has lanes {quarter} to {quarter + QUARTER - 1}"
            )
        if row % lanes:
            self._start_of(lane).refuse(
                f"reaches lanes {row} to {row + lanes - 1} of tensor memory at {address:#x}, and this shape "
                f"begins at lane 0 or {lanes} of a warp's {QUARTER}"
            )
        for begin, count in runs:
            self._check_columns(lane, warp * WARP // self.batch.width, column + begin, count)

    def _check_columns(self, lane: int, cta: int, first: int, count: int, what: str = "") -> None:
        """Raise `TrapError` for columns of a CTA that are in no allocation."""
        allocator = self._tensor.allocator
        counted = allocator.allocated[cta]
        end = first + count
        if first >= 0 and end <= COLUMNS and counted[end] - counted[first] == count:
            return
        of = f" for {what}" if what else ""
        self._start_of(lane).refuse(
            f"uses columns {first} to {end - 1} of tensor memory{of}, but the CTA {allocator.taken(cta)}"
        )

    # ---------------------------------------------------------------------- asynchronous operations

    def start_tensor(
        self, plan: Callable[..., Operation], operands: tuple[Lanes, ...], *, pair: bool
    ) -> None:
        """Start the operation that `plan` makes of each thread's operands, which are numbers there, on the
        memories of its CTA, or of both CTAs of its `pair`. A `ValueError` of `plan` stops the kernel.
        """
        each = [self._each(operand) for operand in operands]
        for n, lane in enumerate(self.active_ids(self.mask).tolist()):
            start = self._start_of(lane)
            ctas = self._ctas_of(start, pair)
            try:
                operation = plan(*(int(values[n]) for values in each))
            except ValueError as error:
                start.refuse(str(error))
            for cta in ctas:
                for of in operation.columns:
                    self._check_columns(lane, cta, of.first, of.number, of.what)
            for box in operation.boxes:
                if box.end > self.shared.nbytes:
                    start.refuse(
                        f"{box.what} reaches from {box.first:#x} to {box.end:#x}, outside the "
                        f"{self.shared.nbytes} bytes of shared memory"
                    )
            if operation.macs:
                macs = self.tensor_macs
                macs[self.at] = macs.get(self.at, 0) + operation.macs
            if self.watch is not None:
                self.watch.tensor.starts(self.at, lane, ctas, operation)
            if self.definedness is not None:
                self.definedness.starts(ctas, operation)
            memories = tuple(self._memories(cta) for cta in ctas)
            self._tensor.queues.start(lane, partial(operation.run, memories))

    def commit_tensor(self, mbarrier: Lanes, ctas: Lanes | None = None) -> None:
        """Have each thread arrive at its mbarrier in shared memory once the operations that it has started
        are complete; with `ctas`, a mask of ranks in the cluster, at the mbarriers at this offset in all
        these CTAs. A thread's commits arrive in a CTA in the order in which it has executed them: Triton's
        kernels rely on it, which invalidate the mbarriers of earlier ones behind the wait for the last.
        """
        stride = self.shared.stride
        for n, position in enumerate(self.positions(mbarrier, 8).tolist()):
            start = self._start(n)
            count = self._tensor.queues.started(start.lane)
            counters = [c for _, c in self._copies_of(start, position, position, ctas, n)]
            tell = None if self.watch is None else self.watch.tensor.commits(self.at, start.lane, counters)
            for counter in counters:
                arrivals, owner = self._tensor.arrivals, start.lane * self.batch.ctas + counter // stride
                arrivals.start(owner, partial(self._land_tensor, start, counter, count, tell))
                self.agents.add(counter, partial(arrivals.complete, owner, arrivals.started(owner)))

    def _land_tensor(
        self, start: Start, counter: int, count: int, tell: Callable[[int], None] | None
    ) -> None:
        """Complete the first `count` operations of a thread, and arrive at the mbarrier at `counter`."""
        self._tensor.queues.complete(start.lane, count)
        if tell is not None:
            tell(counter)
        self._change(start, counter, mbarrier_word.arrived, 1)

    def _ctas_of(self, start: Start, pair: bool) -> tuple[int, ...]:
        """The CTAs of the batch that an operation of a thread works on."""
        cta = start.lane // self.batch.width
        if not pair:
            return (cta,)
        if self.batch.cluster_size % 2:
            start.refuse(unpaired(self.batch))
        return cta & ~1, cta | 1

    def _memories(self, cta: int) -> Memories:
        first = cta * self.shared.stride
        return Memories(self._tensor.cells[cta], self.shared.window.data[first : first + self.shared.nbytes])

    # ------------------------------------------------------------------------------------- helpers

    @property
    def _tensor(self) -> TensorMemory:
        if self.tensor is None:
            self.tensor = TensorMemory(self.batch, self.faults, self.tensor_delays)
        return self.tensor

    def _whole_warps(self) -> Lanes:
        """Which of the selected warps have active lanes, bool."""
        here: Lanes = np.logical_or.reduce(self.active().reshape(-1, WARP), axis=1)
        return here

    def _warps(self) -> list[tuple[Lanes, Lanes]]:
        """For each warp with active lanes: their numbers in the batch, and among the selected lanes."""
        active = np.flatnonzero(self.active())
        cuts = np.flatnonzero(np.diff(active // WARP)) + 1
        return [(self.selection.ids[lanes], lanes) for lanes in np.split(active, cuts)]

    def _same(self, values: Lanes, active: Lanes, what: str) -> int:
        """The value that the active lanes of a warp have in common."""
        wide = np.broadcast_to(np.asarray(values), self.selection.count)[active].astype(np.int64) & 0xFFFFFFFF
        different = wide[wide != wide[0]]
        if len(different):
            self._start_of(int(self.selection.ids[active[0]])).refuse(
                f"expected one {what} for all threads of a warp, got {wide[0]:#x} and {different[0]:#x}"
            )
        return int(wide[0])
