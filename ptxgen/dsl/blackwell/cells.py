"""Matrices in tensor memory whose rows threads load and store, one row each."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from ptxgen.dsl.hopper.products import Owner
from ptxgen.dsl.hopper.role import WARPGROUP
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.values import Pointer, Scalar, Value, Var
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.isa.tcgen05 import REDUCTIONS
from ptxgen.isa.tensor_memory import LANES
from ptxgen.target import WARP_SIZE
from ptxgen.types import PAIRS, ScalarType, b32, f32, u32

CELL: Final = 4  # bytes of a lane and a column
# Registers of one load or store; with 128 the assembler has none left where a thread begins with so many.
_MOST_REGISTERS: Final = 32
CHAINS: Final = 4  # of maxima that are taken at once
_LOG_LANES_OF_WARP: Final = 21  # 32 lanes, in the upper half of an address


class Memory(Protocol):
    """The tensor memory of a kernel, as its matrices use it; `true` is a predicate that holds."""

    k: Roles
    cta_group: int
    true: Value

    @property
    def group(self) -> Any:
        """The modifier, `.cta_group::1` or `::2`, of instructions that one CTA or a pair executes."""

    def require_issuing(self, caller: str) -> None:
        """Raise `TypeMismatchError` outside of the code of the thread that starts products."""


class Side(Owner, Protocol):
    """The owner of a matrix: a stage, which either products use, or threads that load and store."""

    def require_side(self, caller: str, *, products: bool) -> None:
        """Raise `TypeMismatchError` unless products, or else threads' accesses, use the matrix here."""


class TensorMatrix:
    """A matrix of `rows` lanes of this CTA and `columns` columns in tensor memory from `at` on; `owner` is
    asked before each use.
    """

    def __init__(self, memory: Memory, name: str, rows: int, columns: int, at: Pointer, owner: Side) -> None:
        self.memory = memory
        self.name = name
        self.rows = rows
        self.columns = columns
        self.at = at
        self.owner = owner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.rows} x {self.columns})"

    @property
    def row(self) -> Value:
        """The row that this thread loads and stores, counted in this CTA, u32."""
        return self.memory.k.thread_index() & LANES - 1

    def use_by_products(self, caller: str) -> None:
        """Raise `TypeMismatchError` unless products use the matrix here."""
        self.owner.use(f"matrix {self.name!r}")
        self.owner.require_side(caller, products=True)

    def use_by_threads(self, caller: str, first: Scalar) -> Pointer:
        """The address of this warp's lanes, `first` columns of tensor memory further on. Raises
        `TypeMismatchError` unless threads use the matrix here and whole warps come here, and
        `ConfigError` for roles without whole warpgroups.
        """
        k, role = self.memory.k, self.memory.k.present_role
        self.owner.use(f"matrix {self.name!r}")
        self.owner.require_side(caller, products=False)
        k.require_warps(caller)
        if not (role.warpgroups if role else k.threads % (WARPGROUP * WARP_SIZE) == 0):
            of = f"the CTA has {k.threads} threads"
            if role is not None:
                of = f"role {role.name!r} has {role.warps} warps, from warp {role.first} on"
            raise ConfigError(
                f"{caller}: it is for whole warpgroups of {WARPGROUP} warps, each of which reaches "
                f"{LANES // WARPGROUP} of the {LANES} rows, but {of}; use k.warpgroup_role"
            )
        base = self.at.value + ((k.warp_index & WARPGROUP - 1) << _LOG_LANES_OF_WARP)
        if isinstance(first, Value):
            return Pointer(base + first, "tensor", b32, self.at.offset)
        return Pointer(base, "tensor", b32, self.at.offset + int(first))


def load_row(k: Roles, at: Pointer, count: int) -> list[Var]:
    """Load the cells of this thread in `count` columns as f32 variables, and wait for them."""
    variables: list[Var] = []
    for first, number in _pieces(count):
        piece = [Var(k, k.fresh(f32).reg, f32) for _ in range(number)]
        k.tcgen05_ld(columns_after(at, first), into=piece, num=_times(number))
        variables += piece
    k.tcgen05_wait_ld()
    return variables


