"""Blocks of a matrix in shared memory, as operands of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Scalar, Value
from ptxgen.errors import ConfigError
from ptxgen.types import ScalarType


class Arrival:
    """Whether the data that copies bring into a tile may be read; `problem` is the reason why not, or
    empty.
    """

    __slots__ = ("problem",)

    def __init__(self, problem: str = "") -> None:
        self.problem = problem


_ARRIVED: Final = Arrival()


class StagedTile:
    """A block of a matrix in shared memory: a stage of a swizzled tile.

    `row` and `column` are where the block begins in the matrix. `T` is the transposed block, which
    costs nothing: products read it in the other direction. Products take blocks, and
    `block[row, column]` loads an element.
    """

    def __init__(
        self,
        tile: SwizzledTile,
        *,
        stage: Value | None = None,
        origin: Callable[[], tuple[Scalar, Scalar]] = lambda: (0, 0),
        arrival: Arrival = _ARRIVED,
        transposed: bool = False,
    ) -> None:
        self.tile = tile
        self.stage = stage
        self.is_transposed = transposed
        self.arrival = arrival
        self._origin = origin

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"{self.tile.name} ({rows} x {columns} {self.dtype})"

    @property
    def dtype(self) -> ScalarType:
        """The type of the elements."""
        return self.tile.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The rows and columns of the block."""
        rows, columns = self.tile.rows, self.tile.columns
        return (columns, rows) if self.is_transposed else (rows, columns)

    @property
    def T(self) -> StagedTile:
        """The transposed block."""
        return StagedTile(
            self.tile,
            stage=self.stage,
            origin=lambda: self._origin()[::-1],
            arrival=self.arrival,
            transposed=not self.is_transposed,
        )

    @property
    def row(self) -> Scalar:
        """The block's first row, counted in the matrix; it is computed anew each time."""
        return self._origin()[0]

    @property
    def column(self) -> Scalar:
        """The block's first column, counted in the matrix; it is computed anew each time."""
        return self._origin()[1]

    def pointer(self, row: Scalar, column: Scalar) -> TilePointer:
        """The address of an element; `row` and `column` are Python ints or u32."""
        self.require_arrived("an element")
        index = (column, row) if self.is_transposed else (row, column)
        at = self.tile.pointer(*index)
        return at if self.stage is None else at.moved(at.value + self.stage)

    def __getitem__(self, index: tuple[Scalar, Scalar]) -> Value:
        """Load the element at [row, column], in the type of the elements."""
        return self.tile.k.load(self.pointer(*index))

    def require_arrived(self, caller: str) -> None:
        """Raise `ConfigError` unless the copies into the block have been waited for."""
        if self.arrival.problem:
            raise ConfigError(f"{caller} of {self!r}: {self.arrival.problem}")
