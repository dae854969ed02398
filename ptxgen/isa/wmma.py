"""`wmma.load`, `wmma.mma` and `wmma.store` (PTX ISA, "Warp Level Matrix Instructions").

The manual does not define which lane holds which element. Here it is the mapping of
`ptxgen.isa.fragments`, for matrices stored by `.row` as well as by `.col`; the last four of the
eight registers of an f16 fragment that needs only four (or two) repeat the first. nvcc writes the
rounding of f64 at the end of the opcode, where the assembler accepts it, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import products
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.fragments import EVERY_LANE, WARP, as_lanes, counts, operand_layout
from ptxgen.isa.matrix import ACCURACY, ACCURACY_F64, BIT_OPS, COUNTS, IN_TF32, LAYOUTS, ROUNDINGS
from ptxgen.isa.matrix_moves import space_of
from ptxgen.isa.spec import Effect, gate
from ptxgen.isa.undefined import moves
from ptxgen.isa.undefined_products import PRODUCT
from ptxgen.types import TYPES, ScalarType, b32, f32, f64, s32, u16

if TYPE_CHECKING:
    from ptxgen.isa.fragments import Layout
    from ptxgen.isa.machine import Lanes, Machine

Registers = tuple["Lanes", ...]

SECTION: Final = "Warp Level Matrix Instructions"
SHAPES: Final = ("m16n16k16", "m32n8k16", "m8n32k16")
SPACES: Final = {"global": None, "shared": None, "shared::cta": gate(ptx=(7, 8))}
_AMPERE: Final = gate(ptx=(7, 0), sm=80)
_TURING: Final = gate(ptx=(6, 3), sm=75)
_F16_REGISTERS: Final = 8  # registers of A and B in f16, for every shape
_HELD_AS: Final = {"f32": f32, "s32": s32, "f64": f64}  # all other types are in b32 registers

# ---------------------------------------- loads and stores


def _offsets(layout: Layout, by_rows: bool, stride: Lanes | None, bits: int, lanes: int) -> Lanes:
    """Byte offsets from the matrix's address to each element, `[registers, lanes, elements]`
    uint64.

    With `by_rows`, the rows of the layout's shape, `stride` elements apart, are consecutive in
    memory; without it, its columns are.
    """
    _, rows, columns = layout.shape
    row, column = np.divmod(np.tile(layout.index, (1, lanes // WARP, 1)), columns)
    line, inside = (row, column) if by_rows else (column, row)
    if stride is None:
        apart: Lanes = np.full(1, columns if by_rows else rows)
    else:
        apart = np.asarray(stride).astype(np.int64).reshape(-1)
    offsets: Lanes = ((line * apart[None, :, None] + inside) * bits // 8).astype(np.uint64)
    return offsets


def _is_by_rows(operand: str, layout: str) -> bool:
    """Whether rows of the layout's shape are consecutive in memory; B is held as its transpose."""
    return (layout == "row") != (operand == "b")


_AB: Final = ("a", "b")
_INT4: Final = ("s4", "u4")
_BYTES: Final = {"bf16": _AMPERE, "s8": None, "u8": None}
_EITHER: Final = "rows (columns)"
# Accumulators by their type, with the shapes of the products that have them.
_ACCUMULATORS: Final = each(
    "shape type ptx sm",
    (("m8n8k4",), (f64,), (7, 0), 80),
    ({**dict.fromkeys(SHAPES), "m8n8k32": _TURING, "m8n8k128": _TURING}, (s32,), (6, 3), 72),
    ({**dict.fromkeys(SHAPES), "m16n16k8": _AMPERE}, (f32,), (6, 3), 70),
)
_MOVE: Final[dict[str, Any]] = {
    "space": SPACES,
    "effect": Effect.WARP,
    "counts": counts(a="type", b="type", c="type"),
}


