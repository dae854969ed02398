"""Mistakes in what only kernels that use tensor memory have: its columns and lanes, its allocations, and the
products and copies of `tcgen05`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ptxgen.ir import Address, Instr, IntImm, Reg, Vector
from ptxgen.mutation.sites import Change, Site, constant, moved, with_operand

PRODUCT: Final = "tcgen05.mma"
COPY: Final = "tcgen05.cp."
_IDESC: Final = 3  # the operand of a product that is its instruction descriptor, after D, A and B
_NEGATED: Final = (("A negated", 1 << 13), ("B negated", 1 << 14))
_TRANSPOSED: Final = (("A transposed", 1 << 15), ("B transposed", 1 << 16))
_PACKED: Final = "kind::mxf4"  # kinds without transposed operands
_INTEGERS: Final = "kind::i8"  # the kind without negated ones
_QUARTER: Final = 32 << 16  # to the lanes of the next warp


def columns(site: Site) -> Iterator[Change]:
    """Tensor memory of other columns or lanes, and memory that is not freed or of which too little is
    allocated.
    """
    instr = site.instr
    if not instr.opcode.startswith("tcgen05."):
        return
    action = instr.opcode.split(".")[1]
    if action == "alloc":
        number = instr.operands[-1]
        if isinstance(number, IntImm):
            last = len(instr.operands) - 1
            yield Change("half the columns", constant(instr, last, number.value // 2))
    elif action == "dealloc":
        yield Change("deleted", ())
    elif action in ("ld", "st", "mma", "cp"):
        yield from _elsewhere(instr, action)


def _elsewhere(instr: Instr, action: str) -> Iterator[Change]:
    """The instruction with an address of tensor memory that is off by a column, by its registers, or by the
    lanes of a warp.
    """
    counts = [len(o.items) for o in instr.operands if isinstance(o, Vector)] if action in ("ld", "st") else []
    steps = dict.fromkeys((1, -1, *(sign * n for n in counts[:1] for sign in (1, -1))))
    for n, operand in enumerate(instr.operands):
        if not isinstance(operand, Address):
            continue
        for step in steps:
            yield Change(f"operand {n} {step:+d} columns", moved(instr, n, step))
        if counts:
            yield Change(f"operand {n} of the next lanes", moved(instr, n, _QUARTER))


def products(site: Site) -> Iterator[Change]:
    """Products that are left out, that add D or do not, that negate an operand, or that transpose one."""
    instr = site.instr
    if not instr.opcode.startswith(f"{PRODUCT}."):
        return
    yield Change("deleted", ())
    uses = instr.operands[-1] if isinstance(instr.operands[-1], Reg) else instr.operands[-2]
    if isinstance(uses, Reg):
        flip = Instr("not.pred", (uses, uses), instr.guard, instr.origin)
        yield Change("D is added or not", (flip, instr, flip))
    idesc = instr.operands[_IDESC]
    for what, bit in (
        *(() if _INTEGERS in instr.opcode else _NEGATED),
        *(() if _PACKED in instr.opcode else _TRANSPOSED),
    ):
        if isinstance(idesc, Reg):
            change = Instr("xor.b32", (idesc, idesc, IntImm(bit)), instr.guard, instr.origin)
            yield Change(what, (change, instr, change))
        elif isinstance(idesc, IntImm):
            yield Change(what, with_operand(instr, _IDESC, IntImm(idesc.value ^ bit)))


def copies(site: Site) -> Iterator[Change]:
    """Copies to tensor memory that are left out."""
    if site.instr.opcode.startswith(COPY):
        yield Change("deleted", ())
