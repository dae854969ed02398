"""Whether an instruction's operands fit its row of the instruction table.

A kernel has thousands of instructions of few forms, so the checks that do not depend on the names
and values of operands are done once for each opcode and kinds of operands: the `Shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from ptxgen.check.verify.alignment import LOADS_OF_POINTERS, rule_of
from ptxgen.check.verify.operand_kinds import part_kind, parts_of
from ptxgen.errors import ModifierError, TypeMismatchError
from ptxgen.ir import (
    Address,
    Arguments,
    FloatImm,
    Instr,
    IntImm,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)
from ptxgen.isa.forms import Parts, tuple_of
from ptxgen.isa.spec import BoundOperand, Effect, Gate, Op
from ptxgen.isa.special import SPECIALS, special
from ptxgen.isa.table import op_of
from ptxgen.text import render_operand
from ptxgen.types import TYPES, ScalarType, pred

ADDRESS_CLASSES: Final = ("b32", "b64")
SIZED: Final = ("cp.async.c", "createpolicy.")  # beginnings of the opcodes with two sizes or a fraction
_COPY_SIZES: Final = (4, 8, 16)  # bytes; PTX ISA, section "cp.async"
_SHIFTS: Final = frozenset({"shl", "shr"})
# PTX ISA, section "bar": the number of a barrier, and the number of threads, which are whole warps.
_BARRIER: Final = (range(16), "a barrier from 0 to 15")
_WARPS: Final = (range(32, 1025, 32), "a number of threads that is a multiple of 32, up to 1024")
_BARRIERS: Final = {
    (head, name): limit for head in ("bar", "barrier") for name, limit in (("a", _BARRIER), ("b", _WARPS))
}
# PTX ISA, sections "tcgen05.alloc" and "tcgen05.mma": columns of tensor memory; the exponent of D.
_TENSOR_MEMORY: Final = {
    "n": (tuple(32 << n for n in range(5)), "32, 64, 128, 256 or 512 columns"),
    "scale": (range(16), "a number from 0 to 15"),
}
# PTX ISA, sections "mbarrier.arrive" and "mbarrier.test_wait": the count; the parity of a phase.
_MBARRIER: Final = {
    "count": (range(1, 1 << 20), "a count from 1 to 1048575"),
    "a": (range(2), "a parity of 0 or 1"),
}
# PTX ISA, section "Operand Size Exceeding Instruction-Type Size".
_RELAXED: Final = frozenset({"ld", "ldu", "st", "cvt"})
# By the beginning of the opcode, the results for which the assembler accepts `_`: the only one, or
# the first of two.
_SINK_ALONE: Final = frozenset({"setp", "atom", "mbarrier"})
_SINK_FIRST: Final = frozenset({"setp", "elect", "match"})
# By the beginning of the opcode, the instructions that take no `_` in a vector of results.
_NO_SINK: Final = frozenset({"tcgen05"})
_CALLS: Final = frozenset({"call", "call_indirect"})
# By row and operand, what an operand holds that is read and must be a register.
_REGISTERS: Final = {
    ("call_indirect", "f"): "a function's address",
    ("tcgen05_commit_multicast", "ctas"): "a mask of CTAs",
}
# The kinds of names other than labels, by row and operand.
_NAMED: Final = {("brx", "target"): "list"} | {
    (row, name): kind for row in _CALLS for name, kind in (("f", "function"), ("t", "prototype"))
}


# PTX ISA, "tensormap.replace": the highest dimension, and the highest value of each field.
_TENSORMAP: Final = {"ord": 4, "elemtype": 12, "interleave_layout": 2, "swizzle_mode": 3, "fill_mode": 1}


class Limit(NamedTuple):
    """The legal values of the integer literal at index `operand` of the operands, and the same in words."""

    operand: int
    legal: range | tuple[int, ...]
    words: str
    kind: str = "operand"


class Shape:
    """The checks and data that all instructions with one opcode and the same kinds of operands
    share.

    `complaints` are pairs of a problem's kind and message; the other fields hold only if there are
    none. `names` gives the names of an instruction's registers, the `dests` written ones first, and
    `declared` their classes. `accesses` has the indices of address operands with the bytes accessed
    there, which is also the alignment needed (0: none), unless the literal at index `size_index`
    gives it. `integers` has the limits of literals. `symbols` has the indices of names, with the
    kind of name wanted there and the bits of a value. `unmoved` are the indices and names of
    addresses that take no offset. `is_special` says whether the instruction has any of these, or is a
    barrier, or has two sizes or a fraction; `valued` whether it has a literal, name or address that is
    checked, is a call, or is special. `gates` has the targets that the opcode and special
    registers need. `is_address` says whether the results may be addresses, `has_residue` whether the
    residue of the only one can be known, and `rule` gives it (None: of a loaded pointer).

    `parts` decides quickly whether another instruction with this opcode has this shape, if its operands are
    of the same classes: it gives its registers, the written ones first and `registers` in number, and after
    them all else that the shape depends on. The shape is this one if the `part_kind` of each part is that in
    `kinds`, which is None where that does not tell.
    """

    __slots__ = (
        *("accesses", "calls", "complaints", "declared", "dests", "gates", "has_residue", "integers"),
        *("is_address", "is_special", "kinds", "names", "op", "parts", "registers", "rule", "size_index"),
        *("symbols", "unmoved", "valued"),
    )

    def __init__(self, instr: Instr) -> None:
        self.complaints: tuple[tuple[str, str], ...] = ()
        self.op: Op | None = None
        try:
            self.op = op_of(instr)
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
        registers = [
            (path, register, o.written)
            for i, (o, got) in enumerate(wanted)
            for path, register in _registers(f"o[{i}]", got)
        ]
        registers.sort(key=lambda item: not item[2])
        self.dests = sum(written for _, _, written in registers)
        self.declared = [register.declared for _, register, _ in registers]
        # Compiled code, since most of the time of checking a kernel is spent in it.
        self.names = tuple_of(tuple([f"{path}.name" for path, _, _ in registers]))
        self.registers = len(registers)
        parts = parts_of(wanted)
        self.parts: Parts = parts or (lambda _: ())
        self.kinds = [*map(part_kind, parts(operands))] if parts else None
        self.accesses = tuple((i, _accessed(op)) for i, (o, _) in enumerate(wanted) if o.address)
        # ptxas takes no offset from the handle of a texture or surface, or from a tensor map.
        self.unmoved = tuple(
            (i, o.name)
            for i, (o, _) in enumerate(wanted)
            if o.address and (o.count or op.effect is Effect.TEXTURE)
        )
        sized = (i for i, (o, got) in enumerate(wanted) if o.name == "cp_size" and _is_int(got))
        self.size_index = next(sized, None)
        self.integers = tuple(_ranges(op, operands))
        self.symbols = tuple(
            (i, _NAMED.get((op.row.name, o.name), o.kind), o.type.bits if o.type else 0)
            for i, (o, got) in enumerate(wanted)
            if isinstance(got, Symbol)
        )
        self.calls = op.row.name in _CALLS
        # Packed floating-point numbers are in integer registers, but are not integers.
        whole = all(o.type is None or o.type is pred or o.type.is_integer for o in op.operands)
        single = self.dests == 1 and isinstance(operands[0], Reg)
        self.rule = rule_of(op.opcode) if whole and single else None
        self.is_address = self.dests > 0 and self.declared[0] in ADDRESS_CLASSES
        self.has_residue = self.is_address and (self.rule is not None or op.opcode in LOADS_OF_POINTERS)
        self.is_special = bool(self.unmoved) or op.effect is Effect.BARRIER or op.opcode.startswith(SIZED)
        self.valued = bool(self.integers or self.symbols or self.accesses) or self.is_special or self.calls
        named = [special(got.name) for got in operands if isinstance(got, Special)]
        self.gates: tuple[tuple[str, Gate], ...] = (
            (op.opcode, op.gate),
            *((register.name, register.gate) for register in named),
        )


# Shapes without complaints, shared by all modules; there are at most rows times register classes.
_SHAPES: Final[dict[tuple[object, ...], Shape]] = {}


def shape_of(instr: Instr) -> Shape:
    """The shape of an instruction, made once for each opcode and kinds of operands and kept by them all."""
    shape: Shape | None = instr.shape
    if shape is None:
        key = (instr.opcode, *[o.declared if o.__class__ is Reg else kinds(o) for o in instr.operands])
        shape = _SHAPES.get(key)
        if shape is None:
            shape = Shape(instr)
            if not shape.complaints:
                _SHAPES[key] = shape
        instr.shape = shape
    return shape


def kinds(operand: Operand) -> object:
    """The part of an operand that a shape depends on; for a register, its declared class."""
    return _KINDS[operand.__class__](operand)


def accepts(wanted: ScalarType, declared: str) -> bool:
    """Whether a register of class `declared` may be an operand of type `wanted`.

    PTX ISA, section "Operand Type Checking", without its relaxed rules: the register has the type's
    own class, or one of them is untyped and they have the same size.
    """
    if declared == wanted.register or declared == f"b{wanted.bits}":
        return True
    got = TYPES[declared]
    return wanted.kind == "b" and got.bits == wanted.bits and got is not pred


def _registers(path: str, operand: Operand) -> Iterator[tuple[str, Reg]]:
    """Each register of an operand, and the Python expression that leads to it."""
    if isinstance(operand, Reg):
        yield path, operand
    elif isinstance(operand, (Address, TensorAddress)):
        if isinstance(operand.base, Reg):
            yield f"{path}.base", operand.base
        if isinstance(operand, TensorAddress):
            yield from _listed(f"{path}.coordinates", operand.coordinates)
    elif isinstance(operand, (Vector, Arguments)):
        yield from _listed(f"{path}.items", operand.items)
    elif isinstance(operand, Pair):
        if isinstance(operand.first, Reg):
            yield f"{path}.first", operand.first
        if isinstance(operand.second, Reg):
            yield f"{path}.second", operand.second
    elif isinstance(operand, Not):
        yield f"{path}.register", operand.register


def _listed(path: str, items: Iterable[Operand]) -> Iterator[tuple[str, Reg]]:
    for i, item in enumerate(items):
        if isinstance(item, Reg):
            yield f"{path}[{i}]", item


_KINDS: Final[dict[type, Callable[[Any], object]]] = {
    Reg: lambda o: o.declared,
    IntImm: lambda _: "integer",
    FloatImm: lambda o: o.width,
    Special: lambda o: o.name,
    Symbol: lambda _: "symbol",
    Address: lambda o: ("[", _based(o.base)),
    TensorAddress: lambda o: ("[{", _based(o.base), *[kinds(i) for i in o.coordinates]),
    # Most items are registers; the short cut for them saves most of the time.
    Vector: lambda o: ("{", *[i.declared if i.__class__ is Reg else kinds(i) for i in o.items]),
    Arguments: lambda o: ("(", *[kinds(i) for i in o.items]),
    Pair: lambda o: ("|", kinds(o.first), kinds(o.second)),
    Not: lambda o: ("!", o.register.declared),
    Sink: lambda _: "_",
}


def _based(base: Reg | Symbol | None) -> object:
    return base.declared if isinstance(base, Reg) else base.__class__


def _complaints(op: Op, operands: tuple[Operand, ...]) -> Iterator[str]:
    if not op.required <= len(operands) <= len(op.flat):
        least, most = op.required, len(op.flat)
        count = f"{least}" if least == most else f"{least} to {most}"
        yield f"{op.row.name} takes {count} operands, got {len(operands)} (syntax: {op.row.syntax})"
        return
    seconds = iter(o for o in op.operands if o.second)
    for index, (wanted, got) in enumerate(zip(op.flat, operands, strict=False)):
        second = next(seconds) if index in op.pairs else None
        message = _complaint(op, wanted, got, second)
        if message:
            yield f"operand {wanted.name} of {op.row.name} {message} (syntax: {op.row.syntax})"


def _complaint(op: Op, wanted: BoundOperand, got: Operand, second: BoundOperand | None) -> str:
    """The mistake in an operand, without the operand's name; empty if there is none."""
    if second is not None:
        return _pair_complaint(op, wanted, second, got)
    if wanted.address:
        return _address_complaint(op, wanted, got)
    if wanted.kind == "args":
        return _arguments_complaint(wanted, got)
    if wanted.kind == "label":
        return "" if isinstance(got, Symbol) else f"must be a label, got {_described(got)}"
    if wanted.kind == "imm":
        return "" if isinstance(got, IntImm) else f"must be an integer literal, got {_described(got)}"
    if wanted.count:
        return _vector_complaint(op, wanted, got)
    return _scalar_complaint(op, wanted, got)


