"""Products of f16 by 4-bit integers, which become f16 in registers.

A lane reads 16 bytes at once of its rows of A, 8 elements, and 4 bytes of its columns of B, the same 8 in the
depth: elements 8 q … 8 q + 7 of each 32, for lane q of a quad. Two `mma.m16n8k16` take 4 of them each. An
`mma` adds the products in its depth, so that their order in the depth is free. A row of B has whole blocks of
32 bytes, so that the depth is a multiple of 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack, unpack
from typing import Final

from ptxgen.dsl.control import Control
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, MMA_ROWS, QUAD_LANES
from ptxgen.dsl.matrices.layout import Layout
from ptxgen.dsl.matrices.staged import StagedTile
from ptxgen.dsl.swizzle import BlockReader
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Pointer, Value
from ptxgen.types import b32, f16x2, u32

_GROUP: Final = 2  # `mma` for each 8 elements of a lane
_WORDS: Final = 4  # registers of 8 elements of f16

# A byte b in both halves of a register, below the upper byte of 1024 in f16, whose last place is 1.
_BOTH: Final = 0x4040  # the bytes of the selector of `prmt`: the byte of a, and byte 4, of b
_THOUSAND: Final = 0x64646464
_NIBBLES: Final = 0xFFF0FF0F  # leaves the low four bits in the lower half, the high four in the upper one
_ONE_AND_SIXTEENTH: Final = 0x2C003C00  # f16x2: (1, 1/16)


def left_int4(layout: Layout, a: StagedTile, row: Value | None) -> Callable[[int, int], Sequence[Value]]:
    """Reads a row-major block of f16 as A; `row` is the warp's number among those along the rows."""
    position, k = layout.lanes.position(), a.tile.k
    of_lane = position.lane >> QUAD_LANES.bit_length() - 1
    of_lane = of_lane if row is None else row * layout.warp_rows + of_lane
    at = BlockReader(a.tile, of_lane, position.in_quad).stage(a.stage)
    known: dict[tuple[int, int], list[tuple[Value, ...]]] = {}

    def eight(address: TilePointer) -> tuple[Value, ...]:
        words: tuple[Value, ...] = k.load(Pointer(address.base, address.space, b32, address.offset), _WORDS)
        return words

    def read(index: int, d: int) -> Sequence[Value]:
        group, half = divmod(d, _GROUP)
        if (index, group) not in known:
            rows = (MMA_ROWS * index, MMA_ROWS * index + FRAGMENT_STEP)
            known[index, group] = [eight(at(_GROUP * group, n)) for n in rows]
        upper, lower = known[index, group]
        first, second = 2 * half, 2 * half + 1
        return upper[first], lower[first], upper[second], lower[second]

    return read


def right_int4(
    k: Control, words: Callable[[int, int], Sequence[Value]], zero: int
) -> Callable[[int, int], Sequence[Value]]:
    """B in f16, less `zero`; `words` reads the bytes of 16 columns as `ldmatrix` does: for each eight columns
    the lane's 8 elements of the first 32 in the depth, then of the second 32.
    """
    # In the halves: (1024 + n) - (1024 + zero), and (1024 + 16 n) / 16 - (64 + zero); all are exact in f16.
    less = (_half(-(64 + zero)) << 16) | _half(-(1024 + zero))
    known: dict[tuple[int, int], list[list[Value]]] = {}

    def pairs(word: Value) -> list[Value]:
        scale, offset = (k.mov(bits, type=u32).as_(f16x2) for bits in (_ONE_AND_SIXTEENTH, less))
        spread = [k.prmt(word, _THOUSAND, _BOTH | byte * 0x0101) for byte in range(_WORDS)]
        return [k.fma((x.as_(u32) & _NIBBLES).as_(f16x2), scale, offset) for x in spread]

    def read(index: int, d: int) -> Sequence[Value]:
        group, half = divmod(d, _GROUP)
        block, which = divmod(group, 2)
        if (index, group) not in known:
            of_block = words(index, block)
            known[index, group] = [pairs(of_block[which]), pairs(of_block[2 + which])]
        return [word for eight in known[index, group] for word in eight[2 * half : 2 * half + 2]]

    return read


def _half(number: float) -> int:
    """The 16 bits of a Python number as f16."""
    bits: int = unpack("<H", pack("<e", number))[0]
    return bits
