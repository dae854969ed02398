"""The instruction table as methods: `k.fma(a, b, c)` appends an instruction of the row `fma`.

Each method is made from the table at its first use; `ops.pyi`, which editors and type checkers
read, is generated from the table by `tools/gen_ops_stub.py`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, TypeAlias

from ptxgen import ir
from ptxgen.dsl.names import unknown_word
from ptxgen.dsl.tensors import TensorPointer
from ptxgen.dsl.values import Pointer, Value, Var
from ptxgen.errors import ModifierError, TypeMismatchError, UnsupportedTargetError, shown
from ptxgen.isa.spec import BoundOperand, Inst, Modifier, Op
from ptxgen.isa.table import rows, rows_named
from ptxgen.target import Target
from ptxgen.types import REGISTER_PREFIX, TYPES, ScalarType, f32, pred

Into: TypeAlias = Var | Sequence[Var] | None
_NO_MODIFIERS: Final[Mapping[str, Modifier]] = {}
_MANY: Final = 1000  # more than an instruction has modifiers and operands
_UNTYPED: Final = (TYPES["b32"], TYPES["b64"])
_STATE_SPACES: Final = frozenset({"global", "shared", "param", "const", "local"})


class _OurFiles(dict[str, bool]):
    """By file name: whether its stack frames belong to the DSL, not to a kernel's source code."""

    _dsl = str(Path(__file__).parent)
    _contextlib = contextmanager.__code__.co_filename  # between a `with` line and a DSL generator

    def __missing__(self, filename: str) -> bool:
        self[filename] = filename.startswith(self._dsl) or filename == self._contextlib
        return self[filename]


_OURS: Final = _OurFiles()

# By declared type, the registers %f0, %f1, …; all kernels share these objects, for speed.
_REGISTERS: Final[dict[str, list[ir.Reg]]] = {declared: [] for declared in REGISTER_PREFIX}


class Plan:
    """The op that a call with operands of certain types means, and what the call needs to know.

    `dest_types` are the types of the results, `sources` the operands read that are no fixed
    literals, and `whats` their names in error messages. `simple_dest` is the type of the result if
    there is exactly one, it is no vector, and no source is a fixed literal; otherwise None.
    """

    __slots__ = ("dest_types", "op", "opcode", "simple_dest", "sources", "whats")

    def __init__(self, op: Op, dest_types: tuple[ScalarType, ...]) -> None:
        self.op = op
        self.opcode = op.opcode
        self.dest_types = dest_types
        self.sources = tuple(o for o in op.sources if o.literal is None)
        self.whats = tuple(f"{op.row.name}: operand {o.name}" for o in self.sources)
        alone = len(op.dests) == 1 and op.operands[0].written and not op.dests[0].count
        literal = len(self.sources) < len(op.sources)
        self.simple_dest = dest_types[0] if alone and not literal else None


# By row name, kinds of the operands and modifiers; a plan does not depend on the kernel.
_PLANS: Final[dict[tuple[Any, ...], Plan]] = {}


