"""Q, K and V of fp8 in the campaign: their scales, and scores of elements with four significant bits, of
which e4m3 has no infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.operands.dtype_names import ScaleBlock
from flash.problem.features import SCALES
from flash.reference import scaled_numbers

Array = NDArray[Any]

_DIGIT: Final = 16  # all integers below it are exact, and so are their products with it
_DIGITS: Final = 3  # of the number of a key, which is below 512: 448 is the largest number
_STEEP: Final = 48.0  # difference of unscaled scores of neighbouring keys
# Courses of scores, each of eight rows: neighbouring courses are in one warp, and in its lanes.
_UP, _LEVEL, _DOWN = 1.0, 0.0, -1.0
_COURSES: Final = (_UP, _LEVEL, _LEVEL, _UP, _UP, _DOWN, _DOWN, _UP)
_TILE, _ROWS = 64, 8  # keys of a tile, and rows of a warp of which each lane has one
_HIGHEST: Final = 448.0  # the largest number of e4m3
_LEAST, _LARGEST = 0.5, 2.0  # of scales
_POWER: Final = 3  # scales of blocks are powers of two below 2 to this


def parting(q: Array, k: Array, _v: Array, rows: int) -> None:
    """Give each warp rows whose scores grow towards the first key so steeply that exp2 overflows
    within a tile, rows whose scores fall as steeply, and rows whose scores are all alike. Products of fp8 are
    truncated by more than such weights may err: all of these scores are exact.
    """
    ahead = np.arange(k.shape[2])[::-1]
    course = np.take(_COURSES, np.arange(q.shape[2]) // rows % len(_COURSES))
    q[...] = 0
    for n in range(_DIGITS):
        k[..., n] = ahead // _DIGIT**n % _DIGIT * _DIGIT**n
        q[..., n] = course * _STEEP


def peaks(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Give the first row of each lane one high score in a tile, that of its first key, and higher in each
    tile that is taken later: shifts move by the first comparison of a warp alone.
    """
    keys = np.arange(k.shape[2])
    k[..., 0] = (keys % _TILE == 0) * (_HIGHEST * (1 - keys / (len(keys) + _TILE)))
    q[...] = 0
    q[..., np.arange(q.shape[2]) % (2 * _ROWS) < _ROWS, 0] = 2


def scales(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Scales [batch, kv_heads] of Q, K or V, of which every other is negative."""
    drawn: Array = random.uniform(_LEAST, _LARGEST, shape)
    return np.where(np.add.outer(*map(np.arange, shape)) % 2, -drawn, drawn)


def powers(random: np.random.Generator, shape: tuple[int, ...], *, alike: bool) -> Array:
    """Scales of blocks of elements of Q, K or V, powers of two; with `alike` all are 1."""
    drawn = random.integers(_POWER, size=shape)
    return np.exp2(np.zeros(shape) if alike else drawn)


def without_scales(
    arrays: tuple[Array, ...], operands: Mapping[str, Array], scale_block: ScaleBlock | None
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """Q, K and V multiplied by their scales, in float64, and the operands without the scales."""
    numbers = [scaled_numbers(x, operands[name], scale_block) for name, x in zip(SCALES, arrays, strict=True)]
    return tuple(numbers), {name: array for name, array in operands.items() if name not in SCALES}
