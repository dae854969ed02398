"""Comparison of a run's results with the right results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FLOATS: Final = ("float", "bfloat", "complex")  # how the names of these types begin


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a float may be from the right one: `absolute + relative * |right|`. Other types must be equal;
    so must floats without a tolerance, bit by bit.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def difference(self, what: str, got: Array, wanted: Array) -> str:
        """A description of the first element of an array that is wrong; empty if none is."""
        if not got.dtype.name.startswith(_FLOATS) or not (self.relative or self.absolute):
            return bits_difference(what, got, wanted.astype(got.dtype))
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        got, wanted = got.astype(wide), wanted.astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = self.absolute + self.relative * np.abs(wanted)
        return difference(what, got, wanted, allowed)


def difference(what: str, got: Array, wanted: Array, allowed: Array) -> str:
    """A description of the first element with more than the allowed error; empty if there is none.
    NaN equals only NaN.
    """
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= allowed
    bad = ~(near | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
    if not bad.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{what}{list(at)} is {got[at]:.6g}, wanted {wanted[at]:.6g}; {bad.sum()} elements differ"


def bits_difference(what: str, got: Array, wanted: Array) -> str:
    """A description of the first element whose bits differ; empty if none do."""
    bits = f"V{got.itemsize}"
    bad = _contiguous(got).view(bits) != _contiguous(wanted).view(bits)
    bad = bad.reshape(got.shape)
    if not bad.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    count = f"{bad.sum()} element{'s differ' if bad.sum() > 1 else ' differs'}"
    return f"{what}{list(at)} is {got[at]}, wanted {wanted[at]}; {count}"


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)
