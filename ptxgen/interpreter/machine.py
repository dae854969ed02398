"""What instructions may ask of the interpreter: the `Machine` protocol of `ptxgen.isa.spec`, on a
batch of CTAs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.arena import FIRST_ADDRESS, SHARED_WINDOW
from ptxgen.interpreter.barriers import BARRIERS
from ptxgen.interpreter.lanes import WARP, absent_member
from ptxgen.interpreter.memory import (
    POISON,
    Address,
    Base,
    Plan,
    gather,
    make_plan,
    scatter,
    signed_lanes,
    turns,
)
from ptxgen.interpreter.race import Access
from ptxgen.types import b8, b32

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.arena import DeviceArena, Window
    from ptxgen.interpreter.barriers import Barriers
    from ptxgen.interpreter.copies import AsyncCopies
    from ptxgen.interpreter.faults import Faults
    from ptxgen.interpreter.lanes import Batch, Selection
    from ptxgen.interpreter.memory import SharedMemory
    from ptxgen.interpreter.race import Conflict, RaceDetector
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

_FULL_WARP: Final = 0xFFFFFFFF
_SPACES: Final = ("global", "shared", "param", "generic")
# The registers of lanes that no instruction has written, by size in bytes.
_POISONS: Final = {2: 0x7FDE, 4: POISON, 8: 0x7FF8DEAD7FC0DEAD}


class LaneMachine:
    """The state that a batch of CTAs shares, and the lanes that execute just now.

    The scheduler sets `selection` before each block; a block sets `mask` (over the selected lanes,
    None: all) and `at`, the number of the instruction, before each instruction that asks for
    something.
    """

    def __init__(
        self,
        batch: Batch,
        arena: DeviceArena,
        params: Window,
        shared: SharedMemory,
        copies: AsyncCopies,
        barriers: Barriers,
        race: RaceDetector | None,
        grain: int,
        faults: Faults,
    ) -> None:
        self.batch = batch
        self.arena = arena
        self.params = params
        self.shared = shared
        self.copies = copies
        self.barriers = barriers
        self.race = race
        self.grain = grain
        self.faults = faults
        self.exited: Lanes = ~batch.real()
        self.selection: Selection
        self.block_mask: Lanes | None = None
        self.mask: Lanes | None = None
        self.at = 0
        self._symbols: dict[tuple[int, int], Base] = {}

    # -------------------------------------------------------------------------- what blocks ask for

    def select(self, selection: Selection) -> None:
        """These lanes execute from now on."""
        self.selection = selection
        self.block_mask = self.mask = selection.inner

    def narrow(self, guard: Lanes) -> Lanes | Literal[False] | None:
        """The block's mask where the guard holds: None for all lanes, False for none."""
        both = guard if self.block_mask is None else guard & self.block_mask
        if not both.any():
            return False
        return None if both.all() else both

    def symbol(self, value: int) -> Base:
        """The address of a variable or a parameter, the same in all lanes."""
        key = self.selection.count, value
        found = self._symbols.get(key)
        if found is None:
            found = self._symbols[key] = Base(np.full(self.selection.count, value, np.uint64))
        # Plans hold the mask and the lanes of the selection that they were made for.
        return Base(found.lanes)

    def spread(self, value: Lanes) -> Lanes:
        """A value that does not depend on the lane, in every lane."""
        return value if np.ndim(value) else np.full(self.selection.count, value)

    def undefined(self, dtype: np.dtype[Any]) -> Lanes:
        """A register that was never written."""
        if dtype == np.bool_:
            return np.zeros(self.batch.lanes, np.bool_)
        bits = np.full(self.batch.lanes, _POISONS[dtype.itemsize], f"u{dtype.itemsize}")
        return bits.view(dtype)

    def check_defined(self, at: int, register: str, defined: Lanes) -> None:
        """Report lanes that read a register before they have written it."""
        wrong = ~defined if self.mask is None else ~defined & self.mask
        if wrong.any():
            self.faults.register(at, register, int(self.selection.ids[int(wrong.argmax())]))

    # --------------------------------------------------------------------------------------- memory

    def load(
        self, space: str, address: Lanes | Address, type: ScalarType, count: int
    ) -> tuple[Lanes, ...]:
        """`count` consecutive values of `type` at `address`."""
        total = type.nbytes * count
        address = _as_address(address)
        plan = self._reach(space, address, total, "read")
        if plan is None:
            return self._load_parts(space, address, type, count)
        if self.race is not None and plan.window is self.shared.window:
            access = self._access(plan, address.offset, total)
            self._judge(self.race.read(access, self.at), access)
        assert plan.window is not None
        return gather(plan, plan.window, address.offset, type, count)

    def store(
        self, space: str, address: Lanes | Address, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """Write consecutive values at `address`; where lanes collide, the last one wins."""
        total = type.nbytes * len(values)
        address = _as_address(address)
        plan = self._reach(space, address, total, "write")
        if plan is None:
            for part in self._parts(space, address, total):
                self._with_mask(part, lambda: self.store(space, _fresh(address), type, values))
            return
        if self.race is not None and plan.window is self.shared.window:
            access = self._access(plan, address.offset, total)
            self._judge(self.race.write(access, self.at), access)
        assert plan.window is not None
        scatter(plan, plan.window, address.offset, type, values)

    def atomic(
        self,
        space: str,
        address: Lanes | Address,
        type: ScalarType,
        update: Callable[..., Lanes],
        operands: tuple[Lanes, ...],
    ) -> Lanes:
        """Replace each value by `update(value, *operands)`, lane after lane in rising order; return
        the old values.
        """
        address = _as_address(address)
        plan = self._reach(space, address, type.nbytes, "update")
        old = np.zeros(self.selection.count, type.dtype)
        if plan is None:
            for part in self._parts(space, address, type.nbytes):
                got = self._with_mask(
                    part, lambda: self.atomic(space, _fresh(address), type, update, operands)
                )
                old = np.where(part, got, old)
            return old
        if self.race is not None and plan.window is self.shared.window:
            access = self._access(plan, address.offset, type.nbytes)
            self._judge(self.race.write(access, self.at, atomic=True), access)
        assert plan.window is not None
        cells = plan.window.elements(type.dtype, 1, plan.low + address.offset)
        index = plan.index(type.nbytes)
        lanes = np.arange(len(index)) if plan.mask is None else np.flatnonzero(plan.mask)
        for turn in turns(lanes, index[lanes]):
            where = index[turn]
            before = cells[where]
            old[turn] = before
            cells[where] = update(before, *(x[turn] if np.ndim(x) else x for x in operands))
        return old

    def copy_async(
        self, dst: Lanes | Address, src: Lanes | Address, nbytes: int, src_nbytes: Lanes | None
    ) -> None:
        """Start copying from global `src` to shared `dst`; bytes from `src_nbytes` to `nbytes`
        become zero.
        """
        dst, src = _as_address(dst), _as_address(src)
        plan = self._reach("shared", dst, nbytes, "copy to")
        assert plan is not None  # shared memory is one window
        data = self._copied(src, nbytes, src_nbytes)
        ids = self._active_ids(plan.mask)
        word = plan.index(4) + (plan.low + dst.offset) // 4
        if plan.mask is not None:
            word, data = word[plan.mask], data[plan.mask]
        if self.race is not None:
            access = self._access(plan, dst.offset, nbytes)
            self._judge(self.race.write(access, self.at, pending=True), access)
        self.copies.start(self.at, ids, word, data)

    def copy_async_commit(self) -> None:
        """Close the group of copies started since the last commit."""
        self.copies.commit(self._active_ids(self.mask))

    def copy_async_wait(self, pending: int | None) -> None:
        """Wait until at most `pending` groups are under way; None: all copies, grouped or not."""
        self.copies.wait(self._active_ids(self.mask), pending)

    def convert_address(self, space: str, address: Lanes, *, to_space: bool) -> Lanes:
        """Between generic addresses and those of a space."""
        if space == "global":
            return address
        if space != "shared":
            raise TrapError(f"{self._where()}: the interpreter has no {space} memory")
        window = np.uint64(SHARED_WINDOW)
        return np.subtract(address, window) if to_space else np.add(address, window)

    def fence(self, scope: str) -> None:
        """Nothing: every access is seen at once by all threads, and only barriers order shared
        memory.
        """

    # --------------------------------------------------------------------------- barriers and warps

    def barrier(self, barrier: Lanes, threads: Lanes | None, *, wait: bool) -> None:
        """Arrive at a CTA barrier, and wait there unless told otherwise."""
        ids = self._active_ids(self.mask)
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
                    f"{self._where(int(ids[lane]))}: {what}, got barrier {number[lane]}, "
                    f"count {count[lane]}"
                )
        differs = self.barriers.arrive(ids, number, count, self.at, wait=wait)
        if differs is not None:
            raise TrapError(
                f"{self._where(differs)}: another thread came to the same barrier with another "
                "count of threads"
            )

    def warp_sync(self, membermask: Lanes) -> None:
        """Check that the lanes of `membermask` are here. Raises `TrapError` if one neither is nor
        has exited.
        """
        if self.mask is not None or np.ndim(membermask) or int(membermask) != _FULL_WARP:
            self._check_members(membermask)
        if self.race is not None:
            self.race.sync_warps(self._active_ids(self.mask))

    def exchange(self, value: Lanes, source: Lanes, membermask: Lanes) -> Lanes:
        """Each lane reads `value` of lane `source` of its own warp; poison if that lane is not
        there.
        """
        self.warp_sync(membermask)
        count = self.selection.count
        value = np.broadcast_to(value, count)
        if self.mask is not None:
            poison = np.array(_POISONS[value.dtype.itemsize], f"u{value.dtype.itemsize}").view(
                value.dtype
            )
            value = np.where(self.mask, value, poison)
        first = np.arange(count) & -WARP
        return value.take(first + np.bitwise_and(source, WARP - 1))

    def lane_id(self) -> Lanes:
        """The lane number of each thread, 0..31, uint32."""
        return (np.arange(self.selection.count) % WARP).astype(np.uint32)

    def active(self) -> Lanes:
        """Which threads execute this instruction, bool."""
        return np.ones(self.selection.count, np.bool_) if self.mask is None else self.mask

    def trap(self, reason: str) -> None:
        """Stop the kernel. Raises `TrapError`."""
        raise TrapError(f"{self._where(int(self._active_ids(self.mask)[0]))}: {reason}")

    # ---------------------------------------------------------------------------------- inner parts

    def _active_ids(self, mask: Lanes | None) -> Lanes:
        ids = self.selection.ids
        return ids if mask is None else ids[mask]

    def _for_active(self, values: Lanes) -> Lanes:
        wide = np.broadcast_to(values, self.selection.count).astype(np.int64)
        return wide if self.mask is None else wide[self.mask]

    def _check_members(self, membermask: Lanes) -> None:
        members = np.broadcast_to(membermask, self.selection.count)
        found = absent_member(self.active(), self.selection.pick(self.exited), members)
        if found is not None:
            lane, what = found
            raise TrapError(f"{self._where(int(self.selection.ids[lane]))}: {what}")

    def _reach(self, space: str, address: Address, total: int, verb: str) -> Plan | None:
        """The plan for an access of `total` bytes, once it is known to be legal; None if it meets
        several buffers.
        """
        base = address.base
        plan = base.plans.get(space)
        if plan is None or plan.mask is not self.mask:
            if space not in _SPACES:
                raise TrapError(f"{self._where()}: the interpreter has no {space} memory")
            plan = base.plans[space] = make_plan(self, space, base.lanes, self.mask)
        low = plan.low + address.offset
        if (plan.spread | low) & (total - 1):
            wrong = (address.signed() + address.offset) % total != 0
            self._refuse(space, address, total, verb, wrong, f"which is not a multiple of {total}")
        if (
            plan.window is None
            or low < plan.first
            or plan.high + address.offset + total > plan.last
        ):
            return self._other_window(space, address, plan, total, verb)
        if not plan.writable and verb != "read":
            self._refuse(space, address, total, verb, self.active(), "in a read-only array")
        return plan

    def _other_window(
        self, space: str, address: Address, plan: Plan, total: int, verb: str
    ) -> Plan | None:
        low, high = plan.low + address.offset, plan.high + address.offset + total
        if space in ("shared", "param"):
            at = address.signed() + address.offset
            size = plan.last
            what = f"outside its {size} bytes"
            self._refuse(space, address, total, verb, (at < 0) | (at + total > size), what)
        if (
            space == "generic"
            and low >= SHARED_WINDOW
            and high <= SHARED_WINDOW + FIRST_ADDRESS // 2
        ):
            inside = Base(signed_lanes(address.base.lanes) - SHARED_WINDOW)
            return self._reach("shared", inside.at(address.offset), total, verb)
        found = self.arena.find(low, high)
        if found is None:
            self._parts(
                space, address, total, verb
            )  # raises, unless each lane is inside some buffer
            return None
        plan.window, plan.first, plan.last = found.window, found.base, found.end
        plan.writable = found.writable
        return self._reach(space, address, total, verb)

    def _parts(self, space: str, address: Address, total: int, verb: str = "access") -> list[Lanes]:
        """Masks of active lanes, one for each buffer (or shared memory) that they access."""
        at = np.broadcast_to(address.signed() + address.offset, self.selection.count)
        bases = np.array([b.base for b in self.arena.buffers], np.int64)
        ends = np.array([b.end for b in self.arena.buffers], np.int64)
        number = np.searchsorted(bases, at, side="right") - 1
        outside = number < 0
        if len(ends):
            outside = outside | (at + total > ends[number])
        if space == "generic":
            shared = (at >= SHARED_WINDOW) & (at < FIRST_ADDRESS)
            number, outside = np.where(shared, -2, number), outside & ~shared
        active = self.active()
        if (outside & active).any():
            lane = int((outside & active).argmax())
            self._refuse(space, address, total, verb, outside, self.arena.describe(int(at[lane])))
        return [active & (number == n) for n in np.unique(number[active])]

    def _load_parts(
        self, space: str, address: Address, type: ScalarType, count: int
    ) -> tuple[Lanes, ...]:
        merged = tuple(np.zeros(self.selection.count, type.dtype) for _ in range(count))
        for part in self._parts(space, address, type.nbytes * count):
            got = self._with_mask(part, lambda: self.load(space, _fresh(address), type, count))
            merged = tuple(np.where(part, new, old) for new, old in zip(got, merged, strict=True))
        return merged

    def _with_mask(self, mask: Lanes | None, action: Callable[[], Any]) -> Any:
        before, self.mask = self.mask, mask
        try:
            return action()
        finally:
            self.mask = before

    def _copied(self, src: Address, nbytes: int, src_nbytes: Lanes | None) -> Lanes:
        """What an asynchronous copy brings, `[lanes, words]` uint32."""
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
                f"{self._where(int(self.selection.ids[lane]))}: copies {int(sizes[lane])} bytes "
                f"into {nbytes}"
            )
        for size in np.unique(sizes[active]):
            mask = active & (sizes == size)
            if size == nbytes:
                data[mask] = np.stack(self._load_global(src, b32, nbytes // 4, mask), axis=1)[mask]
                continue
            unaligned = mask & ((src.signed() + src.offset) % nbytes != 0) & (size > 0)
            if unaligned.any():
                self._refuse(
                    "global",
                    src,
                    nbytes,
                    "copy from",
                    unaligned,
                    f"which is not a multiple of {nbytes}",
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
        got: tuple[Lanes, ...] = self._with_mask(
            mask, lambda: self.load("global", src, type, count)
        )
        return got

    # -------------------------------------------------------------------------------------- reports

    def _access(self, plan: Plan, offset: int, total: int) -> Access:
        """What the race detector has to know of an access to shared memory."""
        if plan.ids is None:
            plan.ids = self._active_ids(plan.mask)
            units = plan.index(self.grain)
            plan.units = units if plan.mask is None else units[plan.mask]
        assert plan.units is not None
        low, high = plan.low + offset, plan.high + offset + total
        return Access(
            plan.ids,
            plan.units + low // self.grain,
            total // self.grain,
            low // self.grain,
            high // self.grain,
        )

    def _judge(self, conflicts: list[Conflict], access: Access) -> None:
        """Turn what the race detector found into reports."""
        for c in conflicts:
            address = c.unit * self.grain % self.shared.stride
            self.faults.memory(self.at, c, address, int(access.ids[c.position]))

    def _where(self, lane: int | None = None) -> str:
        return self.faults.where(self.at, lane)

    def _refuse(
        self, space: str, address: Address, total: int, verb: str, wrong: Lanes, why: str
    ) -> NoReturn:
        wrong = np.broadcast_to(wrong, self.selection.count) & self.active()
        lane = int(wrong.argmax())
        lanes = np.broadcast_to(address.signed() + address.offset, self.selection.count)
        at = int(lanes[lane])
        region = self.faults.region(at) if space == "shared" else ""
        inside = f" ({region})" if region else ""
        raise TrapError(
            f"{self._where(int(self.selection.ids[lane]))} wants to {verb} {total} bytes of "
            f"{space} memory at {at:#x}{inside}, {why}"
        )


def _as_address(address: Lanes | Address) -> Address:
    return address if isinstance(address, Address) else Base(np.asarray(address)).at(0)


def _fresh(address: Address) -> Address:
    """The same address without the plans made so far."""
    return Base(address.base.lanes).at(address.offset)
