"""Copies of rows into a cache, and rotation of rows by the angles of their positions
(`flash/problem/rotary.py`), by the lanes of a warp.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from flash.device.parameters import InCache, ScoreArray
from flash.operands.blocks import BLOCK, BlockType
from flash.operands.dtypes import F32_BYTES, LEAST_TOKEN_SCALE, DType
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, b16, b32, f32, s32, u8, u64

BITS: Final = {2: b16, 4: b32}
_EVERY_LANE: Final = [WARP_SIZE >> n for n in range(1, WARP_SIZE.bit_length())]  # butterfly distances


@dataclass(frozen=True)
class RotaryAngles:
    """The rotary angles of one row: `rotary_dim` / 2 f32 at the address `cos` and as many at `sin`,
    u64. Each angle rotates a pair of columns: neighbours if `interleaved`, else rotary_dim / 2
    apart.
    """

    cos: Value
    sin: Value
    rotary_dim: int
    interleaved: bool

    def columns(self, pair: Value) -> tuple[Value, Value]:
        """The two columns of Q or K that one rotary angle rotates as a pair."""
        apart, step = (1, 2) if self.interleaved else (self.rotary_dim // 2, 1)
        return pair * step, pair * step + apart

    def pair_of(self, k: KernelBuilder, column: Value) -> tuple[Value, Value, Value]:
        """The pair of columns with a column, whether it is the pair's second, and the other column."""
        if self.interleaved:
            return column >> 1, (column & 1) != 0, column ^ 1
        apart = self.rotary_dim // 2
        is_second = column >= apart
        other = column + k.selp(-apart, apart, is_second, type=s32)
        return k.min(column, other), is_second, other

    def angle(self, k: KernelBuilder, pair: Value, inside: Value | None) -> tuple[Value, Value]:
        """The cosine and sine of a pair's angle, f32; 0 where the pair is not `inside` (None: it is)."""
        cos, sin = (
            load_if(k, column_of(k, row, pair, F32_BYTES, f32), inside) for row in (self.cos, self.sin)
        )
        return cos, sin


