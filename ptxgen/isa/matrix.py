"""Matrix multiply-accumulate on a warp's registers: `mma.sync` (PTX ISA, "Warp Level Matrix
Instructions").

A, B and accumulators in f16 are in 32-bit registers with several elements, the first in the lowest
bits. `ptxgen.isa.fragments` has the mapping of elements to registers, `ptxgen.isa.products` the
arithmetic. `ptxgen.isa.narrow_matrix` has 4- and 6-bit types and block scales; sparse forms are not declared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa import products
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.fragments import counts
from ptxgen.isa.spec import Effect, gate
from ptxgen.isa.undefined_products import PRODUCT

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

Registers = tuple["Lanes", ...]

SECTION: Final = "Warp Level Matrix Instructions: mma"
ACCURACY: Final = (
    "products are exact, sums as the tensor cores of the target compute them (numerics.md); "
    "the manual does not define their order and rounding"
)
ACCURACY_F64: Final = "a chain of fused multiply-adds in order of K; the manual does not define the order"
ROUNDINGS: Final = ("rn", "rz", "rm", "rp")
LAYOUTS: Final = ("row", "col")
BIT_OPS: Final = {"xor": None, "and": gate(ptx=(7, 1), sm=80)}
IN_TF32: Final = "A and B in tf32 (the low 13 bits are ignored)"

_AMPERE: Final = gate(ptx=(7, 0), sm=80)
_TURING: Final = gate(ptx=(6, 5), sm=75)
_F16_SHAPES: Final = {"m16n8k16": _AMPERE, "m16n8k8": _TURING}
_F64_SHAPES: Final = {
    "m8n8k4": _AMPERE,
    **dict.fromkeys(("m16n8k4", "m16n8k8", "m16n8k16"), gate(ptx=(7, 8), sm=90)),
}
_INT8_SHAPES: Final = {"m16n8k32": _AMPERE, "m16n8k16": _AMPERE, "m8n8k16": _TURING}
_INT4_SHAPES: Final = {"m16n8k64": _AMPERE, "m16n8k32": _AMPERE, "m8n8k32": _TURING}
_BIT_SHAPES: Final = {"m16n8k256": _AMPERE, "m16n8k128": _AMPERE, "m8n8k128": gate(ptx=(7, 0), sm=75)}
_INT8: Final = ("s8", "u8")
_INT4: Final = ("s4", "u4")
_FP8: Final = ("e4m3", "e5m2")
_FP8_SHAPES: Final = {"m16n8k32": None, "m16n8k16": gate(ptx=(8, 7))}

COUNTS: Final = counts(a="atype", b="btype", c="ctype")
_MMA: Final[dict[str, Any]] = {
    "effect": Effect.WARP,
    "undefined": PRODUCT,
    "section": SECTION,
    "counts": COUNTS,
}
_QUADS: Final = each("shape alayout blayout", ("m8n8k4", LAYOUTS, LAYOUTS))
_F32: Final = "d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc"
_F16: Final = "d:b32*nc, a:b32*na, b:b32*nb, c:b32*nc"
_S32: Final = "d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc"


@inst(
    "mma.sync.aligned.<shape>.<alayout>.<blayout>.<dtype>.<atype>.<btype>.<ctype> <registers>",
    each(
        "name shape dtype atype btype ctype registers of",
        (
            "mma_f32_f16",
            _F16_SHAPES,
            "f32",
            "f16",
            "f16",
            "f32",
            _F32,
            "of a warp; A and B in f16, C and D in f32",
        ),
        ("mma_f16_f16", _F16_SHAPES, "f16", "f16", "f16", "f16", _F16, "of a warp, all in f16"),
    )
    + times(
        _QUADS,
        each(
            "name dtype atype btype ctype registers of",
            (
                "mma_quad_f32",
                "f32",
                "f16",
                "f16",
                "f32",
                "d:f32*8, a:b32*2, b:b32*2, c:f32*8",
                "in each quarter of a warp; A and B in f16, C and D in f32",
            ),
            (
                "mma_quad_f32_f16",
                "f32",
                "f16",
                "f16",
                "f16",
                "d:f32*8, a:b32*2, b:b32*2, c:b32*4",
                "in each quarter of a warp; A, B and C in f16, D in f32",
            ),
            (
                "mma_quad_f16",
                "f16",
                "f16",
                "f16",
                "f16",
                "d:b32*4, a:b32*2, b:b32*2, c:b32*4",
                "in each quarter of a warp, all in f16",
            ),
        ),
        each("ptx sm", ((6, 4), 70)),
    )
    + each(
        "name shape dtype atype btype ctype registers ptx sm of",
        (
            "mma_f32_bf16",
            ("m16n8k16", "m16n8k8"),
            "f32",
            "bf16",
            "bf16",
            "f32",
            _F32,
            (7, 0),
            80,
            "of a warp; A and B in bf16, C and D in f32",
        ),
        (
            "mma_f32_tf32",
            ("m16n8k8", "m16n8k4"),
            "f32",
            "tf32",
            "tf32",
            "f32",
            _F32,
            (7, 0),
            80,
            f"of a warp; {IN_TF32}, C and D in f32",
        ),
        (
            "mma_f32_fp8",
            _FP8_SHAPES,
            "f32",
            _FP8,
            _FP8,
            "f32",
            _F32,
            (8, 4),
            89,
            "of a warp; A and B in fp8, C and D in f32",
        ),
        (
            "mma_f16_fp8",
            tuple(_FP8_SHAPES),
            "f16",
            _FP8,
            _FP8,
            "f16",
            _F16,
            (8, 7),
            89,
            "of a warp; A and B in fp8, C and D in f16",
        ),
    ),
    alayout="row",
    blayout="col",
    max_ulp=math.inf,
    accuracy=ACCURACY,
    **_MMA,
)
def mma(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    shape: str,
    alayout: str,
    blayout: str,
    dtype: str,
    atype: str,
    btype: str,
    ctype: str,
) -> Registers:
    """D = A * B + C <of>."""
    if shape == "m8n8k4":
        of = products.quad_operands(alayout, blayout, ctype, dtype)
        return products.multiply(machine, of, a, b, c, "quad")
    of = products.operands(shape, atype, btype, ctype, dtype)
    return products.multiply(machine, of, a, b, c)


@inst(
    "mma.sync.aligned.shape.row.col{.rnd}.<dtype>.<atype>.<btype>.<ctype> "
    "d:f64*nc, a:f64*na, b:f64*nb, c:f64*nc",
    name="mma_f64",
    shape=_F64_SHAPES,
    rnd=ROUNDINGS,
    dtype="f64",
    atype="f64",
    btype="f64",
    ctype="f64",
    max_ulp=math.inf,
    accuracy=ACCURACY_F64,
    **_MMA,
)
def mma_f64(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str, rnd: str | None
) -> Registers:
    """D = A * B + C of a warp, all in f64, each step rounded to nearest or as .rnd says."""
    of = products.operands(shape, "f64", "f64", "f64", "f64")
    return products.multiply_f64(machine, of, a, b, c, rnd)


@inst(
    "mma.sync.aligned.shape.row.col{.satfinite}.s32.atype.btype.<ctype> <registers>",
    each(
        "name shape atype btype bits",
        ("mma_int8", _INT8_SHAPES, _INT8, _INT8, 8),
        ("mma_int4", _INT4_SHAPES, _INT4, _INT4, 4),
    ),
    ctype="s32",
    registers=_S32,
    **_MMA,
)
def mma_integers(
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
    """D = A * B + C of a warp; A and B in <bits>-bit integers, C and D in s32, which wraps around
    or saturates.
    """
    of = products.operands(shape, atype, btype, "s32", "s32")
    return products.multiply_integers(machine, of, a, b, c, satfinite)


@inst(
    "mma.sync.aligned.shape.row.col.s32.<atype>.<btype>.<ctype>.op.popc <registers>",
    name="mma_bits",
    shape=_BIT_SHAPES,
    op=BIT_OPS,
    atype="b1",
    btype="b1",
    ctype="s32",
    registers=_S32,
    **_MMA,
)
def mma_bits(machine: Machine, a: Registers, b: Registers, c: Registers, *, shape: str, op: str) -> Registers:
    """D = C + the number of ones in each row of A xor (and) each column of B, of a warp."""
    of = products.operands(shape, "b1", "b1", "s32", "s32")
    return products.multiply_bits(machine, of, a, b, c, op)
