"""D = A * B + D of one `tcgen05.mma`, or of `mma.sync` with a `.kind`, from and to bits.

Sums of floats are those of `ptxgen.isa.tensor_core`, in one step. Scale factors enter a sum in two ways:

* `mxf8f6f4`: one factor, a power of two, scales all 32 elements of a row. All products of an output are
  multiplied by the factors of A and B before they are aligned.
* `mxf4`, `mxf4nvf4`: 16 products at a time are added exactly and multiplied by the two factors. These
  sums and D are aligned to the largest exponent among D and the products of factors, truncated to 35 bits
  below it, added exactly, and truncated to an f32.

Sums of integers are exact and wrap around or saturate at the end. Source: the simulator
github.com/microsoft/MMA-Sim, which has one rule for tensor memory and for a warp's registers on sm_120. Not
known, and assumed to be alike: e2m3 and e3m2, pairs of CTAs; an exact division of D by a power of two
(`scale-input-d`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.descriptors import SIZES
from ptxgen.isa.tensor_core import Adder, Factors, accumulators, adder, factors, multiplied, truncated_f32

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.isa.mma_descriptor import Product

_SM: Final = 100
_AT_ONCE: Final = 16  # products of fp4 that are added exactly
_FP4: Final = Adder(35)
_INT32: Final = np.iinfo(np.int32)
_BIAS_UE8M0: Final = 127
_NAN_UE8M0: Final = 0xFF
_BIAS_F64: Final = 1023
_SIGNLESS: Final = np.uint8(0x7F)  # ue4m3 is e4m3 whose sign is ignored
PAIRED_KINDS: Final = ("mxf4", "mxf4nvf4")  # the kinds whose elements are two in a byte
# The bits of D's elements by D's type.
_BITS: Final[dict[str, Any]] = {"f16": np.uint16, "f32": np.uint32, "s32": np.uint32}


@numeric.quiet
def multiply_add(
    of: Product,
    a: Lanes,
    b: Lanes,
    d: Lanes | None = None,
    *,
    scales: tuple[Lanes, Lanes] | None = None,
    lowered: int = 0,
) -> Lanes:
    """The bits of A * B + D, or of A * B without D, `[rows of A, N]`: uint16 if D is f16, else uint32.

    `a` `[rows, K]` and `b` `[N, K]` have the bits of an element each: uint32 of tf32, uint16 of f16 and
    bf16, else uint8. `d` is of the result's type and shape. The rows may be any of A's. `scales` are the bits
    of the scale factors, uint8 `[rows, factors]` and `[N, factors]`. `lowered`, 0 to 15: D is divided by 2 to
    the power of this number first (`scale-input-d`). Several products of one form may be stacked: all arrays
    then have one more axis, the first.
    """
    bits = _BITS[of.d]
    shape = (*a.shape[:-1], b.shape[-2])
    start = np.zeros(shape, bits) if d is None else d
    if of.d == "s32":
        return _integers(of, a, b, start)
    how = adder(_SM, "tcgen05", of.a)
    c = start.view(np.float16 if of.d == "f16" else np.float32)
    if scales is not None and of.kind in PAIRED_KINDS:
        of_fp4: Lanes = _sums_of_fp4(of, a, b, c, *scales).view(bits)
        return of_fp4
    left, right = (
        factors(type, _matrices_last(x.swapaxes(-1, -2)), how) for type, x in ((of.a, a), (of.b, b))
    )
    if of.negated_a != of.negated_b:
        left = left.negated()
    raised: Lanes | None = None
    if scales is not None:
        of_rows = [_matrices_last(x)[:, 0] for x in scales]
        powers = [x.astype(np.int16) - np.int16(_BIAS_UE8M0) for x in of_rows]
        left, right = (_spoilt(f, x) for f, x in zip((left, right), of_rows, strict=True))
        raised = np.add(powers[0][:, None], powers[1])
    sums = multiplied(how, of.a, left, right, _matrices_last(c), raised=raised, lowered=lowered)
    stacked: Lanes = np.ascontiguousarray(np.moveaxis(sums, -1, 0)).reshape(shape).view(bits)
    return stacked


def _matrices_last(stacked: Lanes) -> Lanes:
    """`[rows, columns, matrices]` of one matrix or of several that are stacked along the first axis."""
    return np.ascontiguousarray(np.moveaxis(stacked.reshape(-1, *stacked.shape[-2:]), 0, -1))


def _integers(of: Product, a: Lanes, b: Lanes, start: Lanes) -> Lanes:
    """The bits of A * B + D of 8-bit integers; the products' sums are exact in f32."""
    left, right = (
        x.view(np.int8 if type == "s8" else np.uint8).astype(np.float32) for type, x in ((of.a, a), (of.b, b))
    )
    sums = np.matmul(left, right.swapaxes(-1, -2)).astype(np.int64) + start.view(np.int32)
    if of.saturating:
        sums = np.clip(sums, _INT32.min, _INT32.max)
    wrapped: Lanes = sums.astype(np.int32).view(np.uint32)
    return wrapped