@inst(
    "wmma.load.<operand>.sync.aligned.<layout>.<shape>{.space}.<type> <d>, [addr:u64]{, stride:u32}",
    each(
        "name operand layout shape type d ptx sm matrix lines",
        ("wmma_load_f16", _AB, LAYOUTS, SHAPES, "f16", "d:b32*8", (6, 3), 70, "A or B", _EITHER),
        ("wmma_load_a", "a", LAYOUTS, SHAPES, _BYTES, "d:b32*na", (6, 3), 72, "A", _EITHER),
        ("wmma_load_b", "b", LAYOUTS, SHAPES, _BYTES, "d:b32*nb", (6, 3), 72, "B", _EITHER),
        ("wmma_load_tf32", _AB, LAYOUTS, "m16n16k8", "tf32", "d:b32*4", (7, 0), 80, "A or B", _EITHER),
        ("wmma_load_f64", _AB, LAYOUTS, "m8n8k4", "f64", "d:f64*1", (7, 0), 80, "A or B", _EITHER),
        ("wmma_load_a_int4", "a", "row", "m8n8k32", _INT4, "d:b32*1", (6, 3), 75, "A", "rows"),
        ("wmma_load_b_int4", "b", "col", "m8n8k32", _INT4, "d:b32*1", (6, 3), 75, "B", "columns"),
        ("wmma_load_a_bits", "a", "row", "m8n8k128", "b1", "d:b32*1", (6, 3), 75, "A", "rows"),
        ("wmma_load_b_bits", "b", "col", "m8n8k128", "b1", "d:b32*1", (6, 3), 75, "B", "columns"),
        ("wmma_load_c_f16", "c", LAYOUTS, SHAPES, "f16", "d:b32*4", (6, 3), 70, "C", _EITHER),
    )
    + times(
        each("name operand layout d matrix lines", ("wmma_load_c", "c", LAYOUTS, "d*nc", "C", _EITHER)),
        _ACCUMULATORS,
    ),
    undefined=moves(),
    section=f"{SECTION}: wmma.load",
    **_MOVE,
)
def wmma_load(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    operand: str,
    layout: str,
    shape: str,
    space: str | None,
    type: ScalarType | str,
) -> Registers:
    """d = the fragment of <matrix> at addr, whose <lines> are stride elements apart."""
    machine.warp_sync(EVERY_LANE)
    where, start = space_of(space), as_lanes(addr)
    fragment, register = operand_layout(operand, shape, str(type)), _HELD_AS.get(str(type), b32)
    by_rows = _is_by_rows(operand, layout)
    bits = register.bits // fragment.per
    offsets = _offsets(fragment, by_rows, stride, bits, start.size)
    if by_rows or fragment.per == 1:  # the elements of a register are contiguous in memory
        first = offsets[:, :, 0]
        got = tuple(machine.load(where, start + o, register, 1)[0] for o in first)
    else:
        element = TYPES[f"u{bits}"]
        got = tuple(
            _side_by_side([machine.load(where, start + o, element, 1)[0] for o in of_register.T])
            for of_register in offsets
        )
    repeats = type == "f16" and operand != "c"
    return got * (_F16_REGISTERS // len(got)) if repeats else got


def _side_by_side(elements: list[Lanes]) -> Lanes:
    """The elements of a 32-bit register, the first in the lowest bits."""
    return np.stack(elements, axis=1).view(np.uint32).reshape(-1)


@inst(
    "wmma.store.d.sync.aligned.layout.<shape>{.space}.<type> [addr:u64], <a>{, stride:u32}",
    each("name shape type a ptx sm", ("wmma_store_f16", SHAPES, "f16", "a:b32*4", (6, 3), 70))
    + times(each("name a", ("wmma_store", "a*nc")), _ACCUMULATORS),
    layout=LAYOUTS,
    undefined=moves("a"),
    section=f"{SECTION}: wmma.store",
    **_MOVE,
)
def wmma_store(
    machine: Machine,
    addr: Lanes,
    a: Registers,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
    type: ScalarType | str,
) -> tuple[()]:
    """Write the fragment of D to addr, with its rows (columns) stride elements apart."""
    machine.warp_sync(EVERY_LANE)
    where, start = space_of(space), as_lanes(addr)
    fragment, register = operand_layout("d", shape, str(type)), _HELD_AS.get(str(type), b32)
    by_rows, per = layout == "row", fragment.per
    offsets = _offsets(fragment, by_rows, stride, register.bits // per, start.size)
    for value, of_register in zip(a, offsets, strict=True):
        whole = np.broadcast_to(value, start.shape)
        if by_rows or per == 1:
            machine.store(where, start + of_register[:, 0], register, (whole,))
            continue
        halves = np.ascontiguousarray(whole).view(np.uint16).reshape(-1, per)
        for e in range(per):
            half = np.ascontiguousarray(halves[:, e])
            machine.store(where, start + of_register[:, e], u16, (half,))
    return ()


# ---------------------------------------- products

_MMA: Final[dict[str, Any]] = {
    "alayout": LAYOUTS,
    "blayout": LAYOUTS,
    "ignores": ("alayout", "blayout"),
    "effect": Effect.WARP,
    "undefined": PRODUCT,
    "section": f"{SECTION}: wmma.mma",
}


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.<shape>.<dtype><factors>.<ctype> <registers>",
    each(
        "name shape dtype factors ctype atype registers ptx sm of",
        (
            "wmma_f32",
            SHAPES,
            "f32",
            "",
            "f32",
            "f16",
            "d:f32*8, a:b32*8, b:b32*8, c:f32*8",
            (6, 3),
            70,
            "; A and B in f16, C and D in f32",
        ),
        (
            "wmma_f16",
            SHAPES,
            "f16",
            "",
            "f16",
            "f16",
            "d:b32*4, a:b32*8, b:b32*8, c:b32*4",
            (6, 3),
            70,
            ", all in f16",
        ),
        (
            "wmma_f32_f16",
            SHAPES,
            "f32",
            "",
            "f16",
            "f16",
            "d:f32*8, a:b32*8, b:b32*8, c:b32*4",
            (6, 3),
            70,
            "; A, B and C in f16, D in f32",
        ),
        (
            "wmma_f16_f32",
            SHAPES,
            "f16",
            "",
            "f32",
            "f16",
            "d:b32*4, a:b32*8, b:b32*8, c:f32*8",
            (6, 3),
            70,
            "; A, B and D in f16, C in f32: a sum in f32, rounded to f16",
        ),
        (
            "wmma_bf16",
            SHAPES,
            "f32",
            ".bf16.bf16",
            "f32",
            "bf16",
            "d:f32*8, a:b32*na, b:b32*nb, c:f32*8",
            (7, 0),
            80,
            "; A and B in bf16, C and D in f32",
        ),
        (
            "wmma_tf32",
            "m16n16k8",
            "f32",
            ".tf32.tf32",
            "f32",
            "tf32",
            "d:f32*8, a:b32*4, b:b32*4, c:f32*8",
            (7, 0),
            80,
            f"; {IN_TF32}, C and D in f32",
        ),
    ),
    counts=counts(a="atype", b="atype"),
    max_ulp=math.inf,
    accuracy=ACCURACY,
    **_MMA,
)
def wmma_mma(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    atype: str,
    ctype: str,
    dtype: str,
) -> Registers:
    """D = A * B + C of a warp<of>."""
    of = products.operands(shape, atype, atype, ctype, dtype)
    return products.multiply(machine, of, a, b, c, "wmma")


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.m8n8k4<first>.f64.f64.f64.f64<last> "
    "d:f64*2, a:f64*1, b:f64*1, c:f64*2",
    each("name first last", ("wmma_f64_rounding_last", "", ".rnd"), ("wmma_f64", "{.rnd}", "")),
    rnd=ROUNDINGS,
    ptx=(7, 0),
    sm=80,
    max_ulp=math.inf,
    accuracy=ACCURACY_F64,
    **_MMA,
)
def wmma_f64(machine: Machine, a: Registers, b: Registers, c: Registers, *, rnd: str | None) -> Registers:
    """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says."""
    of = products.operands("m8n8k4", "f64", "f64", "f64", "f64")
    return products.multiply_f64(machine, of, a, b, c, rnd)


