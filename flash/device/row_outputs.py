"""The numbers that a forward kernel writes for each row besides O, such as its log-sum-exp.

Each is a `RowOutput`, which `Cta.of` lists if the kernel writes it: all kernels store the listed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flash.device.cta_coordinates import SplitOfKeys
from flash.device.softmax import FinishedRow
from flash.operands.dtypes import F32_BYTES
from flash.scores.heads import Packing
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.records import dataclass
from ptxgen.types import s64, u64


class RowOutput(Protocol):
    """An output that has one number for each row of O, such as LSE."""

    def store(self, k: KernelBuilder, row: Value, finished: FinishedRow) -> None:
        """Store the output's number for row `row` of the CTA, by one thread."""


def store_row_outputs(
    k: KernelBuilder, outputs: Sequence[RowOutput], row: Value, finished: FinishedRow
) -> None:
    """Store the numbers of all row outputs, such as LSE, for row `row` of the CTA."""
    for output in outputs:
        output.store(k, row, finished)


@dataclass(frozen=True)
class LogSums:
    """Where a CTA writes the log-sum-exp of its rows: `rows` f32 for each head. With packing,
    `head` is a head of K and V, whose heads of Q have `all_rows` rows together; of packed sequences
    (`all_rows` None) it is the first of these heads of Q. The LSEs of all splits of one row are
    adjacent.
    """

    first: Pointer
    head: Value
    rows: Value
    packing: Packing | None
    all_rows: Value | None
    part: SplitOfKeys | None

    @marked("row outputs: LSE")
    def store(self, k: KernelBuilder, row: Value, finished: FinishedRow) -> None:
        """See `RowOutput`."""
        k.store(self._at(k, row), finished.lse)

    def _at(self, k: KernelBuilder, row: Value) -> Pointer:
        """The address of the LSE of row `row` of the CTA."""
        if self.packing is None:
            index = k.mad_wide(self.head, self.rows, k.cvt(row, dtype=s64))
        else:
            query = k.cvt(self.packing.query(row), dtype=s64)
            head = self.packing.head(row)
            if self.all_rows is None:
                index = k.mad_wide(self.head + head, self.rows, query)
            else:
                index = k.mad_wide(self.head, self.all_rows, k.mad_wide(head, self.rows, query))
        if self.part is not None:
            index = index * k.cvt(self.part.splits, dtype=s64) + k.cvt(self.part.number, dtype=s64)
        return self.first.plus((index * F32_BYTES).as_(u64))