def _pair_complaint(op: Op, wanted: BoundOperand, second: BoundOperand, got: Operand) -> str:
    if not isinstance(got, Pair):
        return f"must be two registers such as %r1|%p1, got {_described(got)}"
    sinks = [isinstance(got.first, Sink), isinstance(got.second, Sink)]
    if all(sinks) or (sinks[0] and _head(op) not in _SINK_FIRST):
        return f"must be two registers such as %r1|%p1, got {_described(got)}"
    complaint = "" if sinks[0] else _scalar_complaint(op, wanted, got.first)
    return complaint or ("" if sinks[1] else _scalar_complaint(op, second, got.second))


def _vector_complaint(op: Op, wanted: BoundOperand, got: Operand) -> str:
    if not isinstance(got, Vector) or len(got.items) != wanted.count:
        return f"must be a vector of {wanted.count}, got {_described(got)}"
    sinks = wanted.written and _head(op) not in _NO_SINK
    items = [item for item in got.items if not (sinks and isinstance(item, Sink))]
    if not items:
        return f"must have at least one register, got {_described(got)}"
    sizes = {TYPES[i.declared].bits for i in items if isinstance(i, Reg) and i.declared in TYPES}
    if len(sizes) > 1:
        return f"must have registers of one size, got {_described(got)}"
    return next(filter(None, (_scalar_complaint(op, wanted, item) for item in items)), "")


