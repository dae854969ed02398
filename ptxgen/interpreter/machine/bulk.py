"""Bulk copies: the operations that their instructions use; `tensor_copies` has those of boxes of tensors.

A copy with an mbarrier poisons its destination when it starts, and completes when a thread tests
that mbarrier. A copy in a bulk group reads its source when its thread waits for the reads of the
group (`.read`), and writes when the thread waits for the group. All copies complete as late as a
correct program allows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine import boxes
from ptxgen.interpreter.machine.access import MemoryAccess
from ptxgen.interpreter.machine.bulk_groups import READ, BulkGroups
from ptxgen.interpreter.machine.bulk_start import Start
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.memory import POISON
from ptxgen.isa import mbarrier_word
from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.boxes import Reduce
    from ptxgen.interpreter.machine.copies import AsyncCopies
    from ptxgen.interpreter.machine.memory import Address
    from ptxgen.interpreter.machine.observer import Tell
    from ptxgen.interpreter.machine.waiting import Agents
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

UNIT: Final = 16  # bytes: addresses and sizes of plain bulk copies are multiples of it
WORD: Final = np.dtype(np.uint64)


class BulkMachine(MemoryAccess):
    """The operations that bulk copies use."""

    agents: Agents
    copies: AsyncCopies
    # For each instruction, the lanes that polled mbarriers with it last, and the mbarriers'
    # positions.
    polled: dict[int, tuple[Lanes, Lanes]]

    # -------------------------------------------------------------------------------- mbarriers

    def ask(self, address: Lanes | Address) -> None:
        """Complete the copies that the mbarriers at these addresses wait for."""
        positions = self.positions(address, 8)
        self.polled.pop(self.at, None)
        self.polled[self.at] = self.active_ids(self.mask), positions
        self.agents.ask(np.unique(positions).tolist())

    def mbarrier(self, position: int) -> str:
        """A description of the mbarrier at a position in shared memory, and of what its phase waits for."""
        word = int(self.shared.window.data[position : position + 8].view(WORD)[0])
        try:
            arrivals, nbytes = mbarrier_word.awaited(word)
        except ValueError:
            return f"{self.faults.mbarrier(position)}, which is none"
        wanted = [f"{arrivals} arrival{'s' * (arrivals > 1)}"] if arrivals else []
        wanted += [f"{nbytes} bytes"] if nbytes > 0 else []
        left = f"waits for {' and '.join(wanted)} more" if wanted else "waits for nothing more"
        over = f" and has got {-nbytes} bytes more than it expects" if nbytes < 0 else ""
        return f"{self.faults.mbarrier(position)}, whose phase {left}{over},"

    def copy_async_arrive(self, address: Lanes | Address) -> None:
        """Have each thread arrive at an mbarrier once its copies by `copy_async` are complete."""
        positions = self.positions(address, 8)
        ids = self.active_ids(self.mask)
        for position in np.unique(positions).tolist():
            threads = ids[positions == position]
            start = self._start_of(int(threads[0]))

            def land(threads: Lanes = threads, start: Start = start, position: int = position) -> None:
                self.copies.wait(threads, None)
                if self.watch is not None:
                    self.watch.arrived(threads, position)
                self._change(start, position, mbarrier_word.arrived, len(threads))

            self.agents.add(position, land)

    # ------------------------------------------------------------------------------- bulk copies

    def bulk_load(self, dst: Lanes, src: Lanes, nbytes: Lanes, mbarrier: Lanes, ctas: Lanes | None) -> None:
        """Start copying `nbytes` from global `src` to shared `dst`, with completion on `mbarrier`;
        to all CTAs of the cluster whose bit is set in `ctas`, if given.
        """
        sources = self._each(src)
        for n, (start, target, bar, size) in enumerate(self._targets(dst, nbytes, mbarrier)):
            self._check_unit(start, int(sources[n]), size, "global")
            start.reads_global(sources[n : n + 1].astype(np.int64), size)
            for position, counter in self._copies_of(start, target, bar, ctas, n):
                landed = start.writes(np.array([position]), size, counter)

                def land(
                    start: Start = start,
                    position: int = position,
                    counter: int = counter,
                    source: int = int(sources[n]),
                    size: int = size,
                    landed: Tell = landed,
                ) -> None:
                    data = self._global(start, source, size, "read")
                    self.shared.window.data[position : position + size] = data
                    landed()
                    self._change(start, counter, mbarrier_word.brought, size)

                self._poison(position, size)
                if self.definedness is not None:
                    self.definedness.receives(position, size, int(sources[n]))
                self.agents.add(counter, land)

    def bulk_send(
        self,
        dst: Lanes,
        src: Lanes,
        nbytes: Lanes,
        mbarrier: Lanes,
        reduce: Reduce | None = None,
        type: ScalarType = b64,
    ) -> None:
        """Start copying `nbytes` bytes of shared memory from `src` to `dst` in the cluster, or with `reduce`
        combining values of `type` into `dst`. It completes on `mbarrier` in the CTA of `dst`.
        """
        sources = self.positions(src, UNIT)
        for n, (start, target, counter, size) in enumerate(self._targets(dst, nbytes, mbarrier)):
            source = int(sources[n])
            self._check_unit(start, source, size, "shared")
            self._check_end(start, source, size)

            was_read = start.reads(np.array([source]), size, counter)
            first = np.array([target])
            landed = start.writes(first, size, counter, update=reduce is not None)

            def land(
                start: Start = start,
                source: int = source,
                target: int = target,
                counter: int = counter,
                size: int = size,
                was_read: Tell = was_read,
                landed: Tell = landed,
            ) -> None:
                was_read()
                landed()
                memory = self.shared.window.data
                boxes.combine(memory[target : target + size], memory[source : source + size], reduce, type)
                self._change(start, counter, mbarrier_word.brought, size)

            if reduce is None:
                self._poison(target, size)
            if self.definedness is not None:
                self.definedness.sends(target, source, size, reduces=reduce is not None)
            self.agents.add(counter, land)

    def bulk_store(
        self, dst: Lanes, src: Lanes, nbytes: Lanes, reduce: Reduce | None = None, type: ScalarType = b64
    ) -> None:
        """Start copying `nbytes` from shared `src` to global `dst` in the thread's bulk group; or
        reducing values of `type` into it.
        """
        targets, sizes = self._each(dst), self._each(nbytes)
        sources = self.positions(src, UNIT).tolist()
        again = self._repeated(sources, sizes.tolist(), targets.tolist())
        for n, source in enumerate(sources):
            start, size, target = self._start(n), int(sizes[n]), int(targets[n])
            self._check_unit(start, target, size, "global")
            self._check_end(start, source, size)

            was_read = start.reads(np.array([source]), size)
            start.writes_global(np.array([target]), size, reduce, type, again=again[n])

            def take(source: int = source, size: int = size) -> Lanes:
                return self.shared.window.data[source : source + size].copy()

            def put(data: Lanes, start: Start = start, target: int = target, size: int = size) -> None:
                boxes.combine(self._global(start, target, size, "write"), data, reduce, type)

            if self.definedness is not None:
                self.definedness.writes_back(target, source, size, reduces=reduce is not None)
            self._send_by_group(start.lane, take, put, was_read)

    def bulk_commit(self) -> None:
        """Close the group of bulk copies that each thread started since the last commit."""
        for lane in self.active_ids(self.mask).tolist():
            self.groups.commit(lane)

    def bulk_wait(self, pending: int, read: bool) -> None:
        """Wait until at most `pending` bulk groups of each thread are incomplete, or with `read`
        until at most `pending` of them have yet to read their sources.
        """
        done: list[int] = []
        for lane in self.active_ids(self.mask).tolist():
            done += self.groups.wait(lane, pending, read, self.watch)
        self.agents.ask(done)

    # ------------------------------------------------------------------------------------ matrices

    def load_by_warp(self, address: Lanes, rows: Lanes, type: ScalarType) -> Lanes:
        """The values of `type` in the shared memory of each warp's CTA, `[warps, n]`, at the addresses of the
        warp's row of `address`, int64 `[matrices, n]`; the values of warps without an active lane are
        undefined.
        """
        active: Lanes = np.logical_or.reduce(self.active().reshape(-1, WARP), axis=1)
        if not active.all():
            rows = np.where(active, rows, rows[active.argmax()])
        too_far = np.logical_or(address < 0, address + type.nbytes > self.shared.nbytes)
        outside: Lanes = np.logical_or.reduce(too_far, axis=1)
        if (outside[rows] & active).any():
            warp = int((outside[rows] & active).argmax())
            lane, matrix = int(self.selection.ids[warp * WARP]), address[rows[warp]]
            raise TrapError(
                f"{self.faults.where(self.at, lane)}: the matrix reaches from "
                f"{int(matrix.min()):#x} to {int(matrix.max()) + type.nbytes:#x}, "
                f"outside the {self.shared.nbytes} bytes of shared memory"
            )
        base = self.selection.shared_base
        bases = np.zeros(len(rows), np.int64) if base is None else np.asarray(base)[::WARP]
        if self.watch is not None:
            ids = self.selection.ids[::WARP][active]
            self.watch.matrices(self.at, ids, address, rows[active], bases[active], type.nbytes)
        if self.definedness is not None:
            self.definedness.reads_matrices(address, rows[active], bases[active], type.nbytes)
        index = (address // type.nbytes)[rows]
        index += (bases // type.nbytes)[:, None]
        values: Lanes = self.shared.window.elements(type.dtype, 1, 0)[index]
        return values

    # ----------------------------------------------------------------------------------- one lane

    @functools.cached_property
    def groups(self) -> BulkGroups:
        """The bulk groups of threads."""
        return BulkGroups()

    def _send_by_group(
        self, lane: int, take: Callable[[], Lanes], put: Callable[[Lanes], None], was_read: Tell
    ) -> None:
        """Add a read by `take` and a write by `put` to the open bulk group of a thread."""
        taken: list[Lanes] = []

        def read() -> None:
            if not taken:
                was_read()
                taken.append(take())

        def write() -> None:
            read()
            put(taken[0])

        key = self.groups.open(lane)
        self.agents.add(key + READ, read)
        self.agents.add(key, write)

    def _each(self, values: Lanes | Address) -> Lanes:
        """The values of the active lanes."""
        all_lanes = np.broadcast_to(np.asarray(values), self.selection.count)
        return all_lanes if self.mask is None else all_lanes[self.mask]

    def _repeated(self, *copies: list[Any]) -> list[bool]:
        """For each active lane, whether an earlier lane of its warp starts the same copy with this
        instruction; `copies` are lists with one property of the copy for each active lane.
        """
        warps = (self.active_ids(self.mask) // WARP).tolist()
        first: dict[tuple[Any, ...], int] = {}
        return [first.setdefault(copy, n) != n for n, copy in enumerate(zip(warps, *copies, strict=True))]

    def _start(self, n: int) -> Start:
        return self._start_of(int(self.active_ids(self.mask)[n]))

    def _start_of(self, lane: int) -> Start:
        return Start(self.watch, self.groups, self.arena, self.faults, self.at, lane)

    def _targets(
        self, dst: Lanes | Address, nbytes: Lanes, mbarrier: Lanes | Address, *, active_only: bool = False
    ) -> list[tuple[Start, int, int, int]]:
        """For each active lane: its `Start`, the positions of its destination and mbarrier, and the
        bytes that it copies.
        """
        sizes = nbytes if active_only else self._each(nbytes)
        targets = []
        pairs = zip(self.positions(dst, UNIT), self.positions(mbarrier, 8), sizes, strict=True)
        for n, (target, counter, size) in enumerate(pairs):
            start = self._start(n)
            self._check_end(start, int(target), int(size))
            targets.append((start, int(target), int(counter), int(size)))
        return targets

    def _copies_of(
        self, start: Start, target: int, counter: int, ctas: Lanes | None, n: int, *, pair: bool = False
    ) -> list[tuple[int, int]]:
        """The positions of all destinations of a copy, and of their mbarriers: with `pair`, those of the CTA
        of each destination's pair whose rank is even, or odd, as that of the mbarrier at `counter` is.
        """
        if ctas is None:
            return [(target, counter)]
        mask, stride = int(self._each(ctas)[n]), self.shared.stride
        size = self.batch.cluster_size
        first = target // stride // size * size
        if not mask or mask >> size:
            start.refuse(
                f"multicasts to the CTAs of mask {mask:#06x} in a cluster of {size}"
                f"{'' if mask else ', to none'}"
            )
        rank_in_pair = (counter // stride - first) % 2
        ranks = [rank for rank in range(size) if mask >> rank & 1]
        signalled = [rank - rank % 2 + rank_in_pair if pair else rank for rank in ranks]
        return [
            ((first + rank) * stride + target % stride, (first + bar) * stride + counter % stride)
            for rank, bar in zip(ranks, signalled, strict=True)
        ]

    def _check_unit(self, start: Start, address: int, size: int, space: str) -> None:
        if size % UNIT or address % UNIT:
            start.refuse(
                f"a bulk copy's addresses and size are multiples of {UNIT} bytes, got "
                f"{size} bytes and the {space} address {address:#x}"
            )

    def _check_end(self, start: Start, position: int, size: int) -> None:
        address = position % self.shared.stride
        if address + size > self.shared.nbytes:
            start.refuse(
                f"copies {size} bytes at shared address {address:#x}, outside its {self.shared.nbytes} bytes"
            )

    def _poison(self, position: int, size: int) -> None:
        self.shared.window.data[position : position + size].view(np.uint32)[...] = POISON

    def _change(self, start: Start, position: int, change: Callable[[int, int], int], operand: int) -> None:
        """Change the word of the mbarrier at a position."""
        words = self.shared.window.elements(WORD, 1, 0)
        if self.watch is not None:
            self.watch.changes(start.at, start.lane, position, self.shared.window.data)
        before = int(words[position // 8])
        try:
            after = change(before, operand)
        except ValueError as error:
            start.refuse(str(error))
        words[position // 8] = after
        if self.watch is not None and (before ^ after) >> mbarrier_word.PHASE_BIT:
            self.watch.phase(position)

    def _global(self, start: Start, address: int, size: int, verb: str) -> Lanes:
        """Bytes of global memory, as a view."""
        buffer = self.arena.find(address, address + size)
        if buffer is None or (verb == "write" and not buffer.writable):
            why = "in a read-only array" if buffer else self.arena.describe(address)
            start.refuse(f"wants to {verb} {size} bytes of global memory at {address:#x}, {why}")
        return buffer.window.data[address - buffer.base : address - buffer.base + size]
