"""Matrix multiply-accumulate on a warp's registers: `mma.sync` (PTX ISA, "Warp Level Matrix
Instructions").

A, B and accumulators in f16 come as 32-bit registers that hold several elements, the lowest bits
first; where the elements lie is said in `ptxgen.isa.fragments`, what is computed in
`ptxgen.isa.products`. Sparse and block-scaled forms are not declared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ptxgen.isa import products
from ptxgen.isa.fragments import counts
from ptxgen.isa.spec import Effect, gate, inst

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

Registers = tuple["Lanes", ...]

SECTION: Final = "Warp Level Matrix Instructions: mma"
ACCURACY: Final = (
    "products are exact, sums as the tensor cores of the target make them (numerics.md); "
    "the manual leaves their order and rounding open"
)
ACCURACY_F64: Final = (
    "a chain of fused multiply-adds in order of K; the manual leaves the order open"
)
ROUNDINGS: Final = ("rn", "rz", "rm", "rp")
_LAYOUTS: Final = ("row", "col")
_AMPERE: Final = gate(ptx=(7, 0), sm=80)
_F16_SHAPES: Final = {"m16n8k16": _AMPERE, "m16n8k8": gate(ptx=(6, 5), sm=75)}
_F64_SHAPES: Final = {
    "m8n8k4": _AMPERE,
    **dict.fromkeys(("m16n8k4", "m16n8k8", "m16n8k16"), gate(ptx=(7, 8), sm=90)),
}
_INT8_SHAPES: Final = {
    "m16n8k32": _AMPERE, "m16n8k16": _AMPERE, "m8n8k16": gate(ptx=(6, 5), sm=75),
}  # fmt: skip
_INT4_SHAPES: Final = {
    "m16n8k64": _AMPERE, "m16n8k32": _AMPERE, "m8n8k32": gate(ptx=(6, 5), sm=75),
}  # fmt: skip
_BIT_SHAPES: Final = {
    "m16n8k256": _AMPERE, "m16n8k128": _AMPERE, "m8n8k128": gate(ptx=(7, 0), sm=75),
}  # fmt: skip
BIT_OPS: Final = {"xor": None, "and": gate(ptx=(7, 1), sm=80)}
_FP8: Final = ("e4m3", "e5m2")

# ---------------------------------------- f16


@inst(
    "mma.sync.aligned.shape.row.col.f32.f16.f16.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc",
    name="mma_f32_f16", shape=_F16_SHAPES, counts=counts("f16", nc="f32"),
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f32_f16(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str
) -> Registers:
    """D = A * B + C of a warp; A and B in f16, C and D in f32."""
    return products.multiply(machine, products.operands(shape, "f16", "f16", "f32", "f32"), a, b, c)


@inst(
    "mma.sync.aligned.shape.row.col.f16.f16.f16.f16 d:b32*nc, a:b32*na, b:b32*nb, c:b32*nc",
    name="mma_f16_f16", shape=_F16_SHAPES, counts=counts("f16", nc="f16"),
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f16_f16(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str
) -> Registers:
    """D = A * B + C of a warp, all in f16."""
    return products.multiply(machine, products.operands(shape, "f16", "f16", "f16", "f16"), a, b, c)


@inst(
    "mma.sync.aligned.m8n8k4.alayout.blayout.f32.f16.f16.f32 d:f32*8, a:b32*2, b:b32*2, c:f32*8",
    name="mma_quad_f32", alayout=_LAYOUTS, blayout=_LAYOUTS, ptx=(6, 4), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_quad_f32(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, alayout: str, blayout: str
) -> Registers:
    """D = A * B + C in each quarter of a warp; A and B in f16, C and D in f32."""
    return products.multiply(
        machine, products.quad_operands(alayout, blayout, "f32", "f32"), a, b, c
    )


@inst(
    "mma.sync.aligned.m8n8k4.alayout.blayout.f32.f16.f16.f16 d:f32*8, a:b32*2, b:b32*2, c:b32*4",
    name="mma_quad_f32_f16", alayout=_LAYOUTS, blayout=_LAYOUTS, ptx=(6, 4), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_quad_f32_f16(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, alayout: str, blayout: str
) -> Registers:
    """D = A * B + C in each quarter of a warp; A, B and C in f16, D in f32."""
    return products.multiply(
        machine, products.quad_operands(alayout, blayout, "f16", "f32"), a, b, c
    )


@inst(
    "mma.sync.aligned.m8n8k4.alayout.blayout.f16.f16.f16.f16 d:b32*4, a:b32*2, b:b32*2, c:b32*4",
    name="mma_quad_f16", alayout=_LAYOUTS, blayout=_LAYOUTS, ptx=(6, 4), sm=70,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_quad_f16(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, alayout: str, blayout: str
) -> Registers:
    """D = A * B + C in each quarter of a warp, all in f16."""
    return products.multiply(
        machine, products.quad_operands(alayout, blayout, "f16", "f16"), a, b, c
    )


# ---------------------------------------- bf16, tf32, fp8, f64


@inst(
    "mma.sync.aligned.shape.row.col.f32.bf16.bf16.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc",
    name="mma_f32_bf16", shape=("m16n8k16", "m16n8k8"), counts=counts("bf16", nc="f32"),
    ptx=(7, 0), sm=80,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f32_bf16(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str
) -> Registers:
    """D = A * B + C of a warp; A and B in bf16, C and D in f32."""
    return products.multiply(
        machine, products.operands(shape, "bf16", "bf16", "f32", "f32"), a, b, c
    )


@inst(
    "mma.sync.aligned.shape.row.col.f32.tf32.tf32.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc",
    name="mma_f32_tf32", shape=("m16n8k8", "m16n8k4"), counts=counts("tf32", nc="f32"),
    ptx=(7, 0), sm=80,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f32_tf32(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str
) -> Registers:
    """D = A * B + C of a warp; A and B in tf32 (the low 13 bits are ignored), C and D in f32."""
    return products.multiply(
        machine, products.operands(shape, "tf32", "tf32", "f32", "f32"), a, b, c
    )


@inst(
    "mma.sync.aligned.shape.row.col.f32.atype.btype.f32 d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc",
    name="mma_f32_fp8", shape={"m16n8k32": None, "m16n8k16": gate(ptx=(8, 7))},
    atype=_FP8, btype=_FP8, counts=counts("e4m3", nc="f32"), ptx=(8, 4), sm=89,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f32_fp8(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    atype: str,
    btype: str,
) -> Registers:
    """D = A * B + C of a warp; A and B in fp8, C and D in f32."""
    return products.multiply(machine, products.operands(shape, atype, btype, "f32", "f32"), a, b, c)


@inst(
    "mma.sync.aligned.shape.row.col.f16.atype.btype.f16 d:b32*nc, a:b32*na, b:b32*nb, c:b32*nc",
    name="mma_f16_fp8", shape=("m16n8k32", "m16n8k16"), atype=_FP8, btype=_FP8,
    counts=counts("e4m3", nc="f16"), ptx=(8, 7), sm=89,
    max_ulp=math.inf, accuracy=ACCURACY, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f16_fp8(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    atype: str,
    btype: str,
) -> Registers:
    """D = A * B + C of a warp; A and B in fp8, C and D in f16."""
    return products.multiply(machine, products.operands(shape, atype, btype, "f16", "f16"), a, b, c)


@inst(
    "mma.sync.aligned.shape.row.col{.rnd}.f64.f64.f64.f64 d:f64*nc, a:f64*na, b:f64*nb, c:f64*nc",
    name="mma_f64", shape=_F64_SHAPES, rnd=ROUNDINGS, counts=counts("f64", nc="f64"),
    max_ulp=math.inf, accuracy=ACCURACY_F64, effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_f64(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str, rnd: str | None
) -> Registers:
    """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says."""
    return products.multiply_f64(
        machine, products.operands(shape, "f64", "f64", "f64", "f64"), a, b, c, rnd
    )


# ---------------------------------------- integers and bits


@inst(
    "mma.sync.aligned.shape.row.col{.satfinite}.s32.atype.btype.s32 "
    "d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc",
    name="mma_int8", shape=_INT8_SHAPES, atype=("s8", "u8"), btype=("s8", "u8"),
    counts=counts("s8", nc="s32"), effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_int8(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    satfinite: bool,
    atype: str,
    btype: str,
) -> Registers:
    """D = A * B + C of a warp; A and B in 8-bit integers, C and D in s32, which wraps around or
    saturates.
    """
    of = products.operands(shape, atype, btype, "s32", "s32")
    return products.multiply_integers(machine, of, a, b, c, satfinite)


@inst(
    "mma.sync.aligned.shape.row.col{.satfinite}.s32.atype.btype.s32 "
    "d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc",
    name="mma_int4", shape=_INT4_SHAPES, atype=("s4", "u4"), btype=("s4", "u4"),
    counts=counts("s4", nc="s32"), effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_int4(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    satfinite: bool,
    atype: str,
    btype: str,
) -> Registers:
    """D = A * B + C of a warp; A and B in 4-bit integers, C and D in s32, which wraps around or
    saturates.
    """
    of = products.operands(shape, atype, btype, "s32", "s32")
    return products.multiply_integers(machine, of, a, b, c, satfinite)


@inst(
    "mma.sync.aligned.shape.row.col.s32.b1.b1.s32.op.popc d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc",
    name="mma_bits", shape=_BIT_SHAPES, op=BIT_OPS, counts=counts("b1", nc="s32"),
    effect=Effect.WARP, section=SECTION,
)  # fmt: skip
def mma_bits(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str, op: str
) -> Registers:
    """D = C + the number of ones in each row of A xor (and) each column of B, of a warp."""
    of = products.operands(shape, "b1", "b1", "s32", "s32")
    return products.multiply_bits(machine, of, a, b, c, op)
