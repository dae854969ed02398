"""Matrices in tensor memory: sums of products, left operands of products, and scale factors of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from ptxgen.dsl.blackwell.operands import (
    FORMATS,
    FP4,
    Format,
    descriptor,
    is_packed,
    kind_of,
    operand_of,
    scales_descriptor,
    step_elements,
)
from ptxgen.dsl.hopper.products import FP8, STEP_BYTES, Operand, Owner, moved
from ptxgen.dsl.hopper.role import WARPGROUP
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Value, Var, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.isa.mma_descriptor import Product
from ptxgen.isa.tensor_memory import LANES
from ptxgen.target import WARP_SIZE
from ptxgen.tensormap import CHUNK
from ptxgen.types import ScalarType, b32, bf16, bf16x2, f16, f16x2, f32, pred, u32

MOST_COLUMNS: Final = 256  # columns of D in one product
CELL: Final = 4  # bytes of a lane and a column
SCALE_ROWS: Final = 128  # rows whose scale factors one copy brings
SCALE_COLUMNS: Final = 4  # columns of tensor memory that it fills
_SCALE_WORDS: Final = 128  # elements of 32 bits of one copy
_MOST_REGISTERS: Final = 128  # of one load or store
_PIECE: Final = 32  # columns that `write` has in registers at once
_LOG_LANES_OF_WARP: Final = 21  # 32 lanes, in the upper half of an address
_PAIRS: Final = {f16: f16x2, bf16: bf16x2}


class Memory(Protocol):
    """The tensor memory of a kernel, as its matrices use it."""

    k: Roles
    cta_group: int
    true: Value

    @property
    def group(self) -> str:
        """The modifier of instructions that says whether one CTA or a pair of them executes them."""


class _Matrix:
    """A matrix of `rows` lanes in each CTA from the column at `at` on; `owner` is asked before each use."""

    def __init__(self, memory: Memory, name: str, rows: int, columns: int, at: Pointer, owner: Owner) -> None:
        self._memory = memory
        self._k = memory.k
        self.name = name
        self.rows = rows
        self.columns = columns
        self.at = at
        self.owner = owner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.rows} x {self.columns})"

    def _use(self) -> None:
        self.owner.use(f"matrix {self.name!r}")

    @property
    def row(self) -> Value:
        """The row that this thread has in `load` and `store`, counted in this CTA, u32."""
        return self._k.thread_id() & LANES - 1

    def _lanes(self, caller: str, first: Scalar) -> Pointer:
        """The address of this warp's lanes, `first` columns of tensor memory further on. Raises unless all
        threads of whole warpgroups come here.
        """
        k, role = self._k, self._k.present_role
        self._use()
        k.require_present(caller)
        if not (role.warpgroups if role else k.threads % (WARPGROUP * WARP_SIZE) == 0):
            of = (
                f"role {role.name!r} has {role.warps} warps, from warp {role.first} on"
                if role
                else (f"the CTA has {k.threads} threads")
            )
            raise ConfigError(
                f"{caller}: it is for whole warpgroups of {WARPGROUP} warps, each of which reaches 32 of the "
                f"{LANES} rows, but {of}; use k.warpgroup_role"
            )
        base = self.at.value + ((k.warp_index & WARPGROUP - 1) << _LOG_LANES_OF_WARP)
        if isinstance(first, Value):
            return Pointer(base + first, "tensor", b32, self.at.offset)
        return Pointer(base, "tensor", b32, self.at.offset + first)


class Accumulator(_Matrix):
    """Sums of products, f32, in tensor memory: `rows` x `columns` of this CTA, of a pair half of the rows.

    Row i is lane i, column j is column j (PTX ISA, "Data Path Layout Organization").
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
        """Start a @ b and add it to the sums; with `use=False`, or where the predicate `use` does not hold, it
        replaces them. One thread comes here, as in the drain of a ring that is `released_by` this memory.

        `a` is a tile in shared memory or a `TensorOperand`, `b` a tile; each CTA of a pair has half of the rows
        of `a` and half of the columns of `b`. A tile with rows of columns of the product is `tile.T`. Elements
        are f16, bf16, f32 (multiplied as tf32) or u8 with `as_fp8`; with `scales`, those of `a` and `b`, u8 with
        two e2m1 in each byte (nvf4, mxf4), or u8 with `as_fp8` (mxf8). Products of one thread are done in order;
        a commit, which the ends of `fill` and `drain` emit, waits for them.

        Raises `TypeMismatchError` where several threads come, and with `ConfigError` for operands that no
        product takes (PTX ISA, "tcgen05.mma").
        """
        caller = "accumulator.mma"
        self._use()
        k = self._k
        k.require_branch(caller)
        left = a if isinstance(a, TensorOperand) else operand_of(caller, "a", a)
        right = operand_of(caller, "b", b)
        predicate = self._predicate(caller, use)
        product, form = self._product(caller, left, right, scales)
        for one in (left, right, *(scales or ())):
            one.owner.use("a product")
        with k.placed():
            self._emit(left, right, product, predicate, scales, form)

    def _predicate(self, caller: str, use: bool | Value) -> Value:
        if isinstance(use, bool):
            return self._memory.true if use else self._k.mov(0, type=u32) != 0
        if not isinstance(use, Value) or use.type is not pred:
            raise TypeMismatchError(f"{caller}: use must be True, False or a predicate, got {shown(use)}")
        return use

    def _product(
        self, caller: str, a: Operand | TensorOperand, b: Operand, scales: tuple[Scales, Scales] | None
    ) -> tuple[Product, Format | None]:
        """The product of an instruction, and the format of its scale factors."""
        names = f"{caller}: {_described(a)} times {_described(b)}"
        group, per_byte = self._memory.cta_group, 1
        form = _format(caller, scales)
        if form is None:
            (kind, left), (of_b, right) = kind_of(a.dtype, a.fp8), kind_of(b.dtype, b.fp8)
            if not kind or kind != of_b or (kind != "f8f6f4" and a.dtype is not b.dtype):
                raise TypeMismatchError(
                    f"{names}: expected two matrices of f16, of bf16, of f32 or, by as_fp8, of {' or '.join(FP8)}"
                )
        else:
            kind, packed = form.kind, form.factors > 1
            left, right = (FP4, FP4) if packed else (a.fp8, b.fp8)
            per_byte = 2 if packed else 1
            if not all(is_packed(x) if packed else x.fp8 for x in (a, b) if isinstance(x, Operand)) or (
                isinstance(a, TensorOperand)
            ):
                wanted = "two tiles of u8 with two e2m1 in each byte" if packed else "two tiles by as_fp8"
                raise TypeMismatchError(f"{names}: expected {wanted} in shared memory for these scales")
        if a.rows != self.rows or b.columns != self.columns // group or a.columns != b.rows:
            raise ConfigError(
                f"{names}: expected {self.rows} x K and K x {self.columns // group} in each CTA, for sums of "
                f"{self.rows} x {self.columns}; a tile with rows of columns of the product is transposed by .T"
            )
        m_major, n_major = isinstance(a, Operand) and a.transposed, not b.transposed
        step = step_elements(b.dtype)
        if a.columns % step:
            raise ConfigError(f"{names}: expected columns of a in multiples of {step}, of one product each")
        for one in (a, b):
            if isinstance(one, Operand) and one.layout.swizzle == "none":
                raise ConfigError(
                    f"{names}: tile {one.name!r} has no swizzle, expected rows of a multiple of 32 bytes, or "
                    "swizzle='128B'"
                )
        if (m_major or n_major) and (kind == "tf32" or per_byte == 2):
            raise ConfigError(
                f"{names}: of f32 and e2m1, expected the rows of a and the columns of b as rows in memory, as in "
                "mma(a, b.T)"
            )
        k_elements = step * per_byte
        m, n = self.rows * group, self.columns
        scale = form.scale if form else ""
        product = Product(kind, group, m, n, k_elements, left, right, "f32", m_major, n_major, scale=scale)
        if n_major and kind in ("f8f6f4", "mxf8f6f4") and n % (16 * group):
            raise ConfigError(
                f"{names}: of 8-bit elements with rows of K in memory, expected columns of the product in "
                f"multiples of {16 * group}"
            )
        if scales and form:
            self._check_scales(caller, scales, a.columns // step * form.factors)
        return product, form

    def _check_scales(self, caller: str, scales: tuple[Scales, Scales], factors: int) -> None:
        for name, of, rows in zip("ab", scales, (self.rows, self.columns), strict=True):
            if of.rows != rows or of.factors < factors:
                raise ConfigError(
                    f"{caller}: expected scale factors of {name} for {rows} rows, {factors} or more for each, "
                    f"got {of!r}"
                )

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
        k, step, group = self._k, step_elements(b.dtype), self._memory.group
        right = descriptor(b, k_is_rows=product.n_major)
        left = descriptor(a, k_is_rows=product.m_major) if isinstance(a, Operand) else None
        for number in range(a.columns // step):
            second = moved(right, b.layout.step(step * number, transposed=product.n_major))
            if isinstance(a, TensorOperand):
                first: Any = _moved(a.at, number * STEP_BYTES // CELL)
            else:
                assert left is not None  # a is in shared memory
                first = moved(left, a.layout.step(step * number, transposed=product.m_major))
            of_sums = use if number == 0 else self._memory.true
            if form is None or scales is None:
                emit = k.tcgen05_mma_tmem if isinstance(a, TensorOperand) else k.tcgen05_mma
                kind = f"kind::{product.kind}"
                emit(self.at, first, second, product.bits, of_sums, group=group, kind=kind)
                continue
            self._emit_scaled(number * form.factors, first, second, product, of_sums, scales, form)

    def _emit_scaled(
        self,
        factor: int,
        first: Value,
        second: Value,
        product: Product,
        use: Value,
        scales: tuple[Scales, Scales],
        form: Format,
    ) -> None:
        """Emit one product whose scale factors begin with number `factor` of each row."""
        column, byte = divmod(factor, CELL)
        of = replace(product, scale_bytes=(byte, byte))
        of_a, of_b = (side.of_cell(column) for side in scales)
        self._k.tcgen05_mma_block_scale(
            *(self.at, first, second, of.bits, of_a, of_b, use),
            group=self._memory.group,
            vec=form.vec,
        )

    # ------------------------------------------------------------------------------ elements

    def load(self, first: Scalar = 0, count: int | None = None) -> list[Var]:
        """Load `count` columns (None: all) of this thread's `row`, from column `first` on, an int or a u32
        value, as f32 variables, and wait for them. All threads of whole warpgroups come here; each warpgroup
        reaches all rows.

        Raises `ConfigError` for other columns and where no whole warpgroups run, and `TypeMismatchError` where
        some threads are absent (PTX ISA, "tcgen05.ld", ".32x32b", and "tcgen05.wait").
        """
        caller = "accumulator.load"
        number = self._count(
            caller, first, self.columns - first if count is None and is_int(first) else count
        )
        at = self._lanes(caller, first)
        with self._k.placed():
            values = list(self._load(at, number))
            self._k.tcgen05_wait_ld()
        return values

    def _load(self, at: Pointer, count: int) -> Iterator[Var]:
        k = self._k
        for first, number in _pieces(count):
            variables = [Var(k, k.fresh(f32).reg, f32) for _ in range(number)]
            k.tcgen05_ld(_moved(at, first), into=variables, num=f"x{number}")
            yield from variables

    def store(self, values: Sequence[Value], first: Scalar = 0) -> None:
        """Store f32 values to this thread's `row`, from column `first` on, and wait until they are there; the
        rest is as in `load` (PTX ISA, "tcgen05.st").
        """
        caller = "accumulator.store"
        self._count(caller, first, len(values))
        _require_f32(caller, values)
        at = self._lanes(caller, first)
        with self._k.placed():
            _store(self._k, at, values)

    def write(self, tile: BoxTile) -> None:
        """Store the elements, rounded to the type of the tile, f16, bf16 or f32, to a tile in shared memory
        with the rows and columns of this CTA. `k.tma.store` may copy it then. All threads of one warpgroup come
        here; raises as `load` does, and `ConfigError` for other tiles.
        """
        caller = "accumulator.write"
        fits = isinstance(tile, BoxTile) and (tile.rows, tile.columns) == (self.rows, self.columns)
        if not fits or tile.layout.dtype not in (f32, *_PAIRS):
            raise ConfigError(
                f"{caller}: expected a tile of {self.rows} x {self.columns} elements of f16, bf16 or f32, got "
                f"{shown(tile)}"
            )
        k, layout, dtype = self._k, tile.layout, tile.layout.dtype
        lanes, row = self._lanes(caller, 0), self.row
        wide = CHUNK // dtype.nbytes  # elements of a chunk
        chunks: dict[int, TilePointer] = {}  # by the column in a slab
        with k.placed():
            for first in range(0, self.columns, _PIECE):
                values = list(self._load(_moved(lanes, first), min(_PIECE, self.columns - first)))
                k.tcgen05_wait_ld()
                for column in range(first, first + len(values), wide):
                    slab, within = divmod(column, layout.slab_columns)
                    if within not in chunks:
                        chunks[within] = tile.pointer(row, within)
                    at = chunks[within].plus_bytes(slab * layout.slab_bytes)
                    part = values[column - first : column - first + wide]
                    words, type_ = (part, f32) if dtype is f32 else (_packed(k, part, dtype), u32)
                    k.store(Pointer(at.value, "shared", type_, at.offset), words)
            k.note_write(tile.extent)

    def _count(self, caller: str, first: Scalar, count: object) -> int:
        """The columns of an access."""
        known = isinstance(first, Value) and first.type is u32
        if not isinstance(first, Value) and is_int(first) and is_count(count):
            known = 0 <= first <= self.columns - count
        if not known or not is_count(count) or count > self.columns:
            raise ConfigError(
                f"{caller}: expected a first column, an int or a u32 value, and a count of columns among the "
                f"{self.columns} of matrix {self.name!r}, got first {shown(first)} and count {shown(count)}"
            )
        return count


class TensorOperand(_Matrix):
    """A left operand of products, f16 or bf16, in tensor memory: `rows` x `columns`, two elements in a column
    (PTX ISA, "Matrix fragments for A").
    """

    fp8 = ""

    def __init__(
        self, memory: Memory, name: str, rows: int, columns: int, at: Pointer, owner: Owner, dtype: ScalarType
    ) -> None:
        super().__init__(memory, name, rows, columns, at, owner)
        self.dtype = dtype

    def store(self, values: Sequence[Value], first: int = 0) -> None:
        """Round f32 values to the type of the operand and store them to this thread's `row`, from column
        `first` on, an even number, and wait until they are there. All threads of whole warpgroups come here.

        Raises `ConfigError` for other columns, and `TypeMismatchError` for other values and where some threads
        are absent (PTX ISA, "tcgen05.st").
        """
        caller, count = "operand.store", len(values)
        if not is_int(first) or first % 2 or count % 2 or not 0 <= first <= self.columns - count or not count:
            raise ConfigError(
                f"{caller}: expected an even first column and an even count of values, among the {self.columns} "
                f"columns of matrix {self.name!r}, got first {shown(first)} and {count} values"
            )
        _require_f32(caller, values)
        at = self._lanes(caller, first // 2)
        with self._k.placed():
            _store(self._k, at, _packed(self._k, values, self.dtype))


class Scales:
    """Scale factors of the blocks of an operand in tensor memory: those of `rows` rows of A, or columns of B,
    `factors` for each. `k.tensor_memory(...).scales` makes it.
    """

    def __init__(self, memory: Memory, at: Pointer, rows: int, factors: int, form: str, owner: Owner) -> None:
        self._memory = memory
        self.at = at
        self.rows = rows
        self.factors = factors
        self.form = form
        self.owner = owner

    def __repr__(self) -> str:
        return f"Scales({self.form}, {self.rows} rows of {self.factors})"

    @property
    def blocks(self) -> int:
        """Blocks of 128 rows."""
        return -(-self.rows // SCALE_ROWS)

    def of_cell(self, number: int) -> Pointer:
        """The address of the cells with factors 4 `number` to 4 `number` + 3 of each row."""
        return _moved(self.at, number * self.blocks * SCALE_COLUMNS)

    def copy(self, tile: BoxTile) -> None:
        """Start copying the factors from a tile of u32 without a swizzle in shared memory, in order with the
        products that this thread starts. One thread comes here, as for `mma`.

        The tile has a row of 128 words for each 128 rows and 4 factors: those of rows r, r + 32, r + 64 and
        r + 96 in words 4 r to 4 r + 3, the first of the four lowest. Rows of the tile are ordered by 128 rows of
        the operand, then by factors: the layout of scale factors of cuBLAS and CUTLASS. In a pair each CTA
        copies the factors of its rows of A, and those of all columns of B. Raises `ConfigError` for other tiles
        (PTX ISA, "tcgen05.cp", ".32x128b").
        """
        k, cells = self._memory.k, self.factors // CELL
        k.require_branch("scales.copy")
        rows = self.blocks * cells
        fits = isinstance(tile, BoxTile) and tile.layout.dtype is u32 and tile.layout.swizzle == "none"
        if not fits or (tile.rows, tile.columns) != (rows, _SCALE_WORDS):
            raise ConfigError(
                f"scales.copy: expected a tile of {rows} x {_SCALE_WORDS} u32 without a swizzle for {self!r}, such "
                f"as (({rows}, {_SCALE_WORDS}), u32, 'none') of a ring, got {shown(tile)}"
            )
        with k.placed():
            start = scales_descriptor(tile)
            for block in range(self.blocks):
                for cell in range(cells):
                    source = moved(start, (block * cells + cell) * tile.layout.row_bytes)
                    to = _moved(self.of_cell(cell), block * SCALE_COLUMNS)
                    k.tcgen05_cp(to, source, group=self._memory.group, shape="32x128b", warps="warpx4")


def _format(caller: str, scales: tuple[Scales, Scales] | None) -> Format | None:
    """The format of the scale factors of A and B."""
    if scales is None:
        return None
    if not isinstance(scales, tuple) or [type(one) for one in scales] != [Scales, Scales]:
        raise TypeMismatchError(
            f"{caller}: scales must be a pair of the scale factors of a and of b, got {shown(scales)}"
        )
    a, b = scales
    if a.form != b.form:
        raise ConfigError(f"{caller}: scales must have one format, got {a.form} and {b.form}")
    return FORMATS[a.form]


def _described(of: Operand | TensorOperand) -> str:
    """An operand in an error."""
    suffix = ".T" if isinstance(of, Operand) and of.transposed else ""
    return f"{of.name}{suffix} ({of.rows} x {of.columns} {of.fp8 or of.dtype})"


def _require_f32(caller: str, values: Sequence[object]) -> None:
    for value in values:
        if not isinstance(value, Value) or value.type is not f32:
            raise TypeMismatchError(f"{caller}: expected f32 values, got {shown(value)}")


def _packed(k: Roles, values: Sequence[Value], dtype: ScalarType) -> list[Value]:
    """Neighbouring f32 values, rounded, two in 32 bits, the first one lowest."""
    return [
        k.cvt(high, low, rnd="rn", dtype=_PAIRS[dtype]).as_(u32)
        for low, high in zip(values[::2], values[1::2], strict=True)
    ]


def _store(k: Roles, at: Pointer, values: Sequence[Value]) -> None:
    """Store a register of each thread to each column, and wait."""
    for first, number in _pieces(len(values)):
        k.tcgen05_st(_moved(at, first), values[first : first + number], num=f"x{number}")
    k.tcgen05_wait_st()


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """The first column and the number of columns of each load or store: powers of two."""
    first = 0
    while first < count:
        number = min(_MOST_REGISTERS, 1 << (count - first).bit_length() - 1)
        yield first, number
        first += number


def _moved(at: Pointer, columns: int) -> Pointer:
    """An address of tensor memory some columns further on."""
    return Pointer(at.base, at.space, at.dtype, at.offset + columns)