class Ops:
    """One method for each row of the instruction table; each call appends an instruction."""

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self.target = target
        self._statements: list[ir.Statement] = []
        self._counts: dict[str, int] = {}
        self._guard: ir.Guard | None = None
        self._admitted: set[Op] = set()
        self._version = target.ptx  # lowest PTX version with the target and all ops used so far

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in rows():
            raise unknown_word(name, (word for word in dir(self) if not word.startswith("_")))

        def method(self: Ops, *args: Any, into: Into = None, **modifiers: Modifier) -> Any:
            return self.emit(name, args, modifiers, into=into)

        method.__name__ = name
        method.__doc__ = "\n\n".join(f"`{row.syntax}`\n\n{row.doc}" for row in rows_named(name))
        setattr(Ops, name, method)
        return method.__get__(self)  # type: ignore[no-any-return]  # a bound method

    def __dir__(self) -> list[str]:
        """The words of the DSL and all instructions, for completion."""
        return sorted({*super().__dir__(), *rows()})

    def emit(
        self,
        name: str,
        args: tuple[Any, ...],
        modifiers: Mapping[str, Modifier] = _NO_MODIFIERS,
        *,
        into: Into = None,
    ) -> Any:
        """Append an instruction of the row `name`; returns its result, a tuple of results, or None.

        `into` names the variable that takes the result instead of a new register, or the variables
        that take the elements of a vector result. Raises `ModifierError` for a modifier that the
        row lacks, `TypeMismatchError` for an operand that does not fit, and
        `UnsupportedTargetError` if the target has no such instruction.
        """
        sources: list[Any] = []
        key: list[Any] = [name]
        registers_only = True
        for arg in args:
            if isinstance(arg, Value):
                if arg.k is not self:
                    raise self._foreign(name, arg)
                key.append(arg.type)
                sources.append(arg.reg)
            else:
                key.append(_kind(arg))
                sources.append(None)
                registers_only = False
        plan = self._plan((*key, *modifiers.items()), name, args, modifiers)
        if not registers_only:
            for i, arg in enumerate(args):
                if sources[i] is None:
                    sources[i] = self._operand(arg, plan, i)
        simple = plan.simple_dest
        if simple is None:
            results, operands = self._results(plan, sources, self._vector_into(plan, into))
            self.append(plan.opcode, operands)
            return results
        if into is None:
            result = Value(self, self._register(simple), simple)
            self.append(plan.opcode, (result.reg, *sources))
            return result
        variable = self._check_into(name, simple, into)
        self.append(plan.opcode, (variable.reg, *sources))
        return variable

    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None:
        """Append one instruction without checks, with the guard of an enclosing `only_if`."""
        self._statements.append(ir.Instr(opcode, operands, self._guard, self.origin()))

    def origin(self) -> ir.Origin:
        """The innermost stack frame outside the DSL: the line of kernel source being executed."""
        frame = sys._getframe(1)
        while _OURS[frame.f_code.co_filename]:
            frame = frame.f_back  # type: ignore[assignment]  # code outside the DSL called it
        return ir.Origin(frame.f_code, frame.f_lineno)

    def fresh(self, type: ScalarType) -> Value:
        """A value of `type` in a new register, which no instruction has written yet."""
        return Value(self, self._register(type), type)

    def _register(self, type: ScalarType) -> ir.Reg:
        declared = type.register
        number = self._counts.get(declared, 0)
        self._counts[declared] = number + 1
        known = _REGISTERS[declared]
        if number >= len(known):
            known.append(ir.Reg(f"{REGISTER_PREFIX[declared]}{number}", declared))
        return known[number]

    def _plan(
        self, key: tuple[Any, ...], name: str, args: tuple[Any, ...], modifiers: Mapping[str, Modifier]
    ) -> Plan:
        try:
            plan = _PLANS.get(key)
        except TypeError:  # a modifier that cannot be hashed, and so is no valid choice
            plan = None
        if plan is None:
            plan = _PLANS[key] = plan_call(name, args, modifiers)
        if plan.op not in self._admitted:
            self._admit(plan.op)
        return plan

    def _admit(self, op: Op) -> None:
        gate = op.gate
        if not gate.admits(self.target.name, self.target.sm):
            only = f" (only {', '.join(sorted(gate.only))})" if gate.only else ""
            raise UnsupportedTargetError(
                f"{op.opcode} needs sm_{gate.sm}{only} / PTX {gate.ptx[0]}.{gate.ptx[1]}, "
                f"but kernel {self.name!r} targets {self.target.name}"
            )
        self._version = max(self._version, gate.ptx)
        self._admitted.add(op)

    def _foreign(self, name: str, value: Value) -> TypeMismatchError:
        return TypeMismatchError(
            f"{name}: {value!r} belongs to kernel {value.k.name!r}, not to {self.name!r}; "
            "a value lives in the KernelBuilder that made it"
        )

    def _check_into(self, name: str, result: ScalarType, into: object) -> Var:
        if not isinstance(into, Var):
            raise TypeMismatchError(f"{name}: into= must be a Var, made by k.var, got {shown(into)}")
        if into.k is not self:
            raise self._foreign(name, into)
        if not accepts(result, into):
            raise TypeMismatchError(f"{name}: the result is {result}, but into= names {into!r}")
        return into

    def _vector_into(self, plan: Plan, into: object) -> tuple[Var, ...] | None:
        """The variables of `into` that take the elements of the vector result, checked."""
        if into is None:
            return None
        name, dests = plan.op.row.name, plan.op.dests
        if len(dests) != 1 or not dests[0].count:
            raise TypeMismatchError(f"{name}: into= is for a single result (got {shown(into)})")
        count = dests[0].count
        if not isinstance(into, (tuple, list)) or len(into) != count:
            raise TypeMismatchError(
                f"{name}: the result is a vector, so into= must be {count} variables, got {shown(into)}"
            )
        for variable in into:
            self._check_into(name, plan.dest_types[0], variable)
        return tuple(into)

    def _results(
        self, plan: Plan, sources: list[Any], into: tuple[Var, ...] | None
    ) -> tuple[Any, tuple[ir.Operand, ...]]:
        """The results of an op, in the form that `emit` returns, and its operands as printed."""
        results: list[Any] = []
        operands: list[ir.Operand] = []
        remaining, written = iter(sources), iter(plan.dest_types)
        for bound in plan.op.operands:
            if bound.literal is not None:
                operands.append(ir.IntImm(bound.literal))
            elif not bound.written:
                source = next(remaining, None)
                if source is not None:
                    operands.append(source)
            elif bound.count:
                values = into or tuple(self.fresh(t) for t in [next(written)] * bound.count)
                results.append(values)
                operands.append(ir.Vector(tuple(v.reg for v in values)))
            else:
                value = self.fresh(next(written))
                results.append(value)
                first = operands.pop() if bound.second else None
                operands.append(ir.Pair(first, value.reg) if isinstance(first, ir.Reg) else value.reg)
        if not results:
            return None, tuple(operands)
        return results[0] if len(results) == 1 else tuple(results), tuple(operands)

    def _operand(self, arg: Any, plan: Plan, position: int) -> ir.Operand:
        """The IR operand for an argument that is not a `Value`: a pointer, a literal, a vector."""
        if isinstance(arg, Pointer):
            if isinstance(arg.base, Value) and arg.base.k is not self:
                raise self._foreign(plan.op.row.name, arg.base)
            return arg.address
        if isinstance(arg, (ir.Special, ir.Symbol)):
            return arg
        want, what = plan.sources[position].type, plan.whats[position]
        if not isinstance(arg, (tuple, list)):
            return immediate(arg, want, what)
        items: list[ir.Reg | ir.IntImm | ir.FloatImm] = []
        for item in arg:
            if isinstance(item, Value):
                if item.k is not self:
                    raise self._foreign(plan.op.row.name, item)
                items.append(item.reg)
            else:
                items.append(immediate(item, want, what))
        return ir.Vector(tuple(items))


