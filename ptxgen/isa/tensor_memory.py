"""Where matrices lie in tensor memory (PTX ISA, "TensorCore 5th Generation Family Instructions": "Tensor
Memory", "Data Movement Shape", "Data Path Layout Organization", "Scale Factor Layout").

The tensor memory of a CTA has 128 lanes of 512 columns; a cell has 32 bits. An address has the lane in its
upper and the column in its lower half. The functions here count lanes and columns from such an address, and
return arrays that broadcast no further and must not be written.

Of the layouts, those of `.32x32b` and `.16x32bx2`, of D with M of 64, 128 and 256, of A, of scale factors and
of copies by `warpx4` have run with compilers' kernels; the other shapes of loads and stores, D of a pair with
M of 128 and of `.ws` are as CUTLASS has them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ptxgen.errors import DescriptorError
from ptxgen.target import TENSOR_ALLOCATIONS, TENSOR_COLUMNS

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.isa.mma_descriptor import Product

LANES: Final = 128
COLUMNS: Final = TENSOR_COLUMNS
QUARTER: Final = 32  # lanes that a warp may load and store
QUARTERS: Final = LANES // QUARTER  # of each the warps with one number modulo 4
GROUP: Final = 16  # lanes that the smaller shapes of loads, stores and products have of a quarter
GROUPS: Final = LANES // GROUP
ALLOCATIONS: Final = TENSOR_ALLOCATIONS
SCALES_ADDRESS: Final = 0x3FFFFFFF  # bits of an address of scale factors; those above number a byte
_CELL: Final = 4  # bytes
_LANE: Final = 16  # the lowest bit of the lane in an address
_COLUMN: Final = (1 << _LANE) - 1
_WARP: Final = 32


def split_address(address: int) -> tuple[int, int]:
    """The lane and the column of an address."""
    return address >> _LANE, address & _COLUMN


class Cells(NamedTuple):
    """Cells of tensor memory, int64 arrays of one shape, counted from an address."""

    lane: Lanes
    column: Lanes


class PairCells(NamedTuple):
    """Cells of tensor memory of a pair of CTAs: `rank` is 0 or 1, 0 everywhere for a CTA alone."""

    rank: Lanes
    lane: Lanes
    column: Lanes


def _spread(*index: Lanes) -> tuple[Lanes, ...]:
    """Arrays of int64 in the shape to which they broadcast, not to be written."""
    arrays = tuple(np.array(x, np.int64) for x in np.broadcast_arrays(*index))
    for array in arrays:
        array.flags.writeable = False
    return arrays


# ---------------------------------------- registers

# By shape: the registers of each thread for `.x1`.
REGISTERS: Final = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}


@lru_cache(maxsize=128)
def cells(shape: str, num: int, split: int = 0, *, packed: bool = False) -> Cells:
    """The cell of each register of each thread in `tcgen05.ld` and `.st` of a shape with `.x<num>`,
    `[registers, 32]`.

    `split` is the immediate of `.16x32bx2`: its threads 16 to 31 have the lanes of the others, as many
    columns further on. `packed` (`.pack::16b`, `.unpack::16b`): the low half of a register is that of this
    cell, its high half the low half of the next column.
    """
    r, t = np.ogrid[: num * REGISTERS[shape], :_WARP]
    further: Lanes | int = 0
    if shape == "32x32b":
        lane, column = t, r
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t % 2), 2 * r + t // 2 % 2
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4
    elif shape == "16x256b":  # the accumulators of `mma.m16n8`
        lane, column = t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2
    else:
        lane, column, further = t % 16, r, split * (t // 16)
    column = (2 * column if packed else column) + further
    return Cells(*_spread(lane, column))


# ---------------------------------------- products


@lru_cache(maxsize=64)
def cells_of_d(m: int, n: int, *, group: int = 1, ws: bool = False, sparse: bool = False) -> PairCells:
    """The cell of each element of D, `[m, n]`; if D is f16, an element is in the low half of its cell.

    Raises `DescriptorError` for shapes that the group lacks.
    """
    i, j = np.ogrid[:m, :n]
    rank: Lanes | int = 0
    column = j
    # The letters are those of the manual's layouts.
    if group == 2 and m == 256:  # A
        rank, lane = np.divmod(i, LANES)
    elif group == 2 and m == 128 and not sparse:  # B
        rank, lane = np.divmod(i, 64)
        right, column = np.divmod(j, n // 2)
        lane = lane + 64 * right
    elif group == 2 and m == 128:  # C
        rank, lane = i // 64, _spread_over_quarters(i % 64)
    elif group == 1 and m == 128:  # D
        lane = i
    elif group == 1 and m == 64 and not ws:  # F
        lane = _spread_over_quarters(i)
    elif group == 1 and ws and m in (32, 64):  # G, E
        group_of_lanes, column = np.divmod(j, n * m // LANES)
        lane = i + m * group_of_lanes
    else:
        raise DescriptorError(
            f"tcgen05.mma{'.ws' if ws else ''}.cta_group::{group}: "
            f"expected M {'128 or 256' if group == 2 else '32, 64 or 128' if ws else '64 or 128'}, got {m}"
        )
    return PairCells(*_spread(np.asarray(rank), lane, column))


def _spread_over_quarters(row: Lanes) -> Lanes:
    """The lane of a row of 64, of which each quarter of the lanes has 16."""
    lane: Lanes = row // 16 * QUARTER + row % 16
    return lane


@lru_cache(maxsize=64)
def cells_of_a(rows: int, nbytes: int) -> Cells:
    """The cells of A in the tensor memory of one CTA, `[rows, columns]`: rows of `nbytes` bytes along K, the
    lowest k in the low bits of the first column. `rows` are those of one CTA: 64 of a CTA alone are spread
    over the quarters of the lanes like those of D, 64 of a pair lie there twice (`cells_of_a_in_pair`).
    """
    i, column = np.ogrid[:rows, : nbytes // _CELL]
    return Cells(*_spread(_spread_over_quarters(i) if rows == 64 else i, column))


@lru_cache(maxsize=64)
def cells_of_a_in_pair(rows: int, nbytes: int) -> tuple[Cells, ...]:
    """The cells of A in the tensor memory of each CTA of a pair: of 128 rows of a CTA once, of 64 rows twice,
    in lanes 0 to 63 for the left and 64 to 127 for the right half of D's columns.
    """
    i, column = np.ogrid[:rows, : nbytes // _CELL]
    return tuple(Cells(*_spread(i + first, column)) for first in range(0, LANES, rows))


@lru_cache(maxsize=64)
def cells_of_scales(rows: int) -> Cells:
    """The cells of the scale factors of rows of A, or columns of B, `[4, rows]`: each quarter of the lanes
    has them all. The factors of a row are consecutive bytes of its cell (`Product.scale_bytes`).
    """
    quarter, r = np.ogrid[:4, :rows]
    return Cells(*_spread(QUARTER * quarter + r % QUARTER, r // QUARTER))


def columns_of_scales(rows: int) -> int:
    """The columns that the scale factors of rows of A, or columns of B, take."""
    return -(-rows // QUARTER)


def scales_in(cells_: Lanes, first: int, count: int) -> Lanes:
    """The bits of `count` scale factors of each row, uint8 `[rows, count]`, from the rows' cells, uint32,
    from the byte `first` on.
    """
    of_cells: Lanes = np.ascontiguousarray(cells_).view(np.uint8).reshape(-1, _CELL)
    chosen: Lanes = of_cells[:, first : first + count]
    return chosen


def groups_of_rows(of: Product, lane: int) -> tuple[int, ...]:
    """The groups of 16 lanes that D and A have, from this lane on."""
    if of.m == LANES // 2:  # in a pair, the rows of both have more
        return tuple(range(lane // GROUP, GROUPS, QUARTER // GROUP))
    return tuple(range(GROUPS))


def columns_of_d(of: Product, *, ws: bool = False) -> int:
    """The columns of tensor memory that D takes in each CTA."""
    if of.group == 2:
        return of.n // 2 if of.m == 128 and not of.sparse else of.n
    return of.n * of.m // LANES if ws else of.n


# ---------------------------------------- copies

# By shape of `tcgen05.cp`: rows of the matrix in shared memory, and bytes of a row.
COPIES: Final = {
    "128x256b": (128, 32),
    "128x128b": (128, 16),
    "64x128b": (64, 16),
    "32x128b": (32, 16),
    "4x256b": (4, 32),
}


@lru_cache(maxsize=32)
def lanes_of_copy(shape: str, warps: str = "") -> Lanes:
    """The lanes to which `tcgen05.cp` of a shape copies each row, `[rows, copies]`, counted from the address;
    the bytes of the row fill columns. `warps` is the multicast: "warpx4", "warpx2::02_13", "warpx2::01_23".
    """
    row = np.arange(COPIES[shape][0])[:, None]
    if shape == "4x256b":
        lane = QUARTER * row
    elif warps == "warpx4":
        lane = row + QUARTER * np.arange(4)
    elif warps == "warpx2::02_13":
        lane = row + 2 * QUARTER * np.arange(2)
    elif warps == "warpx2::01_23":
        lane = row % QUARTER + 2 * QUARTER * (row // QUARTER) + QUARTER * np.arange(2)
    else:
        lane = row
    return _spread(lane)[0]
