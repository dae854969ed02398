"""Elements of e2m1, four bits, of which a byte has two: the first is its lower half."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the lower bits; the upper bit is the sign
_NUMBERS: Final = np.array([*_MAGNITUDES, *(-x for x in _MAGNITUDES)], np.float32)
_HALF: Final = 4  # bits


def unpacked(codes: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers of bytes, twice as many along the last axis."""
    both = np.stack([codes & 0xF, codes >> _HALF], axis=-1)
    return _NUMBERS[both.reshape(*codes.shape[:-1], 2 * codes.shape[-1])]
