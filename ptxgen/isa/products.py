"""D = A * B + C on the fragments of `mma` and `wmma`, for all warps at once.

Precision (PTX ISA, "mma", "Precision and rounding"): products of f16, bf16, tf32 and fp8 are exact
here, summed in float32, and C is added last; the manual asks for at least that and leaves the order
and the roundings of the sum open. f64 is a chain of fused multiply-adds that starts with C and goes
along K. Integer sums are exact and wrap around or saturate at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric, numeric_f64
from ptxgen.isa.fragments import (
    EVERY_LANE,
    Layout,
    as_registers,
    gathered,
    joined,
    layout_quad,
    layout_quad_c,
    operand_layout,
    scattered,
)

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

_F16_VALUES: Final = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
_TF32_BITS: Final = np.uint32(0xFFFFE000)  # the low 13 bits of the register are ignored
_INT32: Final = np.iinfo(np.int32)


def _f16(units: Lanes) -> Lanes:
    return _F16_VALUES.take(units.view(np.uint16))


def _bf16(units: Lanes) -> Lanes:
    halves = units.view(np.uint16)
    wide = np.zeros((halves.size, 2), np.uint16)
    wide[:, 1] = halves  # a bf16 is the upper half of an f32
    return wide.view(np.float32)


def _tf32(units: Lanes) -> Lanes:
    return np.bitwise_and(units, _TF32_BITS).view(np.float32)


def _s8(units: Lanes) -> Lanes:
    return units.view(np.int8).astype(np.float32)


def _u8(units: Lanes) -> Lanes:
    return units.view(np.uint8).astype(np.float32)


def _u4(units: Lanes) -> Lanes:
    pairs = units.view(np.uint8)
    nibbles = np.empty((pairs.size, 2), np.float32)
    nibbles[:, 0] = pairs & 0xF
    nibbles[:, 1] = pairs >> 4
    return nibbles


def _s4(units: Lanes) -> Lanes:
    unsigned = _u4(units)
    return np.where(unsigned < 8, unsigned, unsigned - 16)


@cache
def _fp8_values(name: str) -> Lanes:
    import ml_dtypes

    dtype: Any = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[name]
    values: Lanes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    return values


def _e4m3(units: Lanes) -> Lanes:
    return _fp8_values("e4m3").take(units.view(np.uint8))


def _e5m2(units: Lanes) -> Lanes:
    return _fp8_values("e5m2").take(units.view(np.uint8))


# Units of registers to float32, which holds all values of these types.
_READ: Final[Mapping[str, Callable[[Lanes], Lanes]]] = {
    "f16": _f16,
    "bf16": _bf16,
    "tf32": _tf32,
    "s8": _s8,
    "u8": _u8,
    "s4": _s4,
    "u4": _u4,
    "e4m3": _e4m3,
    "e5m2": _e5m2,
}


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The layouts of the operands of a product, and how A and B are read as float32."""

    a: Layout
    b: Layout
    c: Layout
    d: Layout
    read_a: Callable[[Lanes], Lanes] | None
    read_b: Callable[[Lanes], Lanes] | None


@cache
def operands(shape: str, a: str, b: str, c: str, d: str) -> Operands:
    """A product of this shape with operands of these types."""
    return Operands(
        operand_layout("a", shape, a), operand_layout("b", shape, b),
        operand_layout("c", shape, c), operand_layout("d", shape, d),
        _READ.get(a), _READ.get(b),
    )  # fmt: skip


@cache
def quad_operands(alayout: str, blayout: str, c: str, d: str) -> Operands:
    """`mma.m8n8k4` on f16, with A and B stored by rows or columns."""
    per = {"f16": 2, "f32": 1}
    return Operands(
        layout_quad(alayout == "row"), layout_quad(blayout == "col"),
        layout_quad_c(per[c]), layout_quad_c(per[d]), _f16, _f16,
    )  # fmt: skip


