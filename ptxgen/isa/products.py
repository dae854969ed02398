"""D = A * B + C on the fragments of `mma` and `wmma`, for all warps that execute an instruction at once.

Sums of f16, bf16, tf32 and fp8 are computed as on the target's tensor cores
(`ptxgen.isa.tensor_core`); the manual does not define their order and rounding (PTX ISA, "mma",
"Precision and rounding"). f64 is a chain of fused multiply-adds that starts with C and goes along
K. Integer sums are exact and wrap around or saturate at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa import numeric_f64
from ptxgen.isa.compiled_sums import multiplied
from ptxgen.isa.fragments import (
    EVERY_LANE,
    ActiveWarps,
    Layout,
    Operands,
    elements_across,
    gathered,
    layout_quad,
    layout_quad_c,
    operand_layout,
    scattered,
)
from ptxgen.isa.tensor_core import adder

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.isa.tensor_core import Family

_INT32: Final = np.iinfo(np.int32)


def _s8(units: Lanes) -> Lanes:
    return units.view(np.int8).astype(np.int32)


def _u8(units: Lanes) -> Lanes:
    return units.view(np.uint8).astype(np.int32)


def _u4(units: Lanes) -> Lanes:
    pairs = units.view(np.uint8)
    nibbles = np.empty((pairs.size, 2), np.int32)
    nibbles[:, 0] = pairs & 0xF
    nibbles[:, 1] = pairs >> 4
    return nibbles


def _s4(units: Lanes) -> Lanes:
    unsigned = _u4(units)
    return np.where(unsigned < 8, unsigned, unsigned - 16)


# Conversions of register units to int32 elements.
INTEGERS: Final[Mapping[str, Callable[[Lanes], Lanes]]] = {"s8": _s8, "u8": _u8, "s4": _s4, "u4": _u4}


@cache
def operands(shape: str, a: str, b: str, c: str, d: str) -> Operands:
    """The operands of a product of this shape and with these types."""
    return Operands(
        operand_layout("a", shape, a),
        operand_layout("b", shape, b),
        operand_layout("c", shape, c),
        operand_layout("d", shape, d),
        a,
        b,
    )


@cache
def quad_operands(alayout: str, blayout: str, c: str, d: str) -> Operands:
    """The operands of `mma.m8n8k4` on f16, with A and B stored by rows or columns."""
    per = {"f16": 2, "f32": 1}
    return Operands(
        layout_quad(alayout == "row"),
        layout_quad(blayout == "col"),
        layout_quad_c(per[c]),
        layout_quad_c(per[d]),
        "f16",
        "f16",
    )


def multiply(
    machine: Machine,
    of: Operands,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    c: Sequence[Lanes],
    family: Family = "mma",
) -> tuple[Lanes, ...]:
    """The registers of D, with accumulators in f32 or f16 as their layouts say."""
    machine.warp_sync(EVERY_LANE)
    warps = ActiveWarps.of(machine)
    how = adder(machine.sm, family, of.type_a)
    left = elements_across(of.a, warps.joined(of.a, a), k_first=True)
    right = elements_across(of.b, warps.joined(of.b, b), k_first=True)
    return warps.as_registers(of.d, multiplied(how, of, left, right, warps.joined(of.c, c)))


def _matrices(layout: Layout, elements: Lanes) -> Lanes:
    _, rows, columns = layout.shape
    return elements.reshape(-1, rows, columns)


def multiply_integers(
    machine: Machine, of: Operands, a: Sequence[Lanes], b: Sequence[Lanes], c: Sequence[Lanes], saturate: bool
) -> tuple[Lanes, ...]:
    """The registers of D, s32."""
    machine.warp_sync(EVERY_LANE)
    warps = ActiveWarps.of(machine)
    left = _matrices(of.a, INTEGERS[of.type_a](gathered(warps, of.a, a)))
    right = _matrices(of.b, INTEGERS[of.type_b](gathered(warps, of.b, b)))
    sums = np.matmul(left, right.swapaxes(1, 2)).reshape(-1)
    return _accumulated(warps, of.d, scattered(of.d, sums), c, saturate)


def multiply_bits(
    machine: Machine, of: Operands, a: Sequence[Lanes], b: Sequence[Lanes], c: Sequence[Lanes], op: str
) -> tuple[Lanes, ...]:
    """The registers of D, s32: the number of ones in `a op b` along K, plus C."""
    machine.warp_sync(EVERY_LANE)
    warps = ActiveWarps.of(machine)
    words = of.a.shape[2] // 32
    left = gathered(warps, of.a, a).reshape(-1, of.a.shape[1], 1, words)
    right = gathered(warps, of.b, b).reshape(-1, 1, of.b.shape[1], words)
    both = np.bitwise_xor(left, right) if op == "xor" else np.bitwise_and(left, right)
    ones = np.bitwise_count(both).sum(axis=-1, dtype=np.int32).reshape(-1)
    return _accumulated(warps, of.d, scattered(of.d, ones), c, saturate=False)


def _accumulated(
    warps: ActiveWarps, layout: Layout, products: Lanes, c: Sequence[Lanes], saturate: bool
) -> tuple[Lanes, ...]:
    sums = warps.joined(layout, c)
    if saturate:
        exact = sums.astype(np.int64) + products
        sums = np.clip(exact, _INT32.min, _INT32.max).astype(np.int32)
    else:
        sums += products  # wraps around
    return warps.as_registers(layout, sums)


def multiply_f64(
    machine: Machine,
    of: Operands,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    c: Sequence[Lanes],
    rnd: str | None,
) -> tuple[Lanes, ...]:
    """The registers of D, f64."""
    machine.warp_sync(EVERY_LANE)
    warps = ActiveWarps.of(machine)
    left = _matrices(of.a, gathered(warps, of.a, a))[:, :, None, :]
    right = _matrices(of.b, gathered(warps, of.b, b))[:, None, :, :]
    sums = gathered(warps, of.c, c)
    shape = (len(left), left.shape[1], right.shape[2])
    for k in range(left.shape[3]):
        x, y = (np.broadcast_to(v[..., k], shape).reshape(-1) for v in (left, right))
        sums = numeric_f64.fma_f64(x, y, sums, rnd or "rn")
    return warps.as_registers(of.d, scattered(of.d, sums))
