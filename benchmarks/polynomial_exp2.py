"""Measures the largest relative error of `flash/device/polynomial_exp2.py` over all f32 that it takes.

    python benchmarks/polynomial_exp2.py

x = n + r gives 2^n times what r gives, exactly, from -126 on, and each r is an f32 of [-1/2, 1/2]; below
2^-25 the result is 1. So only the f32 of [-1/2, 1/2] from 2^-25 on are measured, 4 * 10^8, in a minute.
Multiply-adds are computed in f64 and rounded to f32.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from flash.device.polynomial_exp2 import COEFFICIENTS

_FIRST, _LAST = -25, -1  # binades of r
_STEPS = 2**23  # numbers of a binade


def power_of(rest: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """2^rest by the polynomial, for f32 numbers, rounded as on a GPU."""
    series: Any = np.float32(COEFFICIENTS[-1])
    for coefficient in [*reversed(COEFFICIENTS[:-1]), 1.0]:
        series = (rest.astype(np.float64) * series + np.float64(np.float32(coefficient))).astype(np.float32)
    return np.asarray(series)


def main(argv: Sequence[str]) -> int:
    """Print the largest error of each sign, and where it is."""
    if argv:
        sys.stderr.write("usage: python benchmarks/polynomial_exp2.py\n")
        return 2
    largest = 0.0
    for sign in (-1, 1):
        worst, at = 0.0, 0.0
        for binade in range(_FIRST, _LAST):
            steps = np.arange(_STEPS + 1, dtype=np.float64)
            rest = (sign * (1 + steps / _STEPS) * 2.0**binade).astype(np.float32)
            error = np.abs(power_of(rest) / np.exp2(rest.astype(np.float64)) - 1)
            n = int(error.argmax())
            if error[n] > worst:
                worst, at = float(error[n]), float(rest[n])
        largest = max(largest, worst)
        sys.stdout.write(f"r {'below' if sign < 0 else 'above'} 0: {worst:.3e} at {at.hex()}\n")
    sys.stdout.write(f"largest relative error: {largest:.3e} = 2^{math.log2(largest):.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