def _kind(arg: Any) -> object:
    """The part of a plan's key for one operand: all that choosing and checking a row needs."""
    if isinstance(arg, Value):
        return arg.type
    if isinstance(arg, Pointer):
        dims = len(arg.coordinates) if isinstance(arg, TensorPointer) else 0
        return (Pointer, arg.space, arg.base.type if isinstance(arg.base, Value) else None, dims)
    if isinstance(arg, (tuple, list)):
        return tuple([_kind(item) for item in arg])
    return arg.__class__


def immediate(value: object, want: ScalarType | None, what: str) -> ir.IntImm | ir.FloatImm:
    """The literal for a Python number as an operand of type `want` (None: any integer).

    An unsigned operand also takes a negative number, as its two's complement: -1 is all ones.
    `what` names the operand in the `TypeMismatchError` that is raised for any other value.
    """
    if isinstance(value, bool) or want is pred or not isinstance(value, (int, float)):
        raise TypeMismatchError(f"{what} must be {want or 'an integer'}, got {shown(value)}{_cure(value)}")
    if want is not None and want.is_float:
        if want.bits not in (32, 64):
            raise TypeMismatchError(
                f"{what} is {want}, which has no literal in PTX; use k.cvt on an f32 value"
            )
        return ir.FloatImm(_float_bits(value, want), want.bits)
    if not isinstance(value, int):
        raise TypeMismatchError(f"{what} must be {want or 'an integer'}, got {shown(value)}")
    if want is not None:
        lowest = -(1 << (want.bits - 1))
        beyond = -lowest if want.is_signed else 1 << want.bits
        if not lowest <= value < beyond:
            raise TypeMismatchError(f"{what} must fit {want}, got {shown(value)}")
    return ir.IntImm(value)


