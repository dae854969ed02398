"""Conversions to and from 4-, 6- and 8-bit floats against float64: every f16 number, and every code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import isa
from ptxgen.isa.spec import Op

# Exponent bits, mantissa bits, bias, codes of the largest number and of NaN.
FORMATS = {
    "e2m1x2": (2, 1, 1, 0x7, 0x7),
    "e2m3x2": (2, 3, 1, 0x1F, 0x1F),
    "e3m2x2": (3, 2, 3, 0x1F, 0x1F),
    "e4m3x2": (4, 3, 7, 0x7E, 0x7F),
    "e5m2x2": (5, 2, 15, 0x7B, 0x7F),
}
ALL_F16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def op(opcode: str) -> Op:
    (found,) = isa.recognise(opcode)
    return found


def numbers(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers of the codes without a sign, in float64, up to the largest."""
    _, mantissa, bias, largest, _ = FORMATS[name]
    codes = np.arange(largest + 1)
    exponent, fraction = codes >> mantissa, codes & (1 << mantissa) - 1
    whole = np.where(exponent > 0, fraction + (1 << mantissa), fraction)
    scale = np.float64(2) ** (np.maximum(exponent, 1) - bias - mantissa)
    return np.asarray(whole * scale)


def nearest(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The codes of the nearest numbers, of two as near the even code."""
    exponents, mantissa, _, _, nan = FORMATS[name]
    known = numbers(name)
    size = np.minimum(np.abs(np.nan_to_num(x.astype(np.float64), posinf=1e9, neginf=1e9)), known[-1])
    above = np.searchsorted(known, size)
    below = np.maximum(above - 1, 0)
    up, down = known[above] - size, size - known[below]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    code = np.where(size == known[above], above, code)
    return np.where(np.isnan(x), nan, code | np.signbit(x).astype(np.int64) << exponents + mantissa)


def parts(name: str, pair: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    bits = 4 if name == "e2m1x2" else 8
    return pair & (1 << bits) - 1, pair >> bits


@pytest.mark.parametrize("name", FORMATS)
def test_every_f16_number_becomes_the_nearest_code(name: str) -> None:
    x = ALL_F16.astype(np.float32)
    got = op(f"cvt.rn.satfinite.{name}.f32").row.semantics(
        a=x, b=x[::-1], relu=False, **({} if name == "e2m1x2" else {"dtype": name})
    )
    low, high = parts(name, got)
    wanted = nearest(name, ALL_F16)
    np.testing.assert_array_equal(high, wanted)
    np.testing.assert_array_equal(low, wanted[::-1])


@pytest.mark.parametrize("name", ["e2m1x2", "e2m3x2", "e3m2x2"])
def test_every_code_becomes_its_number_and_the_same_code_again(name: str) -> None:
    exponents, mantissa, *_ = FORMATS[name]
    sign = 1 << exponents + mantissa
    codes = np.arange(2 * sign, dtype=np.uint8 if name == "e2m1x2" else np.uint16)
    names = {} if name == "e2m1x2" else {"atype": name}
    pair = op(f"cvt.rn.f16x2.{name}").row.semantics(a=codes, relu=False, **names)
    low = (pair & 0xFFFF).astype(np.uint16).view(np.float16)
    known = numbers(name)
    of_low = codes if name != "e2m1x2" else codes & 15
    wanted = np.where(of_low & sign, -1.0, 1.0) * known[of_low & sign - 1]
    np.testing.assert_array_equal(low.astype(np.float64), wanted)
    np.testing.assert_array_equal(np.signbit(low), (of_low & sign) != 0)
    np.testing.assert_array_equal(nearest(name, low), of_low)


@pytest.mark.parametrize("rnd", ["rz", "rp"])
def test_powers_of_two_are_rounded_as_float64_says(rnd: str) -> None:
    fractions = np.array([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF], np.uint32)
    x = (np.arange(255, dtype=np.uint32)[:, None] << 23 | fractions).reshape(-1).view(np.float32)
    x = x[x > 0]
    got = op(f"cvt.{rnd}.satfinite.ue8m0x2.f32").row.semantics(a=x, b=x, rnd=rnd, satfinite=True)
    fraction, exponent = np.frexp(x.astype(np.float64))
    floor = exponent - 1
    up = (fraction != 0.5) if rnd == "rp" else np.zeros(x.shape, bool)
    wanted = np.clip(floor + up, -127, 127) + 127
    np.testing.assert_array_equal(got >> 8, wanted)
    np.testing.assert_array_equal(got & 255, wanted)
