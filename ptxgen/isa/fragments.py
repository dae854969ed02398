"""The mapping of the elements of `mma` and `wmma` matrices to the registers of a warp (PTX ISA,
"Warp Level Matrix Instructions", sections "Matrix Fragments for ...").

Lane `l` of a warp is number `t = l % 4` of its group `g = l / 4`. With `per` elements in a
register, the first in the lowest bits, all shapes but one follow one rule:

* A: register r has row `g` (and `g + 8` for odd r if there are 16 rows), columns `t * per + e` of
  the r-th (r/2-th) stretch of `4 * per` columns;
* B: register r has column `g`, rows `t * per + e` of the r-th stretch of `4 * per` rows;
* C and D: element i has row `g + 8 * (i / 2)`, column `2 * t + i % 2`.

`mma.m8n8k4` on f16 is four products at once, each of eight lanes. The manual does not specify the
fragments of `wmma`; here they consist of blocks of the rule above, so that one table serves both
families.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ptxgen.isa.machine import Lanes, Machine

WARP: Final = 32
EVERY_LANE: Final[Any] = np.uint32(0xFFFFFFFF)  # the membermask of an `.aligned` instruction
_LANE: Final = np.arange(WARP)[None, :, None]
_GROUP: Final = _LANE >> 2
_IN_GROUP: Final = _LANE & 3

# Elements of a type in one register.
PER_REGISTER: Final[Mapping[str, int]] = {
    **dict.fromkeys(("f64", "f32", "tf32", "s32"), 1),
    **dict.fromkeys(("f16", "bf16"), 2),
    **dict.fromkeys(("s8", "u8", "e4m3", "e5m2"), 4),
    **dict.fromkeys(("s4", "u4"), 8),
    "b1": 32,
}


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The mapping of a matrix to the registers of a warp.

    `shape` is (matrices, rows, columns); `index[register, lane, element]` is the index of an
    element in the array of that shape. B is held as its transpose, columns first: its elements are
    contiguous in registers along K, as those of A are. `unit` is the number of elements that are
    moved together: all of a register, or one.
    """

    shape: tuple[int, int, int]
    index: Lanes
    unit: int

    @property
    def registers(self) -> int:
        """The number of registers of a lane that hold the matrix."""
        return len(self.index)

    @property
    def per(self) -> int:
        """The number of elements in one register."""
        per: int = self.index.shape[2]
        return per


def sizes(shape: str) -> tuple[int, int, int]:
    """M, N and K of a shape such as `m16n8k16`."""
    m, n, k = re.findall(r"\d+", shape)
    return int(m), int(n), int(k)


def _layout(shape: tuple[int, int, int], matrix: Lanes | int, row: Lanes, column: Lanes) -> Layout:
    _, rows, columns = shape
    index = np.ascontiguousarray((matrix * rows + row) * columns + column)
    per = index.shape[2]
    together = (index % per == np.arange(per)).all() and (np.diff(index, axis=2) == 1).all()
    return Layout(shape, index, per if together else 1)


