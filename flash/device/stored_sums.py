"""How sums of O are stored without rounding, where another kernel merges those of the splits of the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Final

from flash.device.tiles import Matrix
from flash.operands.dtypes import F32_BYTES
from flash.problem.simt_tiling import ValueSlices
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value
from ptxgen.types import f32, u64

_TILE: Final = 8  # columns of a product, of which each of the four lanes of a quad has two


def store_sums(
    k: KernelBuilder,
    where: tuple[Matrix, Callable[[], Value]],
    rows: Iterable[int],
    column: Value,
    columns: int,
    slices: ValueSlices,
    O: Fragment,
) -> None:
    """Write the f32 sums of products of 16-bit elements to a matrix. Of each row, a lane writes the two
    columns of an 8-column tile that it holds, so that four lanes write 32 bytes. `where` is the matrix and
    a function that emits the first row of a thread there, from which `rows` counts all of its rows; `column`
    is the column of its first sum, s32; the sums are of `columns` columns.
    """
    out, first_row = where
    for i, down in enumerate(rows):
        row = first_row() + down
        at = out.row(k, row) + k.cvt(column * F32_BYTES, dtype=u64)
        with k.when(row < out.rows):
            for first in range(0, columns, _TILE):
                pair = list(O.row(i)[first // 4 : first // 4 + 2])
                pieces = [pair] if out.width >= 2 else [[x] for x in pair]
                for n, piece in enumerate(pieces):
                    wanted = _columns_wanted(out, slices, column + n, first)
                    with nullcontext() if wanted is None else k.when(wanted):
                        to = Pointer(at, "global", f32, (first + n) * F32_BYTES)
                        k.store(to, piece if len(piece) > 1 else piece[0])


def _columns_wanted(out: Matrix, slices: ValueSlices, column: Value, first: int) -> Value | None:
    """Whether this CTA writes a column of O: column `column` of the tile of eight that begins with
    `first`. None if it writes all eight.
    """
    left, begin = slices.width - first, out.written_from
    wanted = None if left >= _TILE else column < left
    if begin is None or first >= slices.shared:
        return wanted
    behind = column + first >= begin
    return behind if wanted is None else wanted & behind
