"""Matrices in the registers of a CTA's warps."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from ptxgen.dsl.control import Control
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, LANE_ROWS, MMA_COLUMNS, QUAD, over_lanes
from ptxgen.dsl.matrices.layout import Layout
from ptxgen.dsl.matrices.products import (
    Operand,
    are_multiplied,
    depth_of,
    left_block,
    multiply,
    result_of,
    right_block,
)
from ptxgen.dsl.matrices.staged import INT4, StagedTile
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.dsl.values import Scalar, Value, Var
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.types import PAIRS, ScalarType, f32

Elements: TypeAlias = Sequence[Sequence[Value]]


class RegisterTile:
    """A matrix in the registers of a CTA's warps, each element in one lane (`k.accumulator`).

    A shape of (rows, 1) is one element for each row, and (1, columns) one for each column; the four lanes of
    a quad, and warps along the other axis, hold copies of them. Operators and `map` work on each element and
    broadcast such tiles, and numbers, as numpy does. They return new tiles; a tile that a loop changes is
    made by `k.accumulator` or `per_row` and written by `set`, or by `+=`, `-=`, `*=` and `/=`.
    """

    __hash__ = object.__hash__

    def __init__(self, layout: Layout, shape: tuple[int, int], elements: Elements) -> None:
        self.k: Control = layout.lanes.k
        self.layout = layout
        self.shape = shape
        self._elements = elements

    def __repr__(self) -> str:
        return f"RegisterTile({self.shape[0]} x {self.shape[1]} {self.dtype})"

    @property
    def dtype(self) -> ScalarType:
        """The type of the matrix's elements in registers."""
        return self._elements[0][0].type

    def row_elements(self) -> Iterator[Sequence[Value]]:
        """The variables of the elements that this lane holds, one tuple for each of its rows."""
        return iter(self._elements)

    # ------------------------------------------------------------------------------ elementwise

    def map(self, function: Callable[..., Value], *others: RegisterTile | Scalar) -> RegisterTile:
        """function(element, element of each other …) for each element; the others are tiles of this
        shape, tiles of one element for each row or column, and numbers.

        `function` runs while the kernel is built, once for each element of a lane.
        """
        tiles = [self, *(x for x in others if isinstance(x, RegisterTile))]
        for one, other in itertools.combinations(tiles, 2):
            one._require_alike(other)
        of_rows = next((t for t in tiles if t.shape[0] > 1), self)
        of_columns = next((t for t in tiles if t.shape[1] > 1), self)
        layout = replace(of_rows.layout, columns=of_columns.layout.columns)
        rows, columns = of_rows._extents()[0], of_columns._extents()[1]
        elements = [
            [
                function(self._at(i, j), *(x._at(i, j) if isinstance(x, RegisterTile) else x for x in others))
                for j in range(columns)
            ]
            for i in range(rows)
        ]
        for x in (e for row in elements for e in row):
            if not isinstance(x, Value):
                raise TypeMismatchError(
                    f"map: the function must return a value of the kernel, got {shown(x)}"
                )
        return RegisterTile(layout, (of_rows.shape[0], of_columns.shape[1]), elements)

    def _extents(self) -> tuple[int, int]:
        return len(self._elements), len(self._elements[0])

    def _at(self, i: int, j: int) -> Value:
        row = self._elements[i if len(self._elements) > 1 else 0]
        return row[j if len(row) > 1 else 0]

    def _require_alike(self, other: RegisterTile) -> None:
        if self.layout.warps != other.layout.warps:
            raise TypeMismatchError(
                f"{self!r} is on {self.layout.down} x {self.layout.across} warps and {other!r} on "
                f"{other.layout.down} x {other.layout.across}; give both the same warps="
            )
        for mine, its in zip(self.shape, other.shape, strict=True):
            if mine != its and 1 not in (mine, its):
                raise TypeMismatchError(f"{self!r} and {other!r} have different shapes")

    def _joined(self, other: RegisterTile | Scalar, join: Callable[..., Value]) -> RegisterTile:
        if not isinstance(other, RegisterTile | Value | int | float):
            raise TypeMismatchError(
                f"{self!r} is combined with tiles of registers and numbers, got {other!r}"
            )
        return self.map(join, other)

    def __add__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._joined(other, operator.add)

    def __radd__(self, other: Scalar) -> RegisterTile:
        return self._joined(other, operator.add)

    def __sub__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._joined(other, operator.sub)

    def __rsub__(self, other: Scalar) -> RegisterTile:
        return self._joined(other, lambda a, b: b - a)

    def __mul__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._joined(other, operator.mul)

    def __rmul__(self, other: Scalar) -> RegisterTile:
        return self._joined(other, operator.mul)

    def __truediv__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._joined(other, operator.truediv)

    def __rtruediv__(self, other: Scalar) -> RegisterTile:
        return self._joined(other, lambda a, b: b / a)

    def __iadd__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._changed(self + other)

    def __isub__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._changed(self - other)

    def __imul__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._changed(self * other)

    def __itruediv__(self, other: RegisterTile | Scalar) -> RegisterTile:
        return self._changed(self / other)

    def _changed(self, new: RegisterTile) -> RegisterTile:
        """This tile of variables set to `new`; a tile of results is written once, so `new` itself."""
        if not isinstance(self._elements[0][0], Var):
            return new
        self.set(new)
        return self

    def __neg__(self) -> RegisterTile:
        return self.map(operator.neg)

    def indices(self, row: Scalar = 0, column: Scalar = 0) -> tuple[RegisterTile, RegisterTile]:
        """The rows and the columns of the elements, u32, as tiles of (rows, 1) and (1, columns);
        `row` and `column` are those of the first element.
        """
        first_row, first_column = self.layout.first(row, column)
        rows = [[first_row + n if n else first_row] for n in self.layout.lane_rows]
        columns = [[first_column + n if n else first_column for n in self.layout.lane_columns]]
        return (
            RegisterTile(self.layout, (self.layout.rows, 1), rows),
            RegisterTile(self.layout, (1, self.layout.columns), columns),
        )

    # ------------------------------------------------------------------------------- reductions

    def row_max(self) -> RegisterTile:
        """The largest element of each row, (rows, 1); NaN is ignored unless all are NaN."""
        return self._reduced("row_max", self.k.max)

    def row_sum(self) -> RegisterTile:
        """The sum of each row, (rows, 1): of a lane's elements from left to right, then of the lanes
        of a quad, each addition rounded once.
        """
        return self._reduced("row_sum", operator.add)

    def _reduced(self, caller: str, join: Callable[[Value, Value], Value]) -> RegisterTile:
        self._require_whole_rows(caller)
        totals = []
        for row in self._elements:
            total = row[0]
            for element in row[1:]:
                total = join(total, element)
            totals.append([over_lanes(self.k, total, QUAD, join)])
        return RegisterTile(self.layout, (self.shape[0], 1), totals)

    def _require_whole_rows(self, caller: str) -> None:
        if self.shape != (self.layout.rows, self.layout.columns):
            raise ConfigError(f"{caller} takes a whole tile, got {self!r}")
        if self.layout.across > 1:
            raise ConfigError(
                f"{caller}: each row must be in one warp, but the columns of {self!r} are dealt to "
                f"{self.layout.across} warps; make it with warps=({self.layout.down * self.layout.across}, 1)"
            )

    # --------------------------------------------------------------------------------- variables

    def per_row(self, initial: Scalar, dtype: ScalarType = f32) -> RegisterTile:
        """A tile of one variable for each row of this one, (rows, 1), set to `initial`."""
        elements = [[self.k.var(dtype, initial)] for _ in self.layout.lane_rows]
        return RegisterTile(self.layout, (self.layout.rows, 1), elements)

    def set(self, other: RegisterTile | Scalar) -> None:
        """Write the variables of this tile; `other` is a tile of its shape or a number."""
        variables = [self._variable("set", x) for row in self._elements for x in row]
        if isinstance(other, RegisterTile):
            self._require_alike(other)
            if other.shape != self.shape:
                raise TypeMismatchError(f"set: {self!r} cannot take {other!r}")
        rows, columns = self._extents()
        indices = [(i, j) for i in range(rows) for j in range(columns)]
        for variable, (i, j) in zip(variables, indices, strict=True):
            variable.set(other._at(i, j) if isinstance(other, RegisterTile) else other)

    def _variable(self, caller: str, element: Value) -> Var:
        if not isinstance(element, Var):
            raise TypeMismatchError(
                f"{caller}: {self!r} is a result, which is written once; make what a loop changes with "
                "k.accumulator or tile.per_row"
            )
        return element

    # ----------------------------------------------------------------------------------- products

    def mma(self, a: StagedTile | SwizzledTile | PackedTile, b: StagedTile | SwizzledTile) -> None:
        """self += a @ b on tensor cores.

        `a` is (rows, depth) and `b` (depth, columns): blocks in shared memory, and `a` also a tile of
        registers, `P.to(f16)`. Products of f16 and bf16 are exact, f32 is rounded to tf32 first; the
        sums are f32, and s32 of s8 and u8. `block.as_fp8` (sm_89 and later) and `b.as_int4` are other
        meanings of bytes. Raises `TypeMismatchError` for shapes and types that do
        not fit, `ConfigError` for a block whose copies have not been waited for.
        """
        with self.k.placed():
            product(self.layout, a, b, self)

    def to(self, dtype: ScalarType) -> PackedTile:
        """The elements, f32, rounded once to f16 or bf16: operand `a` of a product, or a result for
        `matrix.store`.
        """
        pair = PAIRS.get(dtype)
        if pair is None or self.dtype is not f32:
            raise TypeMismatchError(f"to: f32 becomes f16 or bf16, got {self!r} and {shown(dtype)}")
        if self.shape != (self.layout.rows, self.layout.columns):
            raise TypeMismatchError(f"to: takes a whole tile, got {self!r}")
        words = [
            [self.k.cvt(row[j + 1], row[j], rnd="rn", dtype=pair) for j in range(0, len(row), LANE_COLUMNS)]
            for row in self._elements
        ]
        return PackedTile(self.layout, dtype, words)


