"""Left operands of products in tensor memory."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.blackwell.cells import (
    CELL,
    Memory,
    Side,
    TensorMatrix,
    packed,
    packed_fp8,
    require_f32,
    store_row,
)
from ptxgen.dsl.values import Pointer, Value, is_int
from ptxgen.errors import ConfigError, shown
from ptxgen.types import ScalarType


class TensorOperand(TensorMatrix):
    """A left operand of products in tensor memory, two elements of f16 or bf16 in a column, or four of `fp8`,
    which is "e4m3" or "e5m2" and else empty (PTX ISA, "Matrix fragments for A"). A ring of
    `k.tensor_memory(...)` has it.
    """

    def __init__(
        self,
        memory: Memory,
        name: str,
        rows: int,
        columns: int,
        at: Pointer,
        owner: Side,
        dtype: ScalarType,
        fp8: str = "",
    ) -> None:
        super().__init__(memory, name, rows, columns, at, owner)
        self.dtype = dtype
        self.fp8 = fp8

    def store(self, values: Sequence[Value], first: int = 0, *, waits: bool = True) -> None:
        """Round f32 values to the type of the operand and store them to this thread's `row`, from column
        `first` on, and wait until they are there; `first` and the number of values are multiples of the
        elements in a column. All threads of whole warpgroups come here. Numbers beyond those of fp8 become
        the largest one. With `waits=False` they are there after the next store that waits: while it is under
        way, the thread can compute the values of other columns.

        Raises `ConfigError` for other columns, and `TypeMismatchError` for other values, and where some
        threads are absent (PTX ISA, "tcgen05.st").
        """
        caller, count, step = "operand.store", len(values), CELL // self.dtype.nbytes
        inside = is_int(first) and count and 0 <= first <= self.columns - count
        if not inside or first % step or count % step:
            raise ConfigError(
                f"{caller}: expected a first column and a number of values in multiples of {step}, among the "
                f"{self.columns} columns of matrix {self.name!r}, got first {shown(first)} and {count} values"
            )
        require_f32(caller, values)
        at, k = self.use_by_threads(caller, first // step), self.memory.k
        with k.placed():
            words = packed_fp8(k, values, self.fp8) if self.fp8 else packed(k, values, self.dtype)
            store_row(k, at, words, waits=waits)
