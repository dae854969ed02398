"""The operations that instructions use: the `Machine` protocol of the instruction table, on a batch
of CTAs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.access import as_address
from ptxgen.interpreter.machine.address_map import (
    LOCAL_BYTES,
    LOCAL_START,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_BYTES,
    WINDOWS,
    split_rank,
)
from ptxgen.interpreter.machine.barriers import BARRIERS
from ptxgen.interpreter.machine.lanes import WARP, absent_member
from ptxgen.interpreter.machine.launch_queue import CancelMachine
from ptxgen.interpreter.machine.memory import POISON, Address, Base, Space
from ptxgen.interpreter.machine.tensormaps import TensormapMachine
from ptxgen.interpreter.machine.textures import TextureMachine
from ptxgen.interpreter.machine.tmem import TmemMachine
from ptxgen.interpreter.machine.waiting import Agents, ClusterBarrier, MemoryWaits
from ptxgen.interpreter.machine.wgmma import WgmmaMachine
from ptxgen.types import b8, b32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ptxgen.interpreter.machine.arena import DeviceArena
    from ptxgen.interpreter.machine.barriers import Barriers
    from ptxgen.interpreter.machine.copies import AsyncCopies
    from ptxgen.interpreter.machine.faults import Faults
    from ptxgen.interpreter.machine.lanes import Batch, Selection
    from ptxgen.interpreter.machine.memory import SharedMemory
    from ptxgen.interpreter.machine.observer import Observer
    from ptxgen.interpreter.machine.registers import RegisterPool
    from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

_FULL_WARP: Final = 0xFFFFFFFF
# The values of registers that no instruction has written, by size in bytes.
_POISONS: Final = {1: 0xDE, 2: 0x7FDE, 4: POISON, 8: 0x7FF8DEAD7FC0DEAD}
_MOST_LOCAL: Final = 1 << 30  # bytes of local memory of a batch, with the frames of calls
_REGISTERS: Final = (24, 256)  # PTX ISA, "setmaxnreg"
_OFFSET_MASK: Final = (1 << RANK_SHIFT) - 1
# Special registers that count; one executed instruction is one cycle and one nanosecond.
_CLOCKS: Final = {
    "%clock": 0,
    "%clock64": 0,
    "%globaltimer": 0,
    "%clock_hi": 32,
    "%globaltimer_hi": 32,
    "%globaltimer_lo": 0,
}


class LaneMachine(CancelMachine, TensormapMachine, TextureMachine, WgmmaMachine, TmemMachine):
    """The state that a batch of CTAs shares, and the lanes that are executing.

    The scheduler sets `selection` before each block. A block sets `mask` (over the selected lanes,
    None: all) and `at`, the number of the instruction, before each instruction that uses the
    machine. `spaces` are local, param and constant memory. `sm` is the number of the target.
    `cycles` counts the instructions executed.
    """

    def __init__(
        self,
        batch: Batch,
        arena: DeviceArena,
        spaces: Mapping[str, Space],
        shared: SharedMemory,
        copies: AsyncCopies,
        barriers: Barriers,
        watch: Observer | None,
        faults: Faults,
        sm: int,
        registers: RegisterPool,
        wgmma: WgmmaRegisters | None,
    ) -> None:
        self.batch = batch
        self.tensor_macs = {}
        self.arena = arena
        self.spaces = dict(spaces)
        self.shared = shared
        self.copies = copies
        self.barriers = barriers
        self.cluster = ClusterBarrier(
            batch.lanes, batch.width * batch.cluster_size, None if watch is None else watch.cluster_leave
        )
        self.waits = MemoryWaits(batch.lanes)
        self.registers = registers
        self.polled = {}
        self.agents = Agents()
        self.watch = watch
        self.products = None
        self.follow(wgmma)
        self.faults = faults
        self.sm = sm
        self.exited: Lanes = ~batch.real()
        self.frame: Lanes | None = None  # the beginning of each lane's frame, if frames move
        self.cycles = 0
        self.printed: list[str] = []
        self.selection: Selection
        self.block_mask: Lanes | None = None
        self.mask: Lanes | None = None
        self.at = 0
        self._carry: Lanes | None = None
        self._symbols: dict[tuple[int, int], Base] = {}

    # ------------------------------------------------------------------------- operations of blocks

    def select(self, selection: Selection) -> None:
        """Have these lanes execute from now on."""
        self.selection = selection
        self.block_mask = self.mask = selection.inner

    def narrow(self, guard: Lanes) -> Lanes | Literal[False] | None:
        """The block's mask where the guard holds: None for all lanes, False for none."""
        both = guard if self.block_mask is None else guard & self.block_mask
        count = np.count_nonzero(both)
        if count == 0:
            return False
        return None if count == len(both) else both

    def symbol(self, value: int) -> Base:
        """The address of a variable or a parameter that is the same in all lanes."""
        key = self.selection.count, value
        base = self._symbols.get(key)
        if base is None:
            base = self._symbols[key] = Base(np.full(self.selection.count, value, np.uint64), value)
        # A plan holds the mask and the lanes of the selection that it was made for.
        return Base(base.lanes, value)

    def ranked(self, value: int) -> Base:
        """The address of a shared variable, with the rank of each lane's CTA in its cluster."""
        first = self.selection.rank_base
        return self.symbol(value) if first is None else Base((first + value).view(np.uint64))

    def framed(self, offset: int) -> Base:
        """The address of a variable in the frame of the running routine."""
        if self.frame is None:
            return self.symbol(LOCAL_START + offset)
        return Base(self.selection.pick(self.frame) + np.uint64(LOCAL_START + offset))

    def counter(self, name: str) -> Lanes:
        """The value of a special register that counts, uint64 lanes."""
        count = self.clock() >> _CLOCKS[name]
        return np.full(self.selection.count, count, np.uint64)

    def spread(self, value: Lanes) -> Lanes:
        """A value that does not depend on the lane, in every lane."""
        if value.ndim:
            return value
        lanes = np.empty(self.selection.count, value.dtype)
        lanes.fill(value)
        return lanes

    def undefined(self, dtype: np.dtype[Any]) -> Lanes:
        """The value of a register that was never written."""
        if dtype == np.bool_:
            return np.zeros(self.batch.lanes, np.bool_)
        return np.full(self.batch.lanes, _poison(dtype))

    def need_local(self, lane: int, nbytes: int, besides: int) -> None:
        """Make local memory at least `nbytes` for each lane, as lane `lane` needs; the contents stay.
        `besides` are the bytes that calls hold outside of it.

        Raises `TrapError` if that is too much.
        """
        local = self.spaces["local"]
        lanes = self.batch.lanes
        if nbytes > LOCAL_BYTES or max(nbytes, local.nbytes) * lanes + besides > _MOST_LOCAL:
            raise TrapError(
                f"{self._where(lane)}: the calls of the thread need {nbytes} bytes of local memory "
                f"(a thread has at most {LOCAL_BYTES}, and {lanes} lanes run at once); "
                "is it an endless recursion?"
            )
        if nbytes <= local.nbytes:
            return
        most = min(max(2 * local.nbytes, nbytes), LOCAL_BYTES, max(_MOST_LOCAL // lanes, nbytes))
        grown = Space.local(local.first, most, self.batch.lanes)
        old = local.window.data.reshape(self.batch.lanes, -1)
        grown.window.data.reshape(self.batch.lanes, -1)[:, : old.shape[1]] = old
        self.spaces["local"] = grown
        if self.definedness is not None:
            self.definedness.grown(local, grown)

    # --------------------------------------------------------------------------------------- copies

    def copy_async(
        self, dst: Lanes | Address, src: Lanes | Address, nbytes: int, src_nbytes: Lanes | None
    ) -> None:
        """Start copying from global `src` to shared `dst`; bytes from `src_nbytes` to `nbytes`
        become zero.
        """
        dst, src = as_address(dst), as_address(src)
        plan = self.reach("shared", dst, nbytes, "copy to")
        assert plan is not None  # shared memory is one window
        data = self._copied(src, nbytes, src_nbytes)
        if self.traffic is not None:
            self.traffic.copy(self, plan, dst.offset, nbytes, src, src_nbytes)
        ids = self.active_ids(plan.mask)
        word = plan.index(4) + (plan.low + dst.offset) // 4
        if plan.mask is not None:
            word, data = word[plan.mask], data[plan.mask]
        copied = None if self.watch is None else self.watch.copy_async(self, plan, dst.offset, nbytes)
        if self.definedness is not None:
            self.definedness.copies(plan, dst.offset, nbytes, src, src_nbytes)
        self.copies.start(self.at, ids, word, data, copied)

    def copy_async_commit(self) -> None:
        """Close the group of copies started since the last commit."""
        self.copies.commit(self.active_ids(self.mask))

    def copy_async_wait(self, pending: int | None) -> None:
        """Wait until at most `pending` groups are under way; None: until all copies are complete,
        grouped or not.
        """
        self.copies.wait(self.active_ids(self.mask), pending)

    # ------------------------------------------------------------------------------------ addresses

    def convert_address(self, space: str, address: Lanes, *, to_space: bool) -> Lanes:
        """Convert between generic addresses and addresses of a space."""
        window = np.uint64(WINDOWS.get(space, 0))
        return np.subtract(address, window) if to_space else np.add(address, window)

    def in_space(self, space: str, address: Lanes) -> Lanes:
        """Whether generic addresses point into a space, bool."""
        at = address.view(np.int64)
        if space == "global":
            return np.greater_equal(at, SHARED_WINDOW + len(WINDOWS) * WINDOW_BYTES)
        if space in self.spaces:
            first = WINDOWS[space]
            return np.logical_and(at >= first, at < first + WINDOW_BYTES)
        inside: Lanes = (at >= SHARED_WINDOW) & (at < SHARED_WINDOW + WINDOW_BYTES)
        if space == "cluster":
            return inside
        near: Lanes = inside & (split_rank(at - SHARED_WINDOW)[0] == self._ranks())
        return near

    def map_shared(self, address: Lanes, rank: Lanes) -> Lanes:
        """The address of the same offset in the shared memory of the CTA with this rank in the cluster."""
        offset = np.bitwise_and(address, address.dtype.type(_OFFSET_MASK))
        high = np.left_shift(np.asarray(rank).astype(address.dtype), RANK_SHIFT)
        generic = address.dtype.type(SHARED_WINDOW) if address.dtype.itemsize == 8 else 0
        is_generic = address >= generic if generic else False
        mapped: Lanes = np.where(is_generic, offset + high + generic, offset + high)
        return mapped.astype(address.dtype)

    def shared_rank(self, address: Lanes) -> Lanes:
        """The rank in the cluster of the CTA whose shared memory an address is in, uint32."""
        ranks: Lanes = np.right_shift(address, address.dtype.type(RANK_SHIFT)).astype(np.uint32)
        return ranks & np.uint32(0xFF)

    def _ranks(self) -> Lanes:
        """The rank in its cluster of each lane's CTA."""
        ranks: Lanes = self.selection.ids // self.batch.width % self.batch.cluster_size
        return ranks

    def fence(self, scope: str) -> None:
        """Tell the sanitizers of a fence; it has no other effect, since all threads see each access
        at once.
        """
        if self.watch is not None:
            self.watch.fence(self.active_ids(self.mask), scope)

    # --------------------------------------------------------------------------- barriers and waits

    def barrier(
        self, barrier: Lanes, threads: Lanes | None, *, wait: bool, vote: Lanes | None = None
    ) -> None:
        """Arrive at a CTA barrier, and with `wait` wait there; `barrier_outcome` combines the
        values of `vote`.
        """
        ids = self.active_ids(self.mask)
        number = self._for_active(barrier)
        count = np.zeros(len(ids), np.int64) if threads is None else self._for_active(threads)
        for wrong, what in (
            (number >= BARRIERS, "barriers are numbered 0 to 15"),
            (
                (count % WARP != 0) | ((count == 0) & (threads is not None)),
                "a barrier's count is a multiple of 32",
            ),
        ):
            if wrong.any():
                lane = int(wrong.argmax())
                raise TrapError(
                    f"{self._where(int(ids[lane]))}: {what}, got barrier {number[lane]}, count {count[lane]}"
                )
        votes = None if vote is None else self._for_active(vote).astype(np.bool_)
        wrong_count = self.barriers.arrive(ids, number, count, self.at, wait=wait, votes=votes)
        if wrong_count is not None:
            raise TrapError(f"{self._where(wrong_count[0])}: {wrong_count[1]}")

    def barrier_outcome(self, op: str) -> Lanes:
        """The combined votes at the barrier that each thread last waited at."""
        return self.barriers.outcome(self.selection.ids, op)

    def cluster_arrive(self) -> None:
        """Arrive at the barrier of the cluster."""
        ids = self.active_ids(self.mask)
        self.cluster.arrive(ids)
        if self.watch is not None:
            self.watch.cluster_arrive(self.at, ids)

    def cluster_wait(self) -> None:
        """Wait until all threads of the cluster have arrived."""
        ids = self.active_ids(self.mask)
        self.cluster.wait(ids, self.at)
        if self.watch is not None:
            self.watch.cluster_wait(self.at, ids)

    def set_registers(self, count: int, *, more: bool) -> None:
        """Have each thread of the active warps keep `count` registers and give back the others, or with
        `more` wait until it has `count`.
        """
        if count % 8 or not _REGISTERS[0] <= count <= _REGISTERS[1]:
            self.trap(f"setmaxnreg takes a multiple of 8 from 24 to 256, got {count}")
        self.registers.change(self.at, self.active_ids(self.mask), count, more=more)

    def wait_until(
        self, address: Lanes | Address, type: ScalarType, ready: Callable[[Lanes], Lanes], what: str
    ) -> None:
        """Wait until `ready` holds for the value of `type` in shared memory at each address."""
        address = as_address(address)
        plan = self.reach("shared", address, type.nbytes, "wait for")
        assert plan is not None  # shared memory is one window
        self.agents.ask(np.unique(self.positions(address, type.nbytes)).tolist())
        cells = plan.index(type.nbytes) + (plan.low + address.offset) // type.nbytes
        view = self.shared.window.elements(type.dtype, 1, 0)
        woken = None if self.watch is None else functools.partial(self.watch.waited, self.at)
        self.waits.add(
            self.at,
            self.selection.ids,
            cells,
            view,
            ready,
            self.active(),
            lambda position: f"{what} of {self.mbarrier(position)}",
            woken,
        )

    def clock(self) -> int:
        """A count that grows with the instructions executed."""
        return self.cycles & ((1 << 64) - 1)

    def carry(self) -> Lanes:
        """The carry flag of each thread, bool."""
        if self.definedness is not None:
            self.definedness.reads_carry()
        if self._carry is None:
            self._carry = np.zeros(self.batch.lanes, np.bool_)
        return self.selection.pick(self._carry)

    def set_carry(self, flag: Lanes) -> None:
        """Write the carry flag of each active thread, bool."""
        flag = np.broadcast_to(flag, self.selection.count)
        if self.mask is not None:
            flag = np.where(self.mask, flag, self.carry())
        if self._carry is None:
            self._carry = np.zeros(self.batch.lanes, np.bool_)
        self._carry[self.selection.ids] = flag
        if self.definedness is not None:
            self.definedness.writes_carry()

    # ---------------------------------------------------------------------------------------- warps

    def warp_sync(self, membermask: Lanes) -> None:
        """Check that the lanes of `membermask` take part. Raises `TrapError` for one that does not
        and has not exited.
        """
        if self.mask is not None or np.ndim(membermask) or int(membermask) != _FULL_WARP:
            self._check_members(membermask)
        if self.watch is not None:
            members = self._for_active(membermask).astype(np.uint32)
            self.watch.warp_sync(self.at, self.active_ids(self.mask), members, self.exited)
        if self.wgmma is not None:
            ids = self.active_ids(self.mask)
            self.warpgroups.met(self.at, ids)
            if self.products is not None:
                self.products.met(self.at, ids)

    def exchange(self, value: Lanes, source: Lanes, membermask: Lanes) -> Lanes:
        """The `value` of lane `source` of each lane's own warp; poison if that lane does not take part."""
        self.warp_sync(membermask)
        count = self.selection.count
        if self.watch is not None:
            self.watch.exchange(self.active_ids(self.mask), self._for_active(source) % WARP)
        value = np.broadcast_to(value, count)
        of = (np.arange(count) & -WARP) + np.bitwise_and(source, WARP - 1)
        received: Lanes = value.take(of)
        absent = self.absent(source, of, membermask)
        if absent is None:
            return received
        if self.definedness is not None:
            self.definedness.absent()
        return np.where(absent, _poison(value.dtype), received)

    def absent(self, source: Lanes, of: Lanes, membermask: Lanes) -> Lanes | None:
        """The lanes, bool, for which lane `source` of their warp, number `of` of the selected lanes, does not
        take part or is not in their membermask; None if there are none.
        """
        if self.mask is None and not np.ndim(membermask) and int(membermask) == _FULL_WARP:
            return None
        named = np.right_shift(
            np.asarray(membermask, np.uint32), np.bitwise_and(source, WARP - 1).astype(np.uint32)
        )
        absent: Lanes = (named & np.uint32(1) == 0) | ~self.active().take(of)
        absent &= self.active()
        return absent if absent.any() else None

    def lane_id(self) -> Lanes:
        """The lane number of each thread, 0..31, uint32."""
        return (np.arange(self.selection.count) % WARP).astype(np.uint32)

    def warp_id(self) -> Lanes:
        """The index of each thread's warp in its CTA, uint32."""
        return (self.selection.ids % self.batch.width // WARP).astype(np.uint32)

    def trap(self, reason: str) -> None:
        """Stop the kernel. Raises `TrapError`."""
        raise TrapError(f"{self._where(int(self.active_ids(self.mask)[0]))}: {reason}")

    def touch(self, numbers: tuple[int, ...], guard: Lanes | None) -> None:
        """Tell the sanitizers that lanes are about to execute ordinary instructions that name
        registers of `wgmma`.
        """
        mask = self.block_mask if guard is None else self.narrow(guard)
        if mask is not False and self.watch is not None:
            self.watch.touch(numbers, self.active_ids(mask))

    # -------------------------------------------------------------------------------------- helpers

    def _for_active(self, values: Lanes) -> Lanes:
        wide = np.broadcast_to(values, self.selection.count).astype(np.int64)
        return wide if self.mask is None else wide[self.mask]

    def _check_members(self, membermask: Lanes) -> None:
        members = np.broadcast_to(membermask, self.selection.count)
        absent = absent_member(self.active(), self.selection.pick(self.exited), members)
        if absent is not None:
            lane, what = absent
            raise TrapError(f"{self._where(int(self.selection.ids[lane]))}: {what}")

    def _copied(self, src: Address, nbytes: int, src_nbytes: Lanes | None) -> Lanes:
        """The data of an asynchronous copy, `[lanes, words]` uint32."""
        data = np.zeros((self.selection.count, nbytes // 4), np.uint32)
        if src_nbytes is None:
            data[:] = np.stack(self._load_global(src, b32, nbytes // 4, self.mask), axis=1)
            return data
        sizes = np.broadcast_to(src_nbytes, self.selection.count)
        active = self.active()
        too_many = active & (sizes > nbytes)
        if too_many.any():
            lane = int(too_many.argmax())
            raise TrapError(
                f"{self._where(int(self.selection.ids[lane]))}: copies {int(sizes[lane])} bytes into {nbytes}"
            )
        for size in np.unique(sizes[active]):
            mask = active & (sizes == size)
            if size == nbytes:
                data[mask] = np.stack(self._load_global(src, b32, nbytes // 4, mask), axis=1)[mask]
                continue
            unaligned = mask & ((src.signed() + src.offset) % nbytes != 0) & (size > 0)
            if unaligned.any():
                self._refuse(
                    "global", src, nbytes, "copy from", unaligned, f"which is not a multiple of {nbytes}"
                )
            unit = b32 if size % 4 == 0 else b8
            cells = data.view(unit.dtype)
            for n in range(int(size) // unit.nbytes):
                one = src.base.at(src.offset + n * unit.nbytes)
                cells[mask, n] = self._load_global(one, unit, 1, mask)[0][mask]
        return data

    def _load_global(
        self, src: Address, type: ScalarType, count: int, mask: Lanes | None
    ) -> tuple[Lanes, ...]:
        if mask is self.mask:
            return self.load("global", src, type, count)
        got: tuple[Lanes, ...] = self.with_mask(mask, lambda: self.load("global", src, type, count))
        return got


def _poison(dtype: np.dtype[Any]) -> np.generic:
    """The value of a register of a type that nothing has written."""
    words = _POISONS[min(dtype.itemsize, 8)].to_bytes(min(dtype.itemsize, 8), "little")
    value: np.generic = np.frombuffer((words * 2)[: dtype.itemsize], dtype)[0]
    return value
