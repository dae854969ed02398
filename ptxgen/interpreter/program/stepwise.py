"""The definition of a segment's behaviour: each instruction by itself, by its row's own function.

No code is generated, and only registers carry values from one instruction to the next. Every
operand is read from them as plain lanes; every result is written to them under the guard and the
active mask. This is several times slower than the generated functions
(`ptxgen.interpreter.program.writer`), which must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import numpy as np

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter.machine.address_map import LOCAL_START
from ptxgen.interpreter.machine.lane_machine import LaneMachine
from ptxgen.interpreter.machine.shadows import Shadow
from ptxgen.interpreter.program.calls import call_of
from ptxgen.interpreter.program.linking import Linked, Routine
from ptxgen.interpreter.program.registers import prefix_of
from ptxgen.interpreter.program.segments import Segment, Step
from ptxgen.interpreter.program.wgmma_reader import Hooks
from ptxgen.interpreter.program.writer import Function
from ptxgen.interpreter.reports import where_from
from ptxgen.ir import (
    Address,
    Arguments,
    FloatImm,
    IntImm,
    Not,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)
from ptxgen.isa.spec import PURE, BoundOperand, Effect
from ptxgen.isa.special import SPECIALS, special
from ptxgen.types import TYPES, ScalarType, b128, u32, u64

Lanes = np.ndarray[Any, np.dtype[Any]]

_COUNTING: Final = frozenset(
    {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
)


class Stepper:
    """The function of one segment, with the interface of
    `ptxgen.interpreter.program.writer.Writer`: it takes every register that the segment names, and
    returns every register that it writes; with their shadows if it `follows` undefined bits.
    """

    def __init__(
        self, segment: Segment, linked: Linked, routine: Routine, hooks: Hooks, *, follows: bool = False
    ) -> None:
        self._steps = segment.steps
        self._hooks = hooks
        self._runs = hooks.runs(segment.steps)
        self._linked = linked
        self._routine = routine
        self._follows = follows
        self._prefix = prefix_of(linked, routine)
        self.dtypes: dict[str, np.dtype[Any]] = {}
        params = (*getattr(routine.source, "results", ()), *routine.source.params)
        for param in params:
            if param.register:
                self._note(Reg(param.name, TYPES[param.type].register))
        self.written: dict[str, None] = {}
        for step in segment.steps:
            for named, written in _named(step):
                self._note(named)
                if written and isinstance(named, Reg):
                    self.written[self.key(named.name)] = None
            for register in hooks.settled(step):
                self._note(register)
                self.written[self.key(register.name)] = None
        self.inputs = dict.fromkeys(self.dtypes)
        registers = self.dtypes.keys() - SPECIALS.keys()
        self.shadow_inputs = {name: None for name in self.inputs if follows and name in registers}

    def key(self, register: str) -> str:
        """The name of a register of the routine in the whole program."""
        return self._prefix + register

    def finish(self, outputs: tuple[str, ...]) -> tuple[Function, str]:
        """The function that returns these registers; it has no source text."""
        names, followed = tuple(self.inputs), tuple(self.shadow_inputs)

        def execute(machine: LaneMachine, *inputs: Any) -> tuple[Any, ...]:
            lanes, shadows = inputs[: len(names)], inputs[len(names) :]
            state = State(
                self,
                machine,
                dict(zip(names, lanes, strict=True)),
                dict(zip(followed, shadows, strict=True)) if self._follows else None,
            )
            taken: Lanes | None = None
            value: Any = None
            for step in self._steps:
                if machine.before is not None and not step.resumes:
                    machine.before(step, state)
                if step.number in self._runs and not step.resumes:
                    state.touch(step, self._runs[step.number])
                if step.leaves:
                    taken, value = state.leave(step)
                else:
                    state.execute(step)
                state.settle(step, self._hooks.settled(step))
            results = tuple(state.lanes[name] for name in outputs)
            if state.shadows is None:
                return taken, value, results
            return taken, value, results, tuple(state.shadows[name] for name in outputs)

        return execute, ""

    @property
    def linked(self) -> Linked:
        """The program that the segment belongs to."""
        return self._linked

    @property
    def routine(self) -> Routine:
        """The routine that the segment belongs to."""
        return self._routine

    def _note(self, named: Reg | Special) -> None:
        if isinstance(named, Special):
            if named.name not in _COUNTING:
                self.dtypes[named.name] = special(named.name).type.dtype
            return
        self.dtypes[self.key(named.name)] = TYPES[named.declared].dtype


class State:
    """The registers of the selected lanes while a segment runs: `lanes`, by the names that `key` gives them
    in the whole program.
    """

    def __init__(
        self,
        stepper: Stepper,
        machine: LaneMachine,
        lanes: dict[str, Lanes],
        shadows: dict[str, Shadow | None] | None,
    ) -> None:
        self._stepper = stepper
        self._machine = machine
        self._count = machine.selection.count
        inner = machine.selection.inner
        self._selected: Lanes = np.ones(self._count, np.bool_) if inner is None else inner
        self._step: Step
        self.key = stepper.key
        self.lanes = lanes
        self.shadows = shadows

    def execute(self, step: Step) -> None:
        """Execute an instruction that goes on to the next."""
        machine = self._machine
        active = self._begin(step)
        follower = machine.definedness
        if follower is not None and step.op.effect is not Effect.NONE:
            follower.moved = False
            follower.judge(step, self._read(step), active)
        if not active.any():
            self._flow(step, {}, active)
            return
        machine.mask = None if active.all() else active
        arguments = self._arguments(step)
        results = self._evaluate(step, arguments)
        targets = [] if _only_waits(step) else [(w, g) for w, g in _declared_operands(step) if w.written]
        if len(targets) == 1:
            results = (results,)
        for (want, got), result in zip(targets, results if targets else (), strict=True):
            items = got.items if isinstance(got, Vector) else (got,)
            values = result if want.count else (result,)
            for register, value in zip(items, values, strict=True):
                if isinstance(register, Reg):
                    assert want.type is not None
                    self._write(register, want.type, value, active)
        self._flow(step, arguments, active)

    def active(self, step: Step) -> Lanes:
        """The selected lanes for which the guard of an instruction holds, bool."""
        guard = step.instr.guard
        if guard is None:
            return self._selected
        held: Lanes = self._selected & (self._held(guard.register) != guard.negated)
        return held

    def touch(self, step: Step, numbers: tuple[int, ...]) -> None:
        """Report a run of instructions that touch registers of `wgmma`; `step`, its first one, is next."""
        guard = step.instr.guard
        held = None if guard is None else self._held(guard.register) != guard.negated
        self._machine.touch(numbers, held)

    def settle(self, step: Step, registers: list[Reg]) -> None:
        """Give registers the results of the multiplications that were waited for."""
        if registers:
            names = [self._stepper.key(r.name) for r in registers]
            before = tuple(self.lanes[name] for name in names)
            self.lanes |= zip(names, self._machine.settle(step.number, before), strict=True)

    def leave(self, step: Step) -> tuple[Lanes | None, Any]:
        """The data that the scheduler needs for a branch, a call or the end: the lanes of the
        guard, and an index, or a callee's address and the arguments that are values.
        """
        active = self._begin(step)
        self._machine.mask = active
        taken = None if step.instr.guard is None else active
        if self._machine.definedness is not None:
            self._machine.definedness.judge(step, self._read(step), active)
        if step.op.row.name == "brx":
            index = self._operand(step.op.flat[0], step.instr.operands[0])
            return taken, np.broadcast_to(index, self._count)
        if not step.calls:
            return taken, None
        stepper = self._stepper
        call = call_of(step.instr, stepper.linked, stepper.routine, None, stepper.key, ())
        target = None if call.pointer is None else self.typed(call.pointer, u64, "callee")
        pairs = zip(call.params, call.arguments, strict=True)
        items = [(TYPES[param.type], item) for param, item in pairs if not isinstance(item, Symbol)]
        values = tuple(self.typed(item, type, "argument") for type, item in items)
        held = self.shadows or {}
        shadows = tuple(
            held.get(stepper.key(item.name)) if isinstance(item, Reg) else None for _, item in items
        )
        return taken, (target, values, shadows)

    # ----------------------------------------------------------------------------- one instruction

    def _begin(self, step: Step) -> Lanes:
        """The lanes that execute an instruction: the selected lanes for which its guard holds."""
        self._step = step
        self._machine.at = step.number
        self._machine.mask = self._selected
        return self.active(step)

    def _arguments(self, step: Step) -> dict[str, Any]:
        """The operands that the row's function takes."""
        parameters = step.op.row.parameters
        return {
            want.name: self._operand(want, got)
            for want, got in _declared_operands(step)
            if want.literal is None and (not want.written or want.name in parameters)
        }

    def _evaluate(self, step: Step, operands: dict[str, Any]) -> Any:
        op = step.op
        function = op.row.resume if step.resumes else op.row.semantics
        assert function is not None
        parameters = op.row.parameters
        arguments = {**operands, **{n: v for n, v in op.modifiers.items() if n in parameters}}
        if "machine" in parameters:
            arguments["machine"] = self._machine
        return function(**arguments)

    def _operand(self, want: BoundOperand, got: object) -> Any:
        """The argument of a row's function for an operand: lanes, or one value for a literal."""
        if got is None:
            return None
        if want.kind == "imm":
            if not isinstance(got, IntImm):
                self._refuse(want.name, got)
            return got.value
        if isinstance(got, Address):
            return self.address(got.base, got.offset)
        if isinstance(got, TensorAddress):
            pairs = zip(want.along, got.coordinates, strict=True)
            along = tuple(self.typed(c, type, want.name) for type, c in pairs)
            return self.address(got.base, got.offset), along
        assert want.type is not None
        if isinstance(got, Vector):
            items = [g for g in got.items if not (want.written and isinstance(g, Sink))]
            return tuple(self.typed(item, want.type, want.name) for item in items)
        return self.typed(got, want.type, want.name)

    def address(self, base: Reg | Symbol | None, offset: int) -> Lanes:
        """The address of an operand, uint64 lanes. A 32-bit address register counts as signed, so that a
        negative base and a positive offset cancel.
        """
        if base is None:
            return np.full(self._count, offset, np.uint64)
        if isinstance(base, Symbol):
            return self._symbol(Symbol(base.name, base.offset + offset), u64, "address")
        lanes = self._held(base)
        return np.asarray(lanes.view(f"i{lanes.itemsize}") + np.int64(offset)).view(np.uint64)

    def typed(self, got: object, type: ScalarType, name: str) -> Any:
        """A register, a literal or a variable's address, read as a type."""
        match got:
            case Reg():
                return self._narrowed(self._held(got), TYPES[got.declared], type, name, got)
            case Not():
                return np.logical_not(self._held(got.register))
            case Special():
                return self._special(got).astype(type.dtype)
            case IntImm():
                return _literal(got.value, type)
            case FloatImm():
                return _literal(got.bits, type)
            case Symbol():
                return self._symbol(got, type, name)
        return self._refuse(name, got)

    def _narrowed(self, lanes: Lanes, held: ScalarType, type: ScalarType, name: str, got: object) -> Lanes:
        """The low bits of a register, read as a type."""
        predicates = (held.kind == "p") + (type.kind == "p")
        if predicates == 1 or type.bits > held.bits:
            self._refuse(name, got)
        if predicates:
            return lanes
        if type is b128:
            return lanes
        low: Lanes = _raw(lanes) & np.uint64((1 << type.bits) - 1)
        return low.astype(f"u{type.nbytes}").view(type.dtype)

    def _special(self, got: Special) -> Lanes:
        if got.name not in _COUNTING:
            return self.lanes[got.name]
        of = special(got.name).type
        return self._machine.counter(got.name).astype(u32.dtype if of.bits == 32 else u64.dtype)

    def _symbol(self, got: Symbol, type: ScalarType, name: str) -> Lanes:
        """The address of a name."""
        routine, machine = self._stepper.routine, self._machine
        location = routine.symbols.get(got.name)
        if location is None:
            raise TypeMismatchError(
                f"the interpreter: {where_from(self._step.instr)}: no parameter, variable or "
                f"function {got.name!r}"
            )
        start = location.value + got.offset
        if location.framed:
            start += LOCAL_START + (routine.frame if machine.frame is None else 0)
        lanes = np.full(self._count, start & ((1 << 64) - 1), np.uint64)
        if location.ranked:
            lanes = machine.ranked(start).lanes
        if location.framed and machine.frame is not None:
            lanes += machine.frame[machine.selection.ids]
        return self._narrowed(lanes, u64, type, name, got)

    def _refuse(self, name: str, got: object) -> NoReturn:
        shown = f"{got.name}, a .{got.declared}" if isinstance(got, Reg) else got
        raise TypeMismatchError(
            f"the interpreter: {where_from(self._step.instr)}: the operand {name} cannot be {shown}"
        )

    # ----------------------------------------------------------------------------------- registers

    def _held(self, register: Reg) -> Lanes:
        return self.lanes[self._stepper.key(register.name)]

    def _write(self, register: Reg, type: ScalarType, value: Any, active: Lanes) -> None:
        """Write a result to a register: its bits, sign-extended if its type is signed."""
        held = self._held(register)
        into = TYPES[register.declared]
        lanes = np.broadcast_to(value, self._count)
        assert lanes.dtype == type.dtype, (self._step.instr, lanes.dtype)
        if "p" in (into.kind, type.kind) or type.bits > into.bits:
            if into.kind != type.kind:
                raise TypeMismatchError(
                    f"the interpreter: {where_from(self._step.instr)}: {register.name} is "
                    f".{register.declared}, which cannot hold .{type}"
                )
            new = lanes
        elif type is b128:
            new = lanes
        else:
            raw = _raw(np.ascontiguousarray(lanes))
            if type.is_signed and type.bits < into.bits:
                negative = (raw >> np.uint64(type.bits - 1)) == 1
                above = (1 << into.bits) - (1 << type.bits)
                raw = np.where(negative, raw | np.uint64(above), raw)
            new = raw.astype(f"u{into.nbytes}").view(into.dtype)
        key = self._stepper.key(register.name)
        self.lanes[key] = np.where(active, new, held)

    # ------------------------------------------------------------------------------------- shadows

    def _read(self, step: Step) -> dict[str, Shadow | None]:
        """The shadows of the registers that an instruction reads, by name."""
        assert self.shadows is not None
        old_operands = [g for w, g in step.results if w.name in step.op.row.parameters]
        names = [r.name for r in step.read] + [
            r.name for g in old_operands for r in _registers(g) if isinstance(r, Reg)
        ]
        return {name: self.shadows[self._stepper.key(name)] for name in names}

    def _flow(self, step: Step, arguments: dict[str, Any], active: Lanes) -> None:
        """Follow undefined bits to the results of an instruction that active lanes have executed."""
        follower = self._machine.definedness
        if follower is None or self.shadows is None:
            return
        written = [r for _, got in step.results for r in _registers(got) if isinstance(r, Reg)]
        old = tuple(self.shadows[self._stepper.key(r.name)] for r in written)
        rule = step.op.row.undefined
        if step.resumes or not rule.follows(pure=step.op.effect in PURE):
            new = tuple(before and follower.preserved(before, active) for before in old)
        else:
            met = step.op.effect is not Effect.NONE and follower.moved
            read = self._read(step)
            if not met and all(shadow is None for shadow in (*read.values(), *old)):
                return
            new = follower.flow(step, read, arguments, active, old)
        for register, shadow in zip(written, new, strict=True):
            self.shadows[self._stepper.key(register.name)] = shadow


