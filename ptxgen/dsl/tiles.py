"""Tiles: matrix blocks in shared memory, and the parts of matrices in a thread's registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Final

from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Pointer, Scalar, Value, Var, is_int, require_steps, require_type
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.types import ScalarType, u32

DIMENSIONS: Final = 2  # rows and columns of a tile
_MOST_VARIABLES: Final = 1 << 16  # variables of a fragment; a thread has 255 registers


class SharedTile:
    """A named block of shared memory, `rows` x `columns` elements, rows `pitch` elements apart."""

    def __init__(
        self,
        k: Control,
        name: str,
        base: Value,
        offset: int,
        rows: int,
        columns: int,
        pitch: int,
        dtype: ScalarType,
    ) -> None:
        self.k = k
        self.name = name
        self.rows = rows
        self.columns = columns
        self.pitch = pitch
        self.dtype = dtype
        self._base = base
        self._offset = offset

    @property
    def row_bytes(self) -> int:
        """The bytes from the start of one row of the tile to the start of the next: the pitch."""
        return self.pitch * self.dtype.nbytes

    def pointer(self, row: Scalar = 0, column: Scalar = 0) -> TilePointer:
        """A pointer to the element at `row` and `column`, which may differ between threads.

        Both are Python ints or 32-bit integer values; raises `TypeMismatchError` otherwise.
        """
        base, offset = self._base, self._offset
        self._check_index("row", row)
        self._check_index("column", column)
        for index, stride in ((row, self.row_bytes), (column, self.dtype.nbytes)):
            if isinstance(index, Value):
                base = self.k.emit("mad", (index.as_(u32), stride, base), {"mode": "lo"})
            else:
                offset += int(index) * stride
        return TilePointer(self, base, offset)

    def __getitem__(self, index: tuple[Scalar, Scalar]) -> Value:
        """Load the element at [row, column], in the type of the elements."""
        return self.k.load(self.pointer(*require_row_and_column("shared tile", self.name, index)))

    def __setitem__(self, index: tuple[Scalar, Scalar], value: Scalar) -> None:
        """Store `value`, which has the type of the elements, at [row, column]."""
        if isinstance(value, Sequence):
            raise TypeMismatchError(
                f"shared tile {self.name!r}: [row, column] = v stores one element, got {shown(value)}; "
                "store 2 or 4 with k.store(tile.pointer(row, column), values)"
            )
        self.k.store(self.pointer(*require_row_and_column("shared tile", self.name, index)), value)

    def _check_index(self, what: str, index: Scalar) -> None:
        known = is_int(index)
        if isinstance(index, Value) and index.type.bits == u32.bits:
            known = index.type.is_integer
        if not known:
            raise TypeMismatchError(
                f"shared tile {self.name!r}: {what} must be an integer of 32 bits, got {shown(index)}"
            )


def require_row_and_column(what: str, name: str, index: object) -> tuple[Scalar, Scalar]:
    """The row and the column of `tile[row, column]`, of a `what`; raises `TypeMismatchError` for
    another index.
    """
    if not isinstance(index, tuple) or len(index) != DIMENSIONS:
        raise TypeMismatchError(f"{what} {name!r}: an element is [row, column], got [{shown(index)}]")
    return index


class TilePointer(Pointer):
    """A pointer into a tile; static steps by rows and columns emit no instruction."""

    __slots__ = ("tile",)

    def __init__(self, tile: SharedTile, base: Value, offset: int) -> None:
        super().__init__(base, "shared", tile.dtype, offset)
        self.tile = tile

    def step(self, rows: int = 0, columns: int = 0) -> TilePointer:
        """The pointer `rows` rows and `columns` columns on, both Python ints; emits no instruction."""
        require_steps(rows, columns)
        nbytes = rows * self.tile.row_bytes + columns * self.dtype.nbytes
        return TilePointer(self.tile, self.value, self.offset + nbytes)

    def moved(self, value: Value) -> TilePointer:
        """The pointer with the same offset and `value` as its register, such as an xor of the old one."""
        return TilePointer(self.tile, value, self.offset)

    def plus_bytes(self, nbytes: int) -> TilePointer:
        """The pointer `nbytes` bytes further on, a Python int; emits no instruction."""
        require_steps(nbytes)
        return TilePointer(self.tile, self.value, self.offset + nbytes)

    def cursor(self) -> TilePointer:
        """A copy of the pointer in a new variable, which `advance` moves."""
        k = self.tile.k
        return TilePointer(self.tile, k.var(u32, self.value), self.offset)

    def advance(self, rows: int = 0, columns: int = 0) -> None:
        """Move a cursor by `rows` and `columns`, both Python ints; emits one addition.

        Raises `TypeMismatchError` if this pointer was not made by `cursor`.
        """
        if not isinstance(self.base, Var):
            raise TypeMismatchError(f"advance moves a cursor; make one with cursor(), got {shown(self)}")
        require_steps(rows, columns)
        nbytes = rows * self.tile.row_bytes + columns * self.dtype.nbytes
        self.tile.k.emit("add", (self.base, nbytes), into=self.base)


class Fragment:
    """The part of a matrix that one thread holds in registers: `rows` x `columns` variables.

    The kernel decides which element of the matrix the variable `[row, column]` of a lane holds.
    """

    def __init__(self, k: Control, rows: int, columns: int, dtype: ScalarType, initial: float | None) -> None:
        require_type("fragment", dtype)
        if not is_int(rows) or not is_int(columns) or not 0 <= rows * columns <= _MOST_VARIABLES:
            raise ConfigError(
                "fragment: rows and columns must be integers, with a product of at most "
                f"{_MOST_VARIABLES}, got {shown(rows)} and {shown(columns)}"
            )

        def variable() -> Var:
            if initial is None:
                return Var(k, k.fresh(dtype).reg, dtype)
            return k.var(dtype, initial)

        self.rows = rows
        self.columns = columns
        self._vars = [[variable() for _ in range(columns)] for _ in range(rows)]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Var]]) -> Fragment:
        """A fragment of variables that exist, by rows of equal length."""
        fragment = object.__new__(cls)
        fragment._vars = [list(row) for row in rows]
        fragment.rows, fragment.columns = len(rows), len(rows[0])
        return fragment

    def __getitem__(self, index: tuple[int, int]) -> Var:
        row, column = index
        return self._vars[row][column]

    def row(self, index: int) -> list[Var]:
        """The variables that this thread holds of one row of the fragment."""
        return self._vars[index]

    def __iter__(self) -> Iterator[list[Var]]:
        return iter(self._vars)

    def all(self) -> Iterator[Var]:
        """All variables of the fragment, row by row."""
        for row in self._vars:
            yield from row

    def part(self, rows: slice, columns: slice = slice(None)) -> Fragment:
        """A fragment of some rows and columns of this one; it has the same variables, not copies."""
        part = copy(self)
        part._vars = [row[columns] for row in self._vars[rows]]
        part.rows, part.columns = len(part._vars), len(range(self.columns)[columns])
        return part

    @property
    def transposed(self) -> Fragment:
        """A fragment of the same variables with rows and columns exchanged."""
        transposed = copy(self)
        transposed.rows, transposed.columns = self.columns, self.rows
        transposed._vars = [list(column) for column in zip(*self._vars, strict=True)]
        return transposed

    def fill(self, value: float) -> None:
        """Emit instructions that set all variables of the fragment to `value`."""
        for variable in self.all():
            variable.set(value)