def _cure(value: object) -> str:
    """What to do with a number that is none of Python's, such as numpy's."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return ""
    return f"; convert with {'int' if isinstance(value, Integral) else 'float'}(...)"


def _float_bits(value: float, type: ScalarType) -> int:
    """The bits of `value` rounded to f32 or f64; a value too large becomes infinite."""
    integer, real = ("<I", "<f") if type is f32 else ("<Q", "<d")
    try:
        packed = struct.pack(real, float(value))
    except OverflowError:
        packed = struct.pack(real, float("inf") if value > 0 else float("-inf"))
    return int(struct.unpack(integer, packed)[0])


def plan_call(name: str, args: tuple[Any, ...], modifiers: Mapping[str, Modifier]) -> Plan:
    """Choose the row for a call, by the types of its operands, and check every operand.

    The first row called `name` that fits is chosen. If none fits, the `ModifierError` or
    `TypeMismatchError` of the row that came nearest, with valid modifiers and the most fitting
    operands, is raised.
    """
    failures: list[tuple[float, Exception]] = []
    for row in rows_named(name):
        nearness: float | None = None
        try:
            row.resolve(modifiers)
            nearness = -1
            op = row.resolve({**_inferred(row, args), **modifiers})
            nearness = _how_many_fit(op, args)
            _check_operands(op, args)
        except (ModifierError, TypeMismatchError) as error:
            if nearness is None:
                nearness = _how_many_are_accepted(row, args, modifiers) / _MANY - 2
            failures.append((nearness, error))
            continue
        return Plan(op, tuple(_result_type(o, op, args) for o in op.dests))
    raise max(failures, key=lambda failure: failure[0])[1]  # the first of the nearest


def _how_many_are_accepted(row: Inst, args: tuple[Any, ...], modifiers: Mapping[str, Modifier]) -> int:
    """How many of the modifiers the row takes, and of the operands with these."""
    taken: dict[str, Modifier] = {}
    for name, word in modifiers.items():
        with suppress(ModifierError, TypeMismatchError):
            row.resolve({name: word})
            taken[name] = word
    with suppress(ModifierError, TypeMismatchError):
        op = row.resolve({**_inferred(row, args), **taken})
        return len(taken) + _how_many_fit(op, args)
    return len(taken)


def _inferred(row: Inst, args: tuple[Any, ...]) -> dict[str, Modifier]:
    """The modifiers of `row` that follow from the operands: element types and state space."""
    found: dict[str, Modifier] = {}
    sources = [o for o in row.operands if not o.written and o.literal is None]
    for operand, arg in zip(sources, args, strict=False):
        slot = operand.type or "type"
        if operand.address:
            if isinstance(arg, Pointer) and "space" in row.choices:
                found.setdefault("space", arg.space)
            continue
        if isinstance(arg, (tuple, list)) and arg:
            arg = arg[0]
        if not isinstance(arg, Value) or slot in found:
            continue
        if slot == "wide" and "type" in row.choices:
            continue
        legal = row.choices.get(slot)
        if legal is None:
            continue
        bits = TYPES.get(f"b{arg.type.bits}", arg.type)
        found[slot] = arg.type if arg.type in legal else bits if bits in legal else arg.type
    return found


def accepts(want: ScalarType, got: Value) -> bool:
    """Whether a value may be an operand of type `want` without conversion."""
    if got.type is want:
        return True
    if want.bits != got.type.bits or pred in (want, got.type):
        return False
    return want.kind == "b" or (got.type.kind in "bx" and got.reg.declared == want.register)


def _check_operands(op: Op, args: tuple[Any, ...]) -> None:
    row = op.row
    wanted = [o for o in op.sources if o.literal is None]
    required = sum(1 for o in wanted if not o.optional)
    if not required <= len(args) <= len(wanted):
        raise TypeMismatchError(
            f"{row.name} takes {' and '.join(o.name for o in wanted) or 'no operands'}, "
            f"got {len(args)} operand(s) (syntax: {row.syntax}){_named_type(row, args)}"
        )
    for operand, arg in zip(wanted, args, strict=False):
        _check_operand(row, operand, arg)
    printed = op.opcode.split(".")
    words = [word.partition("::")[0] for word in printed]  # shared::cta is shared memory, too
    spaces = [word for word in words if word in _STATE_SPACES]
    pointers = [(o, a) for o, a in zip(wanted, args, strict=False) if o.address]
    for space, (operand, pointer) in zip(spaces, pointers, strict=False):
        if pointer.space != space:
            raise TypeMismatchError(
                f"{row.name}: operand {operand.name} must point to {space} memory, got {shown(pointer)}"
            )


def _named_type(row: Inst, args: tuple[Any, ...]) -> str:
    """What to write for a type among the operands."""
    given = next((arg for arg in args if isinstance(arg, ScalarType)), None)
    slot = next((name for name in ("dtype", "type") if name in row.choices), None)
    return f"; a type is given by name, {slot}={given}" if given and slot else ""


def _how_many_fit(op: Op, args: tuple[Any, ...]) -> int:
    fitting = 0
    with suppress(TypeMismatchError):
        for operand, arg in zip((o for o in op.sources if o.literal is None), args, strict=False):
            _check_operand(op.row, operand, arg)
            fitting += 1
    return fitting


def _check_operand(row: Inst, operand: BoundOperand, arg: object) -> None:
    what = f"{row.name}: operand {operand.name}"
    if operand.address:
        if not isinstance(arg, Pointer):
            raise TypeMismatchError(f"{what} must be a Pointer, got {shown(arg)} (syntax: {row.syntax})")
        dims = len(arg.coordinates) if isinstance(arg, TensorPointer) else 0
        if dims != len(operand.along):
            wanted = (
                f"a tensor map with {len(operand.along)} coordinates" if operand.along else "no tensor map"
            )
            raise TypeMismatchError(f"{what} must be {wanted}, got {dims} coordinates (syntax: {row.syntax})")
    elif operand.kind == "label":
        if not isinstance(arg, ir.Symbol):
            raise TypeMismatchError(f"{what} must be a label, got {shown(arg)}")
    elif operand.kind == "imm":
        immediate(arg, None, what)
    elif operand.count:
        if not isinstance(arg, (tuple, list)) or len(arg) != operand.count:
            raise TypeMismatchError(f"{what} must be {operand.count} values, got {shown(arg)}")
        for item in arg:
            check_value(what, operand.type, item)
    else:
        _require_typed(row, operand, arg)
        check_value(what, operand.type, arg)


def _require_typed(row: Inst, operand: BoundOperand, arg: object) -> None:
    if isinstance(arg, float) and operand.type in _UNTYPED and f32 in row.choices.get("type", ()):
        raise TypeMismatchError(
            f"{row.name}: operand {operand.name} must be {operand.type}, got {arg}; name the type, such as "
            "type=f32"
        )


def check_value(what: str, want: ScalarType | None, arg: object) -> None:
    """Raise `TypeMismatchError` unless `arg` may be an operand of type `want`, called `what`."""
    assert want is not None  # only labels and literals have no type
    if isinstance(arg, Value):
        if not accepts(want, arg):
            same = want.bits == arg.type.bits and pred not in (want, arg.type)
            cure = f"reinterpret with .as_({want}) or convert" if same else "convert"
            raise TypeMismatchError(
                f"{what} must be {want}, got {shown(arg)}; {cure} with k.cvt(value, dtype={want})"
            )
    elif not isinstance(arg, (ir.Special, ir.Symbol)):
        immediate(arg, want, what)


def _result_type(operand: BoundOperand, op: Op, args: tuple[Any, ...]) -> ScalarType:
    """The type of a result; for untyped bits, that of the first source of the same operand type."""
    assert operand.type is not None  # results are never labels
    if operand.type.kind == "b":
        for source, arg in zip((o for o in op.sources if o.literal is None), args, strict=False):
            if isinstance(arg, Value) and source.type is operand.type and not source.address:
                return arg.type
    return operand.type
