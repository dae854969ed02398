"""What a texture fetch gives, one number at a time with exact fractions, written from the CUDA C++
Programming Guide, appendix "Texture Fetching".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def index_of(i: int, size: int, mode: str) -> int | None:
    """The texel that index i means; None for zeros."""
    if 0 <= i < size:
        return i
    if mode == "border":
        return None
    if mode == "clamp":
        return 0 if i < 0 else size - 1
    period, inside = i // size, i - i // size * size
    return size - 1 - inside if mode == "mirror" and period % 2 else inside


def weight(alpha: Fraction) -> Fraction:
    """In 9-bit fixed point with 8 bits of fractional value."""
    return Fraction(math.floor(alpha * 256 + Fraction(1, 2)), 256)


def texel(array: Any, where: Sequence[int | None]) -> Any:
    """array[..., y, x] of the places x, y, …; 0 outside."""
    if None in where:
        return Fraction(0)
    for i in reversed(where):
        array = array[i]
    return Fraction(float(array))


def fetched(
    array: Any, at: Sequence[Fraction], sizes: Sequence[int], modes: Sequence[str], linear: bool = False
) -> Fraction:
    """One channel of a layer, at coordinates in texels, x first."""
    if not linear:
        return texel(array, [index_of(math.floor(c), n, m) for c, n, m in zip(at, sizes, modes, strict=True)])
    low = [math.floor(c - Fraction(1, 2)) for c in at]
    alpha = [weight(c - Fraction(1, 2) - i) for c, i in zip(at, low, strict=True)]
    total = Fraction(0)
    for corner in itertools.product((0, 1), repeat=len(at)):
        share = math.prod(a if step else 1 - a for a, step in zip(alpha, corner, strict=True))
        where = [index_of(i + s, n, m) for i, s, n, m in zip(low, corner, sizes, modes, strict=True)]
        total += share * texel(array, where)
    return total


def cube_place(x: Fraction, y: Fraction, z: Fraction) -> tuple[int, Fraction, Fraction]:
    """The face, and the place there from 0 to 1 ("Cubemap Textures")."""
    if abs(x) > abs(y) and abs(x) > abs(z):
        face, m, s, t = (0, x, -z, -y) if x >= 0 else (1, -x, z, -y)
    elif abs(y) > abs(z):
        face, m, s, t = (2, y, x, z) if y >= 0 else (3, -y, x, -z)
    else:
        face, m, s, t = (4, z, x, -y) if z >= 0 else (5, -z, -x, -y)
    return face, (s / m + 1) / 2, (t / m + 1) / 2