def _only_waits(step: Step) -> bool:
    """Whether the results come only when the instruction resumes."""
    return step.op.row.resume is not None and not step.resumes


def _declared_operands(step: Step) -> Iterator[tuple[BoundOperand, Any]]:
    """Each declared operand with the instruction's operand, None for one that is left out."""
    values: list[object] = []
    for operand in step.instr.operands:
        values += (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
    operands = step.op.operands
    return zip(operands, [*values, *[None] * (len(operands) - len(values))], strict=True)


def _registers(operand: object) -> Iterator[Reg | Special]:
    """The registers that an operand names."""
    match operand:
        case Reg() | Special():
            yield operand
        case Not(register):
            yield register
        case Address(base):
            yield from _registers(base)
        case TensorAddress(base, _, coordinates):
            yield from _registers(base)
            for coordinate in coordinates:
                yield from _registers(coordinate)
        case Vector(items) | Arguments(items):
            for item in items:
                yield from _registers(item)


def _named(step: Step) -> Iterator[tuple[Reg | Special, bool]]:
    """The registers that an instruction names, and whether it writes each."""
    if step.instr.guard is not None:
        yield step.instr.guard.register, False
    for want, got in _declared_operands(step):
        for register in _registers(got):
            yield register, want.written and not step.leaves and not _only_waits(step)


def _literal(bits: int, type: ScalarType) -> np.generic:
    """A literal's low bits as one value of a type."""
    if type.kind == "p":
        return np.bool_(bits != 0)
    low = (bits & ((1 << type.bits) - 1)).to_bytes(type.nbytes, "little")
    value: np.generic = np.frombuffer(low, type.dtype)[0]
    return value


def _raw(lanes: Lanes) -> Lanes:
    """The bits of lanes as uint64."""
    return lanes.view(f"u{lanes.itemsize}").astype(np.uint64)
