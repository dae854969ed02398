"""`wmma.load`, `wmma.mma` and `wmma.store` (PTX ISA, "Warp Level Matrix Instructions").

The manual leaves open which lane holds which element. Here it is as `ptxgen.isa.fragments` says,
whatever `.row` and `.col` the matrices were stored in; the last four of the eight registers of an
f16 fragment that needs only four (or two) repeat the first. nvcc writes the rounding of f64 at the
end of the opcode, where the assembler accepts it, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa import products
from ptxgen.isa.fragments import (
    EVERY_LANE,
    WARP,
    as_lanes,
    counts,
    operand_layout,
)
from ptxgen.isa.matrix import ACCURACY, ACCURACY_F64, BIT_OPS, ROUNDINGS
from ptxgen.isa.matrix_moves import space_of
from ptxgen.isa.spec import Effect, gate, inst
from ptxgen.types import TYPES, ScalarType, b32, f32, f64, s32, u16

if TYPE_CHECKING:
    from ptxgen.isa.fragments import Layout
    from ptxgen.isa.machine import Lanes, Machine

Registers = tuple["Lanes", ...]

SECTION: Final = "Warp Level Matrix Instructions"
SHAPES: Final = ("m16n16k16", "m32n8k16", "m8n32k16")
SPACES: Final = {"global": None, "shared": None, "shared::cta": gate(ptx=(7, 8))}
_LAYOUTS: Final = ("row", "col")
_AMPERE: Final = gate(ptx=(7, 0), sm=80)
_TURING: Final = gate(ptx=(6, 3), sm=75)
_F16_REGISTERS: Final = 8  # of A and B, whatever the shape

# ---------------------------------------- loads and stores


def _offsets(layout: Layout, by_rows: bool, stride: Lanes | None, bits: int, lanes: int) -> Lanes:
    """Bytes from the matrix's address to each element, `[registers, lanes, elements]` uint64.

    `by_rows`: the rows of the layout's shape, `stride` elements apart, are consecutive in memory;
    else its columns are.
    """
    _, rows, columns = layout.shape
    row, column = np.divmod(np.tile(layout.place, (1, lanes // WARP, 1)), columns)
    line, inside = (row, column) if by_rows else (column, row)
    if stride is None:
        apart: Lanes = np.full(1, columns if by_rows else rows)
    else:
        apart = np.asarray(stride).astype(np.int64).reshape(-1)
    offsets: Lanes = ((line * apart[None, :, None] + inside) * bits // 8).astype(np.uint64)
    return offsets


def _load(
    machine: Machine, addr: Lanes, stride: Lanes | None, space: str | None, layout: Layout,
    by_rows: bool, register: ScalarType,
) -> Registers:  # fmt: skip
    """The registers of a fragment."""
    machine.warp_sync(EVERY_LANE)
    where, start = space_of(space), as_lanes(addr)
    per = layout.place.shape[2]
    bits = register.bits // per
    offsets = _offsets(layout, by_rows, stride, bits, start.size)
    if by_rows or per == 1:  # the elements of a register lie side by side in memory
        first = offsets[:, :, 0]
        return tuple(machine.load(where, start + o, register, 1)[0] for o in first)
    element = TYPES[f"u{bits}"]
    return tuple(
        _side_by_side([machine.load(where, start + o, element, 1)[0] for o in of_register.T])
        for of_register in offsets
    )


def _side_by_side(elements: list[Lanes]) -> Lanes:
    """The elements of a 32-bit register, the first in the lowest bits."""
    return np.stack(elements, axis=1).view(np.uint32).reshape(-1)


def _store(
    machine: Machine, addr: Lanes, a: Registers, stride: Lanes | None, space: str | None,
    layout: Layout, by_rows: bool, register: ScalarType,
) -> tuple[()]:  # fmt: skip
    machine.warp_sync(EVERY_LANE)
    where, start = space_of(space), as_lanes(addr)
    per = layout.place.shape[2]
    offsets = _offsets(layout, by_rows, stride, register.bits // per, start.size)
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


def _is_by_rows(operand: str, layout: str) -> bool:
    """Whether rows of the layout's shape are consecutive; B is held as its transpose."""
    return (layout == "row") != (operand == "b")