def _arguments_complaint(wanted: BoundOperand, got: Operand) -> str:
    if not isinstance(got, Arguments):
        return f"must be in brackets such as (%r1, param0), got {_described(got)}"
    for item in got.items:
        if wanted.written and isinstance(item, (IntImm, FloatImm)):
            return f"is written, so {_described(item)} cannot be part of it"
        if not wanted.written and isinstance(item, Sink):
            return "is read, so _ cannot be part of it"
    return ""


def _scalar_complaint(op: Op, wanted: BoundOperand, got: Operand) -> str:
    type = wanted.type
    assert type is not None  # only labels, literals and arguments have none
    holds = _REGISTERS.get((op.row.name, wanted.name))
    if holds is not None and not isinstance(got, Reg):
        return f"must be a register with {holds}, got {_described(got)}"
    if isinstance(got, Reg):
        fine = got.declared in TYPES and (
            accepts(type, got.declared) or (_relaxed(op) and _wider(type, got.declared))
        )
        if wanted.written and _gives_no_state(op):
            return f"must be _, as the mbarrier of another CTA gives no state, got {_described(got)}"
    elif wanted.written:
        if isinstance(got, Sink) and _head(op) in _SINK_ALONE:
            return ""
        return f"is written, so it must be a register, got {_described(got)}"
    elif isinstance(got, Special):
        return _special_complaint(op, type, got)
    else:
        fine = _fits_read(type, got)
    return "" if fine else f"must be {type}, got {_described(got)}"


