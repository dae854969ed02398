"""The heads of a CTA's rows: of one head, or packed rows of all heads that share a head of K and V
(`flash/device/grouped_heads.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen import dsl
from ptxgen.records import dataclass
from ptxgen.types import f32, s32, s64, u32, u64

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value


@dataclass(frozen=True)
class Packing:
    """The query and head of each row of a packed matrix; `group`, s32, is the number of heads in a
    group.

    Divisions are unsigned, which takes fewer instructions; rows are not negative.
    """

    group: Value

    def query(self, row: Value) -> Value:
        """The query of a row, s32."""
        return (row.as_(u32) // self.group.as_(u32)).as_(s32)

    def head(self, row: Value) -> Value:
        """The head of a row, counted from the first of the group, s32."""
        return (row.as_(u32) % self.group.as_(u32)).as_(s32)

    def offset(self, k: KernelBuilder, row: Value, query_bytes: Value, head_bytes: Value) -> Value:
        """The offset of a row from the first row, in bytes, u64; `query_bytes` and `head_bytes`,
        s64, are the distances between queries and between heads.
        """
        query, head = self.query(row), self.head(row)
        down = k.cvt(query, dtype=s64) * query_bytes
        across = k.cvt(head, dtype=s64) * head_bytes
        return (down + across).as_(u64)


@dataclass(frozen=True)
class PackedNumbers:
    """An f32 for each head of a group, such as a slope: `first` (u64) is the address of the first
    head's, `step_bytes` (s64) the distance to the next.
    """

    first: Value
    step_bytes: Value
    packing: Packing

    def of_row(self, k: KernelBuilder, row: Value) -> Value:
        """The f32 of a packed row's head."""
        return self.of_head(k, self.packing.head(row))

    def of_head(self, k: KernelBuilder, head: Value) -> Value:
        """The f32 of a head, counted from the first of the group."""
        across = k.cvt(head, dtype=s64) * self.step_bytes
        return k.load(dsl.Pointer(self.first + across.as_(u64), "global", f32))
