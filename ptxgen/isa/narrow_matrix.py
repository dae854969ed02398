"""Products of matrices of 4-, 6- and 8-bit floating point on a warp's registers, with and without scales of
blocks (PTX ISA, "Warp Level Matrix Instructions: mma").

Texts with them are read, verified and printed. The rows have no meaning yet: the interpreter refuses a kernel
with one of them by name. Scales are in the bytes of a register of some threads of each group of four; the
numbers of the byte and of the thread follow the register.
"""

from __future__ import annotations

from typing import Any, Final

from ptxgen.isa.declare import each, inst
from ptxgen.isa.matrix import SECTION
from ptxgen.isa.spec import Effect

_TYPES: Final = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_OF_SM120: Final[dict[str, Any]] = {
    "ptx": (8, 7),
    "sm": 120,
    "only": ("sm_120f",),
    "effect": Effect.WARP,
    "section": SECTION,
}


@inst(
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.<accumulator>.atype.btype.<accumulator> "
    "d:<held>, a:b32*4, b:b32*2, c:<held>",
    each("accumulator held", ("f32", "f32*4"), ("f16", "b32*2")),
    name="mma_f8f6f4_<accumulator>",
    atype=_TYPES,
    btype=_TYPES,
    unmodelled="products of 4- and 6-bit numbers are not modelled for a warp",
    **_OF_SM120,
)
def mma_f8f6f4() -> None:
    """D = A * B + C of a warp; each element of A and B is in a byte, C and D in <accumulator>."""


@inst(
    "mma.sync.aligned.<shape>.row.col.kind::<kind>.block_scale<size>.f32.<types>.f32.<stype> "
    "d:f32*4, a:b32*4, b:b32*2, c:f32*4, "
    "scales_a:b32, from_a:u16*2, scales_b:b32, from_b:u16*2",
    each(
        "shape kind size vec types atype btype stype",
        ("m16n8k32", "mxf8f6f4", "{.vec}", ("scale_vec::1X",), "atype.btype", _TYPES, _TYPES, "ue8m0"),
        ("m16n8k64", "mxf4", "{.vec}", ("scale_vec::2X",), "e2m1.e2m1", None, None, "ue8m0"),
        ("m16n8k64", "mxf4nvf4", ".vec", ("scale_vec::2X",), "e2m1.e2m1", None, None, "ue8m0"),
        ("m16n8k64", "mxf4nvf4", ".vec", ("scale_vec::4X",), "e2m1.e2m1", None, None, "ue4m3"),
    ),
    name="mma_block_scale_<kind>",
    unmodelled="products with scales of blocks are not modelled for a warp",
    **_OF_SM120,
)
def mma_block_scale() -> None:
    """D = A * B + C of a warp, where scales in <stype> multiply blocks of A and B along K; from_a and from_b
    are the numbers of the byte and of the thread of each four that have the scales.
    """
