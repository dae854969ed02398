"""Functions of an f32 value that the GPU has no accurate instruction for: sin, cos, erf and the
logistic function. `flash/mods/hyperbolic.py` has tanh.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen import dsl
from ptxgen.types import f32, s32

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value

_LOG2E: Final = math.log2(math.e)

# pi / 2 in three parts of f32. Times an integer below 2**18 the first two are subtracted exactly, or
# rounded once (W. Cody and W. Waite, Software Manual for the Elementary Functions, 1980).
_HALF_PI: Final = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
LARGEST_ANGLE: Final = 2.0**18  # radians, up to which sin and cos are accurate
# sin(r) = r + r³ S(r²) and cos(r) = 1 - r² / 2 + r⁴ C(r²) where |r| is at most 0.82, fitted by least
# squares; the relative errors are below 2**-27.
_S: Final = (-0.16666650772094727, 0.008331939578056335, -0.00019485977827571332)
_C: Final = (0.04166663810610771, -0.0013887014938518405, 2.439963645883836e-05)
# erf(x) = x + x E(x²) where |x| is at most this; beyond, 1 - 2 ** (t F(t)) for t = |x|, at most 4,
# where erf is 1 in f32. Fitted in the same way, to 2**-26 and 2**-28.
_SMALL: Final = 0.9
_LARGEST: Final = 4.0
_E: Final = (
    0.12837915122509003,
    -0.3761252462863922,
    0.11282141506671906,
    -0.02677893079817295,
    0.005011990200728178,
    -0.0006090482347644866,
)
_F: Final = (
    -1.6281101703643799,
    -0.9171202778816223,
    -0.1518968641757965,
    0.03304644674062729,
    -0.004645451903343201,
    0.0003095964202657342,
)


def _series(k: KernelBuilder, x: Value, coefficients: tuple[float, ...]) -> Value:
    """The polynomial with these coefficients, the constant one first."""
    total: Value | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = k.fma(x, total, coefficient)
    assert isinstance(total, dsl.Value)  # there are at least two coefficients
    return total


def sine(k: KernelBuilder, x: Value, *, quarters: int = 0) -> Value:
    """sin(x + quarters * pi / 2), within 2**-23 where |x| is at most `LARGEST_ANGLE`; beyond, some number
    from -1 to 1, or NaN.
    """
    count = k.cvt(x * (2 / math.pi), rnd="rni", dtype=f32)
    rest = x
    for part in _HALF_PI:
        rest = k.fma(count, -part, rest)
    quarter = k.cvt(count, rnd="rni", dtype=s32) + quarters
    square = rest * rest
    sin = k.fma(rest * square, _series(k, square, _S), rest)
    cos = k.fma(square * square, _series(k, square, _C), k.fma(square, -0.5, 1.0))
    value = k.selp(cos, sin, (quarter & 1) != 0)
    inside = k.max(k.min(value, 1.0), -1.0)
    signed = k.selp(-inside, inside, (quarter & 2) != 0)
    return k.selp(signed, x - x, k.abs(x) < math.inf)  # NaN of NaN and infinity


def error_function(k: KernelBuilder, x: Value) -> Value:
    """erf(x), within 4 units in the last place."""
    square, size = x * x, k.abs(x)
    near = k.fma(x, _series(k, square, _E), x)
    t = k.min(size, _LARGEST)
    power = k.ex2(t * _series(k, t, _F))
    far = k.copysign(x, 1.0 - power)
    return k.selp(far, near, size > _SMALL)


def logistic(k: KernelBuilder, x: Value, *, rounds_once: bool) -> Value:
    """1 / (1 + exp(-x)). `rounds_once`: its division is rounded once."""
    power = k.ex2(x * -_LOG2E) + 1.0
    return k.rcp_rn(power) if rounds_once else k.rcp(power, ftz=True)


_ERF: Final = np.frompyfunc(math.erf, 1, 1)


def erf_of_array(x: NDArray[Any]) -> NDArray[Any]:
    """erf of each number, of the type of `x`."""
    return np.asarray(_ERF(x), dtype=np.asarray(x).dtype)


def logistic_of_array(x: NDArray[Any]) -> NDArray[Any]:
    """1 / (1 + exp(-x)) of each number."""
    values: NDArray[Any] = 1 / (1 + np.exp(-x))
    return values
