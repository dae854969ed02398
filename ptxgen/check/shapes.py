"""Whether an instruction's operands are what its row of the table wants.

A kernel has thousands of instructions of few kinds, so what does not depend on the operands' names
and values is found once for each opcode and kinds of operands: the `Shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ptxgen.check.alignment import rule_of
from ptxgen.errors import ModifierError, TypeMismatchError
from ptxgen.ir import Address, FloatImm, Instr, IntImm, Operand, Pair, Reg, Special, Symbol, Vector
from ptxgen.isa.spec import BoundOperand, Effect, Gate, Op
from ptxgen.isa.special import SPECIALS, special
from ptxgen.isa.table import op_of
from ptxgen.text import render_operand
from ptxgen.types import TYPES, ScalarType, pred

ADDRESS_CLASSES: Final = ("b32", "b64")
_COPY_SIZES: Final = (4, 8, 16)  # bytes; PTX ISA, section "cp.async"
_SIZE_PLACE: Final = 2  # of the operands of cp.async
_SHIFTS: Final = frozenset({"shl", "shr"})
# PTX ISA, section "bar": which barrier, and how many threads, which are whole warps.
_BARRIER: Final = (range(16), "a barrier from 0 to 15")
_WARPS: Final = (range(32, 1025, 32), "a number of threads that is a multiple of 32, up to 1024")
_BARRIERS: Final = dict.fromkeys(("bar.sync", "bar.arrive"), (_BARRIER, _WARPS))


class Limit(NamedTuple):
    """What the integer literal at a place of the operands may be, and that in words."""

    place: int
    legal: range | tuple[int, ...]
    words: str
    kind: str = "operand"


class Shape:
    """What is known of all instructions with one opcode and the same kinds of operands.

    `complaints` are pairs of a problem's kind and message; without any, the other fields hold.
    `names` gives the names of an instruction's registers, those written first, of which there are
    `dests`, and `declared` has their classes. `accesses` are places of addresses with the bytes
    accessed there, which is the alignment needed (0: none), unless the literal at `size_place`
    says so; `integers` and `symbols` are places of literals and of names with what is wanted there;
    `valued` says that there are any of these, or a barrier. `gates` says what needs which target,
    `rule` how the result's alignment follows.
    """

    __slots__ = (
        *("accesses", "complaints", "declared", "dests", "gates", "integers", "names", "op"),
        *("rule", "size_place", "symbols", "valued"),
    )

    def __init__(self, instr: Instr) -> None:
        self.complaints: tuple[tuple[str, str], ...] = ()
        try:
            self.op: Op | None = op_of(instr)
        except ModifierError as error:
            self.complaints = (("opcode", str(error)),)
            return
        except TypeMismatchError as error:
            self.complaints = (("operand", str(error)),)
            return
        op, operands = self.op, instr.operands
        self.complaints = tuple(("operand", message) for message in _complaints(op, operands))
        if self.complaints:
            return
        wanted = list(zip(op.flat, operands, strict=False))
        places = [
            (path, register, o.written)
            for i, (o, got) in enumerate(wanted)
            for path, register in _registers(f"o[{i}]", got)
        ]
        places.sort(key=lambda place: not place[2])
        self.dests = sum(written for _, _, written in places)
        self.declared = [register.declared for _, register, _ in places]
        # Made as code, because this is what most of the time of checking a kernel goes into.
        source = "".join(f"{path}.name, " for path, _, _ in places)
        self.names: Callable[[tuple[Operand, ...]], tuple[str, ...]] = eval(f"lambda o: ({source})")
        self.accesses = tuple((i, _accessed(op)) for i, (o, _) in enumerate(wanted) if o.address)
        copies = op.opcode.startswith("cp.async.") and bool(self.accesses)
        self.size_place = _SIZE_PLACE if copies else None
        self.integers = tuple(_ranges(op, operands))
        self.symbols = tuple(
            (i, o.kind) for i, (o, got) in enumerate(wanted) if isinstance(got, Symbol)
        )
        # Packed floating-point numbers live in integer registers, but are no integers.
        whole = all(o.type is None or o.type is pred or o.type.is_integer for o in op.operands)
        single = self.dests == 1 and isinstance(operands[0], Reg)
        self.rule = rule_of(op.opcode) if whole and single else None
        self.valued = (
            bool(self.integers or self.symbols or self.accesses) or op.effect is Effect.BARRIER
        )
        named = [special(got.name) for got in operands if isinstance(got, Special)]
        self.gates: tuple[tuple[str, Gate], ...] = (
            (op.opcode, op.gate),
            *((register.name, register.gate) for register in named),
        )


# Shapes without complaints, the same for all modules: no more than rows times register classes.
_SHAPES: Final[dict[tuple[object, ...], Shape]] = {}


def shape_of(instr: Instr) -> Shape:
    """The shape of an instruction, made once for all of its kind."""
    key = (instr.opcode, *[kinds(operand) for operand in instr.operands])
    shape = _SHAPES.get(key)
    if shape is None:
        shape = Shape(instr)
        if not shape.complaints:
            _SHAPES[key] = shape
    return shape


def kinds(operand: Operand) -> object:
    """What a shape depends on of an operand; the declared class of a register."""
    return _KINDS[operand.__class__](operand)


def accepts(wanted: ScalarType, declared: str) -> bool:
    """Whether a register declared so may be an operand of this type.

    PTX ISA, section "Operand Type Checking", without its relaxed rules: the register has the
    type's own class, or one of them is untyped and they have the same size.
    """
    if declared == wanted.register or declared == f"b{wanted.bits}":
        return True
    got = TYPES[declared]
    return wanted.kind == "b" and got.bits == wanted.bits and got is not pred


def registers_of(operand: Operand) -> list[Reg]:
    """The registers that an operand names."""
    return [register for _, register in _registers("", operand)]


def _registers(path: str, operand: Operand) -> Iterator[tuple[str, Reg]]:
    """Each register of an operand, and the Python expression that leads to it."""
    if isinstance(operand, Reg):
        yield path, operand
    elif isinstance(operand, Address):
        if isinstance(operand.base, Reg):
            yield f"{path}.base", operand.base
    elif isinstance(operand, Vector):
        for i, item in enumerate(operand.items):
            if isinstance(item, Reg):
                yield f"{path}.items[{i}]", item
    elif isinstance(operand, Pair):
        yield f"{path}.first", operand.first
        yield f"{path}.second", operand.second


_KINDS: Final[dict[type, Callable[[Any], object]]] = {
    Reg: lambda o: o.declared,
    IntImm: lambda _: "integer",
    FloatImm: lambda o: o.width,
    Special: lambda o: o.name,
    Symbol: lambda _: "symbol",
    Address: lambda o: ("[", o.base.declared if o.base.__class__ is Reg else "symbol"),
    Vector: lambda o: ("{", *[_KINDS[i.__class__](i) for i in o.items]),
    Pair: lambda o: ("|", o.first.declared, o.second.declared),
}


def _complaints(op: Op, operands: tuple[Operand, ...]) -> Iterator[str]:
    if not op.required <= len(operands) <= len(op.flat):
        least, most = op.required, len(op.flat)
        count = f"{least}" if least == most else f"{least} to {most}"
        yield f"{op.row.name} takes {count} operands, got {len(operands)} (syntax: {op.row.syntax})"
        return
    seconds = iter(o for o in op.operands if o.second)
    for place, (wanted, got) in enumerate(zip(op.flat, operands, strict=False)):
        second = next(seconds) if place in op.pairs else None
        message = _complaint(op, wanted, got, second)
        if message:
            yield f"operand {wanted.name} of {op.row.name} {message} (syntax: {op.row.syntax})"


def _complaint(op: Op, wanted: BoundOperand, got: Operand, second: BoundOperand | None) -> str:
    """What is wrong with an operand, without its name; empty if nothing is."""
    if second is not None:
        if not isinstance(got, Pair):
            return f"must be two registers such as %r1|%p1, got {_said(got)}"
        return _scalar_complaint(op, wanted, got.first) or _scalar_complaint(op, second, got.second)
    if wanted.address:
        return _address_complaint(op, wanted, got)
    if wanted.kind == "label":
        return "" if isinstance(got, Symbol) else f"must be a label, got {_said(got)}"
    if wanted.kind == "imm":
        return "" if isinstance(got, IntImm) else f"must be an integer literal, got {_said(got)}"
    if wanted.count:
        if not isinstance(got, Vector) or len(got.items) != wanted.count:
            return f"must be a vector of {wanted.count}, got {_said(got)}"
        found = (_scalar_complaint(op, wanted, item) for item in got.items)
        return next(filter(None, found), "")
    return _scalar_complaint(op, wanted, got)


def _scalar_complaint(op: Op, wanted: BoundOperand, got: Operand) -> str:
    type = wanted.type
    assert type is not None  # only labels and literals have none
    if isinstance(got, Reg):
        fine = got.declared in TYPES and accepts(type, got.declared)
    elif wanted.written:
        return f"is written, so it must be a register, got {_said(got)}"
    elif isinstance(got, IntImm):
        fine = not type.is_float and type.kind != "x"
    elif isinstance(got, FloatImm):
        fine = got.width == type.bits and type.kind in "fb"
    elif isinstance(got, Special):
        register = SPECIALS.get(got.name)
        fine = register is not None and register.type.bits == type.bits and type.is_integer
        if fine and op.row.name != "mov":
            return f"must be {type}, got {got.name}; only mov reads special registers"
    else:
        fine = isinstance(got, Symbol) and type.is_integer and type.register in ADDRESS_CLASSES
    return "" if fine else f"must be {type}, got {_said(got)}"


def _address_complaint(op: Op, wanted: BoundOperand, got: Operand) -> str:
    if not isinstance(got, Address):
        return f"must be an address such as [%rd1+16], got {_said(got)}"
    if not isinstance(got.base, Reg):
        return ""
    # Shared memory is small, so its addresses fit 32 bits; those of other spaces have 64.
    narrow = str(op.modifiers.get("space", "")).startswith("shared")
    narrow = narrow or (wanted.type is not None and wanted.type.bits == 32)
    legal = ADDRESS_CLASSES if narrow else ADDRESS_CLASSES[1:]
    if got.base.declared in legal:
        return ""
    return f"must be an address in a register of class {' or '.join(legal)}, got {_said(got.base)}"


def _said(got: Operand) -> str:
    text = render_operand(got)
    if isinstance(got, Reg):
        return f"{text} of class {got.declared}"
    return (
        f"no such register as {text}"
        if isinstance(got, Special) and got.name not in SPECIALS
        else text
    )


def _accessed(op: Op) -> int:
    """Bytes accessed at each address of the op, which is the alignment it needs; 0 if none."""
    type = op.modifiers.get("type")
    if not isinstance(type, ScalarType):
        return 0
    return type.nbytes * max((o.count for o in op.operands), default=0) or type.nbytes


def _ranges(op: Op, operands: tuple[Operand, ...]) -> Iterator[Limit]:
    for place, (wanted, got) in enumerate(zip(op.flat, operands, strict=False)):
        if not isinstance(got, IntImm):
            continue
        type = wanted.type
        if wanted.literal is not None:
            yield Limit(place, (wanted.literal,), str(wanted.literal))
        elif wanted.name == "cp_size":
            yield Limit(place, _COPY_SIZES, "4, 8 or 16 bytes")
        elif op.opcode in _BARRIERS:
            yield Limit(place, *_BARRIERS[op.opcode][place], "barrier")
        elif type is pred:
            yield Limit(place, (-1, 0, 1), "0 or 1")
        elif type is not None:
            yield Limit(place, *_integers(op, wanted, type))


def _integers(op: Op, wanted: BoundOperand, type: ScalarType) -> tuple[range, str]:
    shifted = op.modifiers.get("type")
    if op.row.name in _SHIFTS and wanted.name == "b" and isinstance(shifted, ScalarType):
        return range(shifted.bits), f"a shift by less than the {shifted.bits} bits of a {shifted}"
    return range(-(1 << type.bits - 1), 1 << type.bits), f"an integer of {type.bits} bits"
