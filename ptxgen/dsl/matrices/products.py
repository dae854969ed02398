"""Products of blocks by `mma.sync`: D = A B + C, each warp for its part of D.

A row of an operand is 32 bytes deep for each `mma`: 16 elements of 16 bits, 8 of tf32, 32 of 8
bits. So `ldmatrix`, which moves chunks of 16 bytes, reads all of them in the same way where the
block's rows in memory run along the depth. The other direction, `ldmatrix.trans`, is for elements of
16 bits only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ptxgen.dsl.control import Control
from ptxgen.dsl.matrices.int4 import left_int4, right_int4
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, LANE_ROWS, MMA_COLUMNS, MMA_ROWS, AccumulatorTiles
from ptxgen.dsl.matrices.layout import Layout
from ptxgen.dsl.matrices.staged import FP8, INT4, StagedTile
from ptxgen.dsl.swizzle import BLOCK_CHUNKS, CHUNK_BYTES, BlockReader
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Value, Var
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.records import dataclass
from ptxgen.types import PAIRS, ScalarType, f32, s32

_DEPTH_BYTES: Final = CHUNK_BYTES * BLOCK_CHUNKS  # of a row of A, for one `mma`
_INT8: Final = ("s8", "u8")
# What products of a kind of elements are, by those of A, and the kinds of B that it is multiplied by.
_RESULTS: Final = {**dict.fromkeys(("f16", "bf16", "f32", *FP8), f32), **dict.fromkeys(_INT8, s32)}
_FACTORS: Final = {
    "f16": ("f16", INT4),
    "bf16": ("bf16",),
    "f32": ("f32",),
    **dict.fromkeys(_INT8, _INT8),
    **dict.fromkeys(FP8, FP8),
}


def are_multiplied(a: str, b: str) -> bool:
    """Whether `mma` multiplies elements of kinds `a` and `b` (`StagedTile.kind`)."""
    return b in _FACTORS.get(a, ())


def result_of(kind: str) -> ScalarType:
    """The type of the sums of products whose first factor has elements of a kind."""
    return _RESULTS[kind]


@dataclass(frozen=True)
class Operand:
    """One side of a product: its shape, the kind and the type of its elements, and the registers of a lane
    for a 16-row step of it (`index`) and a step of the depth.
    """

    shape: tuple[int, int]
    kind: str
    dtype: ScalarType
    load: Callable[[int, int], Sequence[Value]]


def depth_of(dtype: ScalarType) -> int:
    """The columns of A that one `mma` instruction multiplies: its extent along the K dimension."""
    return _DEPTH_BYTES // dtype.nbytes


def multiply(
    k: Control, sums: Sequence[Sequence[Var]], layout: Layout, a: Operand, b: Operand, *, fresh: bool
) -> None:
    """Emit sums += A B, or sums = A B if `fresh`, for the lane's part of a matrix of this layout."""
    depth = a.shape[1] // depth_of(a.dtype)
    row_tiles, pairs = layout.warp_rows // MMA_ROWS, layout.warp_columns // (2 * MMA_COLUMNS)
    mma = _instruction(k, a.kind, b.kind)
    zeros = (k.mov(0, type=result_of(a.kind)),) * (LANE_ROWS * LANE_COLUMNS) if fresh else None
    tiles = AccumulatorTiles(sums.__getitem__)
    for d in range(depth):
        left = [tuple(a.load(m, d)) for m in range(row_tiles)]
        for n in range(pairs):
            right = b.load(n, d)
            halves = tuple(right[: len(right) // 2]), tuple(right[len(right) // 2 :])
            for m in range(row_tiles):
                for i, half in enumerate(halves):
                    into = tiles[m, 2 * n + i]
                    start = zeros if zeros is not None and d == 0 else into
                    mma(left[m], half, start, into)


def _instruction(k: Control, a: str, b: str) -> Callable[..., None]:
    """The method that emits the `mma` of operands of these kinds."""
    if a in ("f16", "bf16"):
        row: Any = k.mma_f32_f16 if a == "f16" else k.mma_f32_bf16
        modifiers: dict[str, Any] = {"shape": "m16n8k16"}
    elif a == "f32":
        row, modifiers = k.mma_f32_tf32, {"shape": "m16n8k8"}
    else:
        row = k.mma_f32_fp8 if a in FP8 else k.mma_int8
        modifiers = {"shape": "m16n8k32", "atype": a, "btype": b}

    def emit(left: Any, right: Any, start: Any, into: Any) -> None:
        row(left, right, start, **modifiers, into=into)

    return emit


# ---------------------------------------------------------------------------------- from shared memory


def left_block(layout: Layout, a: StagedTile, by: str) -> Operand:
    """A block in shared memory as operand A of `mma`, for a B of kind `by`, in steps of 16 rows."""
    rows = layout.warp_row()
    if by == INT4:
        read = left_int4(layout, a, rows)
    elif a.is_transposed:
        read = _across(layout, a, rows, layout.warp_rows, by_rows=False)
    else:
        read = _down(layout, a, rows, layout.warp_rows, by_rows=True)
    return Operand(a.shape, a.kind, a.dtype, read)


def right_block(layout: Layout, b: StagedTile) -> Operand:
    """A block in shared memory as operand B of `mma`, in steps of 16 columns, two tiles of 8 columns."""
    columns = layout.warp_column()
    if b.is_transposed:
        read = _down(layout, b, columns, layout.warp_columns, by_rows=False)
    else:
        read = _across(layout, b, columns, layout.warp_columns, by_rows=True)
    if b.encoding == INT4:
        read = right_int4(b.tile.k, read, b.zero)
    return Operand(b.shape, b.kind, b.dtype, read)


Read = Callable[[int, int], Sequence[Value]]


def _lane_address(layout: Layout, by_rows: bool) -> tuple[Value, Value]:
    position = layout.lanes.position()
    return position.by_rows() if by_rows else position.by_chunks()


def _down(layout: Layout, block: StagedTile, warp: Value | None, length: int, *, by_rows: bool) -> Read:
    """Reads a block whose rows in memory run along the depth; the warp has `length` of its rows."""
    row, chunk = _lane_address(layout, by_rows)
    row = row if warp is None else warp * length + row
    at = BlockReader(block.tile, row, chunk).stage(block.stage)
    k = block.tile.k
    tf32 = block.dtype is f32

    def read(index: int, d: int) -> Sequence[Value]:
        words = k.ldmatrix(at(d, MMA_ROWS * index), num="x4")
        return [k.cvt_tf32(word.as_(f32), rnd="rna") for word in words] if tf32 else words

    return read


def _across(layout: Layout, block: StagedTile, warp: Value | None, length: int, *, by_rows: bool) -> Read:
    """Reads a block whose rows in memory run across the depth; the warp has `length` of its
    columns.
    """
    tile, k = block.tile, block.tile.k
    if block.dtype not in PAIRS:
        raise TypeMismatchError(
            f"mma: {block!r}: elements of {block.dtype} must lie in memory along the depth of the product, "
            "so that A is row-major and B is the transpose of a row-major block, b.T"
        )
    row, chunk = _lane_address(layout, by_rows)
    beyond: Value | None = None
    if warp is not None:
        chunks = length // tile.chunk
        widths = {panel.chunks for panel in tile.panels}
        wide = max(widths)
        if len(widths) > 1 or (chunks % wide and wide % chunks):
            raise ConfigError(
                f"mma: {block!r}: warps that share its columns would begin inside a panel of the swizzle; "
                f"give them all to one warp with warps=, or make the columns a multiple of "
                f"{wide * tile.chunk}"
            )
        first = warp * chunks
        if wide % chunks == 0 and chunks < wide:
            chunk = first % wide + chunk
        if chunks >= wide or len(tile.panels) > 1:
            beyond = first // wide * (tile.rows * wide * CHUNK_BYTES)
    if block.stage is not None:
        beyond = block.stage if beyond is None else block.stage + beyond
    at = BlockReader(tile, row, chunk).stage(beyond)

    def read(index: int, d: int) -> tuple[Value, ...]:
        address: TilePointer = at(index, MMA_ROWS * d)
        return k.ldmatrix(address, num="x4", trans=True)

    return read