@inst(
    "wmma.load.operand.sync.aligned.layout.shape{.space}.f16 d:b32*8, [addr:u64]{, stride:u32}",
    name="wmma_load_f16", operand=("a", "b"), layout=_LAYOUTS, shape=SHAPES, space=SPACES,
    ptx=(6, 3), sm=70, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_f16(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    operand: str,
    layout: str,
    shape: str,
    space: str | None,
) -> Registers:
    """d = the fragment of A or B at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout(operand, shape, "f16")
    got = _load(machine, addr, stride, space, places, _is_by_rows(operand, layout), b32)
    return got * (_F16_REGISTERS // len(got))


@inst(
    "wmma.load.a.sync.aligned.layout.shape{.space}.type d:b32*na, [addr:u64]{, stride:u32}",
    name="wmma_load_a", layout=_LAYOUTS, shape=SHAPES, space=SPACES,
    type={"bf16": _AMPERE, "s8": None, "u8": None},
    counts={"na": lambda m: operand_layout("a", str(m["shape"]), str(m["type"])).registers},
    ptx=(6, 3), sm=72, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_a(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
    type: str,
) -> Registers:
    """d = the fragment of A at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout("a", shape, type)
    return _load(machine, addr, stride, space, places, _is_by_rows("a", layout), b32)


@inst(
    "wmma.load.b.sync.aligned.layout.shape{.space}.type d:b32*nb, [addr:u64]{, stride:u32}",
    name="wmma_load_b", layout=_LAYOUTS, shape=SHAPES, space=SPACES,
    type={"bf16": _AMPERE, "s8": None, "u8": None},
    counts={"nb": lambda m: operand_layout("b", str(m["shape"]), str(m["type"])).registers},
    ptx=(6, 3), sm=72, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_b(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
    type: str,
) -> Registers:
    """d = the fragment of B at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout("b", shape, type)
    return _load(machine, addr, stride, space, places, _is_by_rows("b", layout), b32)


@inst(
    "wmma.load.operand.sync.aligned.layout.m16n16k8{.space}.tf32 "
    "d:b32*4, [addr:u64]{, stride:u32}",
    name="wmma_load_tf32", operand=("a", "b"), layout=_LAYOUTS, space=SPACES,
    ptx=(7, 0), sm=80, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_tf32(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    operand: str,
    layout: str,
    space: str | None,
) -> Registers:
    """d = the fragment of A or B at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout(operand, "m16n16k8", "tf32")
    return _load(machine, addr, stride, space, places, _is_by_rows(operand, layout), b32)


@inst(
    "wmma.load.operand.sync.aligned.layout.m8n8k4{.space}.f64 d:f64*1, [addr:u64]{, stride:u32}",
    name="wmma_load_f64", operand=("a", "b"), layout=_LAYOUTS, space=SPACES,
    ptx=(7, 0), sm=80, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_f64(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    operand: str,
    layout: str,
    space: str | None,
) -> Registers:
    """d = the fragment of A or B at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout(operand, "m8n8k4", "f64")
    return _load(machine, addr, stride, space, places, _is_by_rows(operand, layout), f64)


_SMALL: Final = {"s4": "m8n8k32", "u4": "m8n8k32", "b1": "m8n8k128"}


@inst(
    "wmma.load.a.sync.aligned.row.m8n8k32{.space}.type d:b32*1, [addr:u64]{, stride:u32}",
    name="wmma_load_a_int4", space=SPACES, type=("s4", "u4"),
    ptx=(6, 3), sm=75, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_a_int4(
    machine: Machine, addr: Lanes, stride: Lanes | None = None, *, space: str | None, type: str
) -> Registers:
    """d = the fragment of A at addr, whose rows are stride elements apart."""
    places = operand_layout("a", _SMALL[type], type)
    return _load(machine, addr, stride, space, places, True, b32)


@inst(
    "wmma.load.b.sync.aligned.col.m8n8k32{.space}.type d:b32*1, [addr:u64]{, stride:u32}",
    name="wmma_load_b_int4", space=SPACES, type=("s4", "u4"),
    ptx=(6, 3), sm=75, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_b_int4(
    machine: Machine, addr: Lanes, stride: Lanes | None = None, *, space: str | None, type: str
) -> Registers:
    """d = the fragment of B at addr, whose columns are stride elements apart."""
    places = operand_layout("b", _SMALL[type], type)
    return _load(machine, addr, stride, space, places, True, b32)


@inst(
    "wmma.load.a.sync.aligned.row.m8n8k128{.space}.b1 d:b32*1, [addr:u64]{, stride:u32}",
    name="wmma_load_a_bits", space=SPACES,
    ptx=(6, 3), sm=75, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_a_bits(
    machine: Machine, addr: Lanes, stride: Lanes | None = None, *, space: str | None
) -> Registers:
    """d = the fragment of A at addr, whose rows are stride elements apart."""
    return _load(machine, addr, stride, space, operand_layout("a", "m8n8k128", "b1"), True, b32)


@inst(
    "wmma.load.b.sync.aligned.col.m8n8k128{.space}.b1 d:b32*1, [addr:u64]{, stride:u32}",
    name="wmma_load_b_bits", space=SPACES,
    ptx=(6, 3), sm=75, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_b_bits(
    machine: Machine, addr: Lanes, stride: Lanes | None = None, *, space: str | None
) -> Registers:
    """d = the fragment of B at addr, whose columns are stride elements apart."""
    return _load(machine, addr, stride, space, operand_layout("b", "m8n8k128", "b1"), True, b32)


@inst(
    "wmma.load.c.sync.aligned.layout.shape{.space}.f16 d:b32*4, [addr:u64]{, stride:u32}",
    name="wmma_load_c_f16", layout=_LAYOUTS, shape=SHAPES, space=SPACES,
    ptx=(6, 3), sm=70, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_c_f16(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
) -> Registers:
    """d = the fragment of C at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout("c", shape, "f16")
    return _load(machine, addr, stride, space, places, layout == "row", b32)


# Shapes of products whose accumulators have this type.
_F32_SHAPES: Final = {**dict.fromkeys(SHAPES), "m16n16k8": _AMPERE}
_S32_SHAPES: Final = {**dict.fromkeys(SHAPES), **dict.fromkeys(("m8n8k32", "m8n8k128"), _TURING)}


@inst(
    "wmma.load.c.sync.aligned.layout.shape{.space}.type d*nc, [addr:u64]{, stride:u32}",
    name="wmma_load_c", layout=_LAYOUTS, shape=_F32_SHAPES, space=SPACES, type=(f32,),
    counts=counts("f32", nc="f32"),
    ptx=(6, 3), sm=70, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
@inst(
    "wmma.load.c.sync.aligned.layout.shape{.space}.type d*nc, [addr:u64]{, stride:u32}",
    name="wmma_load_c", layout=_LAYOUTS, shape=_S32_SHAPES, space=SPACES, type=(s32,),
    counts=counts("s32", nc="s32"),
    ptx=(6, 3), sm=72, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
@inst(
    "wmma.load.c.sync.aligned.layout.shape{.space}.type d*nc, [addr:u64]{, stride:u32}",
    name="wmma_load_c", layout=_LAYOUTS, shape=("m8n8k4",), space=SPACES, type=(f64,),
    counts=counts("f64", nc="f64"),
    ptx=(7, 0), sm=80, effect=Effect.WARP, section=f"{SECTION}: wmma.load",
)  # fmt: skip
def wmma_load_c(
    machine: Machine,
    addr: Lanes,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
    type: ScalarType,
) -> Registers:
    """d = the fragment of C at addr, whose rows (columns) are stride elements apart."""
    places = operand_layout("c", shape, type.name)
    return _load(machine, addr, stride, space, places, layout == "row", type)


@inst(
    "wmma.store.d.sync.aligned.layout.shape{.space}.f16 [addr:u64], a:b32*4{, stride:u32}",
    name="wmma_store_f16", layout=_LAYOUTS, shape=SHAPES, space=SPACES,
    ptx=(6, 3), sm=70, effect=Effect.WARP, section=f"{SECTION}: wmma.store",
)  # fmt: skip
def wmma_store_f16(
    machine: Machine,
    addr: Lanes,
    a: Registers,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
) -> tuple[()]:
    """Write the fragment of D at addr, its rows (columns) stride elements apart."""
    places = operand_layout("d", shape, "f16")
    return _store(machine, addr, a, stride, space, places, layout == "row", b32)


@inst(
    "wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}",
    name="wmma_store", layout=_LAYOUTS, shape=_F32_SHAPES, space=SPACES, type=(f32,),
    counts=counts("f32", nc="f32"),
    ptx=(6, 3), sm=70, effect=Effect.WARP, section=f"{SECTION}: wmma.store",
)  # fmt: skip
@inst(
    "wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}",
    name="wmma_store", layout=_LAYOUTS, shape=_S32_SHAPES, space=SPACES, type=(s32,),
    counts=counts("s32", nc="s32"),
    ptx=(6, 3), sm=72, effect=Effect.WARP, section=f"{SECTION}: wmma.store",
)  # fmt: skip
@inst(
    "wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}",
    name="wmma_store", layout=_LAYOUTS, shape=("m8n8k4",), space=SPACES, type=(f64,),
    counts=counts("f64", nc="f64"),
    ptx=(7, 0), sm=80, effect=Effect.WARP, section=f"{SECTION}: wmma.store",
)  # fmt: skip
def wmma_store(
    machine: Machine,
    addr: Lanes,
    a: Registers,
    stride: Lanes | None = None,
    *,
    layout: str,
    shape: str,
    space: str | None,
    type: ScalarType,
) -> tuple[()]:
    """Write the fragment of D at addr, its rows (columns) stride elements apart."""
    places = operand_layout("d", shape, type.name)
    return _store(machine, addr, a, stride, space, places, layout == "row", type)


# ---------------------------------------- products

_MMA: Final = f"{SECTION}: wmma.mma"


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.f32.f32 d:f32*8, a:b32*8, b:b32*8, c:f32*8",
    name="wmma_f32", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, ptx=(6, 3), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_f32(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
) -> Registers:
    """D = A * B + C of a warp; A and B in f16, C and D in f32."""
    del alayout, blayout
    return products.multiply(machine, products.operands(shape, "f16", "f16", "f32", "f32"), a, b, c)


def _half(
    machine: Machine, shape: str, a: Registers, b: Registers, c: Registers, ctype: str, dtype: str
) -> Registers:
    of = products.operands(shape, "f16", "f16", ctype, dtype)
    return products.multiply(machine, of, a, b, c)


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.f16.f16 d:b32*4, a:b32*8, b:b32*8, c:b32*4",
    name="wmma_f16", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, ptx=(6, 3), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_f16(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
) -> Registers:
    """D = A * B + C of a warp, all in f16."""
    del alayout, blayout
    return _half(machine, shape, a, b, c, "f16", "f16")


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.f32.f16 d:f32*8, a:b32*8, b:b32*8, c:b32*4",
    name="wmma_f32_f16", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, ptx=(6, 3), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_f32_f16(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
) -> Registers:
    """D = A * B + C of a warp; A, B and C in f16, D in f32."""
    del alayout, blayout
    return _half(machine, shape, a, b, c, "f16", "f32")


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.f16.f32 d:b32*4, a:b32*8, b:b32*8, c:f32*8",
    name="wmma_f16_f32", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, ptx=(6, 3), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_f16_f32(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
) -> Registers:
    """D = A * B + C of a warp; A, B and D in f16, C in f32: a sum in f32, rounded to f16."""
    del alayout, blayout
    return _half(machine, shape, a, b, c, "f32", "f16")


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.f32.bf16.bf16.f32 "
    "d:f32*8, a:b32*na, b:b32*nb, c:f32*8",
    name="wmma_bf16", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, counts=counts("bf16"),
    ptx=(7, 0), sm=80, max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_bf16(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
) -> Registers:
    """D = A * B + C of a warp; A and B in bf16, C and D in f32."""
    del alayout, blayout
    return products.multiply(
        machine, products.operands(shape, "bf16", "bf16", "f32", "f32"), a, b, c
    )


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.m16n16k8.f32.tf32.tf32.f32 "
    "d:f32*8, a:b32*4, b:b32*4, c:f32*8",
    name="wmma_tf32", alayout=_LAYOUTS, blayout=_LAYOUTS, ptx=(7, 0), sm=80,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_tf32(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, alayout: str, blayout: str
) -> Registers:
    """D = A * B + C of a warp; A and B in tf32 (the low 13 bits are ignored), C and D in f32."""
    del alayout, blayout
    return products.multiply(
        machine, products.operands("m16n16k8", "tf32", "tf32", "f32", "f32"), a, b, c
    )


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.m8n8k4{.rnd}.f64.f64.f64.f64 "
    "d:f64*2, a:f64*1, b:f64*1, c:f64*2",
    name="wmma_f64", alayout=_LAYOUTS, blayout=_LAYOUTS, rnd=ROUNDINGS, ptx=(7, 0), sm=80,
    max_ulp=math.inf, accuracy=ACCURACY_F64, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
@inst(
    "wmma.mma.sync.aligned.alayout.blayout.m8n8k4.f64.f64.f64.f64.rnd "
    "d:f64*2, a:f64*1, b:f64*1, c:f64*2",
    name="wmma_f64_rounding_last", alayout=_LAYOUTS, blayout=_LAYOUTS, rnd=ROUNDINGS,
    ptx=(7, 0), sm=80, max_ulp=math.inf, accuracy=ACCURACY_F64, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_f64(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    rnd: str | None,
) -> Registers:
    """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says."""
    del alayout, blayout
    of = products.operands("m8n8k4", "f64", "f64", "f64", "f64")
    return products.multiply_f64(machine, of, a, b, c, rnd)


def _integers(
    machine: Machine, shape: str, type: str, a: Registers, b: Registers, c: Registers,
    satfinite: bool,
) -> Registers:  # fmt: skip
    of = products.operands(shape, type, type, "s32", "s32")
    return products.multiply_integers(machine, of, a, b, c, satfinite)


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.s32.s8.s8.s32{.satfinite} "
    "d:s32*8, a:b32*na, b:b32*nb, c:s32*8",
    name="wmma_s8", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, counts=counts("s8"),
    ptx=(6, 3), sm=72, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_s8(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
    satfinite: bool,
) -> Registers:
    """D = A * B + C of a warp; A and B in s8, C and D in s32, which wraps around or saturates."""
    del alayout, blayout
    return _integers(machine, shape, "s8", a, b, c, satfinite)


@inst(
    "wmma.mma.sync.aligned.alayout.blayout.shape.s32.u8.u8.s32{.satfinite} "
    "d:s32*8, a:b32*na, b:b32*nb, c:s32*8",
    name="wmma_u8", alayout=_LAYOUTS, blayout=_LAYOUTS, shape=SHAPES, counts=counts("u8"),
    ptx=(6, 3), sm=72, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_u8(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    alayout: str,
    blayout: str,
    shape: str,
    satfinite: bool,
) -> Registers:
    """D = A * B + C of a warp; A and B in u8, C and D in s32, which wraps around or saturates."""
    del alayout, blayout
    return _integers(machine, shape, "u8", a, b, c, satfinite)


@inst(
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32{.satfinite} "
    "d:s32*2, a:b32*1, b:b32*1, c:s32*2",
    name="wmma_s4", ptx=(6, 3), sm=75, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_s4(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, satfinite: bool
) -> Registers:
    """D = A * B + C of a warp; A and B in s4, C and D in s32, which wraps around or saturates."""
    return _integers(machine, "m8n8k32", "s4", a, b, c, satfinite)


@inst(
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.u4.u4.s32{.satfinite} "
    "d:s32*2, a:b32*1, b:b32*1, c:s32*2",
    name="wmma_u4", ptx=(6, 3), sm=75, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_u4(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, satfinite: bool
) -> Registers:
    """D = A * B + C of a warp; A and B in u4, C and D in s32, which wraps around or saturates."""
    return _integers(machine, "m8n8k32", "u4", a, b, c, satfinite)


@inst(
    "wmma.mma.op.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 "
    "d:s32*2, a:b32*1, b:b32*1, c:s32*2",
    name="wmma_bits", op=BIT_OPS, ptx=(6, 3), sm=75, effect=Effect.WARP, section=_MMA,
)  # fmt: skip
def wmma_bits(machine: Machine, a: Registers, b: Registers, c: Registers, *, op: str) -> Registers:
    """D = C + the number of ones in each row of A xor (and) each column of B, of a warp."""
    of = products.operands("m8n8k128", "b1", "b1", "s32", "s32")
    return products.multiply_bits(machine, of, a, b, c, op)