class PackedTile:
    """A matrix of f16 or bf16 in registers, two neighbours of a row in each."""

    def __init__(self, layout: Layout, dtype: ScalarType, words: Elements) -> None:
        self.k: Control = layout.lanes.k
        self.layout = layout
        self.dtype = dtype
        self.shape = (layout.rows, layout.columns)
        self._words = words

    def __repr__(self) -> str:
        return f"PackedTile({self.shape[0]} x {self.shape[1]} {self.dtype})"

    @property
    def kind(self) -> str:
        """The name of the element type, f16 or bf16, by which `mma` is chosen."""
        return self.dtype.name

    def row_elements(self) -> Iterator[Sequence[Value]]:
        """The registers of this lane, each with two neighbouring elements, one tuple for each of its rows."""
        return iter(self._words)

    def operand(self) -> Operand:
        """This tile as A: the accumulators of two neighbouring tiles are the A operand of 16 columns
        (PTX ISA, "Matrix Fragments for mma.m16n8k16").
        """
        step = depth_of(self.dtype) // MMA_COLUMNS  # tiles, and pairs of a lane's row in them

        def load(m: int, d: int) -> Sequence[Value]:
            top, bottom = self._words[LANE_ROWS * m : LANE_ROWS * (m + 1)]
            return [row[step * d + n] for n in range(step) for row in (top, bottom)]

        return Operand(self.shape, self.kind, self.dtype, load)


