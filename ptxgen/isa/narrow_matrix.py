"""Products of matrices of 4-, 6- and 8-bit floating point on a warp's registers, with and without scale
factors of blocks (PTX ISA, "Warp Level Matrix Instructions: mma").

The bytes of A and B are in registers as those of `mma.m16n8k32` of fp8 are. In `f8f6f4` and `mxf8f6f4` a byte
has one element, e2m1 in its bits 2 to 5, e2m3 and e3m2 in its low bits; in `mxf4` and `mxf4nvf4` it has two,
the first in its low half.

A scale factor of a row of A, or of a column of B, is a byte of a register of one lane. Lanes `4 * g` to
`4 * g + 3` have those of the rows `g` and `g + 8` and of the column `g`. The numbers {byte, thread} after the
register say which: with thread `t`, row `g + 8 * h` has lane `4 * g + 2 * t + h`, and column `g` has lane
`4 * g + t`. The factors of the blocks along K are consecutive bytes from the numbered one on.

Sums are those of `ptxgen.isa.tcgen05_sums`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ptxgen.isa import products
from ptxgen.isa.declare import each, inst
from ptxgen.isa.fragments import EVERY_LANE, WARP, ActiveWarps, Layout, gathered, joined, scattered
from ptxgen.isa.matrix import ACCURACY, SECTION
from ptxgen.isa.mma_descriptor import Product
from ptxgen.isa.spec import Effect
from ptxgen.isa.tcgen05_sums import elements_of_cells, multiply_add
from ptxgen.isa.undefined_products import SCALED_PRODUCT

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.isa.matrix import Registers

_TYPES: Final = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_OF_SM120: Final[dict[str, Any]] = {
    "ptx": (8, 7),
    "sm": 120,
    "only": ("sm_120f",),
    "effect": Effect.WARP,
    "undefined": SCALED_PRODUCT,
    "max_ulp": math.inf,
    "accuracy": ACCURACY,
    "section": SECTION,
}
_M: Final = 16
_N: Final = 8
_SHAPE_OF_BYTES: Final = "m16n8k32"
_CELL: Final = 4  # bytes of a register
_ROW: Final = np.arange(_M)


class _Providers(NamedTuple):
    """The lanes that have the scale factors of the rows of A, or of the columns of B: `first` with the thread
    number 0, and `apart` lanes after these with each further one of the `threads`.
    """

    first: Lanes
    apart: int
    threads: int


_PROVIDERS: Final = {
    "A": _Providers(_ROW % 8 * 4 + _ROW // 8, 2, 2),
    "B": _Providers(np.arange(_N) * 4, 1, 4),
}


@inst(
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.<accumulator>.atype.btype.<accumulator> "
    "d:<registers>, a:b32*4, b:b32*2, c:<registers>",
    each("accumulator registers", ("f32", "f32*4"), ("f16", "b32*2")),
    name="mma_f8f6f4_<accumulator>",
    atype=_TYPES,
    btype=_TYPES,
    **_OF_SM120,
)
def mma_f8f6f4(
    machine: Machine, a: Registers, b: Registers, c: Registers, *, accumulator: str, atype: str, btype: str
) -> Registers:
    """D = A * B + C of a warp; each element of A and B is in a byte, C and D in <accumulator>."""
    machine.warp_sync(EVERY_LANE)
    of = Product("f8f6f4", 1, _M, _N, 32, atype, btype, accumulator)
    return _multiplied(ActiveWarps.of(machine), of, a, b, c, None)


@inst(
    "mma.sync.aligned.<shape>.row.col.kind::<kind>.block_scale<size>.f32.<types>.f32.<stype> "
    "d:f32*4, a:b32*4, b:b32*2, c:f32*4, "
    "scales_a:b32, from_a:u16*2, scales_b:b32, from_b:u16*2",
    each(
        "shape kind size vec blocks types atype btype stype",
        ("m16n8k32", "mxf8f6f4", "{.vec}", ("scale_vec::1X",), 1, "atype.btype", _TYPES, _TYPES, "ue8m0"),
        ("m16n8k64", "mxf4", "{.vec}", ("scale_vec::2X",), 2, "e2m1.e2m1", "e2m1", "e2m1", "ue8m0"),
        ("m16n8k64", "mxf4nvf4", ".vec", ("scale_vec::2X",), 2, "e2m1.e2m1", "e2m1", "e2m1", "ue8m0"),
        ("m16n8k64", "mxf4nvf4", ".vec", ("scale_vec::4X",), 4, "e2m1.e2m1", "e2m1", "e2m1", "ue4m3"),
    ),
    name="mma_block_scale_<kind>",
    ignores=("vec",),
    **_OF_SM120,
)
def mma_block_scale(
    machine: Machine,
    a: Registers,
    b: Registers,
    c: Registers,
    scales_a: Lanes,
    from_a: Registers,
    scales_b: Lanes,
    from_b: Registers,
    *,
    shape: str,
    kind: str,
    blocks: int,
    atype: str,
    btype: str,
    stype: str,
) -> Registers:
    """D = A * B + C of a warp, where scales in <stype> multiply blocks of A and B along K; from_a and from_b
    are the numbers of the byte and of the thread of each four that have the scales.
    """
    machine.warp_sync(EVERY_LANE)
    warps = ActiveWarps.of(machine)
    of = Product(kind, 1, _M, _N, 32 if shape == _SHAPE_OF_BYTES else 64, atype, btype, "f32", scale=stype)
    scales = tuple(
        _scales(machine, warps, matrix, registers, numbers, blocks)
        for matrix, registers, numbers in (("A", scales_a, from_a), ("B", scales_b, from_b))
    )
    return _multiplied(warps, of, a, b, c, (scales[0], scales[1]))


def _multiplied(
    warps: ActiveWarps,
    of: Product,
    a: Registers,
    b: Registers,
    c: Registers,
    scales: tuple[Lanes, Lanes] | None,
) -> Registers:
    """The registers of D."""
    layouts = products.operands(_SHAPE_OF_BYTES, "e4m3", "e4m3", of.d, of.d)
    left = elements_of_cells(of.kind, of.a, _matrices(warps, layouts.a, a, np.uint8))
    right = elements_of_cells(of.kind, of.b, _matrices(warps, layouts.b, b, np.uint8))
    old = _matrices(warps, layouts.c, c, np.uint16 if of.d == "f16" else np.uint32)
    sums = multiply_add(of, left, right, old, scales=scales)
    type: Any = np.uint32 if of.d == "f16" else np.float32
    return warps.as_registers(layouts.d, scattered(layouts.d, sums.reshape(-1).view(type)))


def _matrices(warps: ActiveWarps, layout: Layout, registers: Registers, type: Any) -> Lanes:
    """The bits of a matrix of each active warp, `[warps, rows, columns]`."""
    matrices: Lanes = gathered(warps, layout, registers).view(type).reshape(-1, *layout.shape[1:])
    return matrices


# ---------------------------------------- scale factors


def _scales(
    machine: Machine, warps: ActiveWarps, matrix: str, register: Lanes, numbers: Registers, blocks: int
) -> Lanes:
    """The scale factors of each row of A, or of each column of B, in the active warps: uint8
    `[warps, rows, blocks]`.
    """
    of = _PROVIDERS[matrix]
    byte = _number(machine, warps, matrix, "byte", numbers[0], range(0, _CELL, blocks))
    thread = _number(machine, warps, matrix, "thread", numbers[1], range(of.threads))
    lanes = of.first + of.apart * thread[:, None]
    scale_bytes = _by_warp(warps, register).view(np.uint8).reshape(-1, WARP, _CELL)
    warp = np.arange(len(scale_bytes))[:, None, None]
    scales: Lanes = scale_bytes[warp, lanes[:, :, None], byte[:, None, None] + np.arange(blocks)]
    return scales


def _by_warp(warps: ActiveWarps, register: Lanes) -> Lanes:
    """A register of the active warps, `[warps, lanes]`."""
    flat = joined(warps.count * WARP, [register])
    return np.ascontiguousarray(warps.picked(flat.reshape(warps.count, WARP), 0))


def _number(
    machine: Machine, warps: ActiveWarps, matrix: str, name: str, register: Lanes, allowed: range
) -> Lanes:
    """The number of the byte or of the thread that has the scale factors, for each active warp."""
    of_lanes = _by_warp(warps, register).astype(np.int64)
    wrong = of_lanes[(of_lanes != of_lanes[:, :1]) | ~np.isin(of_lanes, allowed)]
    if len(wrong):
        machine.trap(
            f"mma: all lanes of a warp name the same {name} for the scale factors of {matrix}, "
            f"{' or '.join(map(str, allowed))}; got {wrong[0]}"
        )
    return of_lanes[:, 0]