@inst(
    "wmma.mma.sync.aligned.<alayout>.<blayout>.<shape>.s32.<atype>.<btype>.s32{.satfinite} <registers>",
    times(
        each("atype btype", ("s8", "s8"), ("u8", "u8")),
        each("shape registers sm", (SHAPES, "d:s32*8, a:b32*na, b:b32*nb, c:s32*8", 72)),
    )
    + times(
        each("atype btype", ("s4", "s4"), ("u4", "u4")),
        each(
            "alayout blayout shape registers sm",
            ("row", "col", "m8n8k32", "d:s32*2, a:b32*1, b:b32*1, c:s32*2", 75),
        ),
    ),
    name="wmma_<atype>",
    ptx=(6, 3),
    counts=COUNTS,
    **_MMA,
)
def wmma_integers(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    atype: str,
    btype: str,
    satfinite: bool,
) -> Registers:
    """D = A * B + C of a warp; A and B in <atype>, C and D in s32, which wraps around or
    saturates.
    """
    of = products.operands(shape, atype, btype, "s32", "s32")
    return products.multiply_integers(machine, of, a, b, c, satfinite)


@inst(
    "wmma.mma.op.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 d:s32*2, a:b32*1, b:b32*1, c:s32*2",
    name="wmma_bits",
    op=BIT_OPS,
    ptx=(6, 3),
    sm=75,
    effect=Effect.WARP,
    undefined=PRODUCT,
    section=f"{SECTION}: wmma.mma",
)
def wmma_bits(machine: Machine, a: Registers, b: Registers, c: Registers, *, op: str) -> Registers:
    """D = C + the number of ones in each row of A xor (and) each column of B, of a warp."""
    of = products.operands("m8n8k128", "b1", "b1", "s32", "s32")
    return products.multiply_bits(machine, of, a, b, c, op)
