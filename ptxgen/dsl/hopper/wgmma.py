"""Matrix products of warpgroups (`k.wgmma`): accumulators, and waits for groups of products."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from ptxgen import ir
from ptxgen.dsl.hopper.accumulator_memory import (
    CHUNK,
    Element,
    chunks_of_block,
    column_pointers,
    thread_order,
)
from ptxgen.dsl.hopper.products import (
    FP8,
    MOST_COLUMNS,
    STEP,
    WGMMA_ROWS,
    Operand,
    Product,
    RegisterOperand,
    moved,
)
from ptxgen.dsl.hopper.role import WARPGROUP
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tiles import Fragment, SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Value, Var, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import WARP_SIZE
from ptxgen.types import PAIRS, ScalarType, f32, u8, u32

_PINNED: Final = "k.wgmma"  # the region that a pinned wait never writes; no tile can have this name
_MOST_PENDING: Final = 7  # PTX ISA, "wgmma.wait_group"
_CORE: Final = 8  # rows and columns of a core matrix
_QUAD: Final = 4  # lanes that share the rows of their elements
_WARP_ROWS: Final = (WARPGROUP - 1) * 2 * _CORE  # the first rows of the warps: 0, 16, 32 and 48
_WORDS: Final = 4  # registers of a thread that hold its part of 64 x 16 elements of 16 bits


class Wgmma:
    """Matrix products that the four warps of a warpgroup compute together, asynchronously.

    `acc += a @ b` starts a product and closes its group; `wait` waits for groups. Until then the accumulator
    and the operands must not be touched; a touch that is known while the kernel is built is refused.
    """

    def __init__(self, k: Roles) -> None:
        self._k = k

    def accumulator(self, rows: int, columns: int, *, zero: bool = True) -> Accumulator:
        """A matrix of `rows` x `columns` f32 sums in the registers of each warpgroup, zero at first;
        with `zero=False` it is not written. `rows` is a multiple of 64, `columns` one of 8 up to 256.

        Raises `ConfigError` for other sizes, and where no whole warpgroups run.
        """
        k, role = self._k, self._k.present_role
        if not is_count(rows) or rows % WGMMA_ROWS:
            raise ConfigError(f"accumulator: rows must be a multiple of {WGMMA_ROWS}, got {shown(rows)}")
        if not is_count(columns) or columns % _CORE or columns > MOST_COLUMNS:
            raise ConfigError(
                f"accumulator: columns must be a multiple of {_CORE} up to {MOST_COLUMNS}, got "
                f"{shown(columns)}"
            )
        whole = role.warpgroups if role is not None else k.threads % (WARPGROUP * WARP_SIZE) == 0
        if not whole:
            caller = f"the CTA has {k.threads} threads"
            if role is not None:
                caller = f"role {role.name!r} has {role.warps} warps, from warp {role.first} on"
            raise ConfigError(
                f"accumulator: wgmma is for whole warpgroups of {WARPGROUP} warps, but {caller}"
            )
        return Accumulator(k, rows, columns, zero)

    def wait(self, pending: int = 0, *, after: Sequence[Value] = ()) -> None:
        """Wait until at most the `pending` newest groups are under way; then the accumulators and
        operands of all others may be used again. A group is one `+=` or `set`, or one `group`.

        The assembler may move arithmetic past a wait, where no product covers it. The f32 values `after` are
        computed before the wait: a store, which never runs, reads their sum.
        """
        if not is_int(pending) or not 0 <= pending <= _MOST_PENDING:
            raise ConfigError(f"wgmma.wait: pending must be 0..{_MOST_PENDING}, got {shown(pending)}")
        if after:
            self._pin(after)
        self._k.wgmma_wait_group(pending)
        self._k.flight.waited(pending)

    def _pin(self, values: Sequence[Value]) -> None:
        """Emit a store of the sum of values that runs only where the sum is below -infinity, which is
        never.
        """
        k = self._k
        operands: Sequence[Any] = values
        for value in operands:
            if not isinstance(value, Value) or value.type is not f32:
                raise TypeMismatchError(f"wgmma.wait: after must be f32 values, got {shown(value)}")
        total = functools.reduce(k.add, operands)
        at = k.scratch(1, f32, _PINNED)
        with k.only_if(total < -math.inf):
            k.st_volatile(at, total, space="shared", type=f32)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Products in this `with` form one group, with one fence before the first."""
        if self._k.flight.is_open:
            raise ConfigError("wgmma.group is inside another one")
        with self._k.flight.group(self._k):
            yield

    def registers(self, words: Sequence[Sequence[Value]], dtype: ScalarType | str) -> RegisterOperand:
        """A matrix of 64 x 16 n in registers as the left operand of a product: for each 16 columns four
        values or variables of 32 bits with two f16 or bf16 elements each. Of "e4m3" and "e5m2" each has
        four elements, and there are four for each 32 columns.
        """
        steps: Any = tuple(tuple(step) for step in words)
        fits = all(len(step) == _WORDS and all(map(_is_word, step)) for step in steps)
        if steps and fits and isinstance(dtype, str) and dtype in FP8:
            return RegisterOperand(u8, steps, dtype)
        if not steps or not fits or dtype not in PAIRS:
            raise TypeMismatchError(
                f"wgmma.registers: it takes four values of 32 bits for each {STEP} columns, of f16 or "
                f"bf16, or for each {2 * STEP} of fp8, got {shown(words)} and {shown(dtype)}"
            )
        return RegisterOperand(dtype, steps)


