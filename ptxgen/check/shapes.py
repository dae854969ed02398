"""Whether an instruction's operands are what its row of the table wants.

A kernel has thousands of instructions of few kinds, so what does not depend on the operands' names
and values is found once for each opcode and kinds of operands: the `Shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ptxgen.errors import ModifierError, TypeMismatchError
from ptxgen.ir import Address, FloatImm, Instr, IntImm, Operand, Pair, Reg, Special, Symbol, Vector
from ptxgen.isa.spec import BoundOperand, Gate, Op, op_of
from ptxgen.isa.special import SPECIALS, special
from ptxgen.text import render_operand
from ptxgen.types import TYPES, ScalarType, pred

ADDRESS_CLASSES: Final = ("b32", "b64")
_COPY_SIZES: Final = (4, 8, 16)  # bytes; PTX ISA, section "cp.async"
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
    `plain` says that every operand is a register and the first `dests` of them are the ones
    written; `declared` are then their classes. `writes` are the places of the operands written,
    `accesses` places of addresses with the bytes accessed there, which is the alignment needed (0:
    none), `symbols` places of names with the kind wanted, `gates` what needs which target.
    """

    __slots__ = (
        "accesses", "complaints", "declared", "dests", "gates", "integers", "op", "plain", "symbols", "writes"
    )  # fmt: skip

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
        written = [o.written for o, _ in wanted]
        self.dests = sum(written)
        self.plain = all(isinstance(got, Reg) for got in operands) and all(written[: self.dests])
        self.declared = [got.declared for got in operands if isinstance(got, Reg)]
        self.writes = tuple(i for i, w in enumerate(written) if w)
        self.accesses = tuple(
            (i, _accessed(op, operands)) for i, (o, _) in enumerate(wanted) if o.address
        )
        self.integers = tuple(_ranges(op, operands))
        self.symbols = tuple(
            (i, o.kind) for i, (o, got) in enumerate(wanted) if isinstance(got, Symbol)
        )
        named = [special(got.name) for got in operands if isinstance(got, Special)]
        self.gates: tuple[tuple[str, Gate], ...] = (
            (op.opcode, op.gate),
            *((register.name, register.gate) for register in named),
        )


def kinds(operand: Operand) -> object:
    """What a shape depends on of an operand that is not a register."""
    return _KINDS[operand.__class__](operand)


def accepts(wanted: ScalarType, declared: str) -> bool:
    """Whether a register declared so may be an operand of this type.

    PTX ISA, section "Operand Type Checking", without its relaxed rules: the register has the type's own
    class, or one of them is untyped and they have the same size.
    """
    if declared == wanted.register or declared == f"b{wanted.bits}":
        return True
    got = TYPES[declared]
    return wanted.kind == "b" and got.bits == wanted.bits and got is not pred


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
    # Shared memory is small, so its addresses may be kept in 32 bits; those of other spaces have 64.
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


def _accessed(op: Op, operands: tuple[Operand, ...]) -> int:
    """Bytes accessed at each address of the op, which is the alignment it needs; 0 if none."""
    if op.opcode.startswith("cp.async."):
        size = operands[2]
        return size.value if isinstance(size, IntImm) and size.value in _COPY_SIZES else 0
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
