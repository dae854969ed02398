"""The elements of `mma` operands that each lane of a warp holds.

The accumulator of `m16n8k*` is 16 x 8. Lane l holds of it rows l / 4 and l / 4 + 8 of columns
2 (l % 4) and 2 (l % 4) + 1 (PTX ISA, "Matrix Fragments for mma.m16n8k16"); the four lanes of a quad
hold the same rows. An operand is read by `ldmatrix.x4`, as four 8 x 8 matrices of 16 bits: lanes
8 i … 8 i + 7 give the addresses of the rows of matrix i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Value, Var
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE

MMA_ROWS: Final = 16  # M of m16n8k16, m16n8k8 and m16n8k32
MMA_COLUMNS: Final = 8  # N of these
LANE_ROWS: Final = 2  # rows of a 16 x 8 tile that a lane holds
LANE_COLUMNS: Final = 2  # columns of a 16 x 8 tile that a lane holds
FRAGMENT_STEP: Final = MMA_ROWS // LANE_ROWS  # from one row of a lane to its next
QUAD: Final = [1, 2]  # butterfly distances to the lanes with other columns of the same rows
QUAD_LANES: Final = 4
_LOG_WARP: Final = WARP_SIZE.bit_length() - 1
_OCTET: Final = 8  # lanes that give the addresses of an 8 x 8 matrix


@dataclass(frozen=True)
class LanePosition:
    """A thread's warp in its CTA and lane in its warp, both u32."""

    warp: Value
    lane: Value

    @property
    def in_quad(self) -> Value:
        """The lane's index in its quad, the four lanes that share rows; the lane's first column is twice the
        index.
        """
        return self.lane & QUAD_LANES - 1

    def by_rows(self) -> tuple[Value, Value]:
        """The lane's row and chunk of 16 bytes in a block of 16 rows x 2 chunks, whose matrices are
        upper left, lower left, upper right, lower right.
        """
        return self.lane & MMA_ROWS - 1, self.lane >> 4

    def by_chunks(self) -> tuple[Value, Value]:
        """The lane's row and chunk of 16 bytes in a block of 16 rows x 2 chunks, whose matrices are upper
        left, upper right, lower left, lower right.
        """
        return (self.lane & _OCTET - 1) + (self.lane >> 4) * _OCTET, self.lane >> 3 & 1


class Lanes:
    """The position of each thread in its warp and CTA; computed once if first needed outside of blocks."""

    def __init__(self, k: Control) -> None:
        self.k = k
        self._position: LanePosition | None = None

    def position(self) -> LanePosition:
        """The indices of this thread's warp in the CTA and of its lane in the warp."""
        if self._position is not None:
            return self._position
        thread = self.k.thread_index()
        position = LanePosition(thread >> _LOG_WARP, thread & WARP_SIZE - 1)
        if not self.k.is_in_block:
            self._position = position
        return position


def of_quad(k: Control, value: Value, n: int) -> Value:
    """`value` as lane n of this lane's quad has it."""
    return of_segment(k, value, n, QUAD_LANES)


def of_segment(k: Control, value: Value, n: int, lanes: int) -> Value:
    """`value` as lane n of this lane's segment has it: of `lanes` neighbouring lanes, a power of two."""
    # PTX ISA, "shfl.sync", operand c: the mask of segments, and the clamp value.
    segment = (WARP_SIZE - lanes) << 8 | (WARP_SIZE - 1)
    return k.shfl(value, n, segment, -1, mode="idx")


def over_lanes(
    k: Control, value: Value, distances: Sequence[int], join: Callable[[Value, Value], Value]
) -> Value:
    """The values of lanes that share a row, joined into one by butterfly shuffles at these distances."""
    for distance in distances:
        value = join(value, k.butterfly(value, distance))
    return value


class AccumulatorTiles(dict[tuple[int, int], tuple[Var, ...]]):
    """By row and column of 16 x 8 tiles, a lane's four elements of the tile in the order of the `mma`
    operand; `row(i)` are the lane's elements of its i-th row.

    A tile is the same tuple each time, which the emitter checks once.
    """

    def __init__(self, row: Callable[[int], Sequence[Var]]) -> None:
        super().__init__()
        self._row = row

    def __missing__(self, index: tuple[int, int]) -> tuple[Var, ...]:
        m, n = index
        columns = slice(LANE_COLUMNS * n, LANE_COLUMNS * (n + 1))
        upper, lower = self._row(LANE_ROWS * m), self._row(LANE_ROWS * m + 1)
        tile = self[index] = (*upper[columns], *lower[columns])
        return tile
