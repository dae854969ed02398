"""What an asynchronous agent does with tensor memory: the operations that `tcgen05` starts, as the machine
takes them, and the cells that registers are loaded from and stored to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Lanes = np.ndarray[Any, np.dtype[Any]]


class Memories(NamedTuple):
    """The memories of a CTA that an agent works on: the cells of tensor memory, uint32 `[128, 512]`, and the
    bytes of shared memory.
    """

    tensor: Lanes
    shared: Lanes


class Columns(NamedTuple):
    """Columns of tensor memory that an operation `reads`, `writes` or both; `what` names the operand in
    messages. `groups` are those groups of 16 lanes, from 0, of which it uses any lane.
    """

    first: int
    number: int
    what: str
    groups: tuple[int, ...]
    reads: bool = True
    writes: bool = False


class Box(NamedTuple):
    """Bytes of shared memory that an operation reads, from the lowest to behind the highest; `what` names the
    operand in messages. `chunks` are the numbers of all the units of 16 bytes that have any of them.
    """

    first: int
    end: int
    what: str
    chunks: Lanes


class Operation(NamedTuple):
    """One operation of a thread: `run` does it on the memories of the thread's CTA, or of both CTAs of its
    pair, the even one first; `columns` and `boxes` are what it uses in each of them, `macs` are its
    multiply-adds. `spread` takes memories of undefined bits, and carries those of the operands to the result.
    """

    run: Callable[[tuple[Memories, ...]], None]
    spread: Callable[[tuple[Memories, ...]], None]
    columns: tuple[Columns, ...]
    boxes: tuple[Box, ...]
    macs: int = 0


class RegisterShape(NamedTuple):
    """A shape of `tcgen05.ld` and `tcgen05.st`. With `halves` each register has the lower halves of two
    neighbouring columns, and counts as two.
    """

    shape: str
    num: int
    split: int = 0
    halves: bool = False
