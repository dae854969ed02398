"""The instruction table as methods: `k.fma(a, b, c)` appends the row called `fma`.

The methods are made from the table when first used; `ops.pyi`, which editors and type checkers read, is generated
from it by `tools/gen_ops_stub.py`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ptxgen import ir
from ptxgen.dsl.values import Pointer, Value, Var
from ptxgen.errors import ModifierError, TypeMismatchError
from ptxgen.isa.spec import BoundOperand, Inst, Modifier, Op, rows_named
from ptxgen.types import REGISTER_PREFIX, TYPES, ScalarType, f32, pred

_NO_MODIFIERS: Final[Mapping[str, Modifier]] = {}
_NUMBERS: Final = (int, float)
_DSL: Final = str(Path(__file__).parent)  # frames in here are ours, not the kernel author's


class Plan:
    """An op together with what a call with operands of certain types must do."""

    __slots__ = ("dest_types", "immediates", "op", "opcode", "simple_dest", "sources")

    def __init__(self, op: Op, dest_types: tuple[ScalarType, ...]) -> None:
        self.op = op
        self.opcode = op.opcode
        self.dest_types = dest_types
        self.sources = tuple(o for o in op.sources if o.literal is None)
        self.simple_dest = dest_types[0] if len(op.flat) - len(op.sources) == 1 and not op.dests[0].count else None


_PLANS: dict[tuple[Any, ...], Plan] = {}  # by name, operand types and modifiers; plans do not depend on the kernel


class Ops:
    """A method for each row of the instruction table, and the growing list of statements they append to."""

    def __init__(self) -> None:
        self._statements: list[ir.Statement] = []
        self._counts: dict[str, int] = {}
        self._guard: ir.Guard | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        rows = rows_named(name)  # raises ModifierError with the nearest name

        def method(self: Ops, *args: Any, into: Var | None = None, **modifiers: Modifier) -> Any:
            return self.emit(name, args, modifiers, into=into)

        method.__name__ = name
        method.__doc__ = "\n\n".join(f"`{row.syntax}`\n\n{row.doc}" for row in rows)
        setattr(Ops, name, method)
        return method.__get__(self)  # type: ignore[no-any-return]  # a bound method

    def emit(
        self,
        name: str,
        args: tuple[Any, ...],
        modifiers: Mapping[str, Modifier] = _NO_MODIFIERS,
        *,
        into: Var | None = None,
    ) -> Any:
        """Append the row called `name` for these operands; its result, or its results as a tuple, or None.

        `into` names the variable that takes the result instead of a new register. Raises `ModifierError` for a modifier
        the row lacks and `TypeMismatchError` for an operand that does not fit.
        """
        key = (name, *[getattr(a, "type", None) for a in args], *modifiers.items())
        plan = _PLANS.get(key)
        if plan is None:
            plan = plan_call(name, args, modifiers)
            if all(isinstance(a, Value) or a.__class__ in _NUMBERS for a in args):
                _PLANS[key] = plan
        sources = [
            a.reg if isinstance(a, Value) else self._operand(a, want)
            for a, want in zip(args, plan.sources, strict=False)
        ]
        simple = plan.simple_dest
        if simple is not None:
            result = self._result(simple, plan, into)
            self.append(plan.opcode, (result.reg, *sources))
            return result
        results, operands = self._results(plan.op, plan.dest_types, sources)
        self.append(plan.opcode, operands)
        return results

    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None:
        """Append one instruction as it stands, under the current guard."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_DSL):
            frame = frame.f_back  # type: ignore[assignment]  # somebody outside this package called us
        self._statements.append(
            ir.Instr(opcode, operands, self._guard, ir.Origin(frame.f_code, frame.f_lineno))
        )

    def fresh(self, type: ScalarType) -> Value:
        """A value in a register of its own, not written yet."""
        return Value(self, self._register(type), type)

    def _register(self, type: ScalarType) -> ir.Reg:
        declared = type.register
        number = self._counts.get(declared, 0)
        self._counts[declared] = number + 1
        return ir.Reg(f"{REGISTER_PREFIX[declared]}{number}", declared)

    def _result(self, type: ScalarType, plan: Plan, into: Var | None) -> Value:
        if into is None:
            return Value(self, self._register(type), type)
        if not accepts(type, into):
            raise TypeMismatchError(f"{plan.op.row.name}: the result is {type}, but into= names {into!r}")
        return into

    def _results(
        self, op: Op, types: tuple[ScalarType, ...], sources: list[ir.Operand]
    ) -> tuple[Any, tuple[ir.Operand, ...]]:
        """The values of an op with no result, several, or a vector; and its operands in printed order."""
        results: list[Any] = []
        operands: list[ir.Operand] = []
        remaining, written = iter(sources), iter(types)
        for bound in op.operands:
            if bound.literal is not None:
                operands.append(ir.IntImm(bound.literal))
            elif not bound.written:
                source = next(remaining, None)
                if source is not None:
                    operands.append(source)
            elif bound.count:
                values = tuple(self.fresh(t) for t in [next(written)] * bound.count)
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

    def _operand(self, arg: Any, want: BoundOperand) -> ir.Operand:
        if isinstance(arg, Pointer):
            return arg.address
        if isinstance(arg, (tuple, list)):
            return ir.Vector(tuple(self._operand(a, want) for a in arg))  # type: ignore[arg-type]  # values only
        if isinstance(arg, Value):
            return arg.reg
        if isinstance(arg, (ir.Special, ir.Symbol)):
            return arg
        return immediate(arg, want.type, f"operand {want.name}")


