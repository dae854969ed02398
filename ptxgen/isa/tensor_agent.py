"""What an asynchronous agent does with tensor memory: the operations that `tcgen05` starts, as the machine
takes them, and the cells that registers are loaded from and stored to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptxgen.isa.tensor_memory import COLUMNS, cells

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]


class Memories(NamedTuple):
    """The memories of a CTA that an agent works on: the cells of tensor memory, uint32 `[128, 512]`, and the
    bytes of shared memory.
    """

    tensor: Lanes
    shared: Lanes


class Columns(NamedTuple):
    """Columns of tensor memory that an operation uses; `what` names the operand in messages."""

    first: int
    count: int
    what: str


class Box(NamedTuple):
    """Bytes of shared memory that an operation reads, from the lowest to behind the highest; `what` names the
    operand in messages.
    """

    first: int
    end: int
    what: str


class Operation(NamedTuple):
    """One operation of a thread: `run` does it on the memories of the thread's CTA, or of both CTAs of its
    pair, the even one first; `columns` and `boxes` are what it uses in each of them.
    """

    run: Callable[[tuple[Memories, ...]], None]
    columns: tuple[Columns, ...]
    boxes: tuple[Box, ...] = ()


class RegisterShape(NamedTuple):
    """A shape of `tcgen05.ld` and `tcgen05.st`. With `halves` each register has the lower halves of two
    neighbouring columns, and counts as two.
    """

    shape: str
    num: int
    split: int = 0
    halves: bool = False


@lru_cache(maxsize=256)
def offsets(of: RegisterShape) -> Lanes:
    """The distance in cells from the address to the cell of each register of each thread, `[registers, 32]`."""
    lane, column = cells(of.shape, of.num, of.split, packed=of.halves)
    flat: Lanes = lane * COLUMNS + column
    return np.stack([flat, flat + 1], axis=1).reshape(-1, flat.shape[1]) if of.halves else flat


@lru_cache(maxsize=256)
def extents(of: RegisterShape) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The number of lanes that a shape reaches, and its columns: the first and the number of each run of
    neighbours.
    """
    lane, column = np.divmod(offsets(of), COLUMNS)
    used = np.unique(column)
    runs = np.split(used, np.flatnonzero(np.diff(used) > 1) + 1)
    return int(lane.max()) + 1, tuple((int(run[0]), len(run)) for run in runs)
