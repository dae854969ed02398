"""tanh of an f32 value, without the instruction tanh: a polynomial, and exp2 beyond it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ptxgen.dsl.source_regions import marked

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value

# tanh(y) = y + y³ P(y²) where |y| is at most this, fitted by least squares of the relative error;
# beyond, 1 - 2 / (exp(2y) + 1), whose subtraction loses at most a bit. Both are within 3 units in
# the last place.
_SMALL: Final = 0.6
_P: Final = (
    -0.33333298563957214,
    0.13331915438175201,
    -0.053783293813467026,
    0.020794617012143135,
    -0.005893945228308439,
)
_LOG2E: Final = math.log2(math.e)


@marked("softcap: tanh")
def tanh(k: KernelBuilder, y: Value, *, rounds_once: bool) -> Value:
    """The hyperbolic tangent of y, within 3 units in the last place. `rounds_once`: its division is
    rounded once, as elsewhere in f32 kernels.
    """
    square = y * y
    series: Value | float = _P[-1]
    for coefficient in reversed(_P[:-1]):
        series = k.fma(square, series, coefficient)
    near = k.fma(y * square, series, y)
    power = k.ex2(y * (2 * _LOG2E), ftz=True) + 1.0
    inverse = k.rcp_rn(power) if rounds_once else k.rcp(power, ftz=True)
    return k.selp(near, k.fma(inverse, -2.0, 1.0), k.abs(y) < _SMALL)
