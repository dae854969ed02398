"""The sums of the tensor cores of each target, bit for bit.

A tensor core adds several products to an accumulator in one step:

1. Each product is exact. Its exponent is the sum of the exponents of its factors; a subnormal
   counts with the least exponent of its type, a zero with -126.
2. The products and the accumulator are aligned to the largest exponent among them, and each is
   truncated to `Adder.fraction` bits below it.
3. They are added exactly. An f32 sum is truncated to 24 significant bits (for fp8 on some targets
   to 14) and is infinite from 2**128 on; an f16 sum is rounded to nearest even. A sum of zero is
   +0, a NaN has all bits set but the sign.

An instruction adds its products in one step or in several along K (`Adder.block`). Where a target
lacks one, NVIDIA's assembler makes it of others, which its machine code shows: fp8 `mma` of two `mma` of
f16 (`Adder.converted`), `mma.m8n8k4` of f16 of fused multiply-adds of f32 (`Adder.fused`), `wmma` of the
`mma` of 8 columns with the same K, but of tf32 with K of 4. `tcgen05.mma` adds products of all types of at
most 8 bits like those of f16, in one step; its sums with scale factors are in `ptxgen.isa.tcgen05_sums`.

Sources: M. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (2025), whose outputs
of V100, A100, A2, Ada, L40S, H100, H200 and B200 are in
github.com/north-numerical-computing/MATLAB-tensor-core; and the simulator
github.com/microsoft/MMA-Sim. Outputs are recorded there for `mma` of f16, bf16, tf32 and fp8, and for
`wgmma` of fp8 to f32, with numbers of moderate size; in tests/vectors, on an H200, for every dense
`mma` and for `wgmma` of f16, bf16, tf32 and fp8. There is no recorded output for sm_75, sm_87, sm_103 and
sm_120; for `tcgen05` (its simulator has been compared with a B200, but not for e2m3 and e3m2); for `wgmma`
whose sums do not begin at zero; for `wmma`; and for exponents near the ends of bf16, tf32 and f32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from ptxgen.isa import numeric
from ptxgen.records import dataclass
from ptxgen.types import narrow_dtype

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

Family = Literal["mma", "quad", "wmma", "wgmma", "tcgen05"]  # "quad" is `mma.m8n8k4` of f16


@dataclass(frozen=True, slots=True)
class Adder:
    """The way in which a tensor core adds products.

    Each product keeps `fraction` bits below the largest exponent, and an f32 sum keeps
    `significant` bits after its first. `block` bytes of a row of A are added in one step (None: all
    of an instruction). `converted`: fp8 is converted to f16, the sum starts at zero, and the
    accumulator is added at the end by an ordinary addition. `fused`: there are no steps but fused
    multiply-adds of f32.
    """

    fraction: int
    block: int | None = None
    significant: int = 23
    converted: bool = False
    fused: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """The tensor cores of the targets from `sm` on: the adders for products of f16, bf16 and tf32,
    and of fp8 in `mma` and in `wgmma`.
    """

    sm: int
    wide: Adder
    fp8: Adder
    fp8_wgmma: Adder


def _generation(sm: int, wide: Adder, fp8: Adder | None = None, fp8_wgmma: Adder | None = None) -> Generation:
    fp8 = fp8 or wide
    return Generation(sm, wide, fp8, fp8_wgmma or fp8)


_CONVERTED: Final = Adder(25, converted=True)
_FUSED: Final = Adder(23, fused=True)
_FIRST_FUSED: Final = 80  # the first target without an instruction for `mma.m8n8k4` of f16
_BLOCK_OF_WMMA_TF32: Final = 16  # bytes
GENERATIONS: Final = (
    _generation(70, Adder(23, block=8)),  # Volta
    _generation(75, Adder(24, block=16)),  # Turing, Ampere
    _generation(89, Adder(24, block=16), Adder(13, block=16, significant=13)),  # Ada
    _generation(90, Adder(25), _CONVERTED, Adder(13, significant=13)),  # Hopper
    _generation(100, Adder(25), _CONVERTED),  # Blackwell of data centres
    _generation(120, Adder(25)),  # Blackwell with graphics
)


def adder(sm: int, family: Family, type: str) -> Adder:
    """The adder of a target, by its number, for products with this type of A."""
    generation = next((g for g in reversed(GENERATIONS) if g.sm <= sm), GENERATIONS[0])
    if family == "quad" and sm >= _FIRST_FUSED:
        return _FUSED
    if family == "wmma" and type == "tf32":
        return Adder(generation.wide.fraction, _BLOCK_OF_WMMA_TF32)
    if family == "tcgen05" or type not in _FP8:
        return generation.wide
    return generation.fp8 if family == "mma" else generation.fp8_wgmma


# ---------------------------------------- factors

_FP8: Final = ("e4m3", "e5m2")
_LEAST: Final = -126  # the exponent of a zero, and of subnormal f32, bf16 and tf32
_LEAST_F16: Final = -14
_LEAST_OF: Final = {"f16": _LEAST_F16, "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0}
# The formats of at most 8 bits: the bits of an element, and the name of its numpy type.
_NARROW: Final = {
    "e4m3": (8, "float8_e4m3fn"),
    "e5m2": (8, "float8_e5m2"),
    "e2m3": (6, "float6_e2m3fn"),
    "e3m2": (6, "float6_e3m2fn"),
    "e2m1": (4, "float4_e2m1fn"),
}
_BYTES: Final = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
# The exponent of an infinity or a NaN: above all others, also in a sum with any of them.
_NOT_FINITE: Final = 512
_TF32_BITS: Final = np.uint32(0xFFFFE000)  # the low 13 bits of the register are ignored


class Factors(NamedTuple):
    """Elements of matrices, `[K, rows of A or columns of B, matrices]`: values, float32, and
    exponents, int16.
    """

    values: Lanes
    exponents: Lanes

    def negated(self) -> Factors:
        """These factors with every sign inverted."""
        return Factors(np.negative(self.values), self.exponents)

    def part(self, of_k: Any) -> Factors:
        """The factors at some indices along K."""
        return Factors(self.values[of_k], self.exponents[of_k])

    def rows(self, chosen: slice) -> Factors:
        """The factors in some rows of A."""
        return Factors(self.values[:, chosen], self.exponents[:, chosen])


def _exponents(values: Lanes, least: int) -> Lanes:
    finite = np.isfinite(values)
    exponents = np.frexp(np.where(finite, values, 0).astype(np.float64))[1] - 1
    exponents = np.where(values == 0, _LEAST, np.maximum(exponents, least))
    return np.where(finite, exponents, _NOT_FINITE).astype(np.int16)


@cache
def _table(type: str, least: int) -> Factors:
    """All numbers of a type of 8 or 16 bits, in the order of their bits."""
    if type == "f16":
        values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    else:
        bits, name = _NARROW[type]
        dtype: Any = narrow_dtype(name)
        values = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float32)
    return Factors(values, _exponents(values, least))


# Exponents by the eight exponent bits of an f32.
_EXPONENTS_F32: Final = np.array([_LEAST, *range(_LEAST, 128), _NOT_FINITE], np.int16)


def _with_exponents(values: Lanes) -> Factors:
    """Numbers of f32, or of a type with the exponents of f32."""
    return Factors(values, _EXPONENTS_F32.take(values.view(np.uint32) >> 23 & 0xFF))


def _looked_up(table: Factors, bits: Lanes) -> Factors:
    index = bits.astype(np.intp)
    return Factors(table.values.take(index), table.exponents.take(index))


def factors(type: str, elements: Lanes, how: Adder) -> Factors:
    """The factors for elements given as bits (uint8, uint16 or uint32)."""
    if type in _LEAST_OF:
        least = _LEAST_F16 if how.converted else _LEAST_OF[type]
        return _looked_up(_table(type, least), elements)
    if type == "bf16":  # the upper half of an f32
        return _with_exponents((elements.astype(np.uint32) << 16).view(np.float32))
    return _with_exponents(np.bitwise_and(elements, _TF32_BITS).view(np.float32))


# ---------------------------------------- sums

# If the largest exponent of an output is within these limits, products are exact in f32, and scaled
# products are exact or too small to count; the f32 sum is exact too, if it is not zero.
_SMALLEST_TOP: Final = -100
_LARGEST_TOP: Final = 125
_AT_ONCE: Final = 1 << 16  # products that fit into a core's cache
_PRODUCT_BITS: Final = 2  # bits of a product before the point: it is below 4 times the power of its exponent
_BIAS_F32: Final = 127


@numeric.quiet
def multiplied(
    how: Adder, type: str, a: Factors, b: Factors, c: Lanes, *, raised: Lanes | None = None, lowered: int = 0
) -> Lanes:
    """A * B + C, `[rows, columns, matrices]`, float32 or float16 as C is; `type` is that of A.

    `raised`, int16 of C's shape: all products of an output are multiplied by 2 to the power of this number.
    `lowered`: C is divided by 2 to the power of this number. Only adders that add all products of an
    instruction in one step have the two.
    """
    depth = len(a.values)
    if raised is not None or lowered:
        assert how == Adder(how.fraction)
        return _steps(how, [slice(None)], a, b, c, raised, lowered)
    if how.fused:
        return _multiplied_in_f32(a, b, c)
    if how.converted:
        return _multiplied_as_f16(how, a, b, c)
    step = depth if how.block is None else min(how.block // _BYTES[type], depth)
    return _steps(how, [slice(k, k + step) for k in range(0, depth, step)], a, b, c)


def _multiplied_as_f16(how: Adder, a: Factors, b: Factors, c: Lanes) -> Lanes:
    """A * B + C of fp8 on targets without an instruction for it: the products of the lower half of
    each register come first.
    """
    low = np.arange(len(a.values)) % 4 < 2
    sums = np.zeros_like(c)
    for part in (low, ~low):
        sums = _steps(how, [slice(None)], a.part(part), b.part(part), sums)
    sums = sums + c
    return np.where(np.isnan(sums), _nan(c.dtype), sums)


def _multiplied_in_f32(a: Factors, b: Factors, c: Lanes) -> Lanes:
    """A * B + C of `mma.m8n8k4` on targets without an instruction for it. With C in f32, the products
    are added along K, from zero, and C at the end; in f16, C and each pair of products are.
    """
    every = (len(a.values), *c.shape)
    left = np.broadcast_to(a.values[:, :, None], every).reshape(len(a.values), -1)
    right = np.broadcast_to(b.values[:, None], every).reshape(len(a.values), -1)
    sums = c.reshape(-1).astype(np.float32)
    if c.dtype == np.float32:
        products = np.zeros_like(sums)
        for x, y in zip(left, right, strict=True):
            products = numeric.fma_f32(x, y, products)
        sums = sums + products
    else:
        for k in range(0, len(left), 2):
            sums = sums + numeric.fma_f32(left[k + 1], right[k + 1], left[k] * right[k])
    rounded = sums.reshape(c.shape).astype(c.dtype)
    return np.where(np.isnan(rounded), _nan(c.dtype), rounded)


def _nan(dtype: np.dtype[Any]) -> Any:
    return numeric.NAN_F32 if dtype == np.float32 else numeric.NAN_16_BITS.view(np.float16)


def _steps(
    how: Adder,
    blocks: list[slice],
    a: Factors,
    b: Factors,
    c: Lanes,
    raised: Lanes | None = None,
    lowered: int = 0,
) -> Lanes:
    """The products of blocks of K added to C, block by block."""
    rows = max(1, _AT_ONCE * len(c) // (len(a.values) * c.size))
    if rows >= len(c):
        return _rows(how, blocks, a, b, c, raised, lowered)
    parts = [slice(first, first + rows) for first in range(0, len(c), rows)]
    return np.concatenate(
        [
            _rows(how, blocks, a.rows(part), b, c[part], None if raised is None else raised[part], lowered)
            for part in parts
        ]
    )


class _Scratch(threading.local):
    """Scratch arrays of this thread; allocating new ones costs more than a step."""

    def __init__(self) -> None:
        self._held: dict[type[Any], Lanes] = {}

    def array(self, dtype: type[Any], size: int) -> Lanes:
        """An array of this size, in the same memory each time."""
        held = self._held.get(dtype)
        if held is None or held.size < size:
            held = self._held[dtype] = np.empty(max(size, _AT_ONCE), dtype)
        return held[:size]


_scratch: Final = _Scratch()


@lru_cache(maxsize=64)
def _repeated(count: int, times: int) -> Lanes:
    return np.repeat(np.arange(count), times)


def _outer(function: Callable[..., Lanes], a: Lanes, b: Lanes, into: type[Any]) -> Lanes:
    """A function of each row of A and each column of B, `[K, rows, columns * matrices]`, in scratch
    memory. A is copied first, so that numpy's loops are long.
    """
    depth, rows, matrices = a.shape
    columns = b.shape[1]
    flat = _scratch.array(into, depth * rows * columns * matrices)
    index = _repeated(depth * rows, columns)
    a.reshape(-1, matrices).take(index, 0, flat.reshape(-1, matrices), "clip")  # never out of range
    out = flat.reshape(depth, rows, -1)
    return function(out, b.reshape(depth, 1, -1), out=out)


def _rows(
    how: Adder, blocks: list[slice], a: Factors, b: Factors, c: Lanes, raised: Lanes | None, lowered: int
) -> Lanes:
    """Add the products of each block of K to C, for as many rows of A at a time as fit into the cache."""
    exponents = _outer(np.add, a.exponents, b.exponents, np.int16)
    products = _outer(np.multiply, a.values, b.values, np.float32)
    for block in blocks:
        old = accumulators(c, lowered)
        top = np.maximum.reduce(exponents[block], axis=0).reshape(c.shape)
        if raised is not None:
            top += raised
        np.maximum(top, old.exponents, out=top)
        c = _sums(how, products[block], old, top, c.dtype, raised)
        tops = (top,) if raised is None else (top, top - raised)
        if any(x.min() < _SMALLEST_TOP or x.max() > _LARGEST_TOP for x in tops):
            _put_rare(how, a.part(block), b.part(block), old, tops, c, raised)
    return c


def _powers(exponents: Lanes) -> Lanes:
    """2 to the power of each exponent, float32; any number if that is out of range."""
    return ((_BIAS_F32 + exponents).astype(np.int32) << 23).view(np.float32)


def _sums(
    how: Adder, products: Lanes, old: Factors, top: Lanes, dtype: np.dtype[Any], raised: Lanes | None
) -> Lanes:
    """One step, for largest exponents `top` within the range of an f32; overwrites the products."""
    scale = _powers(how.fraction - top)
    raising = scale if raised is None else _powers(how.fraction - top + raised)
    products *= raising.reshape(products.shape[1:])
    truncated = _scratch.array(np.int32, products.size).reshape(products.shape)
    np.copyto(truncated, products, casting="unsafe")
    most = len(products) << how.fraction + _PRODUCT_BITS
    wide = np.int32 if most <= 1 << 31 else np.int64
    total = np.trunc(old.values * scale).astype(np.float64)
    total += np.add.reduce(truncated, axis=0, dtype=wide).reshape(top.shape)
    total /= scale
    return _rounded(how, total, dtype)


def _put_rare(
    how: Adder,
    a: Factors,
    b: Factors,
    old: Factors,
    tops: tuple[Lanes, ...],
    result: Lanes,
    raised: Lanes | None,
) -> None:
    """Put the sums whose largest exponent is too small or too large for f32 into `result`. `tops` are the
    largest exponents and, if products are raised, those less the powers by which they are.
    """
    rare: Lanes = np.logical_or.reduce([(x < _SMALLEST_TOP) | (x > _LARGEST_TOP) for x in tops])
    empty_rows, empty_columns = (np.logical_not(x.values.any(axis=0)) for x in (a, b))
    nothing = empty_rows[:, None] | empty_columns
    nothing &= rare & (old.values == 0) & (tops[-1] < _SMALLEST_TOP)
    result[nothing] = 0  # as in rows without an element
    row, column, matrix = np.nonzero(rare & ~nothing)
    if len(row):
        result[row, column, matrix] = _any_size(
            how,
            Factors(a.values[:, row, matrix], a.exponents[:, row, matrix]),
            Factors(b.values[:, column, matrix], b.exponents[:, column, matrix]),
            Factors(old.values[row, column, matrix], old.exponents[row, column, matrix]),
            result.dtype,
            0 if raised is None else raised[row, column, matrix],
        )


def accumulators(c: Lanes, lowered: int = 0) -> Factors:
    """The numbers of C, float32 or float16, divided by 2 to the power of `lowered`, exactly."""
    if c.dtype == np.float32:
        old = _with_exponents(c)
    else:
        old = _looked_up(_table("f16", _LEAST_F16), c.view(np.uint16))
    if not lowered:
        return old
    values = np.ldexp(old.values.astype(np.float64), -lowered)
    numbers = np.isfinite(values) & (values != 0)
    return Factors(values, np.where(numbers, old.exponents - np.int16(lowered), old.exponents))


def _rounded(how: Adder, exact: Lanes, dtype: np.dtype[Any]) -> Lanes:
    """Sums, float64, in D's type; if that is f32, none of them is subnormal."""
    if dtype == np.float16:
        return exact.astype(np.float16)
    bits = exact.view(np.int64)
    bits &= np.int64(-1 << 52 - how.significant)
    return exact.astype(np.float32)


