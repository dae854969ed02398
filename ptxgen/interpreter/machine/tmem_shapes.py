"""The cells of tensor memory that the shapes of `tcgen05.ld` and `tcgen05.st` reach, as the machine needs
them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.isa.tensor_memory import COLUMNS, cells

if TYPE_CHECKING:
    from ptxgen.isa.tensor_agent import RegisterShape

    Lanes = np.ndarray[Any, np.dtype[Any]]


@lru_cache(maxsize=256)
def offsets(of: RegisterShape) -> Lanes:
    """The distance in cells from the address to the cell of each register of a thread, `[registers, 32]`."""
    lane, column = cells(of.shape, of.num, of.split, packed=of.halves)
    flat: Lanes = lane * COLUMNS + column
    return np.stack([flat, flat + 1], axis=1).reshape(-1, flat.shape[1]) if of.halves else flat


@lru_cache(maxsize=256)
def extents(of: RegisterShape) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The number of lanes that a shape reaches, and its columns: the first and the number of each run of
    neighbours.
    """
    lane, column = cells(of.shape, of.num, of.split, packed=of.halves)
    used = np.unique([column, column + of.halves])
    runs = np.split(used, np.flatnonzero(np.diff(used) > 1) + 1)
    return int(lane.max()) + 1, tuple((int(run[0]), len(run)) for run in runs)
