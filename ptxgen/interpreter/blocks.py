"""Segments as generated Python functions, one call of a row's meaning for each instruction.

A function takes the machine and the registers it reads, as lanes, and returns which lanes take the
branch at its end (None: there is no guard) and the registers it wrote that are still wanted.
Inactive lanes compute, too: what they get is dropped when the registers are put back, and the
machine masks what reaches memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter.fast import FAST, Fast
from ptxgen.interpreter.memory import Base
from ptxgen.interpreter.reports import where_from
from ptxgen.interpreter.segments import Segment, Step, maybe_undefined, segments
from ptxgen.ir import (
    Address,
    FloatImm,
    Instr,
    IntImm,
    Kernel,
    Pair,
    Reg,
    Special,
    Symbol,
    Vector,
)
from ptxgen.isa.spec import BoundOperand, Effect
from ptxgen.isa.special import special
from ptxgen.types import TYPES, ScalarType

# Whether a register has been written is itself a register, with this after its name.
_DEFINED: Final = "?"


@dataclass(slots=True)
class Block:
    """A segment's function, the slots of its inputs and its outputs, and what it has to be counted
    as.
    """

    segment: Segment
    function: Callable[..., tuple[Any, tuple[Any, ...]]] | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel ready to run. `slots` numbers its registers, `dtypes` are theirs; specials are
    registers too.
    """

    kernel: Kernel
    instrs: tuple[Instr, ...]
    blocks: tuple[Block, ...]
    slots: Mapping[str, int]
    dtypes: tuple[np.dtype[Any], ...]
    sources: tuple[str, ...]


def compile_kernel(
    kernel: Kernel, symbols: Mapping[str, int], *, sanitize: bool = False, fast: bool = True
) -> Program:
    """The functions of a kernel's segments. `symbols` are the addresses of its variables and
    parameters.

    With `sanitize`, reads of registers that may not have been written are checked. Without `fast`,
    each instruction goes through its row's own function.
    """
    parts = segments(kernel)
    suspects = maybe_undefined(parts) if sanitize else frozenset[str]()
    writers = [_Writer(part, symbols, suspects, FAST if fast else {}) for part in parts]
    wanted = _live_out(parts, writers)
    slots: dict[str, int] = {}
    dtypes: list[np.dtype[Any]] = []
    for writer in writers:
        for name, dtype in writer.dtypes.items():
            if name not in slots:
                slots[name] = len(slots)
                dtypes.append(dtype)
    blocks, sources = [], []
    for part, writer, after in zip(parts, writers, wanted, strict=True):
        outputs = tuple(name for name in writer.written if name in after)
        source = writer.finish(outputs)
        sources.append(source)
        blocks.append(
            Block(
                part,
                writer.compiled(source) if part.steps else None,
                tuple(slots[name] for name in writer.inputs),
                tuple(slots[name] for name in outputs),
            )
        )
    instrs = tuple(s for s in kernel.body if isinstance(s, Instr))
    return Program(kernel, instrs, tuple(blocks), slots, tuple(dtypes), tuple(sources))


def _live_out(parts: list[Segment], writers: list[_Writer]) -> list[set[str]]:
    """For each segment, the registers that something after it may read."""
    live_in = [set(w.inputs) for w in writers]
    live_out: list[set[str]] = [set() for _ in parts]
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(parts))):
            out = set().union(*(live_in[s] for s in parts[n].successors))
            if out != live_out[n]:
                live_out[n] = out
                live_in[n] = set(writers[n].inputs) | (out - set(writers[n].written))
                changed = True
    return live_out