def rotated_pair(a: Value, b: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    """The pair (a, b) of elements rotated by a rotary angle; each product and sum is rounded."""
    return a * cos - b * sin, a * sin + b * cos


def position_of(k: KernelBuilder, where: InCache, slot: Value, positions: Value) -> Value:
    """The rotary position of row `slot` of the cache, s32: its index among the rows that are no padding, 0
    for padding itself, and at most `positions` - 1.
    """
    position = slot if where.padding is None else slot - where.padding
    return k.min(k.max(position, 0), positions - 1)


@dataclass(frozen=True)
class _Held:
    """The elements of a row that a lane has read, their columns, and whether they are in the row (None: all
    are).
    """

    columns: tuple[Value, ...]
    values: tuple[Value, ...]
    inside: Value | None


@dataclass(frozen=True)
class RowScale:
    """The scale of one row, f32, at address `at`, u64, which lane 0 of the row's warp writes."""

    at: Value
    lane: Value

    def written(self, k: KernelBuilder, held: list[_Held], stored: DType) -> Value:
        """The scale of the row that the warp has read, also written to memory: the largest finite magnitude /
        the largest number of `stored`, and no less than the least normal f32, so that a row of zeros has a
        quotient (`flash/host/stored_rows.py`).
        """
        largest: Value = k.mov(0.0, type=f32)
        for x in [x for part in held for x in part.values]:
            size = k.abs(x)
            largest = k.max(largest, k.selp(size, 0.0, size < math.inf))
        largest = over_lanes(k, largest, _EVERY_LANE, k.max)
        scale = k.max(k.div(largest, stored.largest), LEAST_TOKEN_SCALE)
        with k.when(self.lane == 0):
            k.store(Pointer(self.at, "global", f32), scale)
        return scale


@dataclass(frozen=True)
class RowCopy:
    """Reads rows of `dtype` and writes them as `stored`, divided by a scale if there is one: a value, or that
    of each row, which is found and written with it. All loads of a row are emitted before its first store, so
    that they overlap.
    """

    k: KernelBuilder
    dtype: DType
    stored: DType
    scale: Value | RowScale | None

    def read(self, row: Value, lane: Value, columns: int, angles: RotaryAngles | None) -> list[_Held]:
        """This lane's elements of the row at address `row`, which has `columns` columns; rotated if there are
        `angles`.
        """
        k, held = self.k, []
        if isinstance(self.stored, BlockType):
            return [
                _Held((lane + start,), (self._of_block(row, lane + start, start, angles),), None)
                for start in range(0, columns, BLOCK)
            ]
        first = 0 if angles is None else angles.rotary_dim
        for start in range(0, first // 2, WARP_SIZE):
            assert angles is not None  # else no column is rotated
            pair = lane + start
            inside = _inside(pair, start, first // 2)
            at = angles.columns(pair)
            a, b = (self._as_f32(self._load(row, column, inside)) for column in at)
            held.append(_Held(at, rotated_pair(a, b, *angles.angle(k, pair, inside)), inside))
        for start in range(first, columns, WARP_SIZE):
            column = lane + start
            inside = _inside(column, start, columns)
            x = self._load(row, column, inside)
            x = x if self.scale is None else self._as_f32(x)
            held.append(_Held((column,), (x,), inside))
        return held

    def write(self, row: Value, held: list[_Held]) -> None:
        """Write the elements that `read` returned to the row at address `row`."""
        scale = self.scale
        if isinstance(self.stored, BlockType):
            for n, part in enumerate(held):
                at = row + n * self.stored.block_bytes if n else row
                self.stored.write(self.k, at, part.values[0], held[0].columns[0])
            return
        if isinstance(scale, RowScale):
            scale = scale.written(self.k, held, self.stored)
        for part in held:
            with only(self.k, part.inside):
                for column, x in zip(part.columns, part.values, strict=True):
                    self._store(row, column, x, scale)

    def _of_block(self, row: Value, column: Value, start: int, angles: RotaryAngles | None) -> Value:
        """The element of a column, one of the `BLOCK` from column `start` on, as f32; rotated if there are
        `angles`, of which each lane of a pair reads those of the pair.
        """
        k, x = self.k, self._as_f32(self._load(row, column, None))
        if angles is None or start >= angles.rotary_dim:
            return x
        inside = _inside(column, start, angles.rotary_dim)
        pair, is_second, other = angles.pair_of(k, column)
        cos, sin = angles.angle(k, pair, inside)
        across = self._as_f32(self._load(row, other, inside)) * sin
        rotated = x * cos + k.selp(across, -across, is_second)
        return rotated if inside is None else k.selp(rotated, x, inside)

    def _load(self, row: Value, column: Value, inside: Value | None) -> Value:
        bits = BITS[self.dtype.nbytes]
        at = column_of(self.k, row, column, self.dtype.nbytes, bits)
        return load_if(self.k, at, inside)

    def _as_f32(self, bits: Value) -> Value:
        return as_f32(self.k, bits, self.dtype)

    def _store(self, row: Value, column: Value, x: Value, scale: Value | None) -> None:
        """Store one element of a row; an f32 is rounded once; narrow types saturate."""
        k, nbytes = self.k, self.stored.nbytes
        if scale is not None:
            code = self.stored.narrowed(k, k.div(x, scale))
            k.store(column_of(k, row, column, nbytes, u8), k.cvt(code, dtype=u8))
            return
        bits = rounded(k, x, self.stored) if x.type is f32 else x
        k.store(column_of(k, row, column, nbytes, BITS[nbytes]), bits)


def row_scale(
    k: KernelBuilder, scales: ScoreArray, where: InCache, head: Value, slot: Value, lane: Value
) -> Value | RowScale:
    """The scale of row `slot` of a head of K or V: that of the head, or the address of the row's own."""
    if not scales.is_of_rows:
        return scales.of_sequence(k, head)
    return RowScale(where.head(k, scales.rows, head).row(k, slot), lane)


def as_f32(k: KernelBuilder, bits: Value, dtype: DType) -> Value:
    """The f32 value of an element of a narrow type, converted from its bits."""
    x = bits.as_(dtype.scalar)
    return x if dtype.scalar is f32 else k.cvt(x, dtype=f32)


def rounded(k: KernelBuilder, x: Value, dtype: DType) -> Value:
    """The bits of an f32 value rounded to the type `dtype`."""
    element = x if dtype.scalar is f32 else k.cvt(x, dtype=dtype.scalar, rnd="rn")
    return element.as_(BITS[dtype.nbytes])


def column_of(k: KernelBuilder, row: Value, column: Value, nbytes: int, type: ScalarType) -> Pointer:
    """The address in global memory of a column of the row at address `row`, whose elements have
    `nbytes` bytes.
    """
    return Pointer(row + k.cvt(column * nbytes, dtype=u64), "global", type)


@marked("row copy: guarded load")
def load_if(k: KernelBuilder, at: Pointer, inside: Value | None) -> Value:
    """The element at `at`, or 0 where `inside` is false; if `inside` is None, the element
    everywhere.
    """
    if inside is None:
        return k.load(at)
    value = k.var(at.dtype, 0.0 if at.dtype.is_float else 0)
    with only_if(k, inside):
        k.load(at, into=value)
    return value


def only_if(k: KernelBuilder, inside: Value | None) -> AbstractContextManager[object]:
    """A context for one instruction, which runs where `inside` is true; if that is None,
    everywhere.
    """
    return nullcontext() if inside is None else k.only_if(inside)


def only(k: KernelBuilder, inside: Value | None) -> AbstractContextManager[object]:
    """A context for code that runs where `inside` is true; if that is None, everywhere."""
    return nullcontext() if inside is None else k.when(inside)


def _inside(index: Value, start: int, end: int) -> Value | None:
    """Whether a lane's index, which is `start` plus the lane, is before `end`; None if it is for
    all.
    """
    return None if start + WARP_SIZE <= end else index < end