def load_row_with_largest(k: Roles, at: Pointer, count: int) -> tuple[list[Var], Value]:
    """Load this thread's cells as `load_row` does: the f32 variables, and the largest number among them."""
    if any(k.target.has_features_of(family) for family in REDUCTIONS):
        variables, tops = [], []
        for first, number in _pieces(count):
            cells, top = k.tcgen05_ld_red_f32(columns_after(at, first), num=_times(number), op="max")
            variables += [Var(k, cell.reg, f32) for cell in cells]
            tops.append(top)
        k.tcgen05_wait_ld()
        return variables, functools.reduce(k.max, tops)
    variables = load_row(k, at, count)
    return variables, largest(k, variables)


def largest(k: Roles, values: Sequence[Value]) -> Value:
    """The largest of f32 values, in chains that run at once."""
    chains = [functools.reduce(k.max, values[first::CHAINS]) for first in range(min(CHAINS, len(values)))]
    return functools.reduce(k.max, chains)


def store_row(k: Roles, at: Pointer, values: Sequence[Value], *, waits: bool = True) -> None:
    """Store this thread's 32-bit values, one to a column of tensor memory; `waits`: until they are there."""
    for first, number in _pieces(len(values)):
        k.tcgen05_st(columns_after(at, first), values[first : first + number], num=_times(number))
    if waits:
        k.tcgen05_wait_st()


def scale_row(k: Roles, at: Pointer, count: int, factor: Value, piece: int) -> None:
    """Multiply the f32 cells of this thread in `count` columns by a factor, `piece` of them at a time, and
    wait until the products are there.
    """
    for first in range(0, count, piece):
        number = min(piece, count - first)
        values = load_row(k, columns_after(at, first), number)
        for value in values:
            k.mul(value, factor, into=value)
        for down, some in _pieces(number):
            k.tcgen05_st(columns_after(at, first + down), values[down : down + some], num=_times(some))
    k.tcgen05_wait_st()


def columns_after(at: Pointer, columns: int) -> Pointer:
    """The address in tensor memory that is `columns` columns after the address `at`."""
    return Pointer(at.base, at.space, at.dtype, at.offset + columns)


def packed(k: Roles, values: Sequence[Value], dtype: ScalarType) -> list[Value]:
    """Neighbouring f32 values, rounded to f16 or bf16, two in 32 bits, the first one lowest."""
    return [
        k.cvt(high, low, rnd="rn", dtype=PAIRS[dtype]).as_(u32)
        for low, high in zip(values[::2], values[1::2], strict=True)
    ]


def packed_fp8(k: Roles, values: Sequence[Value], fp8: str) -> list[Value]:
    """Neighbouring f32 values, rounded to e4m3 or e5m2 as `fp8` says and limited to its largest number, four
    in 32 bits, the first one lowest.
    """
    of: Any = f"{fp8}x2"
    pairs = [k.cvt_narrow(high, low, dtype=of) for low, high in zip(values[::2], values[1::2], strict=True)]
    return [k.pack(list(two)).as_(u32) for two in zip(pairs[::2], pairs[1::2], strict=True)]


def require_f32(caller: str, values: Sequence[object]) -> None:
    """Raise `TypeMismatchError` unless all values are f32."""
    for value in values:
        if not isinstance(value, Value) or value.type is not f32:
            raise TypeMismatchError(f"{caller}: expected f32 values, got {shown(value)}")


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """The first column and the number of columns of each load or store: powers of two."""
    first = 0
    while first < count:
        number = min(_MOST_REGISTERS, 1 << (count - first).bit_length() - 1)
        yield first, number
        first += number


def _times(number: int) -> Any:
    """The `.num` modifier of a `tcgen05` load or store of so many columns, such as x32."""
    return f"x{number}"
