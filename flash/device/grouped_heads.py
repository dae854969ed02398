"""Packed heads: a CTA's rows are queries of all heads that share a head of K and V, so that these
are read once for all of them, and few queries fill a CTA (FlashAttention-3's `pack_gqa`).

Row r of a packed matrix is query r // group of head r % group of the group: neighbouring rows have
neighbouring positions, so that a mask still cuts whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from flash.device.tiles import Matrix
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.types import f32, s32, s64, u32, u64


def packing_saves_ctas(seq_q: int, group: int, block_q: int) -> bool:
    """Whether fewer CTAs of `block_q` rows hold the queries of a group of heads if they are packed:
    the rule of `pack_gqa="auto"`. Each CTA reads the K and V of its head.
    """
    return group > 1 and -(-seq_q * group // block_q) < group * -(-seq_q // block_q)


@dataclass(frozen=True)
class Packing:
    """What the rows of a packed matrix are; `group` is how many heads there are in a group, s32.

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
        """Of a row from the first, in bytes, u64; the distances are s64."""
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
        """Of a row from `first`, in bytes, u64."""
        return self.packing.offset(k, index, self.row_bytes, self.head_bytes)

    @property
    def is_even(self) -> bool:
        """No: the next row is of the next head."""
        return False


@dataclass(frozen=True)
class PackedNumbers:
    """A number of f32 for each head of a group: `first` is the address of that of the first head
    (u64), `step_bytes` (s64) the distance to the next.
    """

    first: Value
    step_bytes: Value
    packing: Packing

    def of_row(self, k: KernelBuilder, row: Value) -> Value:
        """The number of a packed row's head."""
        return self.of_head(k, self.packing.head(row))

    def of_head(self, k: KernelBuilder, head: Value) -> Value:
        """The number of a head, counted from the first of the group."""
        across = k.cvt(head, dtype=s64) * self.step_bytes
        return k.load(Pointer(self.first + across.as_(u64), "global", f32))
