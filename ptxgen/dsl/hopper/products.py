"""Operands and products of `wgmma`: parts of tiles in shared memory, and matrices in registers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Final, Protocol

from ptxgen.dsl.control import Control
from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS, Layout
from ptxgen.dsl.hopper.role import Role
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Value
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, bf16, f16, u8, u64

STEP: Final = 16  # elements of K in one `wgmma` of 16-bit elements
STEP_BYTES: Final = 32  # of the elements of K in one `wgmma`
FP8: Final = ("e4m3", "e5m2")  # types whose elements are bytes (u8) in memory
WGMMA_ROWS: Final = 64  # rows of A in one `wgmma`
MOST_COLUMNS: Final = 256  # columns of B in one `wgmma`
_DTYPES: Final = (f16, bf16)
_ADDRESS_BITS: Final = 0x3FFF  # of a descriptor, in units of 16 bytes
_UNIT_SHIFT: Final = 4


class Owner(Protocol):
    """The owner of a tile's memory, such as a stage of a ring."""

    def use(self, what: str) -> None:
        """Raise `TypeMismatchError` if the memory must not be used any more, for `what`."""


class Products(Protocol):
    """What starts products and copies asynchronously, in one thread of a role, and whose commits arrive at
    mbarriers; tensor memory.
    """

    cta_group: int

    @property
    def is_even(self) -> Value | None:
        """Whether this CTA is the one of its pair whose thread starts products; None without pairs."""

    def step(self, role: Role) -> AbstractContextManager[None]:
        """The code of a step of a role: of the one thread that starts products, or of its whole warp."""

    def issuing(self, role: Role) -> AbstractContextManager[None]:
        """The code of the one thread of a role that starts products, in a pair that of the even CTA."""

    def commit(self, barrier: TilePointer) -> None:
        """Arrive at an mbarrier when all products and copies that this thread has started are complete."""

    def of_even_cta(self, barrier: TilePointer) -> TilePointer:
        """The address of an mbarrier of the pair's even CTA, for either CTA of the pair."""


@dataclass(frozen=True)
class Operand:
    """A matrix of `rows` x `columns` in shared memory that `wgmma` reads: a tile, its transpose
    (`transposed`), or some of its rows, or columns, which begin `offset` bytes after `at`.
    """

    k: Control
    name: str
    layout: Layout
    at: TilePointer
    owner: Owner
    rows: int
    columns: int
    transposed: bool
    fp8: str = ""  # the type of elements that are bytes in memory, of `FP8`
    offset: int = 0
    units: Value | None = None  # the address in units of 16 bytes, where a register has it

    @property
    def T(self) -> Operand:
        """The transposed matrix, as an operand of `wgmma` in the same shared memory; no element is moved."""
        return replace(self, rows=self.columns, columns=self.rows, transposed=not self.transposed)

    def slabs(self, first: int, count: int) -> Operand:
        """The columns of `count` slabs of the tile, from slab `first` on. The descriptors of two such parts
        differ by one addition.

        Raises `ConfigError` for slabs that the tile does not have, and for a transposed matrix.
        """
        layout = self.layout
        if self.transposed or not 0 <= first < first + count <= layout.slabs or self.offset:
            raise ConfigError(
                f"{self.name}.slabs: it takes slabs of a tile that is not transposed, {layout.slabs} in all; "
                f"got first={shown(first)}, count={shown(count)}"
            )
        columns = count * layout.slab_columns
        return replace(self, columns=columns, offset=first * layout.slab_bytes)

    @property
    def dtype(self) -> ScalarType:
        """The type of the matrix's elements in shared memory."""
        return self.layout.dtype

    def as_fp8(self, name: str) -> Operand:
        """The matrix of bytes (u8) as one of e4m3 or e5m2, as `name` says. Raises `TypeMismatchError`
        for other elements and names.
        """
        if self.dtype is not u8 or name not in FP8:
            raise TypeMismatchError(
                f"{_name(self)}.as_fp8: elements of u8 are taken as one of {', '.join(FP8)}, got "
                f"{self.dtype} and {shown(name)}"
            )
        return replace(self, fp8=name)

    def __matmul__(self, other: Operand) -> Product:
        """The product, which an accumulator takes: `acc += a @ b`."""
        return product(self, other)

    def descriptor(self, *, k_is_rows: bool) -> Value:
        """The matrix descriptor of the beginning of this operand, u64; `k_is_rows`: the rows of the tile in
        memory are the K dimension of the product.
        """
        return moved(matrix_descriptor(self.at, self.layout.fields(transposed=k_is_rows)), self.offset)


