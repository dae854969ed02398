"""The rows of a matrix that a thread copies or stores: neighbouring ones, or those that a selection names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from ptxgen.dsl.matrices.layout import plus
from ptxgen.dsl.shared import SharedMemory
from ptxgen.dsl.values import Pointer, Scalar, Value, Var
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.records import dataclass
from ptxgen.types import s32, u32

RowOf: TypeAlias = Callable[[Value], object]
Locate: TypeAlias = Callable[[Value], Pointer]

_ABSENT: Final = 0xFFFFFFFF  # a row that no matrix has
_TYPES: Final = (u32, s32)  # of the number of a row


@dataclass(frozen=True)
class Selection:
    """Rows of a matrix of `rows` rows, by a function of their index in the selection (`Matrix.rows_at`)."""

    k: SharedMemory
    of: RowOf
    rows: Scalar

    @classmethod
    def by(cls, k: SharedMemory, of: object, rows: Scalar) -> Selection:
        """The selection by a pointer to the numbers of rows, or by a function. Raises `TypeMismatchError` for
        anything else.
        """
        if isinstance(of, Pointer):
            if of.space != "global" or of.dtype not in _TYPES:
                raise TypeMismatchError(
                    f"rows_at: rows must point to u32 or s32 in global memory, got {shown(of)}"
                )
            return cls(k, of.__getitem__, rows)
        if not callable(of):
            raise TypeMismatchError(
                f"rows_at: rows must be a pointer to u32 or s32, or a function of an index, got {shown(of)}"
            )
        return cls(k, of, rows)

    def find(self, i: Value, end: Scalar) -> Value:
        """The matrix row at index i of the selection, u32; from index `end` on one that no matrix has."""
        row = self.k.var(u32, _ABSENT)
        with self.k.when(i < end):
            number = self.of(i)
            if not isinstance(number, Value) or number.type not in _TYPES:
                raise TypeMismatchError(
                    f"rows_at: the function must return a row as u32 or s32, got {shown(number)}"
                )
            row.set(number if number.type is u32 else number.as_(u32))
        return row

    def has(self, row: Value) -> Value:
        """Whether the matrix has a row with the number `row`, a predicate."""
        return row < self.rows


class CopiedRow(NamedTuple):
    """A row of a block that a thread copies: `first` is its distance from the first row that the thread
    copies, `source` the address of its first chunk, u64, and `is_present` emits whether the matrix has it.
    """

    first: int
    source: Value
    is_present: Callable[[], Value]


class CopiedRows(Protocol):
    """The interface to the rows of a block that a thread copies, for the present block of a walk."""

    def rows(self) -> Iterator[CopiedRow]:
        """The rows of the present block that this thread copies."""

    def move(self, rows: int, nbytes: Scalar) -> None:
        """Go on to the block `rows` further down, or if that is 0 to the one `nbytes` further right."""


class Neighbours:
    """Rows `firsts` of a block, rows of a matrix that follow each other. `source` is the address of the first
    one, `row_bytes(n)` the distance of rows that are n apart, and `rows_left` how many rows the matrix has
    from the first one on, s32.
    """

    def __init__(
        self, source: Var, rows_left: Var, firsts: Sequence[int], row_bytes: Callable[[int], Scalar]
    ) -> None:
        self._source = source
        self._rows_left = rows_left
        self._firsts = firsts
        self._row_bytes = row_bytes

    def rows(self) -> Iterator[CopiedRow]:
        """The rows of the present block that this thread copies."""
        source: Value = self._source
        step = self._row_bytes(self._firsts[1]) if len(self._firsts) > 1 else 0
        for first in self._firsts:
            if first:
                source = source + step
            yield CopiedRow(first, source, functools.partial(self._rows_left.__gt__, first))

    def move(self, rows: int, nbytes: Scalar) -> None:
        """Go on to the block `rows` further down, or if that is 0 to the one `nbytes` further right."""
        self._source.set(self._source + (self._row_bytes(rows) if rows else nbytes))
        if rows:
            self._rows_left.set(self._rows_left - rows)


class SelectedRows:
    """Rows `firsts` of a block of a selection that ends at row `end`, counted from row `index`, u32, of the
    selection. `locate` is the address in the matrix of a row's first chunk. Where blocks follow `across`,
    rows are looked up once; otherwise for each block.
    """

    def __init__(
        self,
        selection: Selection,
        index: Value,
        end: Scalar,
        firsts: Sequence[int],
        locate: Locate,
        *,
        across: bool,
    ) -> None:
        self._selection = selection
        self._end = end
        self._firsts = firsts
        self._locate = locate
        self._index = index if across else selection.k.var(u32, index)
        self._sources = [self._in_register(*row) for row in self._looked_up()] if across else []

    def _looked_up(self) -> Iterator[tuple[int, Value, Value]]:
        """The rows: the distance from the thread's first one, the index in the matrix, and the address."""
        for first in self._firsts:
            row = self._selection.find(plus(first, self._index), self._end)
            yield first, row, self._locate(row).value

    def _in_register(self, first: int, row: Value, source: Value) -> tuple[int, Value, Var]:
        return first, row, self._selection.k.var(source.type, source)

    def rows(self) -> Iterator[CopiedRow]:
        """The rows of the present block that this thread copies."""
        for first, row, source in self._sources or self._looked_up():
            yield CopiedRow(first, source, functools.partial(self._selection.has, row))

    def move(self, rows: int, nbytes: Scalar) -> None:
        """Go on to the block `rows` further down, or if that is 0 to the one `nbytes` further right."""
        for _, _, source in self._sources:
            source.set(source + nbytes)
        if isinstance(self._index, Var):
            self._index.set(self._index + rows)
