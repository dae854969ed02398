"""The source text of one segment's function: one call of a row's function for each instruction.

The function takes the machine and the registers that it reads, as lanes. It returns the lanes that
take the branch at its end (None: there is no guard), the index of an indirect branch or the data of
a call, and the registers that it wrote and that are still live. A function that follows undefined bits
takes the shadows of registers, too, and returns those of the registers that it wrote. Inactive lanes compute,
too, but for products of matrices: their results are dropped when the registers are written back, and the
machine masks their accesses to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, Final, NoReturn

import numpy as np

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter.machine.memory import Base
from ptxgen.interpreter.program.calls import call_of
from ptxgen.interpreter.program.fast import Fast
from ptxgen.interpreter.program.flow_text import FlowText, destinations, parts
from ptxgen.interpreter.program.linking import Linked, Location, Routine
from ptxgen.interpreter.program.registers import COUNTERS, prefix_of
from ptxgen.interpreter.program.segments import Segment, Step
from ptxgen.interpreter.program.wgmma_reader import Hooks
from ptxgen.interpreter.reports import where_from
from ptxgen.ir import Address, FloatImm, IntImm, Not, Reg, Sink, Special, Symbol, TensorAddress, Vector
from ptxgen.isa.moves import mov
from ptxgen.isa.spec import BoundOperand, Effect
from ptxgen.isa.special import special
from ptxgen.types import TYPES, ScalarType

# Code of segments that is cached: kernels that differ in one instruction share that of all other segments.
_CACHED_SEGMENTS: Final = 2048

Function = Callable[..., tuple[Any, ...]]


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _code(source: str) -> CodeType:
    return compile(source, "<block>", "exec")


class Writer(FlowText):
    """Writes the function of one segment."""

    def __init__(
        self,
        segment: Segment,
        linked: Linked,
        routine: Routine,
        fast: Mapping[str, Fast],
        hooks: Hooks,
        *,
        follows: bool = False,
        suspects: Container[str] | None = None,
    ) -> None:
        super().__init__(prefix_of(linked, routine), follows=follows, suspects=suspects)
        self._linked = linked
        self._routine = routine
        self._fast = fast
        self._taken = self._value_out = "None"
        self._step: Step
        runs = hooks.runs(segment.steps)
        for step in segment.steps:
            self._step = step
            if step.number in runs and not step.resumes:
                guard = self._guard() if step.instr.guard else "None"
                self._line(f"m.touch({runs[step.number]}, {guard})")
            if step.leaves:
                self._taken = self._guard() if step.instr.guard else "None"
                self._value_out = self._leaving(step)
            else:
                self._instruction(step)
            self._settle(hooks.settled(step))

    def finish(self, outputs: tuple[str, ...]) -> tuple[Function, str]:
        """The function that returns these registers, and its source text."""
        arguments = ", ".join(["m", *self.inputs.values(), *self.shadow_inputs.values()])
        results = "".join(f"{self.written[name]}, " for name in outputs)
        returned = f"return {self._taken}, {self._value_out}, ({results})"
        if self._follows:
            returned += f", ({''.join(f'{self._shadows[name]}, ' for name in outputs)})"
        body = "\n    ".join([*self._lines, returned])
        source = f"def block({arguments}):\n    {body}\n"
        names = dict(self._names)
        exec(_code(source), names)  # the source text is generated above
        return names["block"], source

    # --------------------------------------------------------------------------------- instructions

    def _instruction(self, step: Step) -> None:
        instr, op = step.instr, step.op
        guard = self._guard() if instr.guard else None
        pure = op.effect is Effect.NONE
        call = self._call(step, guard)
        flow = self._flow_before(step, guard) if self._follows else None
        if pure:
            results = self._assign(step, call, "")
            self._keep(step, results, guard, "")
        elif guard is None:
            self._line(f"m.at = {step.number}")
            self._keep(step, self._assign(step, call, ""), None, "")
        else:
            self._guarded(step, call, guard)
        if flow is not None:
            self._flow_after(step, flow)

    def _settle(self, registers: list[Reg]) -> None:
        """Give registers the results of the multiplications that were waited for."""
        if registers:
            before = "".join(f"{self._current(r)}, " for r in registers)
            after = {self.key(r.name): self._new() for r in registers}
            self._line(f"{', '.join(after.values())}, = m.settle({self._step.number}, ({before}))")
            self.written |= after
            if self._follows:  # the products were followed when they started
                self._shadows |= {self.key(r.name): self._shadow(r) for r in registers}

    def _leaving(self, step: Step) -> str:
        """The data that the scheduler needs for a jump or call: an index, or the callee's address
        and the arguments that are values.
        """
        if self._follows:
            self._judge(step, self._taken)
        if step.op.row.name == "brx":
            return self._value(step.op.flat[0], step.instr.operands[0])
        if not step.calls:
            return "None"
        call = call_of(step.instr, self._linked, self._routine, None, self.key, ())
        target = "None" if call.pointer is None else self._current(call.pointer)
        pairs = zip(call.params, call.arguments, strict=True)
        items = [(TYPES[param.type], item) for param, item in pairs if not isinstance(item, Symbol)]
        values = "".join(f"{self._typed('argument', type, item)}, " for type, item in items)
        shadows = "".join(
            f"{self._shadow(item) if self._follows and isinstance(item, Reg) else None}, "
            for _, item in items
        )
        return f"({target}, ({values}), ({shadows}))"

    def _guarded(self, step: Step, call: str, guard: str) -> None:
        """Write an instruction with an effect, for the lanes of a guard."""
        before = ["None" if isinstance(r, Sink) else self._current(r) for r in destinations(step)]
        narrowed = self._derive("narrow", guard, code=f"m.narrow({guard})")
        outcomes = [self._new() for _ in before]
        self._line(f"if {narrowed} is False:")
        self._line(
            "    " + "; ".join(f"{n} = {b}" for n, b in zip(outcomes, before, strict=True))
            if before
            else "    pass"
        )
        self._line("else:")
        self._line(f"    m.at = {step.number}; m.mask = {narrowed}")
        results = self._assign(step, call, "    ")
        self._line("    m.mask = m.block_mask")
        for n, got, old in zip(outcomes, results, before, strict=True):
            if old != "None":
                self._line(f"    {n} = {got} if {narrowed} is None else where({guard}, {got}, {old})")
        for register, name in zip(destinations(step), outcomes, strict=True):
            self._set(register, name)

    def _assign(self, step: Step, call: str, indent: str) -> list[str]:
        """Write the call with its results in new variables, each with the type of its register."""
        shapes, converted = [], []
        for want, got in step.results:
            registers = parts(got) or self._refuse(want.name, got)
            names = [self._new() for _ in registers]
            shapes.append(f"({', '.join(names)},)" if want.count else names[0])
            converted += [
                (n, n if isinstance(r, Sink) else self._into_register(n, want, r))
                for n, r in zip(names, registers, strict=True)
            ]
        if not shapes:
            self._line(f"{indent}{call}")
            return []
        self._line(f"{indent}{', '.join(shapes)} = {call}")
        spread = not _reads_lanes(step)
        for name, expression in converted:
            if spread:
                expression = f"m.spread({expression})"
            if expression != name:
                self._line(f"{indent}{name} = {expression}")
        return [name for name, _ in converted]

    def _keep(self, step: Step, results: list[str], guard: str | None, indent: str) -> None:
        for register, name in zip(destinations(step), results, strict=True):
            if isinstance(register, Sink):
                continue
            if guard is not None:
                self._line(f"{indent}{name} = where({guard}, {name}, {self._current(register)})")
            self._set(register, name)

    def _call(self, step: Step, guard: str | None) -> str:
        op = step.op
        values = self._values = {}
        operands = iter(step.instr.operands)
        parameters = op.row.parameters
        for want in op.flat:
            got = next(operands, None)
            if want.written and want.name in parameters:
                values[want.name] = self._before(want, got)
            elif not want.written and want.literal is None:
                values[want.name] = "None" if got is None else self._operand(want, got, guard)
        fast = None if op.pairs else self._fast.get(op.opcode)
        plain = list(values.values())
        if op.row.semantics is mov:
            return plain[0]
        if fast is not None and _reads_lanes(step):
            wide = [self._widened(v) for v in plain] if fast.widened else []
            return f"{self._constant(fast.function)}({', '.join([*plain, *wide])})"
        function = op.row.resume if step.resumes else op.row.semantics
        arguments = ["machine=m"] if "machine" in parameters else []
        arguments += [f"{name}={value}" for name, value in values.items()]
        arguments += [
            f"{name}={self._constant(value)}" for name, value in op.modifiers.items() if name in parameters
        ]
        return f"{self._constant(function)}({', '.join(arguments)})"

    def _widened(self, variable: str) -> str:
        self._names["float64"] = np.float64
        # a literal is a scalar
        return self._derive("float64", variable, code=f"{variable}.astype(float64)")

    # ------------------------------------------------------------------------------------- operands

    def _operand(self, want: BoundOperand, got: object, guard: str | None) -> str:
        if want.kind == "imm":
            return str(got.value) if isinstance(got, IntImm) else self._refuse(want.name, got)
        if isinstance(got, Address):
            return f"{self._base(got.base, guard)}.at({got.offset + _shift(got.base)})"
        if isinstance(got, TensorAddress):
            base = f"{self._base(got.base, guard)}.at({got.offset + _shift(got.base)})"
            pairs = zip(want.along, got.coordinates, strict=True)
            along = ", ".join(self._typed(want.name, type, c) for type, c in pairs)
            return f"({base}, ({along},))"
        if isinstance(got, Vector):
            return f"({', '.join(self._value(want, item) for item in got.items)},)"
        return self._value(want, got)

    def _before(self, want: BoundOperand, got: object) -> str:
        """The old contents of the registers of a result, for an instruction that may keep them."""
        assert want.type is not None
        registers = [r for r in parts(got) if isinstance(r, Reg)]
        names = [str(self._from_register(self._current(r), want.type, r)) for r in registers]
        return f"({', '.join(names)},)" if want.count else names[0]

    def _base(self, base: Reg | Symbol | None, guard: str | None) -> str:
        if base is None:
            return self._derive("symbol", "", guard or "", code="m.symbol(0)")
        if isinstance(base, Symbol):
            location = self._location(base)
            code = f"m.framed({self._routine.frame + location.value})"
            if not location.framed:
                code = f"m.{'ranked' if location.ranked else 'symbol'}({location.value})"
            return self._derive("symbol", base.name, guard or "", code=code)
        name = self._current(base)
        self._names["Base"] = Base
        return self._derive("base", name, guard or "", code=f"Base({name})")

    def _value(self, want: BoundOperand, got: object) -> str:
        assert want.type is not None
        return self._typed(want.name, want.type, got)

    def _typed(self, name: str, type: ScalarType, got: object) -> str:
        """An operand as lanes of a type, or as a scalar if it is a literal."""
        if isinstance(got, Reg):
            held = self._current(got)
            expression = self._from_register(held, type, got)
            if expression is None:
                self._refuse(name, got)
            return held if expression == held else self._derive("view", held, str(type), code=str(expression))
        if isinstance(got, Not):
            held = self._current(got.register)
            return self._derive("not", held, code=f"~{held}")
        if isinstance(got, Special):
            return self._special(got, type)
        if isinstance(got, (IntImm, FloatImm)):
            return self._constant(_literal(type, got))
        if isinstance(got, Symbol):
            location = self._location(got)
            if location.framed or location.ranked:
                return self._typed_lanes(got, type)
            return self._constant(_literal(type, IntImm(location.value + got.offset)))
        return self._refuse(name, got)

    def _typed_lanes(self, symbol: Symbol, type: ScalarType) -> str:
        """The address of a name that differs between lanes, as lanes of a type."""
        base = self._base(symbol, None)
        lanes = f"{base}.lanes + {self._constant(_literal(TYPES['u64'], IntImm(symbol.offset)))}"
        expression = self._from_register(f"({lanes})", type, Reg(symbol.name, "b64"))
        return self._derive("view", symbol.name, str(symbol.offset), code=str(expression))

    def _special(self, got: Special, type: ScalarType) -> str:
        of = special(got.name).type
        if got.name.startswith(COUNTERS):
            name = self._new()
            low = "" if of.bits == 64 else ".astype('uint32')"
            self._line(f"{name} = m.counter({got.name!r}){low}")
        else:
            name = self._variable(got.name)
        if of.dtype == type.dtype:
            return name
        return f"{name}.astype({self._constant(type.dtype)})"

    def _location(self, symbol: Symbol) -> Location:
        location = self._routine.symbols.get(symbol.name)
        if location is None:
            raise TypeMismatchError(
                f"the interpreter: {where_from(self._step.instr)}: no parameter, variable or "
                f"function {symbol.name!r}"
            )
        return location

    def _refuse(self, name: str, got: object) -> NoReturn:
        shown = getattr(got, "name", got)
        if isinstance(got, Reg):
            shown = f"{got.name}, a .{got.declared}"
        raise TypeMismatchError(
            f"the interpreter: {where_from(self._step.instr)}: the operand {name} cannot be {shown}"
        )

    # ------------------------------------------------------------------------------------ registers

    def _guard(self) -> str:
        guard = self._step.instr.guard
        assert guard is not None
        name = self._current(guard.register)
        return self._derive("not", name, code=f"~{name}") if guard.negated else name

    def _from_register(self, name: str, type: ScalarType, register: Reg) -> str | None:
        """The expression for a register's lanes as an operand of `type`: its low bits; None if it is
        too narrow.
        """
        declared = TYPES[register.declared]
        if declared.dtype == type.dtype:
            return name
        if "p" in (declared.kind, type.kind) or type.bits > declared.bits:
            return None
        if type.bits == declared.bits:
            return f"{name}.view({self._constant(type.dtype)})"
        word, part = np.dtype(f"u{declared.nbytes}"), np.dtype(f"u{type.nbytes}")
        low = f"{name}.view({self._constant(word)}).astype({self._constant(part)})"
        return low if type.dtype == part else f"{low}.view({self._constant(type.dtype)})"

    def _into_register(self, name: str, want: BoundOperand, register: Reg) -> str:
        """The expression for a result of the operand's type as the lanes of a register, sign-extended
        if the type is signed.
        """
        declared, type = TYPES[register.declared], want.type
        assert type is not None
        if declared.dtype == type.dtype:
            return name
        if "p" in (declared.kind, type.kind) or type.bits > declared.bits:
            raise TypeMismatchError(
                f"the interpreter: {where_from(self._step.instr)}: {register.name} is .{register.declared}, "
                f"which cannot hold .{type}"
            )
        to = self._constant(declared.dtype)
        if type.bits == declared.bits:
            return f"{name}.view({to})"
        kind = "i" if type.is_signed else "u"
        part, word = np.dtype(f"{kind}{type.nbytes}"), np.dtype(f"{kind}{declared.nbytes}")
        return f"{name}.view({self._constant(part)}).astype({self._constant(word)}).view({to})"

    def _set(self, register: Reg | Sink, variable: str) -> None:
        if isinstance(register, Sink):
            return
        self.written[self.key(register.name)] = variable


def _shift(base: Reg | Symbol | None) -> int:
    """The offset that a name itself adds to an address."""
    return base.offset if isinstance(base, Symbol) else 0


def _reads_lanes(step: Step) -> bool:
    """Whether the result can differ between lanes; if not, it is a single value."""
    if step.op.effect not in (Effect.NONE, Effect.ADDRESS, Effect.CARRY):
        return True
    values = [o for w, o in zip(step.op.flat, step.instr.operands, strict=False) if not w.written]
    return any(isinstance(o, (Reg, Special, Not)) or (isinstance(o, Vector) and parts(o)) for o in values)


def _literal(type: ScalarType, literal: IntImm | FloatImm) -> np.ndarray[Any, np.dtype[Any]]:
    """A literal as an array without dimensions, which numpy's functions take faster than its scalars."""
    if type.kind == "p":
        return np.array(isinstance(literal, IntImm) and literal.value != 0)
    bits = literal.bits if isinstance(literal, FloatImm) else literal.value
    low = (bits & ((1 << type.bits) - 1)).to_bytes(type.nbytes, "little")
    return np.frombuffer(low, type.dtype).reshape(())
