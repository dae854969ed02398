"""Packed heads (GQA): a CTA's rows are the queries of all heads that share a head of K and V, so
that K and V are read once for all of these heads, and few queries fill a CTA (FlashAttention-3's
`pack_gqa`).

Row r of a packed matrix is query r // group of head r % group of the group: neighbouring rows have
neighbouring positions, so that a mask still cuts whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from flash.device.tiles import Matrix
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.types import f32, s32, s64, u32, u64


def packing_saves_ctas(seq_q: int, group: int, block_q: int) -> bool:
    """Whether packing the queries of a group of heads takes fewer CTAs of `block_q` rows: the rule
    of `pack_gqa="auto"`. Each CTA reads the K and V of its head.
    """
    return group > 1 and -(-seq_q * group // block_q) < group * -(-seq_q // block_q)


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


@dataclass(frozen=True, kw_only=True)
class PackedMatrix(Matrix):
    """The rows of all heads of a group in Q or O; `first` points to the first row of the first
    head, `row_bytes` is the distance between queries, `head_bytes` (s64) that between heads.
    """

    head_bytes: Value
    packing: Packing

    def offset(self, k: KernelBuilder, index: Value) -> Value:
        """The offset of a row from `first`, in bytes, u64."""
        return self.packing.offset(k, index, self.row_bytes, self.head_bytes)

    @property
    def is_even(self) -> bool:
        """False: the next row belongs to the next head."""
        return False


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
        return k.load(Pointer(self.first + across.as_(u64), "global", f32))
