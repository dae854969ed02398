"""`plan_call`: chooses the row of the instruction table for a call, and checks the call's operands."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, Final

from ptxgen import ir
from ptxgen.dsl.tensors import TensorPointer
from ptxgen.dsl.values import Pointer, Value
from ptxgen.errors import ModifierError, TypeMismatchError, shown
from ptxgen.isa.forms import Form
from ptxgen.isa.spec import BoundOperand, Inst, Modifier, Op
from ptxgen.isa.table import rows_named
from ptxgen.types import TYPES, ScalarType, byte, f32, pred

_MOST_LITERALS: Final = 1024  # literals of the calls with one plan
_MANY: Final = 1000  # more than an instruction has modifiers and operands
_UNTYPED: Final = (TYPES["b32"], TYPES["b64"])
_STATE_SPACES: Final = frozenset({"global", "shared", "param", "const", "local"})


class Plan:
    """The op for a call with operands of certain types, and the properties of it that the call needs.

    `dest_types` are the types of the results. `result` is the type of the result if there is exactly one, the
    first operand, and no source is a fixed literal, else None; `count` is the width of that result if it is a
    vector, else 0. `has_appended_operands` says whether the instruction has operands besides those of the
    call: results or fixed literals. `form` is that of all its instructions; None before the first. `gathers`
    says whether it is warp-wide: all lanes of a warp execute it together.
    """

    __slots__ = (
        "_literals",
        "_sources",
        "_whats",
        "count",
        "dest_types",
        "form",
        "gathers",
        "has_appended_operands",
        "op",
        "opcode",
        "result",
    )

    def __init__(self, op: Op, dest_types: tuple[ScalarType, ...]) -> None:
        self.op = op
        self.opcode = op.opcode
        self.dest_types = dest_types
        self.form: Form | None = None
        self._literals: dict[object, ir.IntImm | ir.FloatImm] = {}
        self._sources = tuple(o for o in op.sources if o.literal is None)
        self._whats = tuple(f"{op.row.name}: operand {o.name}" for o in self._sources)
        alone = len(op.dests) == 1 and op.operands[0].written
        literal = len(self._sources) < len(op.sources)
        self.result = dest_types[0] if alone and not literal else None
        self.count = op.dests[0].count if self.result else 0
        self.has_appended_operands = literal or bool(op.dests)
        masked = any(o.name == "membermask" for o in op.operands)
        aligned = "aligned" in op.opcode.split(".") and not op.opcode.startswith("bar")
        self.gathers = masked or aligned

    def literal(self, arg: Any, position: int) -> ir.IntImm | ir.FloatImm | ir.Vector:
        """The operand for a Python number, or a vector with one, as source number `position`."""
        kind = arg.__class__
        # The literals of Python's own numbers are kept; the text tells 0.0 from -0.0, which are equal.
        key = (position, kind, arg or str(arg)) if kind is int or kind is float else None
        literal = self._literals.get(key)
        if literal is not None:
            return literal
        want, what = self._sources[position].type, self._whats[position]
        if not isinstance(arg, (tuple, list)):
            literal = immediate(arg, want, what)
            if key and len(self._literals) < _MOST_LITERALS:
                self._literals[key] = literal
            return literal
        return ir.Vector(
            tuple([item.reg if isinstance(item, Value) else immediate(item, want, what) for item in arg])
        )


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
    """The hint in an error message about a number of another type than Python's, such as numpy's."""
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

    The first row called `name` that fits is chosen, and one that has the types of the operands before one
    that takes their bits: floats are compared as floats. If none fits, the `ModifierError` or
    `TypeMismatchError` of the row that came nearest, with valid modifiers and the most fitting operands, is
    raised.
    """
    failures: list[tuple[float, Exception]] = []
    taken_as_bits: list[Op] = []
    values = [arg[0] if isinstance(arg, (tuple, list)) and arg else arg for arg in args]
    operand_types = [arg.type for arg in values if isinstance(arg, Value)]
    for row in rows_named(name):
        nearness: float | None = None
        try:
            row.resolve(modifiers)
            nearness = -1
            inferred = _inferred(row, args)
            op = row.resolve({**inferred, **modifiers})
            nearness = _how_many_fit(op, args)
            _check_operands(op, args)
        except (ModifierError, TypeMismatchError) as error:
            if nearness is None:
                nearness = _how_many_are_accepted(row, args, modifiers) / _MANY - 2
            failures.append((nearness, error.with_traceback(None)))  # which has this frame: a cycle
            continue
        types = [word for name, word in inferred.items() if name not in modifiers and name != "space"]
        if all(word in operand_types for word in types):
            return _planned(op, args)
        taken_as_bits.append(op)
    if taken_as_bits:
        return _planned(taken_as_bits[0], args)
    raise max(failures, key=lambda failure: failure[0])[1]  # the first of the nearest


def _planned(op: Op, args: tuple[Any, ...]) -> Plan:
    return Plan(op, tuple(_result_type(o, op, args) for o in op.dests))


def _how_many_are_accepted(row: Inst, args: tuple[Any, ...], modifiers: Mapping[str, Modifier]) -> int:
    """The number of modifiers that the row takes, and of operands with these modifiers."""
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
    modifiers: dict[str, Modifier] = {}
    sources = [o for o in row.operands if not o.written and o.literal is None]
    for operand, arg in zip(sources, args, strict=False):
        slot = operand.type or "type"
        if operand.address:
            if isinstance(arg, Pointer) and "space" in row.choices:
                modifiers.setdefault("space", arg.space)
            continue
        if isinstance(arg, (tuple, list)) and arg:
            arg = arg[0]
        if not isinstance(arg, Value) or slot in modifiers:
            continue
        if slot == "wide" and "type" in row.choices:
            continue
        legal = row.choices.get(slot)
        if legal is None:
            continue
        bits = TYPES.get(f"b{arg.type.bits}", arg.type)
        modifiers[slot] = arg.type if arg.type in legal else bits if bits in legal else arg.type
    return modifiers


def accepts(want: ScalarType, got: Value) -> bool:
    """Whether a value may be an operand of type `want` without conversion."""
    if got.type is want:
        return True
    if want.bits != got.type.bits or pred in (want, got.type):
        return False
    if want is byte:
        return got.reg.declared == byte.register
    return want.kind == "b" or (got.type.kind == "b" and got.reg.declared in (want.register, want.name))


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
    """The hint for a type that was passed among the operands."""
    dtype = next((arg for arg in args if isinstance(arg, ScalarType)), None)
    slot = next((name for name in ("dtype", "type") if name in row.choices), None)
    return f"; a type is given by name, {slot}={dtype}" if dtype and slot else ""


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
