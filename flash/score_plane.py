"""Where a thread's scores are, and arrays with a number for each score, such as a bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.types import ScalarType, f32, s64, u8, u16, u64


@dataclass(frozen=True)
class ScorePlaces:
    """Row and key of each of a thread's scores: `rows` and `keys` are counted from `first_row` and,
    in the tile that begins with `first_key`, from key `lane`, which is u32.
    """

    k: KernelBuilder
    first_row: Value
    first_key: Value
    lane: Value
    rows: Sequence[int]
    keys: Sequence[int]
    begins_block: bool = False  # whether first_key is a multiple of 32, and lane less than 8
    # Of packed rows, by their number in `rows`; None if each row is its own query.
    query_of: Callable[[int], Value] | None = None

    @cached_property
    def my_first_key(self) -> Value:
        """The first key; computed where it is first asked for."""
        return self.first_key + self.k.signed(self.lane)

    def query(self, i: int) -> Value:
        """The query of row i, of which masks know the position."""
        return self.first_row + self.rows[i] if self.query_of is None else self.query_of(i)


@dataclass(frozen=True)
class ScorePlane:
    """One head's numbers: `rows` x `columns` of them in global memory, with any strides (s64,
    bytes).
    """

    first: Value
    row_bytes: Value
    column_bytes: Value
    rows: Value
    columns: Value
    dtype: ScalarType

    def each(
        self,
        k: KernelBuilder,
        places: ScorePlaces,
        use: Callable[[int, int, Value], None],
    ) -> None:
        """Call `use(i, j, number)` for row i and key j of `places`, with the last row's number for
        a row that does not exist. What it emits is only run for keys that exist.
        """
        last_row = self.rows - 1
        at_row = [
            self._offset(k, k.min(places.first_row + row, last_row), self.row_bytes)
            for row in places.rows
        ]
        for j, column in enumerate(places.keys):
            key = places.my_first_key + column
            # Branched over, so that the assembler does not load for all keys at once, which takes
            # more registers than there are.
            with k.when(key < self.columns):
                at = self.first + self._offset(k, key, self.column_bytes)
                for i, offset in enumerate(at_row):
                    use(i, j, self._load(k, at + offset))

    def element(self, k: KernelBuilder, row: Value, column: Value) -> Value:
        """The number of a row and a column that exist, f32; of a mask u16."""
        offset = self._offset(k, row, self.row_bytes) + self._offset(k, column, self.column_bytes)
        return self._load(k, self.first + offset)

    def _offset(self, k: KernelBuilder, index: Value, step: Value) -> Value:
        return (k.cvt(index, dtype=s64) * step).as_(u64)

    def _load(self, k: KernelBuilder, at: Value) -> Value:
        if self.dtype is u8:
            return k.cvt(k.load(Pointer(at, "global", u8)), dtype=u16)
        if self.dtype is f32:
            return k.load(Pointer(at, "global", f32))
        return k.cvt(k.load(Pointer(at, "global", u16)).as_(self.dtype), dtype=f32)
