"""Left operands of products in tensor memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptxgen.dsl.blackwell.cells import Memory, Side, TensorMatrix, packed, require_f32, store_row
from ptxgen.dsl.values import Pointer, Value, is_int
from ptxgen.errors import ConfigError, shown
from ptxgen.types import ScalarType

_PER_COLUMN: Final = 2  # elements


class TensorOperand(TensorMatrix):
    """A left operand of products, f16 or bf16, in tensor memory, two elements in a column (PTX ISA, "Matrix
    fragments for A"). A ring of `k.tensor_memory(...)` has it.
    """

    fp8: Final = ""

    def __init__(
        self, memory: Memory, name: str, rows: int, columns: int, at: Pointer, owner: Side, dtype: ScalarType
    ) -> None:
        super().__init__(memory, name, rows, columns, at, owner)
        self.dtype = dtype

    def store(self, values: Sequence[Value], first: int = 0, *, waits: bool = True) -> None:
        """Round f32 values to the type of the operand and store them to this thread's `row`, from column
        `first` on, an even number, and wait until they are there. All threads of whole warpgroups come here.
        With `waits=False` they are there after the next store that waits: while it is under way, the thread
        can compute the values of other columns.

        Raises `ConfigError` for other columns, and `TypeMismatchError` for other values, and where some
        threads are absent (PTX ISA, "tcgen05.st").
        """
        caller, count = "operand.store", len(values)
        inside = is_int(first) and count and 0 <= first <= self.columns - count
        if not inside or first % _PER_COLUMN or count % _PER_COLUMN:
            raise ConfigError(
                f"{caller}: expected an even first column and an even number of values, among the "
                f"{self.columns} columns of matrix {self.name!r}, got first {shown(first)} and {count} values"
            )
        require_f32(caller, values)
        at, k = self.use_by_threads(caller, first // _PER_COLUMN), self.memory.k
        with k.placed():
            store_row(k, at, packed(k, values, self.dtype), waits=waits)
