"""Loads, stores and atomic operations of a batch of CTAs, in every state space."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.address_map import (
    LOCAL_START,
    SHARED_WINDOW,
    WINDOW_BYTES,
    WINDOW_USED,
    WINDOWS,
)
from ptxgen.interpreter.machine.memory import (
    Address,
    Base,
    Meetings,
    Plan,
    gather,
    in_cluster,
    in_own_cta,
    make_plan,
    scatter,
    signed_lanes,
)
from ptxgen.types import b64

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.machine.arena import DeviceArena
    from ptxgen.interpreter.machine.faults import Faults
    from ptxgen.interpreter.machine.lanes import Batch, Selection
    from ptxgen.interpreter.machine.memory import SharedMemory, Space
    from ptxgen.interpreter.machine.observer import Meter, Observer
    from ptxgen.interpreter.machine.shadows import Definedness
    from ptxgen.isa.atomic_scans import Scan
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

_ATOMIC_VERB: Final = "update"
_MOST_ZEROS: Final = 2**40  # bytes; more than any memory has


class MemoryAccess:
    """The memory operations that instructions may use. They apply to the lanes of `selection` under
    `mask`.
    """

    batch: Batch
    arena: DeviceArena
    shared: SharedMemory
    spaces: dict[str, Space]  # all spaces that are one row of bytes, per thread or for all threads
    watch: Observer | None
    traffic: Meter | None = None
    before: Callable[[Any, Any], None] | None = None  # called before each instruction of a stepwise run
    definedness: Definedness | None = None  # follows undefined bits, if a sanitizer asks for it
    faults: Faults
    selection: Selection
    mask: Lanes | None
    at: int

    def load(self, space: str, address: Lanes | Address, type: ScalarType, count: int) -> tuple[Lanes, ...]:
        """`count` consecutive values of `type` at `address`."""
        total = type.nbytes * count
        address = as_address(address)
        plan = self.reach(space, address, total, "read")
        if plan is None:
            return self._load_parts(space, address, type, count)
        if self.watch is not None:
            self.watch.load(self, plan, address.offset, total)
        if self.traffic is not None:
            self.traffic.access(self, plan, address.offset, total, "read")
        if self.definedness is not None:
            self.definedness.loads(plan, address.offset, total)
        assert plan.window is not None
        return gather(plan, plan.window, address.offset, type, count)

    def store(
        self, space: str, address: Lanes | Address, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """Write consecutive values at `address`; if several lanes write one address, the last lane wins."""
        total = type.nbytes * len(values)
        address = as_address(address)
        plan = self.reach(space, address, total, "write")
        if plan is None:
            for part in self.parts(space, address, total):
                self.with_mask(part, lambda: self.store(space, fresh(address), type, values))
            return
        if self.watch is not None:
            self.watch.store(self, plan, address.offset, type, values)
        if self.traffic is not None:
            self.traffic.access(self, plan, address.offset, total, "write")
        assert plan.window is not None
        scatter(plan, plan.window, address.offset, type, values)
        if self.definedness is not None:
            self.definedness.stores(plan, address.offset, total)

    def store_zeros(self, space: str, address: Lanes | Address, nbytes: Lanes) -> None:
        """Write `nbytes` zero bytes, a multiple of 8 for each lane, to shared memory at `address`."""
        address = as_address(address)
        sizes = np.where(self.active(), np.minimum(nbytes, _MOST_ZEROS).astype(np.int64), 0)
        uneven = sizes % b64.nbytes != 0
        if uneven.any():
            size = int(sizes[uneven.argmax()])
            self._refuse(
                space, address, size, "write", uneven, f"a size that is not a multiple of {b64.nbytes}"
            )
        if space == "generic":
            at = address.signed() + address.offset
            outside = (sizes > 0) & ((at < SHARED_WINDOW) | (at >= SHARED_WINDOW + WINDOW_USED))
            if outside.any():
                size = int(sizes[outside.argmax()])
                self._refuse(space, address, size, "write", outside, "which is not in shared memory")
            space, address = "shared", base_in(address, "shared", SHARED_WINDOW)
        begin = 0
        for end in np.unique(sizes[sizes > 0]).tolist():
            lanes = sizes >= end
            self.with_mask(lanes, partial(self._store_zero_words, space, fresh(address), begin, end))
            begin = end

    def _store_zero_words(self, space: str, address: Address, begin: int, end: int) -> None:
        """Write zeros from `begin` to `end`, in bytes after the address."""
        zeros = (np.zeros(self.selection.count, b64.dtype),)
        for at in range(address.offset + begin, address.offset + end, b64.nbytes):
            self.store(space, address.base.at(at), b64, zeros)

    def atomic(
        self,
        space: str,
        address: Lanes | Address,
        type: ScalarType,
        update: Callable[..., Lanes],
        operands: tuple[Lanes, ...],
        *,
        scan: Scan | None = None,
    ) -> Lanes:
        """Replace each value by `update(value, *operands)`, one lane after another in rising order,
        or by a `scan` with the same result; return the old values.
        """
        address = as_address(address)
        plan = self.reach(space, address, type.nbytes, _ATOMIC_VERB)
        old = np.zeros(self.selection.count, type.dtype)
        if plan is None:
            for part in self.parts(space, address, type.nbytes):
                got = self.with_mask(
                    part, lambda: self.atomic(space, fresh(address), type, update, operands, scan=scan)
                )
                old = np.where(part, got, old)
            return old
        if self.watch is not None:
            self.watch.before_atomic(self, plan, address.offset, type.nbytes)
        if self.traffic is not None:
            self.traffic.access(self, plan, address.offset, type.nbytes, _ATOMIC_VERB)
        if self.definedness is not None:
            self.definedness.loads(plan, address.offset, type.nbytes)
        assert plan.window is not None
        cells = plan.window.elements(type.dtype, 1, plan.low + address.offset)
        index = plan.index(type.nbytes)
        lanes = np.arange(len(index)) if plan.mask is None else np.flatnonzero(plan.mask)
        meetings = Meetings(lanes, index[lanes])
        if scan is None or not meetings.scan(scan, cells, operands, old):
            for group in meetings.rounds():
                where = index[group]
                before = cells[where]
                old[group] = before
                cells[where] = update(before, *(x[group] if np.ndim(x) else x for x in operands))
        if self.watch is not None:
            self.watch.after_atomic(self, plan, address.offset, old)
        return old

    def positions(self, address: Lanes | Address, nbytes: int) -> Lanes:
        """The address of each active lane as an index of `shared.window.data`, int64; the `nbytes`
        from there must be shared memory.
        """
        address = as_address(address)
        plan = self.reach("shared", address, nbytes, "access")
        assert plan is not None  # shared memory is one window
        flat = plan.relative + (plan.low + address.offset)
        return flat if plan.mask is None else flat[plan.mask]

    def peek(self, address: int, lane: int, nbytes: int) -> bytes:
        """The bytes that a lane would read at a generic address. Raises `TrapError` if there is no memory."""
        if self.definedness is not None:
            self.definedness.leaves(address, lane, nbytes)
        return self._bytes_at(address, lane, nbytes)[:nbytes].tobytes()

    def peek_string(self, address: int, lane: int, longest: int) -> str:
        """The text at a generic address up to a zero byte, at most `longest` characters."""
        data = self._bytes_at(address, lane, 1)[:longest]
        ends = np.flatnonzero(data == 0)
        return data[: ends[0] if len(ends) else None].tobytes().decode("utf-8", "replace")

    def _bytes_at(self, address: int, lane: int, nbytes: int) -> Lanes:
        """The bytes of an array or a space from a generic address to its end, at least `nbytes`."""
        buffer = self.arena.find(address, address + nbytes)
        if buffer is not None:
            return buffer.window.data[address - buffer.base :]
        offset, cta = in_cluster(self.batch, lane, address - SHARED_WINDOW)
        known = [
            (address - offset, self.shared.nbytes, self.shared.window, cta * self.batch.shared_stride),
            *(
                (WINDOWS[name] + s.first, s.nbytes, s.window, lane * s.stride)
                for name, s in self.spaces.items()
            ),
        ]
        for first, size, window, start in known:
            if first <= address and address + nbytes <= first + size:
                return window.data[start + address - first : start + size]
        why = self.arena.describe(address)
        for name, first in WINDOWS.items():
            if first <= address < first + WINDOW_BYTES:
                size = self.shared.nbytes if name == "shared" else self.spaces[name].nbytes
                why = f"outside the {size} bytes of {name} memory"
        raise TrapError(
            f"{self._where(lane)} wants to read {nbytes} bytes of generic memory at {address:#x}, {why}"
        )

    # ------------------------------------------------------------------------------------- planning

    def reach(self, space: str, address: Address, total: int, verb: str) -> Plan | None:
        """The plan for an access of `total` bytes, once it is known to be legal; None if the lanes
        reach several buffers or spaces.
        """
        base = address.base
        plan = base.plans.get(space)
        if plan is None or plan.mask is not self.mask:
            plan = base.plans[space] = make_plan(
                self.selection, self.shared, self.spaces, space, base, self.mask
            )
        low = plan.low + address.offset
        if (plan.spread | low) & (total - 1):
            wrong = (address.signed() + address.offset) % total != 0
            self._refuse(space, address, total, verb, wrong, f"which is not a multiple of {total}")
        if plan.window is None or low < plan.first or plan.high + address.offset + total > plan.last:
            return self._other_window(space, address, plan, total, verb)
        return self._permitted(space, address, plan, total, verb)

    def _permitted(self, space: str, address: Address, plan: Plan, total: int, verb: str) -> Plan:
        """The plan of an access that its window holds, if that may be written. Raises `TrapError`."""
        if not plan.writable and verb != "read":
            self._refuse(space, address, total, verb, self.active(), "in a read-only array")
        return plan

    def _other_window(self, space: str, address: Address, plan: Plan, total: int, verb: str) -> Plan | None:
        """The result of `reach` if the plan's window does not hold the access, or the plan has none yet."""
        low, high = plan.low + address.offset, plan.high + address.offset + total
        inside = self._inside(space, low, high)
        if inside is not None:
            return self.reach(inside[0], base_in(address, *inside), total, verb)
        if space not in ("global", "generic"):
            at = address.signed() + address.offset
            first, size = plan.first, plan.last - plan.first
            what = f"outside its {size} bytes"
            if plan.watched and self.selection.rank_base is not None:
                at, _ = in_cluster(self.batch, self.selection.ids, at)
            self._refuse(space, address, total, verb, (at < first) | (at + total > plan.last), what)
        buffer = self.arena.find(low, high)
        if buffer is None:
            # Raises, unless each lane is inside some buffer.
            self.parts(space, address, total, verb)
            return None
        plan.window, plan.first, plan.last = buffer.window, buffer.base, buffer.end
        plan.writable, plan.buffer = buffer.writable, buffer
        return self._permitted(space, address, plan, total, verb)

    def _inside(self, space: str, low: int, high: int) -> tuple[str, int] | None:
        """The space that an access really reaches, and the offset between the addresses of that space and of
        `space`; None if the access reaches `space` itself, or several spaces.
        """
        if space == "param" and low >= LOCAL_START:
            return "local", 0  # arguments and results of calls are in local memory
        if space != "generic" or not SHARED_WINDOW <= low < high:
            return None
        for name, first in WINDOWS.items():
            if first <= low and high <= first + WINDOW_USED:
                return name, first
        return None

    def parts(self, space: str, address: Address, total: int, verb: str = "access") -> list[Lanes]:
        """Masks of active lanes, one for each buffer or other space that the lanes access."""
        at = np.broadcast_to(address.signed() + address.offset, self.selection.count)
        bases = np.array([b.base for b in self.arena.buffers], np.int64)
        ends = np.array([b.end for b in self.arena.buffers], np.int64)
        number = np.searchsorted(bases, at, side="right") - 1
        outside = number < 0
        if len(ends):
            outside = outside | (at + total > ends[number])
        if space == "generic":
            window, inside_it = np.divmod(at - SHARED_WINDOW, WINDOW_BYTES)
            inside = (window >= 0) & (window <= len(self.spaces))
            inside &= inside_it + total <= WINDOW_USED
            number, outside = np.where(inside, -2 - window, number), outside & ~inside
        active = self.active()
        if (outside & active).any():
            lane = int((outside & active).argmax())
            self._refuse(space, address, total, verb, outside, self.arena.describe(int(at[lane])))
        return [active & (number == n) for n in np.unique(number[active])]

    def _load_parts(self, space: str, address: Address, type: ScalarType, count: int) -> tuple[Lanes, ...]:
        merged = tuple(np.zeros(self.selection.count, type.dtype) for _ in range(count))
        for part in self.parts(space, address, type.nbytes * count):
            got = self.with_mask(part, lambda: self.load(space, fresh(address), type, count))
            merged = tuple(np.where(part, new, old) for new, old in zip(got, merged, strict=True))
        return merged

    def with_mask(self, mask: Lanes | None, action: Callable[[], Any]) -> Any:
        """The result of `action` for the lanes of a mask."""
        before, self.mask = self.mask, mask
        try:
            return action()
        finally:
            self.mask = before

    # --------------------------------------------------------------------------------------- lanes

    def active(self) -> Lanes:
        """Which of the selected lanes execute this instruction, bool."""
        return np.ones(self.selection.count, np.bool_) if self.mask is None else self.mask

    def active_ids(self, mask: Lanes | None) -> Lanes:
        """The numbers in the batch of the lanes that are active under a mask."""
        ids = self.selection.ids
        return ids if mask is None else ids[mask]

    # ------------------------------------------------------------------------------------- reports

    def _where(self, lane: int | None = None) -> str:
        return self.faults.where(self.at, lane)

    def _refuse(
        self, space: str, address: Address, total: int, verb: str, wrong: Lanes, why: str
    ) -> NoReturn:
        wrong = np.broadcast_to(wrong, self.selection.count) & self.active()
        lane = int(wrong.argmax())
        lanes = np.broadcast_to(address.signed() + address.offset, self.selection.count)
        at = int(lanes[lane])
        region = ""
        if space == "shared":
            at = in_own_cta(self.batch, int(self.selection.ids[lane]), at)
            region = self.faults.region(at)
        inside = f" ({region})" if region else ""
        raise TrapError(
            f"{self._where(int(self.selection.ids[lane]))} wants to {verb} {total} bytes of "
            f"{space} memory at {at:#x}{inside}, {why}"
        )


def as_address(address: Lanes | Address) -> Address:
    """Lanes as an address without a constant offset; an `Address` unchanged."""
    return address if isinstance(address, Address) else Base(np.asarray(address)).at(0)


def base_in(address: Address, space: str, below: int) -> Address:
    """The address in the numbering of the space itself, `below` less; made once for each base."""
    base = address.base
    if not below:
        return address
    inside = base.inside.get(space)
    if inside is None:
        inside = base.inside[space] = Base(signed_lanes(base.lanes) - below)
    return inside.at(address.offset)


def fresh(address: Address) -> Address:
    """A copy of an address without the plans that are cached in it."""
    return Base(address.base.lanes).at(address.offset)
