"""Rows on their way into a cache, and rows turned by their positions (`flash/problem/rotary.py`),
by the lanes of a warp.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from flash.device.parameters import InCache
from flash.problem.dtypes import F32_BYTES, DType
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, b16, b32, f32, u8, u16, u64

BITS: Final = {2: b16, 4: b32}


@dataclass(frozen=True)
class Turn:
    """The angles of one row: `rotary_dim` / 2 numbers of f32 at `cos` and at `sin`, u64, of which
    each turns a pair of columns: neighbours if `interleaved`.
    """

    cos: Value
    sin: Value
    rotary_dim: int
    interleaved: bool

    def columns(self, pair: Value) -> tuple[Value, Value]:
        """Those of a pair."""
        apart, step = (1, 2) if self.interleaved else (self.rotary_dim // 2, 1)
        return pair * step, pair * step + apart

    def angle(self, k: KernelBuilder, pair: Value, inside: Value | None) -> tuple[Value, Value]:
        """The cosine and sine of a pair that is `inside`."""
        cos, sin = (
            load_if(k, column_of(k, row, pair, F32_BYTES, f32), inside)
            for row in (self.cos, self.sin)
        )
        return cos, sin


def turned(a: Value, b: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    """A pair, turned: each product and sum is rounded."""
    return a * cos - b * sin, a * sin + b * cos


def position_of(k: KernelBuilder, where: InCache, place: Value, positions: Value) -> Value:
    """Of a row of the cache among those that are no padding, s32: 0 for padding itself, and at most
    the last of so many `positions`.
    """
    position = place if where.padding is None else place - where.padding
    return k.min(k.max(position, 0), positions - 1)


@dataclass(frozen=True)
class _Held:
    """What a lane has of a row: numbers, their columns, and whether they are in the row (None:
    they are).
    """

    columns: tuple[Value, ...]
    values: tuple[Value, ...]
    inside: Value | None


@dataclass(frozen=True)
class RowCopy:
    """Reads rows of `dtype` and writes them as `stored`, divided by a scale if there is one. All of
    a row is on its way before the first of it is written.
    """

    k: KernelBuilder
    dtype: DType
    stored: DType
    scale: Value | None

    def read(self, row: Value, lane: Value, columns: int, turn: Turn | None) -> list[_Held]:
        """This lane's part of the row of so many columns that begins here."""
        k, found = self.k, []
        first = 0 if turn is None else turn.rotary_dim
        for start in range(0, first // 2, WARP_SIZE):
            assert turn is not None  # or nothing is turned
            pair = lane + start
            inside = _inside(pair, start, first // 2)
            at = turn.columns(pair)
            a, b = (self._as_f32(self._load(row, column, inside)) for column in at)
            found.append(_Held(at, turned(a, b, *turn.angle(k, pair, inside)), inside))
        for start in range(first, columns, WARP_SIZE):
            column = lane + start
            inside = _inside(column, start, columns)
            x = self._load(row, column, inside)
            x = x if self.scale is None else self._as_f32(x)
            found.append(_Held((column,), (x,), inside))
        return found

    def write(self, row: Value, held: list[_Held]) -> None:
        """Write what `read` gave, to the row that begins here."""
        for part in held:
            with only(self.k, part.inside):
                for column, x in zip(part.columns, part.values, strict=True):
                    self._store(row, column, x)

    def _load(self, row: Value, column: Value, inside: Value | None) -> Value:
        bits = BITS[self.dtype.nbytes]
        at = column_of(self.k, row, column, self.dtype.nbytes, bits)
        return load_if(self.k, at, inside)

    def _as_f32(self, bits: Value) -> Value:
        return as_f32(self.k, bits, self.dtype)

    def _store(self, row: Value, column: Value, x: Value) -> None:
        """A number of f32 is rounded once; of one byte it is at most 448 either way."""
        k, nbytes = self.k, self.stored.nbytes
        if self.scale is not None:
            pair = k.cvt_narrow(0.0, k.div(x, self.scale))
            k.store(column_of(k, row, column, nbytes, u8), k.cvt(pair.as_(u16), dtype=u8))
            return
        bits = rounded(k, x, self.stored) if x.type is f32 else x
        k.store(column_of(k, row, column, nbytes, BITS[nbytes]), bits)


def as_f32(k: KernelBuilder, bits: Value, dtype: DType) -> Value:
    """An element from its bits."""
    x = bits.as_(dtype.scalar)
    return x if dtype.scalar is f32 else k.cvt(x, dtype=f32)


def rounded(k: KernelBuilder, x: Value, dtype: DType) -> Value:
    """The bits of a number of f32 as an element."""
    element = x if dtype.scalar is f32 else k.cvt(x, dtype=dtype.scalar, rnd="rn")
    return element.as_(BITS[dtype.nbytes])


def column_of(
    k: KernelBuilder, row: Value, column: Value, nbytes: int, type: ScalarType
) -> Pointer:
    """A column of the row of elements of `nbytes` that begins here, in global memory."""
    return Pointer(row + k.cvt(column * nbytes, dtype=u64), "global", type)


def load_if(k: KernelBuilder, at: Pointer, inside: Value | None) -> Value:
    """What is there, or 0 where it is not `inside`, which None says of nothing."""
    if inside is None:
        return k.load(at)
    value = k.var(at.dtype, 0.0 if at.dtype.is_float else 0)
    with only_if(k, inside):
        k.load(at, into=value)
    return value


def only_if(k: KernelBuilder, inside: Value | None) -> AbstractContextManager[object]:
    """The one instruction that follows is for what is `inside`; None is everything."""
    return nullcontext() if inside is None else k.only_if(inside)


def only(k: KernelBuilder, inside: Value | None) -> AbstractContextManager[object]:
    """What follows is for what is `inside`; None is everything."""
    return nullcontext() if inside is None else k.when(inside)


def _inside(index: Value, start: int, end: int) -> Value | None:
    """Whether a lane's index, which begins at `start`, is before the end; None if all are."""
    return None if start + WARP_SIZE <= end else index < end
