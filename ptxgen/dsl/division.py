"""Quotients and remainders of integers by constants, by shifts and multiplications.

The assembler divides by a constant as by any other number, in twenty instructions; a product by the
reciprocal takes two or three (T. Granlund, P. L. Montgomery, "Division by Invariant Integers using
Multiplication", 1994; A. D. Robison, "N-Bit Unsigned Division via N-Bit Multiply-Add", 2005).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeGuard

from ptxgen.dsl.values import Value, Var, is_count
from ptxgen.types import ScalarType, s32, s64, u32, u64

_UNSIGNED: Final = (u32, u64)
_BITS: Final = 32


class Reciprocal(NamedTuple):
    """The reciprocal of a divisor: the quotient of x is floor((x * factor + addend) / 2**shift)."""

    factor: int
    addend: int
    shift: int


def quotient(a: Value, by: object) -> Value | None:
    """The quotient a // by, rounded towards zero, without the instruction `div`; None if it takes a `div`."""
    if not _is_reduced(by, a.type):
        return None
    if by == 1:
        return a.k.emit("mov", (a,), {"type": a.type}) if isinstance(a, Var) else a
    if not by & (by - 1):
        return _shifted(a, by.bit_length() - 1)
    return _of_u32(a, by) if a.type is u32 else _of_s32(a, by)


def remainder(a: Value, by: object) -> Value | None:
    """The remainder a % by, with the sign of a, without the instruction `rem`; None if it takes a `rem`."""
    if not _is_reduced(by, a.type):
        return None
    if a.type in _UNSIGNED and not by & (by - 1):
        return a.k.emit("and_", (a, by - 1))
    whole = quotient(a, by)
    assert whole is not None
    less = -by if a.type.is_signed else (1 << a.type.bits) - by
    return a.k.emit("mad", (whole, less, a), {"mode": "lo"})


def _is_reduced(by: object, type: ScalarType) -> TypeGuard[int]:
    if not is_count(by) or by >= 1 << (type.bits - type.is_signed):
        return False
    return type in (u32, s32) or (type is u64 and not by & (by - 1))


def _shifted(a: Value, bits: int) -> Value:
    if a.type in _UNSIGNED:
        return a >> bits
    negative = (a >> (_BITS - 1)).as_(u32) >> (_BITS - bits)  # 2**bits - 1 for a negative number
    return (a + negative.as_(s32)) >> bits


def _of_u32(a: Value, by: int) -> Value:
    factor, addend, shift = unsigned_reciprocal(by)
    product = a.k.emit("mad_wide", (a, factor, addend)) if addend else a.k.emit("mul_wide", (a, factor))
    return a.k.emit("cvt", (product >> shift,), {"dtype": u32})


def _of_s32(a: Value, by: int) -> Value:
    factor, _, shift = signed_reciprocal(by)
    if factor < 1 << (_BITS - 1):
        product = a.k.emit("mul_wide", (a, factor))
    else:
        product = a.k.emit("mul", (a.k.emit("cvt", (a,), {"dtype": s64}), factor), {"mode": "lo"})
    down = a.k.emit("cvt", (product >> shift,), {"dtype": s32})
    return down + (a.as_(u32) >> (_BITS - 1)).as_(s32)  # of a negative number one more


def unsigned_reciprocal(by: int) -> Reciprocal:
    """The reciprocal of `by`, no power of two, for every x of u32. The factor fits u32."""
    for shift in range(_BITS, _BITS + by.bit_length()):
        factor = (1 << shift) // by + 1
        if factor < 1 << _BITS and (factor * by - (1 << shift)) * ((1 << _BITS) - 1) < 1 << shift:
            return Reciprocal(factor, 0, shift)
    # Where the reciprocal that is rounded up is not exact enough for all x of u32, the one that is
    # rounded down is (Robison, theorem 1).
    shift = _BITS + by.bit_length() - 1
    factor = (1 << shift) // by
    return Reciprocal(factor, factor, shift)


def signed_reciprocal(by: int) -> Reciprocal:
    """The reciprocal of `by`, no power of two, for every x from 0 to 2**31; for a negative x the quotient is
    one too small.
    """
    shift = _BITS - 1
    while True:
        factor = (1 << shift) // by + 1
        if (factor * by - (1 << shift)) << (_BITS - 1) < 1 << shift:
            return Reciprocal(factor, 0, shift)
        shift += 1