@dataclass(frozen=True)
class RegisterOperand:
    """A matrix of 64 x `columns` in the registers of a warpgroup: for each 16 columns, of fp8 for each 32,
    the four 32-bit registers of a thread (PTX ISA, "Register Fragments for wgmma").
    """

    dtype: ScalarType
    words: tuple[tuple[Value, Value, Value, Value], ...]
    fp8: str = ""  # as of an `Operand`

    @property
    def rows(self) -> int:
        """The number of rows of the matrix: 64, those of a `wgmma` operand in registers."""
        return WGMMA_ROWS

    @property
    def columns(self) -> int:
        """The number of columns of the matrix in registers, along the K dimension."""
        return STEP_BYTES // self.dtype.nbytes * len(self.words)

    def __matmul__(self, other: Operand) -> Product:
        """The product, which an accumulator takes: `acc += a @ b`."""
        return product(self, other)


@dataclass(frozen=True)
class Product:
    """a @ b, which has been checked and is not computed yet."""

    a: Operand | RegisterOperand
    b: Operand
    dtype: ScalarType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.b.dtype)

    @property
    def step(self) -> int:
        """The elements along the K dimension that one `wgmma` multiplies: 32 bytes of each operand."""
        return STEP_BYTES // self.dtype.nbytes


def product(a: Operand | RegisterOperand, b: object) -> Product:
    """The product of two matrices; `NotImplemented` if `b` is no matrix, as operators of Python return it.

    Raises `TypeMismatchError` and `ConfigError` for what `wgmma` has no form for.
    """
    if not isinstance(b, Operand):
        return NotImplemented  # type: ignore[no-any-return]  # as operators return it
    names = f"{_name(a)} @ {_name(b)}"
    if a.dtype is not b.dtype or not (a.dtype in _DTYPES or (a.fp8 and b.fp8)):
        raise TypeMismatchError(
            f"{names}: wgmma multiplies two f16, two bf16 or two fp8 matrices here, got {_type(a)} and "
            f"{_type(b)}"
        )
    if a.columns != b.rows:
        raise ConfigError(
            f"{names}: the columns of a must be the rows of b, got {a.rows} x {a.columns} and "
            f"{b.rows} x {b.columns}; a tile with rows of K is transposed by .T"
        )
    if a.fp8 and ((isinstance(a, Operand) and a.transposed) or not b.transposed):
        raise ConfigError(
            f"{names}: of fp8, wgmma takes the rows of a and the columns of b as rows in memory: a @ b.T, "
            "where the rows of tile b are the columns of the product"
        )
    step = STEP_BYTES // b.dtype.nbytes
    if a.columns % step or a.rows % WGMMA_ROWS or b.columns % SWIZZLE_ROWS or b.columns > MOST_COLUMNS:
        raise ConfigError(
            f"{names}: wgmma takes {WGMMA_ROWS} rows at a time, {step} columns of a, and 8 to {MOST_COLUMNS} "
            f"columns of b in steps of 8; got {a.rows} x {a.columns} and {b.rows} x {b.columns}"
        )
    for operand in (a, b):
        if isinstance(operand, Operand) and operand.layout.swizzle == "none":
            raise ConfigError(
                f"{names}: tile {operand.name!r} has no swizzle, so wgmma cannot read it; make it with rows "
                "of a multiple of 32 bytes, or with swizzle='128B'"
            )
    return Product(a, b)


def matrix_descriptor(at: TilePointer, fields: int) -> Value:
    """A matrix descriptor of these fields, u64, with an address in shared memory (PTX ISA, "Matrix descriptor
    format").
    """
    k = at.tile.k
    start = k.and_(k.shr(k.add(at.value, at.offset), _UNIT_SHIFT), _ADDRESS_BITS)
    descriptor: Value = k.or_(k.cvt(start, dtype=u64), fields)
    return descriptor


def moved(descriptor: Value, nbytes: int) -> Value:
    """The `wgmma` matrix descriptor of an operand `nbytes` bytes after that of `descriptor`."""
    return descriptor + (nbytes >> _UNIT_SHIFT) if nbytes else descriptor


def _name(operand: Operand | RegisterOperand) -> str:
    if isinstance(operand, RegisterOperand):
        return "registers"
    return operand.name + (".T" if operand.transposed else "")


def _type(operand: Operand | RegisterOperand) -> str:
    return operand.fp8 or str(operand.dtype)
