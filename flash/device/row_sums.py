"""D, the sum of O times its gradient over each row of a CTA: what softmax subtracts from the gradients of the
row's weights.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Final

from flash.device.gradient_parts import RowNumbers
from flash.device.team import WHOLE_CTA, Team
from flash.device.tiles import Matrix
from ptxgen.dsl import KernelBuilder, Pointer, SharedTile, Value
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.dsl.source_regions import marked
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, f32, u16, u32, u64

_HALF_BITS: Final = 16
_NEG_INF: Final = float("-inf")


@marked("row sums: rows of a CTA")
def sum_rows(
    k: KernelBuilder,
    O: Matrix,
    dO: Matrix,
    dtype: ScalarType,
    first_row: Value,
    rows: int,
    of_rows: Mapping[str, RowNumbers],
    saved: SharedTile | None,
    also: Callable[[Value, Value, Value], None],
    team: Team = WHOLE_CTA,
    gradient_dtype: ScalarType | None = None,
) -> None:
    """Write D of the `rows` rows from `first_row` on to global memory and, unless it is None, into the tile
    `saved`. `of_rows` has LSE, which is read, D, and the gradient of LSE if there is one. A row that sees no
    key has D 0, whatever O and its gradient hold. Neighbouring lanes of a row take neighbouring elements.
    `also(row, lse, delta)` emits the further code for a row, run by one lane. The threads of
    `team` do it. Elements of O have `dtype`, those of dO `gradient_dtype`, of as many bytes; None: that of O.
    """
    LSE, D, dLSE = (of_rows.get(name) for name in ("LSE", "D", "dLSE"))
    assert LSE is not None
    assert D is not None
    accesses = O.columns // O.width
    lanes = min(WARP_SIZE, 1 << (accesses - 1).bit_length())
    types = dtype, gradient_dtype or dtype
    thread = team.thread(k)
    nth, lane = thread // lanes, thread % lanes
    with k.loop(nth, rows, step=team.threads(k) // lanes) as down:
        row = first_row + k.signed(down)
        total = k.var(f32, 0.0)
        with k.when(row < O.rows):
            starts = [matrix.row(k, row) for matrix in (O, dO)]
            for first in range(0, accesses, lanes):
                some = lane < accesses - first if first + lanes > accesses else None
                with nullcontext() if some is None else k.when(some):
                    offset = k.cvt((lane + first) * (O.width * dtype.nbytes), dtype=u64)
                    a, b = (
                        _elements(k, start + offset, O.width, of)
                        for start, of in zip(starts, types, strict=True)
                    )
                    for x, y in zip(a, b, strict=True):
                        k.fma(x, y, total, into=total)
        distances = [1 << n for n in range(lanes.bit_length() - 1)]
        whole = over_lanes(k, total, distances, operator.add)
        with k.when(lane == 0):
            result = k.var(f32, 0.0)
            with k.when(row < O.rows):
                delta = whole if dLSE is None else whole - k.load(dLSE.at(k, row))
                lse = k.load(LSE.at(k, row))
                result.set(k.selp(0.0, delta, lse == _NEG_INF))
                k.store(D.at(k, row), result)
                also(row, lse, result)
            if saved is not None:
                k.store(saved.pointer(0, down), result)


def _elements(k: KernelBuilder, at: Value, width: int, dtype: ScalarType) -> list[Value]:
    """`width` neighbouring elements in global memory, as f32."""
    if dtype is f32:
        result = k.load(Pointer(at, "global", f32), width)
        return list(result) if isinstance(result, tuple) else [result]
    if width == 1:
        return [k.cvt(k.load(Pointer(at, "global", u16)).as_(dtype), dtype=f32)]
    words = k.load(Pointer(at, "global", u32), width // 2)
    halves = [
        k.cvt(half, dtype=u16)
        for word in (words if isinstance(words, tuple) else (words,))
        for half in (word, word >> _HALF_BITS)
    ]
    return [k.cvt(half.as_(dtype), dtype=f32) for half in halves]
