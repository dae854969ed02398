"""Accumulators in tensor memory, to which `tcgen05.mma` adds products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ptxgen.dsl.blackwell.cells import (
    CELL,
    TensorMatrix,
    columns_after,
    load_row,
    load_row_with_largest,
    packed,
    require_f32,
    scale_row,
    store_row,
)
from ptxgen.dsl.blackwell.operands import Descriptor, Format, operand_of, step_elements
from ptxgen.dsl.blackwell.products import check_scales, checked_product
from ptxgen.dsl.blackwell.scales import Scales, format_of
from ptxgen.dsl.blackwell.tensor_operand import TensorOperand
from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS
from ptxgen.dsl.hopper.products import STEP_BYTES, Operand
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Value, Var, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.isa.mma_descriptor import Product
from ptxgen.tensormap import CHUNK
from ptxgen.types import PAIRS, f32, pred, u32

_PIECE: Final = 32  # columns that `write` has in registers at once
_SCALED: Final = 16  # columns that `scale` has in registers at once


class Accumulator(TensorMatrix):
    """Sums of products, f32, in tensor memory: `rows` x `columns` of this CTA, in a pair half of the rows.
    Row i is lane i, and column j is column j (PTX ISA, "Data Path Layout Organization"). A ring of
    `k.tensor_memory(...)` has it.
    """

    # ------------------------------------------------------------------------------ products

    def mma(
        self,
        a: BoxTile | Operand | TensorOperand,
        b: BoxTile | Operand,
        *,
        use: bool | Value = True,
        scales: tuple[Scales, Scales] | None = None,
    ) -> None:
        """Start a @ b and add it to the sums; with `use=False`, or where the predicate `use` does not hold,
        it replaces them. One thread comes here, in the drain of a ring that is `released_by` this memory.

        `a` is a tile in shared memory or a `TensorOperand`, `b` a tile; in a pair each CTA has half of the
        rows of `a` and half of the columns of `b`. A tile whose rows are columns of the product is `tile.T`.
        Elements are f16, bf16, f32 (multiplied as tf32), or u8 by `as_fp8`. With `scales`, those of `a` and
        `b`, they are u8 with two e2m1 in each byte (nvf4, mxf4), or u8 by `as_fp8` (mxf8). Products of one
        thread are done in order, and the ends of `fill` and `drain` commit them.

        Raises `TypeMismatchError` where several threads come, and `ConfigError` for operands that no product
        takes (PTX ISA, "tcgen05.mma").
        """
        caller, k = "accumulator.mma", self.memory.k
        self.memory.require_issuing(caller)
        self.use_by_products(caller)
        left = a if isinstance(a, TensorOperand) else operand_of(caller, "a", a)
        right = operand_of(caller, "b", b)
        if isinstance(left, TensorOperand):
            left.use_by_products(caller)
        for one in (left, right):
            one.owner.use("a product")
        form, shape = format_of(caller, scales), (self.rows, self.columns)
        product = checked_product(caller, shape, left, right, form, self.memory.cta_group)
        if scales is not None and form is not None:
            steps = left.columns // step_elements(right.dtype)
            check_scales(caller, shape, scales, steps * form.factors)
        with k.placed():
            self._emit(left, right, product, self._predicate(caller, use), scales, form)

    def _predicate(self, caller: str, use: object) -> Value:
        if isinstance(use, bool):
            return self.memory.true if use else self.memory.k.mov(0, type=u32) != 0
        if not isinstance(use, Value) or use.type is not pred:
            raise TypeMismatchError(f"{caller}: use must be True, False or a predicate, got {shown(use)}")
        return use

    def _emit(
        self,
        a: Operand | TensorOperand,
        b: Operand,
        product: Product,
        use: Value,
        scales: tuple[Scales, Scales] | None,
        form: Format | None,
    ) -> None:
        """Emit the instructions of a product, one for each 32 bytes of the rows of A."""
        k: Any = self.memory.k  # whose words of one row take different operands
        step, group = step_elements(b.dtype), self.memory.group
        right = Descriptor.of(b, k_is_rows=product.n_major)
        left = Descriptor.of(a, k_is_rows=product.m_major) if isinstance(a, Operand) else None
        for number in range(a.columns // step):
            sums = use if number == 0 else self.memory.true
            second = right.moved(b.layout.step(step * number, transposed=product.n_major))
            multiply, multiply_scaled = k.tcgen05_mma, k.tcgen05_mma_block_scale
            if isinstance(a, TensorOperand):
                first: Pointer | Value = columns_after(a.at, number * STEP_BYTES // CELL)
                multiply, multiply_scaled = k.tcgen05_mma_tmem, k.tcgen05_mma_block_scale_tmem
            else:
                assert left is not None  # a is in shared memory
                first = left.moved(a.layout.step(step * number, transposed=product.m_major))
            if form is None or scales is None:
                kind = f"kind::{product.kind}"
                multiply(self.at, first, second, product.bits, sums, group=group, kind=kind)
                continue
            cell, byte = divmod(number * form.factors, CELL)
            bits = replace(product, scale_bytes=(byte, byte)).bits
            of_a, of_b = (one.of_cell(cell) for one in scales)
            multiply_scaled(self.at, first, second, bits, of_a, of_b, sums, group=group, vec=form.vec)

    # ------------------------------------------------------------------------------ elements

    def load(self, first: Scalar = 0, count: int | None = None) -> list[Var]:
        """Load `count` columns (None: all) of this thread's `row`, from column `first` on, an int or a u32
        value, as f32 variables, and wait for them. All threads of whole warpgroups come here, of which each
        reaches all rows, or whole warps of them, by `k.when(…, uniform="warp")`.

        Raises `ConfigError` for other columns, and where no whole warpgroups run, and `TypeMismatchError`
        where some threads are absent (PTX ISA, "tcgen05.ld", ".32x32b", and "tcgen05.wait").
        """
        caller, k = "accumulator.load", self.memory.k
        rest = self.columns if isinstance(first, Value) else self.columns - int(first)
        number = self._columns(caller, first, rest if count is None else count)
        at = self.use_by_threads(caller, first)
        with k.placed():
            return load_row(k, at, number)

    def load_with_largest(self) -> tuple[list[Var], Value]:
        """Load all columns of this thread's `row` as `load` does, and return with them the largest of the
        row, f32, which is NaN only if all are. On sm_103a the load finds it (".red"), elsewhere further
        instructions. Threads, errors and sections are those of `load`.
        """
        at = self.use_by_threads("accumulator.load_with_largest", 0)
        with self.memory.k.placed():
            return load_row_with_largest(self.memory.k, at, self.columns)

    def store(self, values: Sequence[Value], first: Scalar = 0) -> None:
        """Store f32 values to this thread's `row`, from column `first` on, and wait until they are there; the
        rest is as in `load` (PTX ISA, "tcgen05.st").
        """
        caller, k = "accumulator.store", self.memory.k
        self._columns(caller, first, len(values))
        require_f32(caller, values)
        at = self.use_by_threads(caller, first)
        with k.placed():
            store_row(k, at, values)

    def scale(self, factor: Value) -> None:
        """Multiply this thread's `row` by an f32 value, and wait until the products are there. The threads
        that come here are those of `load` (PTX ISA, "tcgen05.ld" and "tcgen05.st"). Raises
        `TypeMismatchError` for another factor, and as `load` does.
        """
        caller, k = "accumulator.scale", self.memory.k
        require_f32(caller, [factor])
        at = self.use_by_threads(caller, 0)
        with k.placed():
            scale_row(k, at, self.columns, factor, _SCALED)

    def write(self, tile: BoxTile, first_row: int = 0, *, factor: Value | None = None) -> None:
        """Store the elements, rounded to the type of the tile, f16, bf16 or f32, to a tile in shared memory
        with the columns of this CTA, from row `first_row` of it on, a multiple of 8. With `factor`, an f32
        value of each thread, its row is multiplied by that before. `k.tma.store` may copy the tile then. All
        threads of one warpgroup come here. Raises `ConfigError` for other tiles, and as `load` does.
        """
        caller, k = "accumulator.write", self.memory.k
        layout = getattr(tile, "layout", None)
        fits = layout is not None and layout.columns == self.columns and layout.dtype in (f32, *PAIRS)
        if layout is None or not fits or not _begins(first_row, layout.rows - self.rows):
            rows = f", and its rows from {shown(first_row)} on" if first_row else ""
            raise ConfigError(
                f"{caller}: expected a tile of {self.rows} x {self.columns} elements of f16, bf16 or f32, "
                f"got {shown(tile)}{rows}"
            )
        if factor is not None:
            require_f32(caller, [factor])
        dtype, lanes, row = layout.dtype, self.use_by_threads(caller, 0), self.row
        if first_row:
            row = row + first_row
        wide = CHUNK // dtype.nbytes  # elements of a chunk
        chunks: dict[int, TilePointer] = {}  # by the column in a slab
        with k.placed():
            for first in range(0, self.columns, _PIECE):
                values = load_row(k, columns_after(lanes, first), min(_PIECE, self.columns - first))
                if factor is not None:
                    for value in values:
                        k.mul(value, factor, into=value)
                for column in range(first, first + len(values), wide):
                    slab, within = divmod(column, layout.slab_columns)
                    if within not in chunks:
                        chunks[within] = tile.pointer(row, within)
                    at = chunks[within].plus_bytes(slab * layout.slab_bytes)
                    chunk = values[column - first : column - first + wide]
                    words, type = (chunk, f32) if dtype is f32 else (packed(k, chunk, dtype), u32)
                    k.store(Pointer(at.value, "shared", type, at.offset), words)
            k.note_write(tile.extent)

    def _columns(self, caller: str, first: Scalar, count: int) -> int:
        """The count of columns. Raises `ConfigError` for columns that the matrix does not have."""
        inside = is_count(count) and count <= self.columns
        if isinstance(first, Value):
            inside = inside and first.type is u32
        else:
            inside = inside and is_int(first) and 0 <= first <= self.columns - count
        if not inside:
            raise ConfigError(
                f"{caller}: expected a first column, an int or a u32 value, and a count of columns, of the "
                f"{self.columns} of matrix {self.name!r}, got first {shown(first)} and count {shown(count)}"
            )
        return count


def _begins(row: Any, last: int) -> bool:
    """Whether rows of a tile may begin at `row`, at most `last`, and a multiple of those of a swizzle."""
    return is_int(row) and 0 <= row <= last and row % SWIZZLE_ROWS == 0
