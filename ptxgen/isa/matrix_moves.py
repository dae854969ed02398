"""`ldmatrix`, `stmatrix` and `movmatrix` (PTX ISA, "Warp Level Matrix Instructions").

A matrix is 8 x 8 elements of 16 bits. Lane i gives the address of row i % 8 of matrix i / 8.
Register m of lane l has element (l / 4, 2 * (l % 4)) of matrix m, or of its transpose with
`.trans`, and the next element of that row. Some programs write the shape after `.num` and `.trans`,
which the assembler accepts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.declare import each, inst
from ptxgen.isa.fragments import EVERY_LANE, WARP, as_lanes, joined
from ptxgen.isa.spec import Effect, gate
from ptxgen.isa.undefined import moves
from ptxgen.types import b32

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

SECTION: Final = "Warp Level Matrix Instructions"
SPACES: Final = {"shared": None, "shared::cta": gate(ptx=(7, 8))}
_NUMBERS: Final = ("x4", "x2", "x1")
_ROWS: Final = 8
_ROW_BYTES: Final = 16


def space_of(modifier: str | None) -> str:
    """The machine's name of a state space; without a space an address is generic."""
    return "generic" if modifier is None else modifier.removesuffix("::cta")


@lru_cache(maxsize=64)
def _row_to_fragment(lanes: int, matrices: int, trans: bool) -> Lanes:
    """For the 32-bit words of the concatenated registers (16-bit halves with `trans`), their
    indices in the concatenated words that the lanes have read from their rows.
    """
    lane = np.arange(lanes)[None, :, None]
    matrix = np.arange(matrices)[:, None, None]
    group, in_group = lane % WARP >> 2, lane & 3
    reader = lane - lane % WARP + _ROWS * matrix
    if not trans:
        words: Lanes = in_group * lanes + reader + group
        return words.reshape(-1)
    row, column = 2 * in_group + np.arange(2)[None, None, :], group
    halves: Lanes = (column // 2 * lanes + reader + row) * 2 + column % 2
    return halves.reshape(-1)


@lru_cache(maxsize=64)
def _fragment_to_word(lanes: int, matrices: int) -> tuple[Lanes, Lanes, Lanes]:
    """For the words of the matrices in order, `matrices` of them for each lane: the lane with the
    address of the word's row, the offset in the row in bytes, and the word's index in the
    concatenated registers.
    """
    lane = np.arange(lanes)
    first = lane - lane % WARP
    word = lane % WARP * matrices
    row, within = np.divmod(word, 4)
    matrix, row_of_matrix = np.divmod(row, _ROWS)
    source = matrix * lanes + first + row_of_matrix * 4 + within
    return first + row, (4 * within).astype(np.uint64), source + np.arange(matrices)[:, None]


def _transposed(words: Lanes) -> Lanes:
    """Matrices held as fragments, with each register of each warp transposed."""
    halves = words.view(np.uint16).reshape(-1, _ROWS, _ROWS)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(-1).view(np.uint32)


# The modifiers in the manual's order, and in the other order that assemblers accept.
_OTHER: Final = "As {}, in the other order of its modifiers"
_MODIFIERS: Final = ("m8n8.num{.trans}", "num{.trans}.m8n8")


@inst(
    "ldmatrix.sync.aligned.<modifiers>{.space}.b16 d:b32*num, [addr:u64]",
    each(
        "name modifiers does",
        ("ldmatrix", _MODIFIERS[0], "d = one, two or four matrices from shared memory, or their transposes"),
        ("ldmatrix_shape_last", _MODIFIERS[1], _OTHER.format("ldmatrix")),
    ),
    num=_NUMBERS,
    space=SPACES,
    ptx=(6, 5),
    sm=75,
    effect=Effect.WARP,
    undefined=moves(),
    section=f"{SECTION}: ldmatrix",
)
def ldmatrix(machine: Machine, addr: Lanes, *, num: str, trans: bool, space: str | None) -> tuple[Lanes, ...]:
    """<does>."""
    machine.warp_sync(EVERY_LANE)
    matrices = int(num[1:])
    if matrices < 4:  # the instruction ignores the other lanes' addresses
        every = as_lanes(addr)
        lane = np.arange(every.size)
        addr = every.take(lane - lane % WARP + lane % (_ROWS * matrices))
    words = np.concatenate(machine.load(space_of(space), addr, b32, 4))
    index = _row_to_fragment(words.size // 4, matrices, trans)
    if trans:
        words = words.view(np.uint16)
    return tuple(words.take(index, mode="wrap").view(np.uint32).reshape(matrices, -1))


@inst(
    "stmatrix.sync.aligned.<modifiers>{.space}.b16 [addr:u64], a:b32*num",
    each(
        "name modifiers does",
        ("stmatrix", _MODIFIERS[0], "Write one, two or four matrices, or their transposes, to shared memory"),
        ("stmatrix_shape_last", _MODIFIERS[1], _OTHER.format("stmatrix")),
    ),
    num=_NUMBERS,
    ignores=("num",),
    space=SPACES,
    ptx=(7, 8),
    sm=90,
    effect=Effect.WARP,
    undefined=moves("a"),
    section=f"{SECTION}: stmatrix",
)
def stmatrix(
    machine: Machine, addr: Lanes, a: tuple[Lanes, ...], *, trans: bool, space: str | None
) -> tuple[()]:
    """<does>."""
    machine.warp_sync(EVERY_LANE)
    words = joined(machine.active().size, a)
    if trans:
        words = _transposed(words)
    giver, start, source = _fragment_to_word(words.size // len(a), len(a))
    if len(a) < 4:  # each lane writes a part of a row; with four matrices, a whole row
        rows = as_lanes(addr).take(giver)
        if (np.bitwise_and(rows, np.uint64(_ROW_BYTES - 1))[machine.active()] != 0).any():
            machine.trap("stmatrix: the address of a row is not a multiple of 16")
        addr = rows + start
    machine.store(space_of(space), addr, b32, tuple(words.take(source)))
    return ()


@inst(
    "movmatrix.sync.aligned.m8n8.trans.b16 d:b32, a:b32",
    ptx=(7, 8),
    sm=75,
    effect=Effect.WARP,
    undefined=moves("a"),
    section=f"{SECTION}: movmatrix",
)
def movmatrix(machine: Machine, a: Lanes) -> Lanes:
    """d = the fragment of the transpose of the matrix whose fragment is a."""
    machine.warp_sync(EVERY_LANE)
    return _transposed(joined(machine.active().size, (a,)))