def _fits_read(type: ScalarType, got: Operand) -> bool:
    """Whether an operand other than a register may be read as this type."""
    if isinstance(got, IntImm):
        return not type.is_float and type.kind != "x"
    if isinstance(got, FloatImm):
        return got.width == type.bits and type.kind in "fb"
    if isinstance(got, Not):
        return type is pred and got.register.declared == "pred"
    return isinstance(got, Symbol) and type.is_integer and type.register in ADDRESS_CLASSES


def _special_complaint(op: Op, type: ScalarType, got: Special) -> str:
    register = SPECIALS.get(got.name)
    if register is None or register.type.bits != type.bits or not type.is_integer:
        return f"must be {type}, got {_described(got)}"
    if op.row.name != "mov":
        return f"must be {type}, got {got.name}; only mov reads special registers"
    return ""


def _is_int(got: Operand) -> bool:
    return isinstance(got, IntImm)


def _head(op: Op) -> str:
    return op.opcode.partition(".")[0]


def _gives_no_state(op: Op) -> bool:
    """Whether an instruction has no result. PTX ISA, section "mbarrier.arrive": with
    .shared::cluster there is none.
    """
    return op.opcode.startswith("mbarrier.arrive") and op.modifiers["space"] == "shared::cluster"


def _relaxed(op: Op) -> bool:
    """Whether the registers of an op may be wider than its types."""
    return _head(op) in _RELAXED and not op.opcode.startswith(("st.async", "st.bulk"))


def _wider(wanted: ScalarType, declared: str) -> bool:
    got = TYPES[declared]
    return got.bits > wanted.bits and (got.kind == "b" or wanted.kind == "b")