class _Writer:
    """Writes the function of one segment."""

    def __init__(
        self,
        segment: Segment,
        symbols: Mapping[str, int],
        suspects: frozenset[str],
        fast: Mapping[str, Fast],
    ) -> None:
        self.inputs: dict[str, str] = {}  # by register: the variable it comes in
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.written: dict[str, str] = {}  # by register: the variable that holds it now
        self._symbols = symbols
        self._suspects = suspects
        self._fast = fast
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"where": np.where}
        self._constants: dict[object, str] = {}
        self._derived: dict[tuple[str, ...], str] = {}  # views, addresses and guards made so far
        self._count = 0
        self._taken = "None"
        self._step: Step
        for step in segment.steps:
            self._step = step
            if step.leaves:
                guard = step.instr.guard
                self._taken = self._guard() if guard else "None"
            else:
                self._instruction(step)

    def finish(self, outputs: tuple[str, ...]) -> str:
        """The source text of the function that returns these registers."""
        arguments = ", ".join(["m", *self.inputs.values()])
        results = "".join(f"{self.written[name]}, " for name in outputs)
        body = "\n    ".join([*self._lines, f"return {self._taken}, ({results})"])
        return f"def block({arguments}):\n    {body}\n"

    def compiled(self, source: str) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
        """The function of a source text made by `finish`."""
        names = dict(self._names)
        exec(compile(source, "<block>", "exec"), names)  # the text is our own
        made: Callable[..., tuple[Any, tuple[Any, ...]]] = names["block"]
        return made

    # --------------------------------------------------------------------------------- instructions

    def _instruction(self, step: Step) -> None:
        instr, op = step.instr, step.op
        guard = self._guard() if instr.guard else None
        pure = op.effect is Effect.NONE
        call = self._call(step, guard)
        if pure:
            results = self._assign(step, call, "")
            self._keep(step, results, guard, "")
            return
        if guard is None:
            self._line(f"m.at = {step.number}")
            self._keep(step, self._assign(step, call, ""), None, "")
            return
        self._guarded(step, call, guard)

    def _guarded(self, step: Step, call: str, guard: str) -> None:
        """An instruction with an effect, for the lanes of a guard."""
        before = [self._current(r) for r in _destinations(step)]
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
            self._line(f"    {n} = {got} if {narrowed} is None else where({guard}, {got}, {old})")
        for register, name in zip(_destinations(step), outcomes, strict=True):
            self._set(register, name, guard)

    def _assign(self, step: Step, call: str, indent: str) -> list[str]:
        """The call with its results in new variables, each as its register wants it."""
        shapes, converted = [], []
        for want, got in _written(step):
            registers = _parts(got)
            names = [self._new() for _ in registers]
            shapes.append(f"({', '.join(names)},)" if want.count else names[0])
            converted += [
                (n, _into_register(n, want, r, step)) for n, r in zip(names, registers, strict=True)
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
        for register, name in zip(_destinations(step), results, strict=True):
            if guard is not None:
                self._line(f"{indent}{name} = where({guard}, {name}, {self._current(register)})")
            self._set(register, name, guard)

    def _call(self, step: Step, guard: str | None) -> str:
        op = step.op
        values = {}
        operands = iter(step.instr.operands)
        for want in op.flat:
            got = next(operands, None)
            if not want.written and want.literal is None:
                values[want.name] = "None" if got is None else self._operand(want, got, guard)
        fast = self._fast.get(op.opcode)
        if fast is not None and _reads_lanes(step):
            plain = list(values.values())
            wide = [self._widened(v) for v in plain] if fast.widened else []
            return f"{self._constant(fast.function)}({', '.join([*plain, *wide])})"
        parameters = inspect.signature(op.row.semantics).parameters
        arguments = ["machine=m"] if "machine" in parameters else []
        arguments += [f"{name}={value}" for name, value in values.items()]
        arguments += [
            f"{name}={self._constant(value)}"
            for name, value in op.modifiers.items()
            if name in parameters
        ]
        return f"{self._constant(op.row.semantics)}({', '.join(arguments)})"

    def _widened(self, variable: str) -> str:
        self._names["float64"] = np.float64
        # A literal is a scalar; all else are lanes.
        return self._derive("float64", variable, code=f"{variable}.astype(float64)")

    # ------------------------------------------------------------------------------------- operands

    def _operand(self, want: BoundOperand, got: object, guard: str | None) -> str:
        if want.kind == "imm":
            return str(got.value) if isinstance(got, IntImm) else self._refuse(want, got)
        if isinstance(got, Address):
            base = self._base(got.base, guard)
            return f"{base}.at({got.offset})"
        if isinstance(got, Vector):
            return f"({', '.join(self._value(want, item) for item in got.items)},)"
        return self._value(want, got)

    def _base(self, base: Reg | Symbol, guard: str | None) -> str:
        if isinstance(base, Symbol):
            return self._derive(
                "symbol", base.name, guard or "", code=f"m.symbol({self._symbol(base)})"
            )
        name = self._read(base)
        self._names["Base"] = Base
        return self._derive("base", name, guard or "", code=f"Base({name})")

    def _value(self, want: BoundOperand, got: object) -> str:
        assert want.type is not None
        if isinstance(got, Reg):
            name = self._read(got)
            expression = _from_register(name, want.type, got)
            if expression is None:
                self._refuse(want, got)
            return (
                name
                if expression == name
                else self._derive("view", name, str(want.type), code=str(expression))
            )
        if isinstance(got, Special):
            of = special(got.name).type
            name = self._variable(got.name, of.dtype)
            return (
                name
                if of.dtype == want.type.dtype
                else f"{name}.view({self._constant(want.type.dtype)})"
            )
        if isinstance(got, (IntImm, FloatImm)):
            return self._constant(_literal(want.type, got))
        if isinstance(got, Symbol):
            return self._constant(_literal(want.type, IntImm(int(self._symbol(got)))))
        self._refuse(want, got)
        raise AssertionError

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.name not in self._symbols:
            raise TypeMismatchError(
                f"the interpreter: {where_from(self._step.instr)}: no parameter or shared variable "
                f"{symbol.name!r}"
            )
        return str(self._symbols[symbol.name])

    def _refuse(self, want: BoundOperand, got: object) -> str:
        raise TypeMismatchError(
            f"the interpreter: {where_from(self._step.instr)}: the operand {want.name} cannot be "
            f"{got}"
        )

    # ------------------------------------------------------------------------------------ registers

    def _guard(self) -> str:
        guard = self._step.instr.guard
        assert guard is not None
        name = self._read(guard.register, guarded=False)
        return self._derive("not", name, code=f"~{name}") if guard.negated else name

    def _read(self, register: Reg, *, guarded: bool = True) -> str:
        """The variable that holds a register, for an instruction that depends on its value."""
        if register.name in self._suspects:
            defined = self._variable(register.name + _DEFINED, np.dtype(np.bool_))
            guard = self._step.instr.guard
            if guarded and guard is not None:
                held = self._current(guard.register)
                defined = f"{defined} | {'' if guard.negated else '~'}{held}"
            self._line(f"m.check_defined({self._step.number}, {register.name!r}, {defined})")
        return self._current(register)

    def _current(self, register: Reg) -> str:
        return self._variable(register.name, TYPES[register.declared].dtype)

    def _variable(self, name: str, dtype: np.dtype[Any]) -> str:
        held = self.written.get(name) or self.inputs.get(name)
        if held is None:
            self.dtypes[name] = dtype
            held = self.inputs[name] = self._new()
        return held

    def _set(self, register: Reg, variable: str, guard: str | None) -> None:
        self.dtypes[register.name] = TYPES[register.declared].dtype
        if register.name in self._suspects:
            flag = register.name + _DEFINED
            new = self._new()
            if guard is None:
                self._line(f"{new} = m.spread(True)")
            else:
                self._line(f"{new} = {self._variable(flag, np.dtype(np.bool_))} | {guard}")
            self.dtypes[flag] = np.dtype(np.bool_)
            self.written[flag] = new
        self.written[register.name] = variable

    # ----------------------------------------------------------------------------------------- text

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _derive(self, *key: str, code: str) -> str:
        """A variable that holds `code`, made once for each key; variables are never assigned
        another value.
        """
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = self._new()
            self._line(f"{found} = {code}")
        return found

    def _constant(self, value: object) -> str:
        if value is None or isinstance(value, (str, bool)):
            return repr(value)
        key = (value.dtype.name, value.tobytes()) if isinstance(value, np.generic) else value
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = f"K{len(self._constants)}"
            self._names[found] = value
        return found


def _written(step: Step) -> list[tuple[BoundOperand, object]]:
    """The written operands, a pair as two."""
    found: list[tuple[BoundOperand, object]] = []
    operands = iter(step.op.operands)
    for got in step.instr.operands:
        want = next(operands)
        halves = (got.first, got.second) if isinstance(got, Pair) else (got,)
        for n, half in enumerate(halves):
            want = next(operands) if n else want
            if want.written:
                found.append((want, half))
    return found


def _parts(operand: object) -> list[Reg]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return [r for r in items if isinstance(r, Reg)]


def _destinations(step: Step) -> list[Reg]:
    return [r for _, got in _written(step) for r in _parts(got)]


def _reads_lanes(step: Step) -> bool:
    """Whether the result can differ between lanes; if not, it comes as a single value."""
    if step.op.effect is not Effect.NONE:
        return True
    values = [o for w, o in zip(step.op.flat, step.instr.operands, strict=False) if not w.written]
    return any(
        isinstance(o, (Reg, Special)) or (isinstance(o, Vector) and _parts(o)) for o in values
    )


def _literal(type: ScalarType, literal: IntImm | FloatImm) -> np.generic:
    if type.kind == "p":
        return np.bool_(isinstance(literal, IntImm) and literal.value != 0)
    bits = literal.bits if isinstance(literal, FloatImm) else literal.value
    whole = np.array(bits & ((1 << type.bits) - 1), f"u{type.nbytes}")
    scalar: np.generic = whole.view(type.dtype).flat[0]
    return scalar


def _from_register(name: str, type: ScalarType, register: Reg) -> str | None:
    """A register's lanes as an operand of `type`: its low bits; None if it is too narrow."""
    declared = TYPES[register.declared]
    if declared.dtype == type.dtype:
        return name
    if "p" in (declared.kind, type.kind) or type.bits > declared.bits:
        return None
    if type.bits == declared.bits:
        return f"{name}.view({_dtype(type)})"
    low = f"{name}.view('u{declared.nbytes}').astype('u{type.nbytes}')"
    return low if type.dtype.name == f"uint{type.bits}" else f"{low}.view({_dtype(type)})"


def _into_register(name: str, want: BoundOperand, register: Reg, step: Step) -> str:
    """A result of the operand's type as the lanes of a register, extended by its sign if the type
    has one.
    """
    declared, type = TYPES[register.declared], want.type
    assert type is not None
    if declared.dtype == type.dtype:
        return name
    if "p" in (declared.kind, type.kind) or type.bits > declared.bits:
        raise TypeMismatchError(
            f"the interpreter: {where_from(step.instr)}: {register.name} is .{register.declared}, "
            f"which cannot hold .{type}"
        )
    if type.bits == declared.bits:
        return f"{name}.view({_dtype(declared)})"
    kind = "i" if type.is_signed else "u"
    wide = f"{name}.view('{kind}{type.nbytes}').astype('{kind}{declared.nbytes}')"
    return f"{wide}.view({_dtype(declared)})"


def _dtype(type: ScalarType) -> str:
    """The dtype as source text; `bfloat16` is not one that numpy knows by its name until ml_dtypes
    is imported.
    """
    return repr(type.dtype.name)