def _matrices(layout: Layout, elements: Lanes) -> Lanes:
    _, rows, columns = layout.shape
    return elements.reshape(-1, rows, columns)


def _product(machine: Machine, of: Operands, a: Sequence[Lanes], b: Sequence[Lanes]) -> Lanes:
    """A * B in float32, flat."""
    assert of.read_a is not None
    assert of.read_b is not None
    left = _matrices(of.a, of.read_a(gathered(machine, of.a, a)))
    right = _matrices(of.b, of.read_b(gathered(machine, of.b, b)))
    product: Lanes = np.matmul(left, right.swapaxes(1, 2))
    return product.reshape(-1)


@numeric.quiet
def multiply(
    machine: Machine,
    of: Operands,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    c: Sequence[Lanes],
) -> tuple[Lanes, ...]:
    """The registers of D, for accumulators in f32."""
    machine.warp_sync(EVERY_LANE)
    sums = joined(machine, c)
    sums += scattered(of.d, _product(machine, of, a, b))
    return as_registers(of.d, sums)


@numeric.quiet
def multiply_f16(
    machine: Machine,
    of: Operands,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    c: Sequence[Lanes],
) -> tuple[Lanes, ...]:
    """The registers of D, where C or D or both are f16: added in f32, rounded once."""
    machine.warp_sync(EVERY_LANE)
    sums = gathered(machine, of.c, c)
    sums = _product(machine, of, a, b) + (_f16(sums) if of.c.unit == 2 else sums)
    if of.d.unit == 2:
        sums = sums.astype(np.float16).view(np.uint32)
    return as_registers(of.d, scattered(of.d, sums))


@numeric.quiet
def multiply_integers(
    machine: Machine,
    of: Operands,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    c: Sequence[Lanes],
    saturate: bool,
) -> tuple[Lanes, ...]:
    """The registers of D, s32. Products of up to 8-bit integers sum up exactly in float32."""
    machine.warp_sync(EVERY_LANE)
    products = scattered(of.d, _product(machine, of, a, b))
    return _accumulated(machine, of.d, products, c, saturate)


def multiply_bits(
    machine: Machine,
    of: Operands,
    a: Sequence[Lanes],
    b: Sequence[Lanes],
    c: Sequence[Lanes],
    op: str,
) -> tuple[Lanes, ...]:
    """The registers of D, s32: the ones in `a op b`, counted along K."""
    machine.warp_sync(EVERY_LANE)
    words = of.a.shape[2] // 32
    left = gathered(machine, of.a, a).reshape(-1, of.a.shape[1], 1, words)
    right = gathered(machine, of.b, b).reshape(-1, 1, of.b.shape[1], words)
    both = np.bitwise_xor(left, right) if op == "xor" else np.bitwise_and(left, right)
    ones = np.bitwise_count(both).sum(axis=-1, dtype=np.int32).reshape(-1)
    return _accumulated(machine, of.d, scattered(of.d, ones), c, saturate=False)


def _accumulated(
    machine: Machine, layout: Layout, products: Lanes, c: Sequence[Lanes], saturate: bool
) -> tuple[Lanes, ...]:
    sums = joined(machine, c)
    if saturate:
        exact = sums.astype(np.int64) + products.astype(np.int64)
        sums = np.clip(exact, _INT32.min, _INT32.max).astype(np.int32)
    else:
        sums += products.astype(np.int32)  # wraps around
    return as_registers(layout, sums)


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
    left = _matrices(of.a, gathered(machine, of.a, a))[:, :, None, :]
    right = _matrices(of.b, gathered(machine, of.b, b))[:, None, :, :]
    sums = gathered(machine, of.c, c)
    shape = (len(left), left.shape[1], right.shape[2])
    for k in range(left.shape[3]):
        x, y = (np.broadcast_to(v[..., k], shape).reshape(-1) for v in (left, right))
        sums = numeric_f64.fma_f64(x, y, sums, rnd or "rn")
    return as_registers(of.d, scattered(of.d, sums))
