"""Conversions to and from types below 16 bits (PTX ISA, "Data Movement and Conversion Instructions:
cvt", "Alternate Floating-Point Data Formats").

Pairs of fp8 (e4m3, e5m2), of fp6 (e2m3, e3m2) and of ue8m0, a power of two, are held in a 16-bit
register, a byte each; a pair of fp4 (e2m1) is in a register declared `.b8`, 4 bits each. In a pair
made from two operands, the first is in the upper half. A conversion to fp8, fp6 or fp4 always
saturates; ptxas accepts .relu before and after .satfinite, so there
are rows for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.convert import CVT
from ptxgen.isa.declare import each, inst
from ptxgen.isa.spec import BLACKWELL, gate
from ptxgen.isa.undefined import CONVERTED
from ptxgen.records import dataclass
from ptxgen.types import bf16, f16, f32, narrow_dtype

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of at most 8 bits: the name of its type, its largest number, the code of NaN, and its sign
    bit.
    """

    name: str
    largest: float
    nan: int
    sign: int

    @property
    def dtype(self) -> Any:
        """The numpy type."""
        return narrow_dtype(self.name)


_FORMATS: Final = {
    "e4m3x2": _Format("float8_e4m3fn", 448.0, 0x7F, 0x80),
    "e5m2x2": _Format("float8_e5m2", 57344.0, 0x7F, 0x80),
    "e2m3x2": _Format("float6_e2m3fn", 7.5, 0x1F, 0x20),
    "e3m2x2": _Format("float6_e3m2fn", 28.0, 0x1F, 0x20),
    "e2m1x2": _Format("float4_e2m1fn", 6.0, 0x7, 0x8),
}
_FP6: Final = gate(ptx=(8, 6), sm=100, only=BLACKWELL)
# sm_90 has these since PTX 7.8, the older sm_89 only since 8.1; the table has one gate for both.
_FP8: Final = gate(ptx=(8, 1), sm=89)
_ALL: Final = {"e4m3x2": _FP8, "e5m2x2": _FP8, "e2m3x2": _FP6, "e3m2x2": _FP6}
_FP8_ONLY: Final = {"e4m3x2": _FP8, "e5m2x2": _FP8}


@numeric.quiet
def _encoded(x: Lanes, dtype: str, relu: bool) -> Lanes:
    """The codes of `x` rounded to nearest, saturated, as uint16."""
    format = _FORMATS[dtype]
    limited = np.clip(x.astype(np.float32), np.float32(-format.largest), np.float32(format.largest))
    codes = limited.astype(format.dtype).view(np.uint8)
    codes = np.where(np.isnan(limited), np.uint8(format.nan), codes)
    if relu:
        codes = np.where(codes >= format.sign, np.uint8(0), codes)
    return codes.astype(np.uint16)


@numeric.quiet
def _decoded(codes: Lanes, dtype: str, relu: bool) -> Lanes:
    """Codes as float16, which holds them exactly."""
    format = _FORMATS[dtype]
    whole = np.bitwise_and(codes, np.uint16(2 * format.sign - 1)).astype(np.uint8)
    value = numeric.canonical_narrow(whole.view(format.dtype).astype(np.float16))
    return numeric.relu(value) if relu else value


def _bytes(high: Lanes, low: Lanes) -> Lanes:
    both: Lanes = np.bitwise_or(np.left_shift(high, np.uint16(8)), low)
    return both


@inst(
    "cvt.rn<limits>.dtype.<atype> d:b16, <operands>",
    each("limits", ".satfinite{.relu}", ".relu.satfinite"),
    each(
        "atype operands dtype each nan",
        (
            "f32",
            "a:f32, b:f32",
            _ALL,
            "a in the upper and b in the lower byte",
            "0x7f in fp8 and the largest number in fp6",
        ),
        ("f16x2", "a:f16x2", _FP8_ONLY, "the two f16 of a", "0x7f"),
    ),
    name="cvt_narrow",
    relu=(True,),
    satfinite=(True,),
    ignores=("satfinite",),
    undefined=CONVERTED,
    section=CVT,
)
def cvt_narrow(a: Lanes, b: Lanes | None = None, *, relu: bool, dtype: str) -> Lanes:
    """d = <each>, each rounded once and limited to the largest number; with .relu max(d, 0). NaN
    becomes <nan>.
    """
    high, low = (a, b) if b is not None else reversed(numeric.halves(a, f16))
    return _bytes(_encoded(high, dtype, relu), _encoded(low, dtype, relu))