class AccumulatorVar(Var):
    """A register of an accumulator; its use while a product writes it raises `TypeMismatchError`."""

    __slots__ = ("_of", "_reg")

    def __init__(self, of: Accumulator, reg: ir.Reg) -> None:
        self._of = of
        super().__init__(of.k, reg, f32)

    @property
    def reg(self) -> ir.Reg:
        """The PTX register of the variable; raises `TypeMismatchError` while a product writes it."""
        self._of.touch()
        return self._reg

    @reg.setter
    def reg(self, reg: ir.Reg) -> None:
        self._reg = reg

    def set(self, value: Scalar) -> None:
        """Emit a `mov` that sets the variable; raises `TypeMismatchError` while a product writes it."""
        self._of.touch(written=True)
        Var(self.k, self._reg, f32).set(value)

    def __repr__(self) -> str:
        return f"AccumulatorVar({self._reg.name}: {self.type})"


class Accumulator:
    """Sums of `rows` x `columns` in f32, spread over the threads of a warpgroup.

    Thread t of warp w of the warpgroup has, with g = (t % 32) // 4, the elements of rows
    64 m + 16 w + g + 8 h and columns 8 j + 2 (t % 4) + i, as `acc[m, 4 j + 2 h + i]` (PTX ISA,
    "Register Fragments for wgmma.mma_async.m64nNk16").
    """

    def __init__(self, k: Roles, rows: int, columns: int, zero: bool) -> None:
        self.k = k
        self.rows = rows
        self.columns = columns
        self._true = k.mov(0, type=u32) == 0
        self._false = k.mov(0, type=u32) != 0
        self._vars = [
            [AccumulatorVar(self, k.fresh(f32).reg) for _ in range(columns // 2)]
            for _ in range(rows // WGMMA_ROWS)
        ]
        if zero:
            self.fill(0.0)

    def __repr__(self) -> str:
        return f"Accumulator({self.rows} x {self.columns})"

    def __getitem__(self, at: tuple[int, int]) -> AccumulatorVar:
        row, index = at
        return self._vars[row][index]

    def all(self) -> Iterator[AccumulatorVar]:
        """All f32 variables of this thread's elements, block of 64 rows after block of 64 rows."""
        for part in self._vars:
            yield from part

    def fill(self, value: float) -> None:
        """Set all elements of the accumulator to `value`, a number or an f32 value."""
        with self.k.placed():
            for variable in self.all():
                variable.set(value)

    def touch(self, *, written: bool = False) -> None:
        """Note that the registers are used, or only `written`; raises `TypeMismatchError` while a product
        writes them.
        """
        self.k.flight.touched(self, self.k.origin, written=written)

    # ------------------------------------------------------------------------------ products

    def __iadd__(self, of: Product) -> Accumulator:
        """Start adding a product to the sums (`acc += a @ b`); `k.wgmma.wait` waits for it."""
        self._start(of, add=True)
        return self

    def set(self, of: Product) -> None:
        """Start a product as a `wgmma` group, whose result replaces the sums of the accumulator."""
        self._start(of, add=False)

    def _start(self, of: Product, *, add: bool) -> None:
        if not isinstance(of, Product):
            raise TypeMismatchError(f"an accumulator takes a product of tiles, a @ b, got {shown(of)}")
        if (of.a.rows, of.b.columns) != (self.rows, self.columns):
            raise ConfigError(
                f"the product has {of.a.rows} x {of.b.columns} elements, the accumulator of a warpgroup "
                f"{self.rows} x {self.columns}; a.part(64 * warpgroup, 64) has the rows of one warpgroup"
            )
        self.k.refuse_predicated("wgmma")
        owners = [operand.owner for operand in (of.a, of.b) if isinstance(operand, Operand)]
        for owner in owners:
            owner.use("a product")
        with self.k.placed(), self.k.flight.group(self.k):
            self.k.flight.started(self, owners)
            self._emit(of, add)

    def _emit(self, of: Product, add: bool) -> None:
        """Emit the instructions of a product, each for 16 columns of A, or 32 of fp8."""
        a, b, shape = of.a, of.b, f"m64n{self.columns}k{of.step}"
        k_is_rows = not b.transposed
        right = b.descriptor(k_is_rows=k_is_rows)
        left = a.descriptor(k_is_rows=a.transposed) if isinstance(a, Operand) else None
        # Methods by name: the table's rows are named after the type.
        kind = "fp8" if a.fp8 else of.dtype
        of_tiles, of_registers = (getattr(self.k, f"wgmma_f32_{kind}{form}") for form in ("", "_registers"))
        types = {"atype": a.fp8, "btype": b.fp8} if a.fp8 else {}
        # The registers by themselves: a product may follow another one into the same accumulator.
        written = [[Var(self.k, v._reg, f32) for v in variables] for variables in self._vars]
        for step in range(a.columns // of.step):
            second = moved(right, b.layout.step(of.step * step, transposed=k_is_rows))
            scale = self._true if add or step else self._false
            for part, into in enumerate(written):
                if isinstance(a, RegisterOperand):
                    transposed = () if types else (int(k_is_rows),)
                    of_registers(
                        a.words[step], second, scale, 1, 1, *transposed, into=into, shape=shape, **types
                    )
                    continue
                assert left is not None  # a is in shared memory
                nbytes = a.layout.step(of.step * step, transposed=a.transposed) + _rows_offset(a, part)
                first = moved(left, nbytes)
                flags = () if types else (int(a.transposed), int(k_is_rows))
                of_tiles(first, second, scale, 1, 1, *flags, into=into, shape=shape, **types)

    # ------------------------------------------------------------------------------ elements

    def packed(self, dtype: ScalarType) -> RegisterOperand:
        """The elements, rounded to f16 or bf16, as the left operand of a further product, 64 rows."""
        if dtype not in PAIRS or self.rows != WGMMA_ROWS or self.columns % STEP:
            raise ConfigError(
                f"accumulator.packed: 64 rows and columns of a multiple of {STEP} as f16 or bf16, got "
                f"{self.rows} x {self.columns} and {shown(dtype)}"
            )
        words = [
            tuple(self._word(0, _CORE * step + 2 * q, dtype) for q in range(_WORDS))
            for step in range(self.columns // STEP)
        ]
        return RegisterOperand(dtype, cast(Any, tuple(words)))

    def _word(self, part: int, index: int, dtype: ScalarType) -> Value:
        """Elements `index` and `index` + 1 of a part, rounded, in 32 bits, the first one lowest."""
        low, high = self[part, index], self[part, index + 1]
        packed: Value = self.k.cvt(high, low, rnd="rn", dtype=PAIRS[dtype])
        return packed.as_(u32)

    def pairs(self) -> Iterator[tuple[int, int, tuple[AccumulatorVar, AccumulatorVar]]]:
        """Neighbouring elements: the row and the column of the first one, less `row` and `column` of
        the thread, and the two variables.
        """
        for part, variables in enumerate(self._vars):
            for i in range(0, len(variables), 2):
                row, column = WGMMA_ROWS * part + _CORE * (i >> 1 & 1), _CORE * (i >> 2)
                yield row, column, (variables[i], variables[i + 1])

    @property
    def row(self) -> Value:
        """The row of this thread's first element in the accumulator, u32."""
        t = self.k.thread_index()
        return (t >> 1 & _WARP_ROWS) + (t >> 2 & _CORE - 1)

    @property
    def column(self) -> Value:
        """The column of this thread's first element in the accumulator, u32."""
        return (self.k.thread_index() & _QUAD - 1) << 1

    @property
    def rows_of_thread(self) -> Fragment:
        """The variables by rows: 2 m + h has those of row 64 m + 8 h after `row`, its element 2 j + i
        that of column 8 j + i after `column`.
        """
        return Fragment.of(
            [
                [v for n, v in enumerate(variables) if n >> 1 & 1 == half]
                for variables in self._vars
                for half in range(2)
            ]
        )

    def write(self, tile: BoxTile, row: Scalar = 0) -> None:
        """Store the elements, rounded to the type of the tile, to a tile in shared memory, from row
        `row` on: a multiple of 64, an int or a u32 value. `k.tma.store` may copy it then.
        """
        dtype = tile.layout.dtype
        known = is_int(row) and row % WGMMA_ROWS == 0 and 0 <= row <= tile.rows - self.rows
        if (
            dtype not in (f32, *PAIRS)
            or tile.columns != self.columns
            or not (known or isinstance(row, Value))
        ):
            raise ConfigError(
                f"accumulator.write: the tile must have {self.columns} columns of f16, bf16 or f32, and "
                f"the row be a multiple of {WGMMA_ROWS} in it, got {tile!r} and row {shown(row)}"
            )
        with self.k.placed():
            if dtype in PAIRS and self.columns % STEP == 0:
                self._write_matrices(tile, row, dtype)
            else:
                at = _TileAddresses(tile, self.row + row, self.column)
                for down, across, pair in self.pairs():
                    self._store(at.address(down, across), pair, dtype)
            self.k.note_write(tile.extent)

    def _write_matrices(self, tile: BoxTile, row: Scalar, dtype: ScalarType) -> None:
        """Store elements of 16 bits, four matrices of 8 x 8 at a time: those of rows 0 and 8 and
        columns 0 and 8, of whose rows lanes 0-7, 8-15, 16-23 and 24-31 give the addresses (PTX ISA,
        "stmatrix").
        """
        k, t = self.k, self.k.thread_index()
        first = (t >> 1 & _WARP_ROWS) + (t & 2 * _CORE - 1) + row
        at = _TileAddresses(tile, first, t >> 1 & _CORE)
        for part in range(len(self._vars)):
            for across in range(0, self.columns, STEP):
                index = across // 2
                words = [self._word(part, index + 2 * n, dtype) for n in range(_WORDS)]
                k.stmatrix(at.address(WGMMA_ROWS * part, across), words, num="x4", space="shared")

    def store(self, at: Pointer, columns: Scalar, *, rows_left: Value | None = None) -> None:
        """Store the elements, rounded to the type of the pointer, to a matrix in global memory with
        `columns` columns (even), whose element for row 0 and column 0 is at `at`.

        With `rows_left` (u32) only that many rows are stored. `columns` is an int, a u32 or an s32 value.
        """
        k = self.k
        if at.dtype not in (f32, *PAIRS):
            raise TypeMismatchError(
                f"accumulator.store: the pointer must be of f16, bf16 or f32, got {shown(at)}"
            )
        if not isinstance(columns, Value) and (not is_count(columns) or columns % 2):
            raise ConfigError(
                f"accumulator.store: the columns must be even, because two elements are stored at once, got "
                f"{shown(columns)}"
            )
        with k.placed():
            self._store_rows(at, columns, rows_left)

    def _store_rows(self, at: Pointer, columns: Scalar, rows_left: Value | None) -> None:
        k = self.k
        pitch = k.mov(columns, type=u32) if not isinstance(columns, Value) else columns.as_(u32)
        row, first = self.row, self.column
        for down in sorted({down for down, _, _ in self.pairs()}):
            line = row + down if down else row
            start = at.element(k.mul_wide(line, pitch)).element(first)
            pairs = [(across, pair) for there, across, pair in self.pairs() if there == down]
            if rows_left is None:
                for across, pair in pairs:
                    self._store(start.at(across), pair, at.dtype)
                continue
            with k.when(line < rows_left):
                for across, pair in pairs:
                    self._store(start.at(across), pair, at.dtype)

    def write_in_thread_order(self, block: BoxTile | SharedTile | Pointer, first: Scalar = 0) -> None:
        """Store the f32 sums to `rows` x `columns` neighbouring elements of shared memory in the order of
        threads: for each four elements of a thread, 16 bytes, those of the 128 threads follow one another, so
        that no banks conflict. A bulk reduction, such as `k.cp_reduce_async_bulk_add`, may then add the block
        to one in global memory, which `read_in_thread_order` reads, and `element_in_thread_order` explains.

        `block` is a contiguous tile of f32 (`k.shared`, or one with the swizzle "none"), aligned to 16 bytes,
        or a pointer to f32; the block of this warpgroup begins at its element `first`, a multiple of 4, an
        int or a u32 value. All threads of the warpgroup come here. Raises `ConfigError` for other memory
        (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16").
        """
        caller, count = "accumulator.write_in_thread_order", self.rows * self.columns
        with self.k.placed():
            at = chunks_of_block(caller, self.k, block, first, count, "shared")
            for chunk, variables in zip(at, self._chunks(), strict=True):
                self.k.store(chunk, variables)

    def read_in_thread_order(self, block: BoxTile | SharedTile | Pointer, first: Scalar = 0) -> None:
        """Load the sums from a block that `write_in_thread_order` has written, or that a bulk reduction has
        summed in global memory: 16 bytes at a time, those of neighbouring threads next to each other. The
        arguments are as there, and pointers to global memory. Raises `ConfigError` for other memory.
        """
        caller, count = "accumulator.read_in_thread_order", self.rows * self.columns
        with self.k.placed():
            at = chunks_of_block(caller, self.k, block, first, count, "shared global")
            for chunk, variables in zip(at, self._chunks(), strict=True):
                self.k.load(chunk, CHUNK, into=variables)

    def element_in_thread_order(self, position: Any) -> Element:
        """The row and the column of the element at `position` of a block in the order of threads: an int, an
        array of ints or a u32 value, counted from 0. `ptxgen.dsl.thread_order` is the same function of
        `position` and the number of columns, for a host.
        """
        return thread_order(position, self.columns)

    def _chunks(self) -> Iterator[list[AccumulatorVar]]:
        """The variables of this thread's elements, in groups of four."""
        variables = list(self.all())
        for first in range(0, len(variables), CHUNK):
            yield variables[first : first + CHUNK]

    def column_pairs(self, tile: BoxTile | SharedTile, row: Scalar = 0) -> list[tuple[Value, Value]]:
        """The numbers that a row of a tile in shared memory has for the columns of this thread's elements,
        such as statistics of queries where the rows are keys: `numbers[j]` has those of columns 8 j and
        8 j + 1 after `column`, loaded at once. So for `row, column, pair in acc.pairs()` the numbers of
        `pair` are `numbers[column // 8]`.

        The tile has `columns` columns of f32 and no swizzle; `row` is an int or a value of 32 bits. Raises
        `ConfigError` for other tiles (PTX ISA, "ld", vectors).
        """
        with self.k.placed():
            at = column_pointers(self.k, tile, row, self.columns)
            return [cast(tuple[Value, Value], self.k.load(pointer, 2)) for pointer in at]

    def _store(self, at: Pointer, pair: tuple[AccumulatorVar, AccumulatorVar], dtype: ScalarType) -> None:
        k = self.k
        if dtype is f32:
            k.store(at, list(pair))
            return
        packed: Value = k.cvt(pair[1], pair[0], rnd="rn", dtype=PAIRS[dtype])
        k.store(Pointer(at.base, at.space, u32, at.offset), packed.as_(u32))


class _TileAddresses:
    """Pointers into a tile: to a row and a column of the thread, and further rows and columns."""

    def __init__(self, tile: BoxTile, row: Value, column: Value) -> None:
        self._tile = tile
        self._row = row
        self._column = column
        self._known: dict[int, TilePointer] = {}  # by the column in a slab

    def address(self, down: int, across: int) -> TilePointer:
        """The pointer `down` rows, a multiple of 8, and `across` columns further on."""
        layout = self._tile.layout
        slab, within = divmod(across, layout.slab_columns)
        at = self._known.get(within)
        if at is None:
            at = self._known[within] = self._tile.pointer(self._row, self._column + within)
        return at.plus_bytes(down * layout.row_bytes + slab * layout.slab_bytes)


def _rows_offset(a: Operand, index: int) -> int:
    """The bytes from the first 64 rows of A to those with number `index`."""
    if a.transposed:
        return WGMMA_ROWS * index // a.layout.slab_columns * a.layout.slab_bytes
    return WGMMA_ROWS * index * a.layout.row_bytes


def _is_word(value: object) -> bool:
    """Whether a value has 32 bits, as a register of `wgmma` operands must."""
    return isinstance(value, Value) and value.type.bits == u32.bits
