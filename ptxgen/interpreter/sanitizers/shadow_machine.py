"""The machine on which rows are run to see where undefined bits go: its memory and the registers of other
lanes are undefined bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.access import as_address, fresh
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.types import TYPES, bits_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.machine.memory import Address, Plan
    from ptxgen.interpreter.sanitizers.undefined_memory import UndefinedMemory
    from ptxgen.interpreter.sanitizers.undefined_tensor import UndefinedTensor
    from ptxgen.isa.spec import Op
    from ptxgen.isa.tensor_agent import RegisterShape
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]


class ShadowMachine:
    """Runs the function of one instruction `op`, number `at`, on undefined bits. `of` finds the undefined
    bits of the memory of an access, and makes them if asked to; `origins` are the origins of undefined bits
    that lanes store, and `met` those that they have read.
    """

    def __init__(
        self,
        machine: LaneMachine,
        op: Op,
        of: Callable[[Plan, bool], UndefinedMemory | None],
        born: Callable[[Plan, int, int, Lanes], Lanes],
        origins: Lanes,
    ) -> None:
        self._machine = machine
        self._op = op
        self._of = of
        self._born = born
        self._origins = origins
        self.met: Lanes = np.zeros(machine.selection.count, np.int32)
        # What becomes of the bits of each matrix that is read from memory, in order.
        self.matrices: list[Callable[[Lanes], Lanes]] = []
        self.sm = machine.sm

    def load(self, space: str, address: Lanes | Address, type: ScalarType, count: int) -> tuple[Lanes, ...]:
        """The undefined bits of consecutive values."""
        machine, total = self._machine, type.nbytes * count
        address = as_address(address)
        plan = machine.reach(space, address, total, "read")
        bits = TYPES[f"b{type.bits}"]
        zeros = tuple(np.zeros(machine.selection.count, bits.dtype) for _ in range(count))
        if plan is None:
            merged = zeros
            for part in machine.parts(space, address, total):
                got = machine.with_mask(part, lambda: self.load(space, fresh(address), type, count))
                merged = tuple(np.where(part, new, old) for new, old in zip(got, merged, strict=True))
            return merged
        memory = self._of(plan, False)
        if memory is None or not memory.some:
            return zeros
        shadows = memory.load(plan, address.offset, bits, count)
        undefined = np.logical_or.reduce([part != 0 for part in shadows])
        if plan.mask is not None:
            undefined &= plan.mask
        if undefined.any():
            origin = memory.origin(plan, address.offset, total)
            origin = np.where(origin > 0, origin, self._born(plan, address.offset, total, undefined))
            self.met = np.where(undefined, origin, self.met)
        return shadows

    def store(
        self, space: str, address: Lanes | Address, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """Record that consecutive values with undefined bits have been stored."""
        machine, total = self._machine, type.nbytes * len(values)
        address = as_address(address)
        plan = machine.reach(space, address, total, "write")
        if plan is None:
            for part in machine.parts(space, address, total):
                machine.with_mask(part, lambda: self.store(space, fresh(address), type, values))
            return
        bits = TYPES[f"b{type.bits}"]
        count = machine.selection.count
        shadows = tuple(np.ascontiguousarray(np.broadcast_to(v, count)).view(bits.dtype) for v in values)
        if plan.buffer is not None:
            shadows = self._without_gaps(shadows)
        active = machine.active()
        some = any((part[active] != 0).any() for part in shadows)
        memory = self._of(plan, some)
        if memory is not None and some:
            memory.store(plan, address.offset, bits, shadows, self._origins, machine.at)
            self._noted(plan, np.logical_or.reduce([part != 0 for part in shadows]))

    def atomic(
        self,
        space: str,
        address: Lanes | Address,
        type: ScalarType,
        update: Any,
        operands: tuple[Lanes, ...],
        *,
        scan: Any = None,
    ) -> Lanes:
        """The undefined bits of the old values; the new ones are undefined if those or an operand are."""
        del update, scan
        machine = self._machine
        address = as_address(address)
        plan = machine.reach(space, address, type.nbytes, "update")
        count, bits = machine.selection.count, TYPES[f"b{type.bits}"]
        old = np.zeros(count, bits.dtype)
        if plan is None:
            for part in machine.parts(space, address, type.nbytes):
                got = machine.with_mask(
                    part, lambda: self.atomic(space, fresh(address), type, None, operands)
                )
                old = np.where(part, got, old)
            return old
        (old,) = self.load(space, address, type, 1)
        shadows = [np.broadcast_to(np.ascontiguousarray(x), count).copy().view(bits.dtype) for x in operands]
        active = machine.active()
        if self._op.modifiers.get("op") == "exch":
            memory = self._of(plan, bool(shadows[0][active].any()))
            if memory is not None:
                memory.store(plan, address.offset, bits, (shadows[0],), self._origins, machine.at)
                self._noted(plan, shadows[0] != 0)
            return old
        undefined = active & np.logical_or.reduce([x != 0 for x in (old, *shadows)])
        memory = self._of(plan, bool(undefined.any()))
        if memory is None or not undefined.any():
            return old
        full = every_bit(type.nbytes)
        cells = memory.window.elements(bits.dtype, 1, plan.low + address.offset)
        index = plan.index(type.nbytes)
        cells[index[undefined]] = full
        memory.some = True
        memory.origins[memory.words(plan, address.offset, type.nbytes)[undefined]] = np.maximum(
            self._origins, self.met
        )[undefined][:, None]
        memory.writers[memory.words(plan, address.offset, type.nbytes)[undefined]] = machine.at
        self._noted(plan, undefined)
        several = len(np.unique(index[active])) < np.count_nonzero(active)
        shown = cells[index] if several else old
        return np.where(shown != 0, full, old)

    def _without_gaps(self, values: tuple[Lanes, ...]) -> tuple[Lanes, ...]:
        """Stored values without the undefined bytes that may be gaps between the fields of structures: of
        local memory that nothing has written, and less than a whole value. Compilers copy such structures
        to arrays word by word.
        """
        from_local = self._machine.definedness.from_local(self._origins)  # type: ignore[union-attr]
        if not from_local.any():
            return values
        shadows = []
        for bits in values:
            octets = bits.view(np.uint8).reshape(len(bits), -1)
            gap = (octets != 0).any(axis=1) & ((octets == 0).any(axis=1) | (octets.shape[1] == 1))
            shadows.append(np.where(gap & from_local, bits.dtype.type(0), bits))
        return tuple(shadows)

    def _noted(self, plan: Plan, lanes: Lanes) -> None:
        """Report that lanes have stored undefined bits in an array."""
        lanes = lanes & self._machine.active()
        if plan.buffer is not None and lanes.any():
            self._machine.definedness.stored(int(self._machine.selection.ids[int(lanes.argmax())]))  # type: ignore[union-attr]

    def send_values(
        self, dst: Lanes, values: tuple[Lanes, ...], mbarrier: Lanes, reduce: Any, type: ScalarType
    ) -> None:
        """Record that values with undefined bits have been sent to another CTA."""
        del mbarrier
        size = type.nbytes * len(values)
        index = self._machine.positions(dst, size)[:, None] + np.arange(size)
        count, active = self._machine.selection.count, self._machine.active()
        parts = [np.ascontiguousarray(np.broadcast_to(v, count)) for v in values]
        octets = np.stack(parts, axis=1)[active].view(np.uint8).reshape(len(index), size)
        memory = self._of_shared()
        memory.write(index, octets, adds=reduce is not None)
        memory.mark(index, self._origins[active][:, None], self._machine.at)

    def _of_shared(self) -> UndefinedMemory:
        shared: UndefinedMemory = self._machine.definedness.shared  # type: ignore[union-attr]
        return shared

    def load_by_warp(self, address: Lanes, rows: Lanes, type: ScalarType) -> Lanes:
        """The undefined bits of a matrix in memory, or what `matrices` makes of them."""
        machine = self._machine
        index = address[rows]
        if machine.selection.shared_base is not None:
            index = index + np.asarray(machine.selection.shared_base)[::WARP, None]
        inside = np.clip(index, 0, len(machine.shared.window.data) - type.nbytes)
        bits = TYPES[f"b{type.bits}"].dtype
        memory = self._of_shared()
        shadows = memory.window.elements(bits, 1, 0)[inside // type.nbytes]
        undefined = (shadows != 0).any(axis=1) & machine.active().reshape(-1, WARP).any(axis=1)
        if undefined.any():
            origin = memory.origins[inside // 4].max(axis=1)
            if not origin[undefined].all():
                row = int((undefined & (origin == 0)).argmax())
                word = int((shadows[row] != 0).argmax())
                byte = int((shadows[row, word : word + 1].view(np.uint8) != 0).argmax())
                number = machine.definedness.unwritten_shared(int(inside[row, word]) + byte)  # type: ignore[union-attr]
                origin = np.where(origin > 0, origin, number)
            self.met = np.where(np.repeat(undefined, WARP), np.repeat(origin, WARP), self.met).astype(
                np.int32
            )
        how = self.matrices.pop(0) if self.matrices else None
        return shadows if how is None else how(shadows)

    def multiply(self, read: Callable[[], Any], multiplied: Callable[..., Any], d: Any) -> Any:
        """The undefined bits of sums of products; they are undefined as soon as the multiplication starts."""
        return multiplied(read(), d)

    def load_cells(self, address: Lanes, of: RegisterShape) -> tuple[Lanes, ...]:
        """The undefined bits of cells of tensor memory."""
        index = self._machine.cells_of(address, of)
        bits, origins = self._machine.definedness.tensor.load(index.reshape(len(index), -1))  # type: ignore[union-attr]
        active = self._machine.active()
        self.met = np.where(active & (origins > 0), origins, self.met)
        return tuple(np.where(active, bits, np.uint32(0)))

    def store_cells(self, address: Lanes, of: RegisterShape, values: tuple[Lanes, ...]) -> None:
        """Record that registers with undefined bits have been stored in tensor memory."""
        machine = self._machine
        index = machine.cells_of(address, of).reshape(len(values), -1)
        active = machine.active()
        bits = np.stack([np.broadcast_to(v, machine.selection.count) for v in values])
        tensor: UndefinedTensor = machine.definedness.tensor  # type: ignore[union-attr, assignment]
        tensor.store(index[:, active], bits[:, active], self._origins[active])

    def exchange(self, value: Lanes, source: Lanes, membermask: Lanes) -> Lanes:
        """The undefined bits of other lanes; all bits of lanes that do not take part."""
        machine = self._machine
        count = machine.selection.count
        bits = np.ascontiguousarray(np.broadcast_to(value, count))
        of = (np.arange(count) & -WARP) + np.bitwise_and(source, WARP - 1)
        received = bits.take(of)
        self.met = np.maximum(self.met, self._origins.take(of))
        absent = machine.absent(source, of, membermask)
        if absent is None:
            return received
        self.met = np.where(absent, machine.definedness.from_absent(), self.met)  # type: ignore[union-attr]
        return np.where(absent, ~received.dtype.type(0), received)

    def warp_sync(self, membermask: Lanes) -> None:
        """Do nothing: the lanes have met already."""

    def trap(self, reason: str) -> None:
        """Do nothing: the instruction itself has not trapped."""

    def active(self) -> Lanes:
        """Which lanes execute the instruction, bool."""
        return self._machine.active()

    def lane_id(self) -> Lanes:
        """The lane number of each thread."""
        return self._machine.lane_id()

    def warp_id(self) -> Lanes:
        """The number of each thread's warp in its CTA."""
        return self._machine.warp_id()


def every_bit(nbytes: int) -> np.generic:
    """A value of this many bytes whose bits are all 1."""
    value: np.generic = np.frombuffer(b"\xff" * nbytes, bits_dtype(nbytes))[0]
    return value
