"""The sanitizer `init`: undefined bits are followed through registers and memory, and reported where they
decide something.

Undefined are registers, shared and local memory and memory from `malloc` that nothing has written, and
what a shuffle reads from a lane that does not take part. Copies and arithmetic may carry undefined bits on,
as `ptxgen.isa.undefined` says for each instruction. A report comes where an undefined bit decides where a
thread goes, whether an instruction with an effect is executed, which address is accessed or what a barrier
does; where it leaves the kernel, and at the end of a run for each array whose bytes are undefined
(`ptxgen.interpreter.sanitizers.undefined_arrays`). This is the rule of Valgrind's memcheck and of
MemorySanitizer (E. Stepanov and K. Serebryany, "MemorySanitizer: Fast Detector of Uninitialized Memory Use
in C++", 2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.shadows import Shadow
from ptxgen.interpreter.sanitizers.shadow_machine import ShadowMachine, every_bit
from ptxgen.interpreter.sanitizers.undefined_places import UndefinedPlaces
from ptxgen.ir import Not, Reg, Vector, registers_of
from ptxgen.isa.spec import PURE, Effect
from ptxgen.isa.undefined import Flow, whole
from ptxgen.isa.undefined_products import PRODUCT
from ptxgen.types import TYPES, bits_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ptxgen.interpreter.program.segments import Step
    from ptxgen.isa.spec import BoundOperand
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

_CHUNK: Final = 16  # bytes of a unit of a box
# Instructions that read memory only: whether they are executed may depend on anything.
_HARMLESS: Final = PURE | {Effect.READ}
_ABSENT: Final = "what a lane holds that does not take part, or is not in the membermask"


class UndefinedBits(UndefinedPlaces):
    """Follows the undefined bits of one batch of CTAs."""

    # ------------------------------------------------------------------------------------ registers

    def unwritten(self, dtype: np.dtype[Any]) -> Shadow:
        """The shadow of a register that no lane of the batch has written."""
        lanes = self._machine.batch.lanes
        if dtype == np.bool_:
            return Shadow(np.ones(lanes, np.bool_), np.zeros(lanes, np.int32))
        return Shadow(np.full(lanes, every_bit(dtype.itemsize)), np.zeros(lanes, np.int32))

    def preserved(self, before: Shadow | None, guard: Lanes) -> Shadow | None:
        """The shadow of a register after a defined value was written to it in the lanes of `guard`."""
        if before is None:
            return None
        bits = np.where(guard, before.bits.dtype.type(0), before.bits)
        return Shadow(bits, before.origin) if bits.any() else None

    def flow(
        self,
        step: Step,
        shadows: Mapping[str, Shadow | None],
        values: Mapping[str, Any],
        guard: Lanes | None,
        before: tuple[Shadow | None, ...],
    ) -> tuple[Shadow | None, ...]:
        """The shadows of the registers that an instruction has written."""
        registers = [(w, r) for w, got in step.results for r in _items(got)]
        if not self.moved and _replaces_sums(step, shadows, values):
            return (None,) * sum(isinstance(r, Reg) for _, r in registers)
        machine = self._machine
        count = machine.selection.count
        held = machine.mask
        mask = machine.block_mask if guard is None else machine.narrow(guard)
        new: list[Shadow | None] = [None] * len(registers)
        if mask is not False:
            machine.mask, at, machine.at = mask, machine.at, step.number
            try:
                new = self._results(step, shadows, values, registers)
            finally:
                machine.mask, machine.at = held, at
        results = []
        old = iter(before)
        undecided = self._undecided(step, shadows)
        for (_, register), shadow in zip(registers, new, strict=True):
            if not isinstance(register, Reg):
                continue
            if guard is not None:
                shadow = _chosen(guard, shadow, next(old), count)
            if undecided is not None:
                shadow = _filled(shadow, undecided, register)
            results.append(shadow if shadow is None or shadow.bits.any() else None)
        return tuple(results)

    def _results(
        self,
        step: Step,
        shadows: Mapping[str, Shadow | None],
        values: Mapping[str, Any],
        registers: list[tuple[BoundOperand, Any]],
    ) -> list[Shadow | None]:
        op, machine = step.op, self._machine
        rule, pure = op.row.undefined, op.effect in PURE
        count = machine.selection.count
        active = machine.active()
        bits: dict[str, Any] = {}
        origin: Lanes = np.zeros(count, np.int32)
        for want, got in _operands(step):
            reads = not want.written or want.name in op.row.parameters
            if not reads or want.type is None or got is None or not rule.carries(want, pure=pure):
                continue
            if want.address:
                continue
            parts = []
            for item in _items(got):
                part, of = self._read(step, want.type, item, shadows)
                if part.ndim:
                    part = np.where(active, part, part.dtype.type(0))
                    origin = np.where((origin == 0) & (part != 0), of, origin)
                parts.append(part)
            bits[want.name] = tuple(parts) if isinstance(got, Vector) else parts[0]
        shadow_machine = ShadowMachine(machine, op, self._memory, self._born, origin)
        row = op.row
        arguments: dict[str, Any] = {n: v for n, v in op.modifiers.items() if n in row.parameters}
        if "machine" in row.parameters:
            arguments["machine"] = shadow_machine

        def run(replaced: Mapping[str, Any]) -> Any:
            return row.semantics(**{**values, **arguments, **replaced})

        flow = Flow(op, values, bits, run, shadow_machine)
        undefined = whole(flow) if rule.bits is None else rule.bits(flow)
        if op.effect is Effect.CARRY:
            undefined = self._with_carry(step, undefined)
        if not registers:
            return []
        origin = np.where(origin == 0, shadow_machine.met, origin)
        return self._into_registers(op.dests, undefined, registers, origin, active)

    def _into_registers(
        self,
        dests: tuple[BoundOperand, ...],
        undefined: Any,
        registers: list[tuple[BoundOperand, Any]],
        origin: Lanes,
        active: Lanes,
    ) -> list[Shadow | None]:
        """The shadows of registers from the undefined bits of results."""
        parts: list[Any] = []
        results = undefined if isinstance(undefined, tuple) and len(dests) > 1 else (undefined,) * len(dests)
        for dest, result in zip(dests, results, strict=True):
            width = sum(want is dest for want, _ in registers) if dest.count else 1
            parts += result if isinstance(result, tuple) else (result,) * width
        shadows: list[Shadow | None] = []
        fallback = self._fallback(origin)
        for (want, register), part in zip(registers, parts, strict=True):
            if not isinstance(register, Reg) or not np.any(part):
                shadows.append(None)
                continue
            assert want.type is not None
            bits = np.where(active, _register_bits(part, want.type, register, len(active)), 0)
            bits = bits.astype(np.bool_) if register.declared == "pred" else bits
            of = np.where(bits != 0, np.where(origin > 0, origin, fallback), 0).astype(np.int32)
            shadows.append(Shadow(bits, of) if bits.any() else None)
        return shadows

    def _fallback(self, origin: Lanes) -> Lanes:
        """An origin for lanes with undefined bits from other lanes: one of the origins of their warp."""
        by_warp = origin.reshape(-1, WARP).max(axis=1)
        by_warp = np.where(by_warp > 0, by_warp, origin.max(initial=0))
        return np.repeat(by_warp, WARP)

    def _read(
        self, step: Step, type: ScalarType, item: Any, shadows: Mapping[str, Shadow | None]
    ) -> tuple[Any, Any]:
        """The undefined bits of an operand that is read as a type, and their origins."""
        register = item.register if isinstance(item, Not) else item
        shadow = shadows.get(register.name) if isinstance(register, Reg) else None
        dtype = np.dtype(np.bool_) if type.kind == "p" else bits_dtype(type.nbytes)
        if shadow is None:
            return np.zeros((), dtype), 0
        return shadow.bits.astype(dtype), self._origins_of(step.number, register, shadow)

    def _origins_of(self, at: int, register: Reg, shadow: Shadow) -> Lanes:
        """The origins of the undefined bits of a register that instruction `at` reads; for bits that nothing
        has written, the register itself at this instruction.
        """
        unborn = (shadow.origin == 0) & (shadow.bits != 0)
        if not unborn.any():
            return shadow.origin
        number = self._arrays.origin(
            at, "undefined", "register", 0, register.name, f"{register.name}, which it has not written"
        )
        origins: Lanes = np.where(unborn, np.int32(number), shadow.origin)
        return origins

    def _undecided(self, step: Step, shadows: Mapping[str, Shadow | None]) -> Shadow | None:
        """The shadow of the guard of an instruction that has no effect but reads; None for any other."""
        guard = step.instr.guard
        shadow = None if guard is None else shadows.get(guard.register.name)
        if shadow is None or guard is None or step.op.effect not in _HARMLESS:
            return None
        return Shadow(shadow.bits, self._origins_of(step.number, guard.register, shadow))

    def _with_carry(self, step: Step, undefined: Any) -> Any:
        """Whether results with the carry flag are undefined, by lane; marks a flag that is written."""
        op, machine = step.op, self._machine
        name = op.row.name
        lanes = np.broadcast_to(np.not_equal(undefined, 0), machine.selection.count)
        if name.endswith("c") and not name.endswith("_cc"):
            lanes = lanes | machine.selection.pick(self._carry)
        if name.endswith("_cc") or op.modifiers.get("cc"):
            ids = machine.active_ids(machine.mask)
            self._carry[ids] = lanes[machine.active()]
        return lanes

    def reads_carry(self) -> None:
        """An instruction reads the carry flag."""
        self.moved = self.moved or bool(self._carry.any())

    def writes_carry(self) -> None:
        """An instruction has written the carry flag, which is defined until `flow` says otherwise."""
        reads = self._machine.at
        name = self._faults.instrs[reads].opcode.partition(".")[0]
        if not name.endswith("c"):
            self._carry[self._machine.active_ids(self._machine.mask)] = False

    # ---------------------------------------------------------------------------------------- uses

    def judge(self, step: Step, shadows: Mapping[str, Shadow | None], guard: Lanes | None) -> None:
        """Report the undefined registers whose use decides what an instruction does."""
        op, machine = step.op, self._machine
        if step.resumes:
            return
        base = machine.block_mask
        active = np.ones(machine.selection.count, np.bool_) if base is None else base
        predicate = step.instr.guard
        if predicate is not None and op.effect not in _HARMLESS:
            self._use(step, predicate.register, shadows, active, f"its guard {predicate.register.name}")
        if guard is not None:
            active = active & guard
        for want, got in _operands(step):
            carried = op.row.undefined.carries(want, pure=op.effect in PURE)
            if want.written or (carried and not want.address) or want.kind in ("args", "label", "imm"):
                continue
            for register in registers_of(got):
                role = f"its address {register.name}" if want.address else f"its operand {register.name}"
                self._use(step, register, shadows, active, role)

    def _use(
        self, step: Step, register: Reg, shadows: Mapping[str, Shadow | None], active: Lanes, what: str
    ) -> None:
        shadow = shadows.get(register.name)
        if shadow is None:
            return
        wrong = active & (shadow.bits != 0)
        if wrong.any():
            lane = int(wrong.argmax())
            origin = int(self._origins_of(step.number, register, shadow)[lane])
            self._arrays.report(
                self._faults, step.number, int(self._machine.selection.ids[lane]), what, origin
            )


def _operands(step: Step) -> Iterator[tuple[BoundOperand, Any]]:
    """Each declared operand with the instruction's, a pair as two; None for one that is left out."""
    values: list[Any] = []
    for operand in step.instr.operands:
        first = getattr(operand, "first", None)
        values += (operand,) if first is None else (first, operand.second)  # type: ignore[union-attr]
    operands = step.op.operands
    return zip(operands, [*values, *[None] * (len(operands) - len(values))], strict=True)