def product(
    layout: Layout,
    a: StagedTile | SwizzledTile | PackedTile,
    b: StagedTile | SwizzledTile,
    into: RegisterTile | None = None,
) -> RegisterTile:
    """Compute into += a @ b on tensor cores, or else a new tile a @ b. Raises as `RegisterTile.mma` does."""
    k = layout.lanes.k
    k.refuse_predicated("mma")
    a, b = factors(a, b)
    if a.shape[0] != layout.rows or b.shape[1] != layout.columns:
        raise TypeMismatchError(
            f"mma: {a!r} times {b!r} is {a.shape[0]} x {b.shape[1]}, which does not fit the accumulator of "
            f"{layout.rows} x {layout.columns}"
        )
    dtype = result_of(a.kind)
    if into is not None and (into.dtype is not dtype or into.shape != (layout.rows, layout.columns)):
        raise TypeMismatchError(f"mma: the sums of {a!r} times {b!r} are {dtype}, got {into!r}")
    for block in (a, b):
        if isinstance(block, StagedTile):
            block.require_arrived("mma")
    if isinstance(a, PackedTile):
        if a.layout.warps != (layout.down * layout.across, 1) or layout.across != 1:
            raise ConfigError(
                f"mma: each row of {a!r} and of the sums must be in one warp; make both with "
                f"warps=({layout.down * layout.across}, 1)"
            )
        left = a.operand()
    else:
        left = left_block(layout, a, b.kind)
    right = right_block(layout, b)
    if into is None:
        sums = [[Var(k, k.fresh(dtype).reg, dtype) for _ in layout.lane_columns] for _ in layout.lane_rows]
        result = RegisterTile(layout, (layout.rows, layout.columns), sums)
    else:
        sums = [[into._variable("mma", x) for x in row] for row in into.row_elements()]
        result = into
    multiply(k, sums, layout, left, right, fresh=into is None)
    return result


def factors(a: object, b: object) -> tuple[StagedTile | PackedTile, StagedTile]:
    """The operands A and B of a product. Raises `TypeMismatchError` unless `mma` multiplies blocks of these
    kinds, types and shapes.
    """
    a, b = (StagedTile(x) if isinstance(x, SwizzledTile) else x for x in (a, b))
    if not isinstance(a, StagedTile | PackedTile) or not isinstance(b, StagedTile):
        raise TypeMismatchError(
            "mma takes blocks in shared memory, and as the first factor also a tile of registers such as "
            f"P.to(f16), got {shown(a)} and {shown(b)}"
        )
    if not are_multiplied(a.kind, b.kind):
        raise TypeMismatchError(
            "mma multiplies f16, bf16 or f32 (as tf32) of one type, s8 and u8 in any order, e4m3 and e5m2 in "
            f"any order (as_fp8), and f16 by 4-bit integers (as_int4), got {a.kind} and {b.kind}"
        )
    if a.shape[1] != b.shape[0]:
        raise TypeMismatchError(f"mma: {a!r} times {b!r}: the columns of a must be the rows of b")
    if a.shape[1] % depth_of(a.dtype):
        raise TypeMismatchError(
            f"mma: {a!r}: the depth of a product of {a.kind} must be a multiple of {depth_of(a.dtype)}"
        )
    if b.kind == INT4 and (isinstance(a, PackedTile) or a.is_transposed or not b.is_transposed):
        raise TypeMismatchError(
            "mma: by 4-bit integers a must be a row-major block in shared memory, and b the transpose of a "
            f"row-major block, b.as_int4().T, got {a!r} and {b!r}"
        )
    return a, b
