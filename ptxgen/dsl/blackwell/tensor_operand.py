"""Matrices in tensor memory that are left operands (A) of `tcgen05.mma`."""

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
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.types import PAIRS, ScalarType, u32

_PAIR = 2  # elements


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
        caller, k = "operand.store", self.memory.k
        column = self._column(caller, first, len(values))
        require_f32(caller, values)
        at = self.use_by_threads(caller, column)
        with k.placed():
            words = packed_fp8(k, values, self.fp8) if self.fp8 else packed(k, values, self.dtype)
            store_row(k, at, words, waits=waits)

    def store_pairs(self, pairs: Sequence[Value], first: int = 0, *, waits: bool = True) -> None:
        """Store elements that have been rounded, two neighbours in each value of `f16x2` or `bf16x2`, the
        first one in its lower half; the rest is as in `store`.
        """
        caller, k = "operand.store_pairs", self.memory.k
        column = self._column(caller, first, _PAIR * len(pairs))
        wanted = PAIRS.get(self.dtype)
        for value in pairs:
            if wanted is None or getattr(value, "type", None) is not wanted:
                raise TypeMismatchError(
                    f"{caller}: expected values of f16x2 or bf16x2 for matrix {self.name!r} of "
                    f"{self.fp8 or self.dtype}, two elements in each, got {shown(value)}"
                )
        at = self.use_by_threads(caller, column)
        with k.placed():
            store_row(k, at, [value.as_(u32) for value in pairs], waits=waits)

    def _column(self, caller: str, first: int, count: int) -> int:
        """The column of tensor memory where the elements from column `first` on begin. Raises `ConfigError`
        unless `count` elements from there on are whole columns.
        """
        step = CELL // self.dtype.nbytes
        inside = is_int(first) and count and 0 <= first <= self.columns - count
        if not inside or first % step or count % step:
            raise ConfigError(
                f"{caller}: expected a first column and a number of values in multiples of {step}, among the "
                f"{self.columns} columns of matrix {self.name!r}, got first {shown(first)} and {count} values"
            )
        return first // step
