"""Packed heads (GQA): a CTA's rows are the queries of all heads that share a head of K and V, so
that K and V are read once for all of these heads, and few queries fill a CTA (FlashAttention-3's
`pack_gqa`).

Row r of a packed matrix is query r // group of head r % group of the group: neighbouring rows have
neighbouring positions, so that a mask still cuts whole tiles.
"""

from __future__ import annotations

from flash.device.tiles import Matrix
from flash.scores.heads import Packing
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.records import dataclass


def packing_saves_ctas(seq_q: int, group: int, block_q: int) -> bool:
    """Whether packing the queries of a group of heads takes fewer CTAs of `block_q` rows: the rule
    of `pack_gqa="auto"`. Each CTA reads the K and V of its head.
    """
    return group > 1 and -(-seq_q * group // block_q) < group * -(-seq_q // block_q)


@dataclass(frozen=True, kw_only=True)
class PackedMatrix(Matrix):
    """The rows of all heads of a group in Q or O; `first` points to the first row of the first
    head, `row_bytes` is the distance between queries, `head_bytes` (s64) that between heads.
    """

    head_bytes: Value
    packing: Packing

    def offset(self, k: KernelBuilder, index: Value) -> Value:
        """The offset of a row of the matrix from the address `first`, in bytes, u64."""
        return self.packing.offset(k, index, self.row_bytes, self.head_bytes)

    @property
    def is_even(self) -> bool:
        """Whether rows are equally far apart: they are not, the next row belongs to the next head."""
        return False
