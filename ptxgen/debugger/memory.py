"""Memory as the debugger shows it: cells of shared, local, tensor and global memory, and dumps of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from ptxgen.errors import LaunchError
from ptxgen.interpreter.machine.address_map import LOCAL_START, SHARED_WINDOW, WINDOW_BYTES

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine

    Lanes = np.ndarray[Any, np.dtype[Any]]

# By the letters of x/FMT: how an element is read; the second letter is its size as gdb's.
_FLOATS: Final = {"b": ml_dtypes.float8_e4m3fn, "h": np.float16, "w": np.float32, "g": np.float64}
_SIZES: Final = {"b": 1, "h": 2, "w": 4, "g": 8}
FORMATS: Final = "f float, d signed, u unsigned, x hexadecimal, t bfloat16; b, h, w, g for 1, 2, 4, 8 bytes"


@dataclass(frozen=True)
class Format:
    """How many elements a dump has, of which type, and whether they are printed as hexadecimal digits."""

    count: int
    dtype: np.dtype[Any]
    hexadecimal: bool

    @classmethod
    def of(cls, text: str, default: np.dtype[Any] | None) -> Format:
        """The format of `8f`, `4xg` or "". Raises `LaunchError`."""
        match = re.fullmatch(r"(\d*)([fduxt]?)([bhwg]?)", text)
        if match is None:
            raise LaunchError(f"a format is a count and letters, such as 8f or 4xg ({FORMATS}), got {text!r}")
        letter, size = match[2], match[3]
        if letter == "t":
            dtype = np.dtype(ml_dtypes.bfloat16)
        elif letter == "f":
            dtype = np.dtype(_FLOATS[size or "w"])
        elif letter or size or default is None:
            dtype = np.dtype(f"{'i' if letter == 'd' else 'u'}{_SIZES[size or 'w']}")
        else:
            dtype = default
        return cls(int(match[1] or 1), dtype, letter == "x")

    def shown(self, values: Lanes) -> list[str]:
        """Elements in words."""
        if self.hexadecimal:
            return [f"{int(v):#0{2 * self.dtype.itemsize + 2}x}" for v in values]
        return [str(v) for v in values]


@dataclass(frozen=True)
class Cell:
    """An element of memory: `space` is shared, local, tensor or global; `offset` counts bytes of it, of the
    CTA with number `cta` in the grid and its thread with number `thread`, where each has its own. In tensor
    memory, `offset` counts the bytes of all lanes, one after the other. `label` is what it is called.
    """

    space: str
    offset: int
    label: str
    dtype: np.dtype[Any]
    cta: int = 0
    thread: int = 0

    def __str__(self) -> str:
        return self.label

    def typed(self, dtype: np.dtype[Any]) -> Cell:
        """The cell at the same address whose bytes are read as elements of `dtype`."""
        return replace(self, dtype=dtype)


def generic(address: int, label: str, cta: int, thread: int) -> Cell:
    """The cell at a generic address. Raises `LaunchError` for one in no space that is shown."""
    space = "global"
    if SHARED_WINDOW <= address < SHARED_WINDOW + 2 * WINDOW_BYTES:
        number, address = divmod(address - SHARED_WINDOW, WINDOW_BYTES)
        space = ("shared", "local")[number]
        address -= LOCAL_START * (space == "local")
    return Cell(space, address, label, np.dtype(np.uint32), cta, thread)


def bytes_at(machine: LaneMachine, cell: Cell, nbytes: int) -> Lanes | None:
    """`nbytes` bytes from a cell on, uint8; None where its CTA is not running, or there is no such memory."""
    first, held = cell.offset, None
    batch, cta = machine.batch, cell.cta - machine.batch.first
    if cell.space == "global":
        buffer = machine.arena.find(first, first + nbytes)
        if buffer is not None:
            first, held = first - buffer.base, buffer.window.data
    elif 0 <= cta < batch.ctas:
        held = _of_cta(machine, cell, cta)
    if held is None or first < 0 or first + nbytes > len(held):
        return None
    return held[first : first + nbytes].copy()


def _of_cta(machine: LaneMachine, cell: Cell, cta: int) -> Lanes | None:
    """The bytes of a space of a CTA of the batch, or of a cell's thread in it."""
    batch = machine.batch
    if cell.space == "shared":
        return machine.shared.window.data[cta * batch.shared_stride :][: batch.shared_bytes]
    if cell.space == "local":
        local = machine.spaces["local"]
        rows: Lanes = local.window.data.reshape(batch.lanes, -1)
        return rows[cta * batch.width + cell.thread, : local.nbytes]
    return None if machine.tensor is None else machine.tensor.cells[cta].reshape(-1).view(np.uint8)