def _elements(count: int, per: int) -> tuple[Lanes, Lanes]:
    """The indices of the registers and of the elements in a register, with axes for broadcasting."""
    return np.arange(count // (WARP * per))[:, None, None], np.arange(per)[None, None, :]


@cache
def layout_a(m: int, k: int, per: int) -> Layout:
    """The layout of A, `m` x `k`, with `per` elements in a register."""
    register, e = _elements(m * k, per)
    halves = min(m, 16) // 8
    stretches = k // (4 * per)
    block, rest = np.divmod(register, halves * stretches)
    stretch, half = np.divmod(rest, halves)
    row = 16 * block + 8 * half + _GROUP + 0 * e
    return _layout((1, m, k), 0, row, (4 * stretch + _IN_GROUP) * per + e)


@cache
def layout_b(k: int, n: int, per: int) -> Layout:
    """The layout of B, `k` x `n`, as its transpose, with `per` elements in a register."""
    register, e = _elements(k * n, per)
    block, stretch = np.divmod(register, k // (4 * per))
    row = 8 * block + _GROUP + 0 * e
    return _layout((1, n, k), 0, row, (4 * stretch + _IN_GROUP) * per + e)


@cache
def layout_c(m: int, n: int, per: int) -> Layout:
    """The layout of C or D, `m` x `n`, with `per` elements in a register."""
    register, e = _elements(m * n, per)
    halves = min(m, 16) // 8
    block, i = np.divmod(register * per + e, 2 * halves)
    down, across = np.divmod(block, n // 8)
    row = 16 * down + 8 * (i // 2) + _GROUP
    return _layout((1, m, n), 0, row, 8 * across + 2 * _IN_GROUP + i % 2)


# The four products of mma.m8n8k4 on f16: lanes 0-3 and 16-19 hold the first, and so on.
_QUAD: Final = _LANE % 16 // 4
_LOW_HALF: Final = 4 * (_LANE // 16)  # lanes from 16 on hold rows, or columns, 4 to 7


@cache
def layout_quad(along_k: bool) -> Layout:
    """The layout of A, or of B transposed, of `mma.m8n8k4` on f16. With `along_k`, a lane's
    elements are in one row of A or one column of B.
    """
    register, e = _elements(4 * 8 * 4, 2)
    i, in_quad = 2 * register + e + 0 * _LANE, _LANE % 4 + 0 * (register + e)
    row, column = (in_quad, i) if along_k else (i, in_quad)
    return _layout((4, 8, 4), _QUAD, row + _LOW_HALF, column)


@cache
def layout_quad_c(per: int) -> Layout:
    """The layout of C or D of `mma.m8n8k4` on f16, with f32 (1 per register) or f16 (2) elements."""
    register, e = _elements(4 * 8 * 8, per)
    i = register * per + e
    if per == 2:
        return _layout((4, 8, 8), _QUAD, _LANE % 4 + _LOW_HALF + 0 * i, i + 0 * _LANE)
    row = (_LANE & 1) + (i & 2) + _LOW_HALF
    return _layout((4, 8, 8), _QUAD, row, (i & 4) + (_LANE & 2) + (i & 1))


def operand_layout(operand: str, shape: str, type: str) -> Layout:
    """The layout of operand `a`, `b`, `c` or `d` of a product of this shape and type."""
    m, n, k = sizes(shape)
    per = PER_REGISTER[type]
    if operand == "a":
        return layout_a(m, k, per)
    return layout_b(k, n, per) if operand == "b" else layout_c(m, n, per)


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The layouts of the operands of a product, and the types of the elements of A and B."""

    a: Layout
    b: Layout
    c: Layout
    d: Layout
    type_a: str
    type_b: str


def counts(**columns: str) -> dict[str, Callable[[Mapping[str, Any]], int]]:
    """The functions `na`, `nb` and `nc` for `@inst`: the number of registers of A, B and C, from
    `shape` and the types in these columns or slots.
    """

    def count(operand: str, column: str) -> Callable[[Mapping[str, Any]], int]:
        return lambda m: operand_layout(operand, str(m["shape"]), str(m[column])).registers

    return {f"n{operand}": count(operand, column) for operand, column in columns.items()}


# ---------------------------------------- moves between registers and matrices


@lru_cache(maxsize=64)
def _sources(layout: Layout, warps: int) -> Lanes:
    """For each unit of the matrices of all warps, its index in the concatenated registers."""
    index = layout.index[:, :, :: layout.unit] // layout.unit
    per_warp = index[0].size
    register, inside = np.divmod(np.argsort(index.reshape(-1)), per_warp)
    first = register * (warps * per_warp) + inside
    sources: Lanes = (np.arange(warps)[:, None] * per_warp + first).reshape(-1)
    return sources


@lru_cache(maxsize=64)
def _targets(layout: Layout, warps: int) -> Lanes:
    """For each unit of the concatenated registers, its index in the matrices of all warps."""
    index = layout.index[:, :, :: layout.unit] // layout.unit
    warp = np.arange(warps)[None, :, None, None]
    targets: Lanes = (warp * index.size + index[:, None]).reshape(-1)
    return targets


def joined(lanes: int, registers: Sequence[Lanes]) -> Lanes:
    """The concatenated registers of this many lanes, in a new array."""
    try:
        return np.concatenate(registers)
    except ValueError:  # a literal has no lanes
        return np.concatenate([np.broadcast_to(r, lanes) for r in registers])


@dataclass(frozen=True, slots=True, eq=False)
class ActiveWarps:
    """The warps that execute an instruction of whole warps. `numbers` are their indices among the
    `count` warps of the machine's lanes, None if all execute it. Registers of other warps are
    neither read nor computed; those of results are zero.
    """

    count: int
    numbers: Lanes | None

    @classmethod
    def of(cls, machine: Machine) -> ActiveWarps:
        """The warps with a lane that executes the machine's instruction."""
        lanes = machine.active()
        count = lanes.size // WARP
        if lanes.all():
            return cls(count, None)
        active: Lanes = np.logical_or.reduce(lanes.reshape(-1, WARP), axis=1)
        return cls(count, None if active.all() else np.flatnonzero(active))

    def joined(self, layout: Layout, registers: Sequence[Lanes]) -> Lanes:
        """The concatenated registers of the active warps, in a new array; of registers that repeat
        others, only the first are read.
        """
        flat = joined(self.count * WARP, registers[: layout.registers])
        return self.picked(flat.reshape(-1, self.count, WARP), 1).reshape(-1)

    def picked(self, by_warp: Lanes, axis: int) -> Lanes:
        """The active warps of an array with an index for each warp along `axis`."""
        return by_warp if self.numbers is None else by_warp.take(self.numbers, axis, mode="clip")

    def as_registers(self, layout: Layout, flat: Lanes) -> tuple[Lanes, ...]:
        """One array for each register, with all lanes, from the concatenated registers of the active
        warps.
        """
        if self.numbers is None:
            return tuple(flat.reshape(layout.registers, -1))
        wide = np.zeros((layout.registers, self.count, WARP), flat.dtype)
        wide[:, self.numbers] = flat.reshape(layout.registers, -1, WARP)
        return tuple(wide.reshape(layout.registers, -1))


def gathered(warps: ActiveWarps, layout: Layout, registers: Sequence[Lanes]) -> Lanes:
    """The matrices of the active warps, flat, as units of the layout."""
    flat = warps.joined(layout, registers)
    active = flat.size // (layout.registers * WARP)
    per = layout.index.shape[2]
    if layout.unit != per:
        flat = flat.view(f"u{flat.itemsize // per}")
    # Never out of range; `wrap` is the fastest mode.
    return flat.take(_sources(layout, active), mode="wrap")


def scattered(layout: Layout, units: Lanes) -> Lanes:
    """The concatenated registers, flat, from the units of the matrices of all warps."""
    warps = units.size * layout.unit // layout.index.size
    return units.take(_targets(layout, warps), mode="wrap")


@lru_cache(maxsize=64)
def _sources_across(layout: Layout, warps: int, k_first: bool) -> Lanes:
    """For each element of the matrices of all warps, which are stacked along the last axis, its
    index in the concatenated registers.
    """
    per_warp = WARP * layout.per
    register, inside = np.divmod(np.argsort(layout.index.reshape(-1)), per_warp)
    first = (register * (warps * per_warp) + inside).reshape(layout.shape)
    first = first.transpose((2, 1, 0) if k_first else (1, 2, 0))
    sources = first[:, :, None, :] + per_warp * np.arange(warps)[:, None]
    return sources.reshape(*first.shape[:2], -1)


@lru_cache(maxsize=64)
def _targets_across(layout: Layout, warps: int) -> Lanes:
    """For each element of the concatenated registers, its index in the matrices of all warps, which
    are stacked along the last axis.
    """
    matrices, rows, columns = layout.shape
    matrix, inside = np.divmod(layout.index, rows * columns)
    first = inside * (warps * matrices) + matrix
    targets: Lanes = first[:, None] + matrices * np.arange(warps)[:, None, None]
    return targets.reshape(-1)


@lru_cache(maxsize=64)
def element_numbers(layout: Layout) -> Lanes:
    """For each element of a warp's matrix, `[rows, columns]`, its index in concatenated registers."""
    return np.ascontiguousarray(_sources_across(layout, 1, False)[:, :, 0])


def elements_across(layout: Layout, flat: Lanes, *, k_first: bool) -> Lanes:
    """The elements of matrices in concatenated registers as bits, indexed by row, column and matrix;
    with `k_first`, by column of A (row of B), row (column) and matrix.
    """
    warps = flat.size // (layout.registers * WARP)
    elements = flat.view(f"u{flat.itemsize // layout.per}")
    return elements.take(_sources_across(layout, warps, k_first), mode="wrap")


def registers_across(layout: Layout, elements: Lanes) -> Lanes:
    """The concatenated registers, flat, from elements indexed by row, column and matrix."""
    warps = elements.size // layout.index.size
    flat = elements.take(_targets_across(layout, warps), mode="wrap")
    return flat if layout.per == 1 else flat.view(np.uint32)


def as_lanes(address: Lanes) -> Lanes:
    """Addresses as uint64 lanes, for arithmetic."""
    return np.asarray(address).astype(np.uint64, copy=False)