def _address_complaint(op: Op, wanted: BoundOperand, got: Operand) -> str:
    if wanted.count:
        if not isinstance(got, TensorAddress) or len(got.coordinates) != wanted.count:
            names = [f"%{'f' if t.is_float else 'r'}{i}" for i, t in enumerate(wanted.along)]
            texture = op.effect is Effect.TEXTURE
            what = "a handle with coordinates" if texture else "a tensor map's address"
            return f"must be {what} such as [%rd1, {{{', '.join(names)}}}], got {_described(got)}"
        for type, c in zip(wanted.along, got.coordinates, strict=True):
            fits = accepts(type, c.declared) if isinstance(c, Reg) else _fits_read(type, c)
            if not fits:
                return f"must have coordinates of class {type.register}, got {_described(c)}"
    elif not isinstance(got, Address):
        return f"must be an address such as [%rd1+16], got {_described(got)}"
    space = str(op.modifiers.get("space", ""))
    if got.base is None and space != "local":
        return f"must have a register or a name; only local memory has such addresses as {_described(got)}"
    if not isinstance(got.base, Reg):
        return ""
    # Addresses in shared, local and parameter memory may have 32 bits; those of other spaces have
    # 64.
    narrow = space.startswith(("shared", "local", "param"))
    narrow = narrow or (wanted.type is not None and wanted.type.bits == 32)
    legal = ADDRESS_CLASSES if narrow else ADDRESS_CLASSES[1:]
    if _head(op) == "tcgen05" and narrow and not space:
        legal = ADDRESS_CLASSES[:1]  # of tensor memory
    if got.base.declared in legal:
        return ""
    return f"must be an address in a register of class {' or '.join(legal)}, got {_described(got.base)}"


def _described(got: Operand) -> str:
    text = render_operand(got)
    if isinstance(got, Reg):
        return f"{text} of class {got.declared}"
    return (
        f"{text}, which is no special register"
        if isinstance(got, Special) and got.name not in SPECIALS
        else text
    )


def _accessed(op: Op) -> int:
    """The bytes accessed at each address of the op, which is also the alignment needed; 0 if none."""
    type = op.modifiers.get("type")
    if not isinstance(type, ScalarType):
        return 0
    return type.nbytes * max((o.count for o in op.operands), default=0) or type.nbytes


def _ranges(op: Op, operands: tuple[Operand, ...]) -> Iterator[Limit]:
    for index, (wanted, got) in enumerate(zip(op.flat, operands, strict=False)):
        if not isinstance(got, IntImm):
            continue
        type = wanted.type
        if wanted.literal is not None:
            yield Limit(index, (wanted.literal,), str(wanted.literal))
        elif (limit := _named_limit(op, wanted)) is not None:
            yield Limit(index, *limit)
        elif type is pred:
            yield Limit(index, (-1, 0, 1), "0 or 1")
        elif type is not None:
            yield Limit(index, *_integers(op, wanted, type))


def _named_limit(op: Op, wanted: BoundOperand) -> tuple[Any, ...] | None:
    """The fields of the `Limit` of a literal whose legal values do not follow from its type; else None."""
    head, name = _head(op), wanted.name
    if head == "setmaxnreg":
        return range(24, 257, 8), "a multiple of 8 from 24 to 256"
    if op.row.name == "st_bulk" and name == "size":
        return range(0, 1 << 32, 8), "a multiple of 8 bytes"
    if ".bulk" in op.opcode and name == "size":
        return range(0, 1 << 32, 16), "a multiple of 16 bytes"
    if head == "tensormap" and name in ("ord", "mode"):
        most = _TENSORMAP[name if name == "ord" else str(op.modifiers["field"])]
        return range(most + 1), f"a number from 0 to {most}"
    if name == "cp_size":
        return _COPY_SIZES, "4, 8 or 16 bytes"
    if (head, name) in _BARRIERS:
        return *_BARRIERS[head, name], "barrier"
    if head == "tcgen05":
        return _TENSOR_MEMORY.get(name)
    if head == "mbarrier" and (name == "count" or (name == "a" and ".parity" in op.opcode)):
        return _MBARRIER[name]
    return None


def _integers(op: Op, wanted: BoundOperand, type: ScalarType) -> tuple[range, str]:
    shifted = op.modifiers.get("type")
    if op.row.name in _SHIFTS and wanted.name == "b" and isinstance(shifted, ScalarType):
        return range(shifted.bits), f"a shift by less than the {shifted.bits} bits of a {shifted}"
    return range(-(1 << type.bits - 1), 1 << type.bits), f"an integer of {type.bits} bits"