# ---------------------------------------- numbers of any size


def _any_size(
    how: Adder, a: Factors, b: Factors, c: Factors, dtype: np.dtype[Any], raised: Lanes | int
) -> Lanes:
    """The model in float64, which holds products of all numbers: D for single elements, with A and
    B `[k, elements]`.
    """
    exponents = np.add(a.exponents, b.exponents) + raised
    top = np.maximum(exponents.max(axis=0), c.exponents).astype(np.int32)
    products = np.multiply(a.values, b.values, dtype=np.float64)
    old = c.values.astype(np.float64)
    special = products.sum(axis=0) + old  # finite unless a factor or C is not
    down = how.fraction - top
    total = np.trunc(np.ldexp(products, down + raised)).sum(axis=0) + np.trunc(np.ldexp(old, down))
    exact = np.where(np.isfinite(special), np.ldexp(total, -down), special)
    sums = exact.astype(dtype) if dtype != np.float32 else truncated_f32(how, exact)
    canonical: Lanes = np.where(np.isnan(sums), _nan(dtype), sums)
    return canonical


def truncated_f32(how: Adder, exact: Lanes) -> Lanes:
    """Sums of any size, float64, as f32."""
    # The last bit that is kept; for a subnormal sum, that of the least exponent.
    last = np.maximum(np.frexp(exact)[1] - 1, _LEAST) - how.significant
    exact = np.where(np.isfinite(exact), np.ldexp(np.trunc(np.ldexp(exact, -last)), last), exact)
    return exact.astype(np.float32)
