"""Blocks of memory that have the elements of an accumulator in the order of its threads, and rows of numbers
for its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ptxgen.dsl.hopper.products import WGMMA_ROWS
from ptxgen.dsl.hopper.role import WARPGROUP
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tiles import SharedTile
from ptxgen.dsl.values import Pointer, Scalar, Value, is_int
from ptxgen.errors import ConfigError, shown
from ptxgen.target import WARP_SIZE
from ptxgen.types import f32, u32

CHUNK: Final = 4  # neighbouring f32 elements of a thread in a block: 16 bytes
_THREADS: Final = WARPGROUP * WARP_SIZE
_CORE: Final = 8  # rows and columns of a core matrix
_QUAD: Final = 4  # lanes that share the rows of their elements


class Element(NamedTuple):
    """The row and the column of an element of an accumulator."""

    row: Any
    column: Any


def thread_order(position: Any, columns: int) -> Element:
    """The row and the column of the element that `write_in_thread_order` of an accumulator with `columns`
    columns stores at `position` of its block, counted in elements from 0.

    `position` is an int, a numpy array of ints or a u32 value. Each 512 elements are those of 16 rows by warp
    and 8 columns: thread t of the 128 has the four from 4 t on, of rows g and g + 8 of its warp, where g is
    t % 32 // 4, and of columns 2 (t % 4) and the next; then come the next 8 columns, and after all columns
    the next 64 rows.
    """
    group, within = position // (_THREADS * CHUNK), position % (_THREADS * CHUNK)
    thread, element = within // CHUNK, within % CHUNK
    down, across = group // (columns // _CORE), group % (columns // _CORE)
    row = WGMMA_ROWS * down + 2 * _CORE * (thread // WARP_SIZE) + thread % WARP_SIZE // _QUAD
    return Element(row + _CORE * (element // 2), _CORE * across + 2 * (thread % _QUAD) + element % 2)


def chunks_of_block(
    caller: str, k: Any, block: object, first: Scalar, count: int, spaces: str
) -> Iterator[Pointer]:
    """The pointers to this thread's chunks of four elements in a block of `count` elements, which begins at
    element `first` of the memory `block`, in one of `spaces`. Raises `ConfigError`, whose message begins with
    `caller`, for other memory.
    """
    start = _start(block, spaces)
    inside = isinstance(first, Value) and first.type is u32
    if start is not None and not isinstance(first, Value) and is_int(first):
        inside = first % CHUNK == 0 and (not start[1] or 0 <= first <= start[1] - count)
    if start is None or not inside:
        raise ConfigError(
            f"{caller}: it takes a contiguous block of f32 in {spaces.replace(' ', ' or ')} memory, such as "
            f"k.shared('sums', (1, {count}), f32, align=128), a tile with swizzle='none' or a pointer, with "
            f"{count} elements from first on, a multiple of {CHUNK}, an int or a u32 value; got "
            f"{shown(block)} and first {shown(first)}"
        )
    at = start[0].element(first) if isinstance(first, Value) or first else start[0]
    at = at.element((k.thread_index() & (_THREADS - 1)) * CHUNK)
    for offset in range(0, count, _THREADS * CHUNK):
        yield at.at(offset)


def _start(block: object, spaces: str) -> tuple[Pointer, int] | None:
    """The pointer to a block of f32, and its elements (0: not known); None for other memory."""
    if isinstance(block, BoxTile) and block.layout.dtype is f32 and block.layout.swizzle == "none":
        return block.at(0), block.rows * block.columns
    if isinstance(block, SharedTile) and block.dtype is f32 and block.pitch == block.columns:
        return block.pointer(0, 0), block.rows * block.columns
    if isinstance(block, Pointer) and block.dtype is f32 and block.space in spaces.split():
        return block, 0
    return None


def column_pointers(k: Any, tile: object, row: Scalar, columns: int) -> Iterator[Pointer]:
    """The pointers into row `row` of a tile of f32 to the numbers of the first pair of columns of this thread
    in each 8 columns. Raises `ConfigError` for other tiles.
    """
    plain = isinstance(tile, SharedTile) and tile.dtype is f32 and tile.pitch % 2 == 0
    if isinstance(tile, BoxTile):
        plain = tile.layout.dtype is f32 and tile.layout.swizzle == "none"
    if not plain or not isinstance(tile, SharedTile | BoxTile) or tile.columns != columns:
        raise ConfigError(
            f"accumulator.column_pairs: it takes a tile of f32 in shared memory with {columns} columns and "
            f"without a swizzle, such as ((1, {columns}), f32, 'none') of a ring, got {shown(tile)}"
        )
    at = tile.pointer(row, (k.thread_index() & _QUAD - 1) << 1)
    for column in range(0, columns, _CORE):
        yield Pointer(at.value, "shared", f32, at.offset + column * f32.nbytes)