def immediate(self, value: object, want: ScalarType | None, what: str) -> ir.IntImm | ir.FloatImm:
        """The literal for a Python number where an operand of type `want` (None: any integer) is expected."""
        return immediate(value, want, what)


def immediate(value: object, want: ScalarType | None, what: str) -> ir.IntImm | ir.FloatImm:
    """The literal for a Python number where an operand of type `want` (None: any integer) is expected."""
    if want is not None and want.is_float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if want.bits == 16:
            raise TypeMismatchError(f"{what} is {want}, which has no literal in PTX; use k.cvt on an f32 value")
        return ir.FloatImm(_float_bits(float(value), want), want.bits)
    if isinstance(value, bool) or not isinstance(value, int) or (want is not None and want is pred):
        raise TypeMismatchError(f"{what} must be {want or 'an integer'}, got {value!r}")
    if want is not None and not -(1 << (want.bits - 1)) <= value < 1 << want.bits:
        raise TypeMismatchError(f"{what} must fit {want}, got {value}")
    return ir.IntImm(value)


def _float_bits(value: float, type: ScalarType) -> int:
    if type is f32:
        try:
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        except OverflowError:
            return 0x7F800000 if value > 0 else 0xFF800000
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def plan_call(name: str, args: tuple[Any, ...], modifiers: Mapping[str, Modifier]) -> Plan:
    """Choose the row for a call, by the types of its operands, and check every operand.

    Of several rows of one name, the first that fits is meant; if none does, the error of the one that came nearest
    (whose modifiers were right) is raised.
    """
    failure: Exception | None = None
    for row in rows_named(name):
        try:
            op = row.resolve({**_inferred(row, args), **modifiers})
            _check_operands(op, args)
        except (ModifierError, TypeMismatchError) as error:
            if failure is None or (isinstance(failure, ModifierError) and isinstance(error, TypeMismatchError)):
                failure = error
            continue
        return Plan(op, tuple(_result_type(o, op, args) for o in op.dests))
    assert failure is not None  # rows_named never returns an empty list
    raise failure


def _inferred(row: Inst, args: tuple[Any, ...]) -> dict[str, Modifier]:
    """The slots that say an operand's type, from the operands given."""
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
    """Whether a value may stand where an operand of type `want` is expected."""
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
            f"{row.name} takes {' and '.join(o.name for o in wanted) or 'no operands'}, got {len(args)} operand(s) (syntax: {row.syntax})"
        )
    for operand, arg in zip(wanted, args, strict=False):
        _check_operand(row, operand, arg)


def _check_operand(row: Inst, operand: BoundOperand, arg: object) -> None:
    what = f"{row.name}: operand {operand.name}"
    if operand.address:
        if not isinstance(arg, Pointer):
            raise TypeMismatchError(f"{what} must be a Pointer, got {arg!r} (syntax: {row.syntax})")
    elif operand.kind == "label":
        if not isinstance(arg, ir.Symbol):
            raise TypeMismatchError(f"{what} must be a label, got {arg!r}")
    elif operand.kind == "imm":
        immediate(arg, None, what)
    elif operand.count:
        if not isinstance(arg, (tuple, list)) or len(arg) != operand.count:
            raise TypeMismatchError(f"{what} must be {operand.count} values, got {arg!r}")
        for item in arg:
            _check_value(what, operand.type, item)
    else:
        _check_value(what, operand.type, arg)


def _check_value(what: str, want: ScalarType | None, arg: object) -> None:
    assert want is not None  # only labels and literals have no type
    if isinstance(arg, Value):
        if not accepts(want, arg):
            same = want.bits == arg.type.bits and pred not in (want, arg.type)
            cure = f"reinterpret with .as_({want}) or convert" if same else "convert"
            raise TypeMismatchError(f"{what} must be {want}, got {arg!r}; {cure} with k.cvt(value, dtype={want})")
    elif not isinstance(arg, (ir.Special, ir.Symbol)):
        immediate(arg, want, what)


def _result_type(operand: BoundOperand, op: Op, args: tuple[Any, ...]) -> ScalarType:
    """A result typed as plain bits takes the type of the first source of the same size."""
    assert operand.type is not None  # results are never labels
    if operand.type.kind == "b":
        for source, arg in zip((o for o in op.sources if o.literal is None), args, strict=False):
            if isinstance(arg, Value) and source.type is operand.type and not source.address:
                return arg.type
    return operand.type
