"""The row and key of each of a thread's scores, and arrays with an element for each score, such as
a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from flash.scores.heads import Packing
from ptxgen import dsl
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, f32, s32, s64, u8, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value


@dataclass(frozen=True)
class ScoreCoordinates:
    """The row and key of each of a thread's scores: `rows` are counted from `first_row`, `keys`
    from key `first_key` + `lane`. The tile begins with `first_key`; `lane` is u32.
    """

    k: KernelBuilder
    first_row: Value
    first_key: Value
    lane: Value
    rows: Sequence[int]
    keys: Sequence[int]
    begins_block: bool = False  # whether first_key is a multiple of 32, and lane less than 8
    packing: Packing | None = None  # None if each row is its own query
    # The query of a packed row, by its index in `rows`; None if scores do not depend on it.
    query_of: Callable[[int], Value] | None = None
    # Whether first_key may be an odd multiple of 16 in a tile of more than 16 keys: the tile then ends in
    # another block of 32 keys than one that begins with a block.
    crosses_blocks: bool = False

    @cached_property
    def my_first_key(self) -> Value:
        """The key that `keys` are counted from; computed where it is first asked for."""
        return self.first_key + self.k.signed(self.lane)

    def query(self, i: int) -> Value:
        """The query of row i, from which masks and ALiBi derive its position."""
        return self.first_row + self.rows[i] if self.query_of is None else self.query_of(i)

    def head(self, i: int, query: Value) -> Value:
        """The head of packed row i, counted from the first of its group."""
        assert self.packing is not None  # else all rows are of one head
        group = self.packing.group
        head = self.first_row + self.rows[i] - query * group
        # The head is in the group anyway: the minimum states it for the proof, which does not
        # follow a query that one lane gets from another.
        return self.k.min(head.as_(u32), (group - 1).as_(u32)).as_(s32)


@dataclass(frozen=True)
class ScorePlane:
    """The elements of one head's scores in global memory: for each of `queries` queries a row of
    `columns`, with any strides (s64, bytes). Without `row_bytes` all queries have the same row. The
    first column is that of key `begin`, which may be negative (s32); None is key 0.
    """

    first: Value
    row_bytes: Value | None
    column_bytes: Value
    queries: Value
    columns: Value
    dtype: ScalarType
    begin: Value | None = None

    def each(
        self, k: KernelBuilder, coordinates: ScoreCoordinates, use: Callable[[int, int, Value], None]
    ) -> None:
        """Call `use(i, j, element)` for row i and key j of `coordinates`; a row that does not exist gets the
        element of the last query. Code that `use` emits only runs for keys that exist and have a column.
        """
        last_query = self.queries - 1
        at_row = [self._offset_of(k, coordinates, i, last_query) for i in range(len(coordinates.rows))]
        first = coordinates.my_first_key if self.begin is None else coordinates.my_first_key - self.begin
        for j, distance in enumerate(coordinates.keys):
            column = first + distance
            # Branched over, so that the assembler does not load for all keys at once, which takes
            # more registers than there are.
            with k.when(self._has(column)):
                at = self.first + self._offset(k, column, self.column_bytes)
                shared = self._load(k, at) if at_row[0] is None else None
                for i, offset in enumerate(at_row):
                    element = self._load(k, at + offset) if offset is not None else shared
                    assert element is not None
                    use(i, j, element)

    def element(self, k: KernelBuilder, row: Value, key: Value, otherwise: int = 0) -> Value:
        """The element of an existing row of the CTA and an existing key: f32, or u16 of a mask. A
        key without a column has `otherwise`.
        """
        if self.begin is None:
            return self._element(k, row, key)
        column = key - self.begin
        result = k.var(u16 if self.dtype is u8 else f32, otherwise)
        with k.when(self._has(column)):
            result.set(self._element(k, row, column))
        return result

    def _element(self, k: KernelBuilder, row: Value, column: Value) -> Value:
        down, across = self._row_offset(k, row), self._offset(k, column, self.column_bytes)
        return self._load(k, self.first + (across if down is None else down + across))

    def _has(self, column: Value) -> Value:
        """Whether the plane has column `column`, which cannot be negative if the first column is that of key
        0.
        """
        inside = column < self.columns
        return inside if self.begin is None else (column >= 0) & inside

    def _row_offset(self, k: KernelBuilder, row: Value) -> Value | None:
        """The offset in bytes of an existing row; None if all rows are the same."""
        return None if self.row_bytes is None else self._offset(k, row, self.row_bytes)

    def _offset_of(
        self, k: KernelBuilder, coordinates: ScoreCoordinates, i: int, last_query: Value
    ) -> Value | None:
        """The offset in bytes of row i, or, if that does not exist, of the last query's row; None
        if all rows are the same.
        """
        if self.row_bytes is None:
            return None
        return self._offset(k, k.min(coordinates.query(i), last_query), self.row_bytes)

    def _offset(self, k: KernelBuilder, index: Value, step: Value) -> Value:
        return (k.cvt(index, dtype=s64) * step).as_(u64)

    def _load(self, k: KernelBuilder, at: Value) -> Value:
        if self.dtype is u8:
            return k.cvt(k.load(dsl.Pointer(at, "global", u8)), dtype=u16)
        if self.dtype is f32:
            return k.load(dsl.Pointer(at, "global", f32))
        return k.cvt(k.load(dsl.Pointer(at, "global", u16)).as_(self.dtype), dtype=f32)


@dataclass(frozen=True, kw_only=True)
class PackedPlane(ScorePlane):
    """The elements of the scores of all heads of a group, for packed rows: `first` is the address
    of the first head's, `head_bytes` (s64) the distance between heads.
    """

    head_bytes: Value
    packing: Packing

    def _row_offset(self, k: KernelBuilder, row: Value) -> Value:
        if self.row_bytes is None:
            return self._offset(k, self.packing.head(row), self.head_bytes)
        return self.packing.offset(k, row, self.row_bytes, self.head_bytes)

    def _offset_of(self, k: KernelBuilder, coordinates: ScoreCoordinates, i: int, last_query: Value) -> Value:
        query = coordinates.query(i)
        if self.row_bytes is None:
            return self._offset(k, coordinates.head(i, query), self.head_bytes)
        down = k.min(query.as_(u32), last_query.as_(u32)).as_(s32)  # neither is negative
        across = coordinates.head(i, query)
        return self._offset(k, down, self.row_bytes) + self._offset(k, across, self.head_bytes)
