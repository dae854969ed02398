"""The distribution of the 16 x 8 tiles of a matrix over the warps of a CTA."""

from __future__ import annotations

from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, LANE_COLUMNS, LANE_ROWS, MMA_COLUMNS, MMA_ROWS, Lanes
from ptxgen.dsl.values import Scalar, Value, is_count
from ptxgen.errors import ConfigError, shown
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE

_PAIR_COLUMNS = 2 * MMA_COLUMNS  # columns of the two tiles that one `ldmatrix.x4` of B feeds


@dataclass(frozen=True, eq=False)
class Layout:
    """A matrix of `rows` x `columns` whose rows are dealt to `down` warps and whose columns are dealt
    to `across` warps, in runs of equal length.
    """

    lanes: Lanes
    rows: int
    columns: int
    down: int
    across: int

    @classmethod
    def of(cls, caller: str, lanes: Lanes, shape: object, warps: object = None) -> Layout:
        """The layout of a matrix of this shape on all warps of the CTA. `warps` is (warps along the rows,
        warps along the columns); by default the split that reads the least of a product's operands, rows
        before columns. Raises `ConfigError` for a shape that cannot be dealt.
        """
        k = lanes.k
        count = k.threads // WARP_SIZE
        if k.threads % WARP_SIZE:
            raise ConfigError(f"{caller}: products take whole warps, and the kernel has {k.threads} threads")
        if not isinstance(shape, tuple | list) or len(shape) != len(("rows", "columns")):
            raise ConfigError(f"{caller}: the shape must be (rows, columns), got {shown(shape)}")
        rows, columns = shape
        if not (is_count(rows) and is_count(columns)):
            raise ConfigError(f"{caller}: rows and columns must be positive integers, got {shown(shape)}")

        def fits(down: int, across: int) -> bool:
            return not (rows % (MMA_ROWS * down) or columns % (_PAIR_COLUMNS * across))

        ways = [(n, count // n) for n in range(count, 0, -1) if count % n == 0]
        if warps is not None:
            if warps not in ways:
                raise ConfigError(
                    f"{caller}: warps must be (warps along the rows, warps along the columns) with the "
                    f"product {count}, got {shown(warps)}"
                )
            ways = [way for way in ways if way == warps]
        fitting = [way for way in ways if fits(*way)]
        if not fitting:
            raise ConfigError(
                f"{caller}: {rows} x {columns} cannot be dealt to {_listed(ways)} warps: each warp takes a "
                f"multiple of {MMA_ROWS} rows and of {_PAIR_COLUMNS} columns"
            )
        lanes.position()  # outside of loops, if the matrix is declared there
        down, across = min(fitting, key=lambda way: rows // way[0] + columns // way[1])
        return cls(lanes, rows, columns, down, across)

    @property
    def warp_rows(self) -> int:
        """The number of the matrix's rows that each warp holds."""
        return self.rows // self.down

    @property
    def warp_columns(self) -> int:
        """The number of the matrix's columns that each warp holds."""
        return self.columns // self.across

    @property
    def lane_rows(self) -> list[int]:
        """The rows of which a lane holds elements, each as its distance from the lane's first row."""
        return [FRAGMENT_STEP * n for n in range(self.warp_rows // MMA_ROWS * LANE_ROWS)]

    @property
    def lane_columns(self) -> list[int]:
        """The columns of which a lane holds elements, each as its distance from the lane's first column."""
        tiles = range(self.warp_columns // MMA_COLUMNS)
        return [MMA_COLUMNS * tile + n for tile in tiles for n in range(LANE_COLUMNS)]

    @property
    def warps(self) -> tuple[int, int]:
        """The number of warps along the rows, and the number along the columns."""
        return self.down, self.across

    def warp_row(self) -> Value | None:
        """The index of the thread's warp among those along the rows; None if there is one."""
        if self.down == 1:
            return None
        warp = self.lanes.position().warp
        return warp if self.across == 1 else warp // self.across

    def warp_column(self) -> Value | None:
        """The index of the thread's warp among those along the columns; None if there is one."""
        if self.across == 1:
            return None
        warp = self.lanes.position().warp
        return warp if self.down == 1 else warp % self.across

    def first(self, row: Scalar, column: Scalar) -> tuple[Value, Value]:
        """The row and column of the thread's first element, u32, in a matrix in which this one begins
        at (row, column).
        """
        position = self.lanes.position()
        first_row = _plus_warp(position.lane >> 2, self.warp_row(), self.warp_rows)
        first_column = _plus_warp(position.in_quad * LANE_COLUMNS, self.warp_column(), self.warp_columns)
        return plus(row, first_row), plus(column, first_column)


def plus(start: Scalar, offset: Value) -> Value:
    """The sum of a start and an offset, u32; no addition is emitted for a start of 0."""
    return offset if isinstance(start, int) and start == 0 else start + offset


def _plus_warp(first: Value, warp: Value | None, length: int) -> Value:
    return first if warp is None else warp * length + first


def _listed(ways: list[tuple[int, int]]) -> str:
    return " or ".join(f"{down} x {across}" for down, across in ways)
