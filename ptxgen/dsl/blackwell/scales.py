"""Scale factors of blocks of operands in tensor memory."""

from __future__ import annotations

from typing import Any, Final

from ptxgen.dsl.blackwell.cells import CELL, Memory, columns_after
from ptxgen.dsl.blackwell.operands import FORMATS, Descriptor, Format
from ptxgen.dsl.hopper.layouts import Layout
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.values import Pointer
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.types import u32

SCALE_ROWS: Final = 128  # rows whose scale factors one copy brings
SCALE_COLUMNS: Final = 4  # columns of tensor memory that it fills
_SCALE_WORDS: Final = 128  # elements of 32 bits that it reads


class Scales:
    """Scale factors of the blocks of an operand in tensor memory: those of `rows` rows of A, or columns of B,
    `factors` for each. `k.tensor_memory(...).scales` makes it.
    """

    def __init__(self, memory: Memory, rows: int, factors: int, form: str) -> None:
        self._memory = memory
        self.rows = rows
        self.factors = factors
        self.form = form
        self.at: Pointer | None = None  # until columns are allotted

    def __repr__(self) -> str:
        return f"Scales({self.form!r}, {self.rows} rows, {self.factors} factors)"

    @property
    def _blocks(self) -> int:
        """The number of blocks of 128 rows of which the operand has scale factors."""
        return -(-self.rows // SCALE_ROWS)

    @property
    def columns(self) -> int:
        """The number of columns of tensor memory that the scale factors take."""
        return self._blocks * SCALE_COLUMNS * self.factors // CELL

    def of_cell(self, number: int) -> Pointer:
        """The address of the cells with factors 4 `number` to 4 `number` + 3 of each row."""
        assert self.at is not None  # columns are allotted
        return columns_after(self.at, number * self._blocks * SCALE_COLUMNS)

    def copy(self, tile: object) -> None:
        """Start copying the factors from a tile of u32 without a swizzle in shared memory, in order with the
        products that this thread starts. One thread comes here, as for `mma`.

        The tile has a row of 128 words for each 128 rows of the operand and 4 factors. Its words 4 r to
        4 r + 3 have the factors of rows r, r + 32, r + 64 and r + 96, the first factor lowest. Its rows are
        ordered by the rows of the operand, then by factors, as cuBLAS and CUTLASS have them. In a pair each
        CTA copies the factors of its rows of A, and those of all columns of B. Raises `ConfigError` for other
        tiles, and `TypeMismatchError` where several threads come (PTX ISA, "tcgen05.cp", ".32x128b").
        """
        k, cells = self._memory.k, self.factors // CELL
        self._memory.require_issuing("scales.copy")
        shape = self._blocks * cells, _SCALE_WORDS
        if not isinstance(tile, BoxTile) or not _fits(tile.layout, shape):
            raise ConfigError(
                f"scales.copy: expected a tile of {shape[0]} x {shape[1]} u32 without a swizzle for "
                f"{self!r}, such as ({shape}, u32, 'none') of a ring, got {shown(tile)}"
            )
        with k.placed():
            start = Descriptor.of_scales(tile)
            for block in range(self._blocks):
                for cell in range(cells):
                    source = start.moved((block * cells + cell) * tile.layout.row_bytes)
                    to = columns_after(self.of_cell(cell), block * SCALE_COLUMNS)
                    k.tcgen05_cp(to, source, group=self._memory.group, shape="32x128b", warps="warpx4")


def _fits(layout: Layout, shape: tuple[int, int]) -> bool:
    """Whether a tile has a layout that `tcgen05.cp` reads as rows of 16 bytes."""
    of = layout.rows, layout.columns, layout.dtype, layout.swizzle
    return of == (*shape, u32, "none")


def format_of(caller: str, scales: tuple[Scales, Scales] | None) -> Format | None:
    """The one format of the scale factors of A and of B. Raises `TypeMismatchError` for another argument, and
    `ConfigError` for two formats.
    """
    if scales is None:
        return None
    pair: Any = scales
    if not isinstance(pair, tuple) or [type(one) for one in pair] != [Scales, Scales]:
        raise TypeMismatchError(
            f"{caller}: scales must be a pair of the scale factors of a and of b, got {shown(scales)}"
        )
    a, b = scales
    if a.form != b.form:
        raise ConfigError(f"{caller}: scales must have one format, got {a.form} and {b.form}")
    return FORMATS[a.form]
