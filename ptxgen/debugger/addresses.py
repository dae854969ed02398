"""The addresses that a user may write: `shared+16`, `tile[3]`, `tensor[0, 5]`, `X[37]`, `%rd3`."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ptxgen.debugger.expressions import Expression
from ptxgen.debugger.memory import Cell, generic
from ptxgen.debugger.session import Session
from ptxgen.errors import LaunchError, did_you_mean
from ptxgen.isa.tensor_memory import COLUMNS, LANES

ADDRESSES: Final = (
    "shared+16, local+8, NAME+16 of a variable in shared memory, tensor[LANE, COLUMN], X[37] of an argument, "
    "or an address"
)

_WORD: Final = np.dtype(np.uint32)
_NAMED: Final = re.compile(r"([A-Za-z_$][\w$]*)\s*(?:\[(.*)\]|\+(.*))?")


def cell_of(session: Session, text: str) -> Cell:
    """The cell that words mean. Raises `LaunchError`."""
    match = _NAMED.fullmatch(text.strip())
    if match is None:
        return generic(_integers(session, text)[0], text.strip(), session.cta, session.thread)
    name, index = match[1], _integers(session, match[2] or match[3] or "0")
    if name == "tensor":
        lane, column = index if len(index) == 2 else (-1, -1)
        if not (0 <= lane < LANES and 0 <= column < COLUMNS):
            raise LaunchError(
                f"tensor memory has {LANES} lanes of {COLUMNS} columns: tensor[LANE, COLUMN], got {text}"
            )
        return Cell(name, 4 * (lane * COLUMNS + column), text.strip(), _WORD, session.cta)
    if name in ("shared", "local"):
        return Cell(name, index[0], text.strip(), _WORD, session.cta, session.thread)
    regions = _regions(session)
    if name in regions:
        return Cell("shared", regions[name] + index[0], text.strip(), _WORD, session.cta)
    return _of_argument(session, name, index, text.strip())


def _regions(session: Session) -> dict[str, int]:
    """The first bytes of the variables in shared memory, by name; of C++ by the name without the scope."""
    regions = () if session.scheduler is None else session.scheduler.program.linked.regions
    return {session.readable(name).rpartition("::")[2]: first for name, first, _ in regions}


def _of_argument(session: Session, name: str, index: tuple[int, ...], text: str) -> Cell:
    array = session.value(name) if name in session.names else None
    if not isinstance(array, np.ndarray):
        known = [*_regions(session), *session.names]
        raise LaunchError(f"{name} is in no memory{did_you_mean(name, known)}; an address is {ADDRESSES}")
    sizes = array.shape[: len(index)]
    if len(index) > array.ndim or not all(0 <= n < size for n, size in zip(index, sizes, strict=True)):
        raise LaunchError(f"{text}: {name} has the shape {array.shape}")
    offset = sum(n * stride for n, stride in zip(index, array.strides, strict=False))
    return Cell("global", session.arena.address_of(array) + offset, text, array.dtype)


def _integers(session: Session, text: str) -> tuple[int, ...]:
    value = Expression(f"({text},)").value(session.value)
    if not all(isinstance(n, int) for n in value):
        raise LaunchError(f"{text} must be integers; an address is {ADDRESSES}")
    return tuple(value)