@inst("cvt.rn{.relu}.f16x2.atype d:f16x2, a:b16", name="cvt_widen", atype=_ALL, section=CVT)
def cvt_widen(a: Lanes, *, relu: bool, atype: str) -> Lanes:
    """d = the two numbers of a, exactly; with .relu max(d, 0), where NaN stays NaN."""
    low, high = np.bitwise_and(a, np.uint16(0xFF)), np.right_shift(a, np.uint16(8))
    return numeric.join(_decoded(low, atype, relu), _decoded(high, atype, relu))


_TO_BF16: Final = gate(ptx=(9, 2), sm=100, only=BLACKWELL)


def _bf16_pair(codes: tuple[Lanes, Lanes], dtype: str, relu: bool) -> Lanes:
    """Two lanes of codes as bfloat16, which holds them exactly, in the halves of a register."""
    low, high = (numeric.widen(_decoded(code, dtype, relu), f32) for code in codes)
    return numeric.join(*(numeric.canonical_narrow(x.astype(bf16.dtype)) for x in (low, high)))


@inst(
    "cvt.rn{.relu}.bf16x2.atype d:bf16x2, a:b16",
    name="cvt_widen_bf16",
    atype=dict.fromkeys(_ALL, _TO_BF16),
    section=CVT,
)
def cvt_widen_bf16(a: Lanes, *, relu: bool, atype: str) -> Lanes:
    """d = the two numbers of a, exactly; with .relu max(d, 0), where NaN stays NaN."""
    codes = np.bitwise_and(a, np.uint16(0xFF)), np.right_shift(a, np.uint16(8))
    return _bf16_pair(codes, atype, relu)


# ---------------------------------------- fp4

_NIBBLE: Final = np.uint8(4)  # bits


@inst(
    "cvt.rn<limits>.e2m1x2.<atype> d:byte, <operands>",
    each("limits", ".satfinite{.relu}", ".relu.satfinite"),
    each(
        "atype operands each",
        ("f32", "a:f32, b:f32", "a in the upper and b in the lower 4 bits"),
        ("f16x2", "a:f16x2", "the two f16 of a"),
    ),
    name="cvt_fp4",
    relu=(True,),
    satfinite=(True,),
    ignores=("satfinite",),
    undefined=CONVERTED,
    ptx=(8, 6),
    sm=100,
    only=BLACKWELL,
    section=CVT,
)
def cvt_fp4(a: Lanes, b: Lanes | None = None, *, relu: bool) -> Lanes:
    """d = <each>, each rounded once and limited to the largest number; with .relu max(d, 0). NaN
    becomes the largest number.
    """
    high, low = (a, b) if b is not None else reversed(numeric.halves(a, f16))
    upper, lower = (_encoded(x, "e2m1x2", relu).astype(np.uint8) for x in (high, low))
    both: Lanes = np.bitwise_or(np.left_shift(upper, _NIBBLE), lower)
    return both


def _nibbles(a: Lanes) -> tuple[Lanes, Lanes]:
    """The lower and the upper code of a byte, as uint16."""
    both = np.bitwise_and(a, np.uint8(0xF)), np.right_shift(a, _NIBBLE)
    return both[0].astype(np.uint16), both[1].astype(np.uint16)


@inst(
    "cvt.rn{.relu}.f16x2.e2m1x2 d:f16x2, a:byte",
    name="cvt_from_fp4",
    ptx=(8, 6),
    sm=100,
    only=BLACKWELL,
    section=CVT,
)
def cvt_from_fp4(a: Lanes, *, relu: bool) -> Lanes:
    """d = the two numbers of a, exactly; with .relu max(d, 0)."""
    return numeric.join(*(_decoded(code, "e2m1x2", relu) for code in _nibbles(a)))


