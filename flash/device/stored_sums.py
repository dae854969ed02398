"""How sums of O are stored without rounding, where another kernel merges those of the splits of the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Final

from flash.device.tiles import Matrix
from flash.families.simt import ValueSlices
from flash.operands.dtypes import F32_BYTES
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS
from ptxgen.records import dataclass
from ptxgen.types import f32, u64

_TILE: Final = 8  # columns of a product, of which each of the four lanes of a quad has two


@dataclass(frozen=True)
class LaneColumns:
    """The columns of O whose sums a lane holds: pairs of neighbours, the first pair at column `first` (s32)
    and each further one `step` columns after the one before, `count` pairs at most. The columns of the
    same pair of all four lanes of a quad lie within `reach` columns from that of the first lane on.
    """

    first: Value
    count: int
    step: int = _TILE
    reach: int = _TILE

    @classmethod
    def of_tiles(cls, first: Value, columns: int) -> LaneColumns:
        """Two columns of each 8-column tile of `columns` columns."""
        return cls(first, -(-columns // _TILE))


def store_sums(
    k: KernelBuilder,
    where: tuple[Matrix, Callable[[], Value]],
    rows: Iterable[int],
    columns: LaneColumns,
    slices: ValueSlices,
    O: Fragment,
) -> None:
    """Write the f32 sums of products to a matrix. Of each row, a lane writes the pairs of columns that it
    holds; of 8-column tiles, four lanes write 32 bytes. `where` is the matrix and a function that emits the
    first row of a thread there, from which `rows` counts all of its rows.
    """
    out, first_row = where
    for i, down in enumerate(rows):
        row = first_row() + down
        at = out.row(k, row) + k.cvt(columns.first * F32_BYTES, dtype=u64)
        with k.when(row < out.rows):
            for nth in range(columns.count):
                first = nth * columns.step
                pair = list(O.row(i)[LANE_COLUMNS * nth : LANE_COLUMNS * (nth + 1)])
                pieces = [pair] if out.width >= 2 else [[x] for x in pair]
                for n, piece in enumerate(pieces):
                    wanted = _columns_wanted(out, slices, columns.first + n, first, columns.reach)
                    with nullcontext() if wanted is None else k.when(wanted):
                        to = Pointer(at, "global", f32, (first + n) * F32_BYTES)
                        k.store(to, piece if len(piece) > 1 else piece[0])


def _columns_wanted(out: Matrix, slices: ValueSlices, column: Value, first: int, reach: int) -> Value | None:
    """Whether this CTA writes a column of O: column `column` of the `reach` columns that begin with
    `first`. None if it writes all of them.
    """
    left, begin = slices.width - first, out.written_from
    wanted = None if left >= reach else column < left
    if begin is None or first >= slices.shared:
        return wanted
    after = column + first >= begin
    return after if wanted is None else wanted & after
