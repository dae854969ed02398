"""Shared memory of a kernel: named regions of one dynamic array, and the tiles in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ptxgen import ir
from ptxgen.dsl.debugging import Debugging
from ptxgen.dsl.grid import Extents
from ptxgen.dsl.swizzle import ALIGNMENT, SwizzledTile, check_row
from ptxgen.dsl.tiles import DIMENSIONS, SharedTile
from ptxgen.dsl.values import Pointer, Value, is_count, require_type
from ptxgen.errors import ConfigError, shown
from ptxgen.target import Target
from ptxgen.types import ScalarType, f32, u32

DYNAMIC_SHARED: Final = "smem"  # name of a kernel's only dynamic shared array; tiles are regions of it
_SCRATCH: Final = "k.block"  # the region that reductions use; no tile can have this name

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class SharedMemory(Debugging):
    """The methods of a kernel builder that declare tiles in shared memory."""

    def __init__(self, name: str, target: Target, block_shape: Extents) -> None:
        super().__init__(name, target, block_shape)
        self._regions: list[ir.Region] = []
        self._shared_base: Value | None = None

    def shared(
        self,
        name: str,
        shape: Sequence[int],
        dtype: ScalarType = f32,
        *,
        pitch: int | None = None,
        align: int = 16,
    ) -> SharedTile:
        """A tile of `shape` (rows, columns) in shared memory, rows `pitch` elements apart.

        `align` is in bytes. Raises `ConfigError` for an invalid name, shape, pitch or alignment,
        and inside a `with` block, where the register of the tiles' base address might not be
        written.
        """
        check_name("shared tile", name)
        require_type(f"shared tile {name!r}", dtype)
        rows, columns = check_shape(f"shared tile {name!r}", shape)
        pitch = columns if pitch is None else pitch
        if not all(map(is_count, (rows, columns, pitch))) or pitch < columns:
            raise ConfigError(
                f"shared tile {name!r}: rows and columns must be positive and pitch >= columns, "
                f"got {shown(shape)}, pitch {shown(pitch)}"
            )
        if not is_count(align) or align & (align - 1):
            raise ConfigError(
                f"shared tile {name!r}: align must be a power of two (bytes), got {shown(align)}"
            )
        if dtype.nbytes == 0:
            raise ConfigError(f"shared tile {name!r}: {dtype} has no size in memory")
        self._require_outside(name)
        return self._tile(name, rows, columns, pitch, dtype, align)

    def swizzled(
        self, name: str, shape: Sequence[int], dtype: ScalarType = f32, *, stages: int = 1
    ) -> SwizzledTile:
        """A tile of `shape` (rows, columns) in shared memory, swizzled so that `ldmatrix` and accesses of 16
        bytes meet no bank conflicts; `stages` such tiles follow one another.

        Raises `ConfigError` as `shared` does, and for rows that are no multiple of 32 bytes, which
        no swizzle fits.
        """
        self._require_outside(name)
        return self._swizzled(name, shape, dtype, stages)

    def _swizzled(self, name: str, shape: Sequence[int], dtype: ScalarType, stages: int) -> SwizzledTile:
        """A swizzled tile; inside a `with` block it is for that block only."""
        caller = f"swizzled tile {name!r}"
        check_name("swizzled tile", name)
        require_type(caller, dtype)
        rows, columns = check_shape(caller, shape)
        if not all(map(is_count, (rows, columns, stages))):
            raise ConfigError(
                f"{caller}: rows, columns and stages must be positive integers, got {shown(shape)}, stages "
                f"{shown(stages)}"
            )
        check_row(name, columns, dtype)
        memory = self._tile(name, stages * rows, columns, columns, dtype, ALIGNMENT)
        return SwizzledTile(memory, rows, stages)

    def _require_outside(self, name: str) -> None:
        if self._open:
            raise ConfigError(
                f"shared tile {name!r} is declared inside '{self._open[-1]}'; "
                "declare it before the block begins"
            )

    def _tile(
        self, name: str, rows: int, columns: int, pitch: int, dtype: ScalarType, align: int
    ) -> SharedTile:
        """A tile in a new region; inside a `with` block it is for that block only."""
        if any(r.name == name for r in self._regions):
            raise ConfigError(f"shared tile {name!r} is declared twice in kernel {self.name!r}")
        offset = self._reserve(name, rows * pitch * dtype.nbytes, align)
        return SharedTile(self, name, self._base(), offset, rows, columns, pitch, dtype)

    def _reserve(self, name: str, nbytes: int, align: int) -> int:
        """Append a region to shared memory; the region's offset in bytes."""
        end = max((r.offset + r.nbytes for r in self._regions), default=0)
        offset = -(-end // align) * align
        self._regions.append(ir.Region(name, offset, nbytes, align))
        return offset

    def _base(self) -> Value:
        """The address of the first region, in a register that every later use outside of blocks may read."""
        if self._shared_base is not None:
            return self._shared_base
        base = self.emit("mov", (ir.Symbol(DYNAMIC_SHARED),), {"type": u32})
        if not self._open:
            self._shared_base = base
        return base

    def scratch(self, count: int, dtype: ScalarType, name: str = _SCRATCH) -> Pointer:
        """The pointer to the shared region `name` of a method of the DSL, by default that of `k.block`:
        `count` elements of 32 bits, reserved at the first call.
        """
        known = next((r.offset for r in self._regions if r.name == name), None)
        offset = self._reserve(name, count * dtype.nbytes, 16) if known is None else known
        return Pointer(self._base(), "shared", dtype, offset)


def check_shape(caller: str, shape: object) -> tuple[int, int]:
    """The rows and columns of a tile; raises `ConfigError` unless there are two."""
    if not isinstance(shape, tuple | list) or len(shape) != DIMENSIONS:
        raise ConfigError(f"{caller}: the shape must be (rows, columns), got {shown(shape)}")
    rows, columns = shape
    return rows, columns


def check_name(what: str, name: object) -> None:
    """Raise `ConfigError` unless `name`, of a `what`, is an identifier of PTX."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigError(
            f"{what} {shown(name)}: a name is made of ASCII letters, digits and _, "
            "and does not begin with a digit"
        )