@inst(
    "cvt.rn{.relu}.bf16x2.e2m1x2 d:bf16x2, a:byte",
    name="cvt_from_fp4_bf16",
    ptx=(9, 2),
    sm=100,
    only=BLACKWELL,
    section=CVT,
)
def cvt_from_fp4_bf16(a: Lanes, *, relu: bool) -> Lanes:
    """d = the two numbers of a, exactly; with .relu max(d, 0)."""
    return _bf16_pair(_nibbles(a), "e2m1x2", relu)


# ---------------------------------------- ue8m0

_MANTISSA: Final = np.uint32(0x007FFFFF)
_SIGNLESS: Final = np.uint32(0x7FFFFFFF)
_INFINITY: Final = np.uint32(0x7F800000)
_LOWEST: Final = np.uint32(0x00400000)  # 2^-127


def _exponent(x: Lanes, rnd: str, satfinite: bool) -> Lanes:
    """The exponents of float32 lanes as ue8m0 in uint16; the sign is ignored, NaN is 0xff.

    The header cuda_fp8.hpp of CUDA 13.0 defines the cases that the manual does not: the sign, zero
    (which becomes 2^-127) and infinity (0xff, or 0xfe with .satfinite).
    """
    bits = np.bitwise_and(x.view(np.uint32), _SIGNLESS)
    code = np.right_shift(bits, np.uint32(23))
    if rnd == "rp":
        up = (np.bitwise_and(bits, _MANTISSA) != 0) & (bits > _LOWEST) & (bits < _INFINITY)
        code = code + up.astype(np.uint32)
    if satfinite:
        code = np.where((bits <= _INFINITY) & (code == 0xFF), np.uint32(0xFE), code)
    return code.astype(np.uint16)


@inst(
    "cvt.rnd{.satfinite}.ue8m0x2.f32 d:b16, a:f32, b:f32",
    name="cvt_ue8m0",
    rnd=("rz", "rp"),
    undefined=CONVERTED,
    ptx=(8, 6),
    sm=100,
    only=BLACKWELL,
    section=CVT,
)
def cvt_ue8m0_f32(a: Lanes, b: Lanes, *, rnd: str, satfinite: bool) -> Lanes:
    """d = the magnitudes of a, in the upper byte, and b, rounded to powers of two."""
    return _bytes(_exponent(a, rnd, satfinite), _exponent(b, rnd, satfinite))


@inst(
    "cvt.rnd{.satfinite}.ue8m0x2.bf16x2 d:b16, a:bf16x2",
    name="cvt_ue8m0",
    rnd=("rz", "rp"),
    ptx=(8, 6),
    sm=100,
    only=BLACKWELL,
    section=CVT,
)
def cvt_ue8m0_bf16x2(a: Lanes, *, rnd: str, satfinite: bool) -> Lanes:
    """d = the magnitudes of the two bf16 of a, rounded to powers of two."""
    low, high = (numeric.widen(x, f32) for x in numeric.halves(a, bf16))
    return _bytes(_exponent(high, rnd, satfinite), _exponent(low, rnd, satfinite))


@inst(
    "cvt.rn.bf16x2.ue8m0x2 d:bf16x2, a:b16",
    name="cvt_from_ue8m0",
    ptx=(8, 6),
    sm=100,
    only=BLACKWELL,
    section=CVT,
)
def cvt_from_ue8m0(a: Lanes) -> Lanes:
    """d = the two powers of two of a, exactly; 0xff becomes NaN."""
    codes = (np.bitwise_and(a, np.uint16(0xFF)), np.right_shift(a, np.uint16(8)))
    low, high = (
        np.where(c == 0xFF, numeric.NAN_16_BITS, np.where(c == 0, np.uint16(0x40), c << np.uint16(7)))
        for c in codes
    )
    return numeric.join(low, high)