def _items(operand: Any) -> tuple[Any, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _replaces_sums(step: Step, shadows: Mapping[str, Shadow | None], values: Mapping[str, Any]) -> bool:
    """Whether an instruction multiplies defined matrices and does not add what its results held before, so
    that these are defined, if it has met nothing undefined in memory.
    """
    if step.op.row.undefined is not PRODUCT or "s" not in values or step.instr.guard is not None:
        return False
    return not np.any(values["s"]) and all(shadows[r.name] is None for r in step.copied)


def _register_bits(part: Any, type: ScalarType, register: Reg, count: int) -> Lanes:
    """The undefined bits of a register from those of a result of a type, bool for all of them."""
    into = TYPES[register.declared]
    lanes = np.ascontiguousarray(np.broadcast_to(part, count))
    if into.kind == "p":
        truth: Lanes = np.not_equal(lanes, 0)
        return truth
    if lanes.dtype == np.bool_:
        every = every_bit(type.nbytes)
        lanes = np.where(lanes, every, every.dtype.type(0))
    if type.bits == into.bits:
        return lanes.view(bits_dtype(into.nbytes))
    kind = "i" if type.is_signed else "u"
    wide: Lanes = lanes.view(f"{kind}{type.nbytes}").astype(f"{kind}{into.nbytes}").view(f"u{into.nbytes}")
    return wide


def _chosen(guard: Lanes, new: Shadow | None, old: Shadow | None, count: int) -> Shadow | None:
    """The shadow of a register after a guarded write: `new` in the lanes of `guard`, `old` in the others."""
    some = new or old
    if some is None:
        return None
    nothing = Shadow(np.zeros(count, some.bits.dtype), np.zeros(count, np.int32))
    new, old = new or nothing, old or nothing
    return Shadow(np.where(guard, new.bits, old.bits), np.where(guard, new.origin, old.origin))


def _filled(shadow: Shadow | None, guard: Shadow, register: Reg) -> Shadow:
    """The shadow of a register that may have been written or not, where the guard is undefined."""
    type = TYPES[register.declared]
    dtype = np.dtype(np.bool_) if type.kind == "p" else bits_dtype(type.nbytes)
    count = len(guard.bits)
    if shadow is None:
        shadow = Shadow(np.zeros(count, dtype), np.zeros(count, np.int32))
    every = np.True_ if dtype == np.bool_ else every_bit(dtype.itemsize)
    return Shadow(np.where(guard.bits, every, shadow.bits), np.where(guard.bits, guard.origin, shadow.origin))