def _spoilt(elements: Factors, scales: Lanes) -> Factors:
    """The elements of A or B, of which rows with the scale factor NaN are NaN."""
    spoilt = scales == _NAN_UE8M0
    if not spoilt.any():
        return elements
    nan = factors("e4m3", np.array([_SIGNLESS]), _FP4)
    values, exponents = (
        np.where(spoilt, of_nan[0], of_each) for of_nan, of_each in zip(nan, elements, strict=True)
    )
    return Factors(values, exponents)


# ---------------------------------------- fp4


def _scale_factors(type: str, bits: Lanes) -> tuple[Lanes, Lanes]:
    """Values, float64, and exponents of scale factors."""
    if type == "ue4m3":
        both = factors("e4m3", np.bitwise_and(bits, _SIGNLESS), _FP4)
        return both.values.astype(np.float64), both.exponents
    exponents = bits.astype(np.int16) - np.int16(_BIAS_UE8M0)
    return np.where(bits == _NAN_UE8M0, np.nan, np.ldexp(1.0, exponents)), exponents


def _sums_of_fp4(of: Product, a: Lanes, b: Lanes, c: Lanes, scales_a: Lanes, scales_b: Lanes) -> Lanes:
    """A * B + C of e2m1 with scale factors, float32."""
    left, right = (factors(type, x, _FP4).values for type, x in ((of.a, a), (of.b, b)))
    if of.negated_a != of.negated_b:
        left = np.negative(left)
    (values_a, exponents_a), (values_b, exponents_b) = (
        _scale_factors(of.scale, x) for x in (scales_a, scales_b)
    )
    per_factor = of.k // scales_a.shape[-1]
    old = accumulators(c)
    top = np.add(exponents_a[..., None, :], exponents_b[..., None, :, :]).max(axis=-1)
    top = np.maximum(top, old.exponents)
    power = ((_BIAS_F64 + _FP4.fraction - top).astype(np.int64) << 52).view(np.float64)
    total = np.trunc(old.values * power)
    for k in range(0, of.k, _AT_ONCE):
        of_k, s = slice(k, k + _AT_ONCE), k // per_factor
        # The sums are exact in f32.
        products = np.matmul(left[..., of_k], right[..., of_k].swapaxes(-1, -2)).astype(np.float64)
        products *= values_a[..., s, None]
        products *= values_b[..., None, :, s]
        products *= power
        total += np.trunc(products, out=products)
    total /= power
    total += 0.0  # no sum is -0
    sums = truncated_f32(_FP4, total)
    return np.where(np.isnan(sums), numeric.NAN_F32, sums)


# ---------------------------------------- elements

_WIDTHS: Final = {"e2m3": 6, "e3m2": 6, "e2m1": 4}
_GROUP: Final = 16  # bytes in shared memory, of as many elements and padding


def elements_of_words(kind: str, type: str, words: Lanes, *, along_rows: bool = False) -> Lanes:
    """The bits of a matrix in shared memory, `[rows, K]` as `multiply_add` wants them, from the words at the
    addresses `SharedMatrix.words`, uint64, or `words_along_rows`.

    In the kinds without pairs, 16 elements of 4 or 6 bits lie side by side, with padding after them up to 16
    bytes.
    """
    elements: Lanes = np.ascontiguousarray(words).view(f"u{SIZES.get(type, 1)}")
    if kind in PAIRED_KINDS:
        elements = _unpaired(elements)
    elif type in _WIDTHS:
        width = _WIDTHS[type]
        groups = elements.reshape(-1, _GROUP)
        bits = np.unpackbits(groups, axis=1, count=_GROUP * width, bitorder="little").reshape(-1, width)
        elements = np.packbits(bits, axis=1, bitorder="little").reshape(elements.shape)
    return elements.T if along_rows else elements


def elements_of_cells(kind: str, type: str, cells: Lanes) -> Lanes:
    """The bits of A, `[rows, K]` as `multiply_add` wants them, from its cells of tensor memory, uint32
    `[rows, columns]`; or those of A or B from registers of `mma.sync`.

    In the kinds without pairs, an element of 4 or 6 bits has a byte, e2m1 the bits 2 to 5 of it (in tensor
    memory, this is assumed).
    """
    elements: Lanes = np.ascontiguousarray(cells).view(f"u{SIZES.get(type, 1)}")
    if kind in PAIRED_KINDS:
        return _unpaired(elements)
    width = _WIDTHS.get(type)
    if width is None:
        return elements
    low: Lanes = elements >> np.uint8(2) if type == "e2m1" else elements
    return np.bitwise_and(low, np.uint8((1 << width) - 1))


def _unpaired(pairs: Lanes) -> Lanes:
    """Elements of 4 bits, of which a byte has two along K, the first in its low half."""
    both = np.bitwise_and(pairs, np.uint8(0xF)), pairs >> np.uint8(4)
    return np.stack(both, axis=-1).reshape(*pairs.shape[:-1], -1)
