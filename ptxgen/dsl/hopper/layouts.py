"""The image of a matrix in shared memory as tensor copies write it and `wgmma` reads it.

The columns are cut into slabs as wide as the swizzle, each a matrix of its own with contiguous
rows. PTX ISA, sections "Tensors: Swizzling modes" and "Asynchronous Warpgroup Level Matrix Shared
Memory Layout".
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

from ptxgen.arguments import integer
from ptxgen.dsl.values import require_type
from ptxgen.errors import ConfigError, shown
from ptxgen.records import dataclass
from ptxgen.tensormap import CHUNK, MOST_DIMS, SWIZZLES, Boxes
from ptxgen.types import ScalarType

SWIZZLE_ROWS: Final = 8  # rows after which a swizzle repeats, and rows of a core matrix of wgmma
_ALIGN: Final = 128  # bytes; PTX ISA, "cp.async.bulk.tensor", of images without a swizzle
_MOST_BOX: Final = 256  # elements of a box along a dimension
_CODES: Final = {"128B": 1, "64B": 2, "32B": 3}  # the swizzle in a matrix descriptor
_DESCRIPTOR_UNIT: Final = 16  # bytes; addresses and offsets in a descriptor count these


@dataclass(frozen=True)
class Layout:
    """The layout of a tile: `shape` in elements, outermost dimension first, the last is the columns, all
    others together are the rows; `swizzle` is "none", "32B", "64B" or "128B".
    """

    shape: tuple[int, ...]
    dtype: ScalarType
    swizzle: str

    @classmethod
    def of(cls, caller: str, shape: object, dtype: object, swizzle: object = None) -> Layout:
        """A checked layout; without `swizzle` the widest that divides a row. Raises `ConfigError`, whose
        message begins with `caller`.
        """
        require_type(caller, dtype)
        assert isinstance(dtype, ScalarType)  # see above
        dimensions = shape if isinstance(shape, tuple | list) else ()
        sizes = [integer(n, 1, 1 << 20) for n in dimensions]
        if not 1 <= len(sizes) <= MOST_DIMS or None in sizes or not dtype.nbytes:
            raise ConfigError(
                f"{caller}: the shape must be 1 to {MOST_DIMS} positive integers, the columns last, got "
                f"{shown(shape)}"
            )
        whole = tuple(n for n in sizes if n is not None)
        row = whole[-1] * dtype.nbytes
        if swizzle is None:
            swizzle = next((name for name in _CODES if row % span_of(name) == 0), "none")
        if not isinstance(swizzle, str) or swizzle not in SWIZZLES:
            raise ConfigError(f"{caller}: swizzle must be one of {', '.join(SWIZZLES)}, got {shown(swizzle)}")
        layout = cls(whole, dtype, swizzle)
        layout._check(caller, row)
        return layout

    def _check(self, caller: str, row: int) -> None:
        span = span_of(self.swizzle)
        if span and row % span:
            raise ConfigError(
                f"{caller}: with the {self.swizzle} swizzle a row must be a multiple of {span} bytes "
                f"({span // self.dtype.nbytes} {self.dtype} elements), got {self.columns} elements of "
                f"{self.dtype.nbytes} bytes; widen the rows, or choose a narrower swizzle"
            )
        if row % CHUNK:
            raise ConfigError(
                f"{caller}: a row must be a multiple of {CHUNK} bytes, got {self.columns} elements of "
                f"{self.dtype.nbytes} bytes"
            )
        for n in (*self.shape[:-1], self.slab_columns):
            if n > _MOST_BOX:
                raise ConfigError(
                    f"{caller}: a copy moves at most {_MOST_BOX} elements along a dimension, got {n} in "
                    f"{list(self.shape)}; use several tiles"
                )

    @property
    def rows(self) -> int:
        """The rows of the tile: the product of all dimensions but the last."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """The columns of the tile: its last dimension, in elements."""
        return self.shape[-1]

    @cached_property
    def slab_columns(self) -> int:
        """The columns of a slab, in elements: as many as the swizzle is wide."""
        span = span_of(self.swizzle)
        return span // self.dtype.nbytes if span else self.columns

    @property
    def slabs(self) -> int:
        """The number of slabs, each moved by one copy."""
        return self.columns // self.slab_columns

    @property
    def row_bytes(self) -> int:
        """The bytes from one row of a slab to the next."""
        return self.slab_columns * self.dtype.nbytes

    @property
    def slab_bytes(self) -> int:
        """The bytes from one slab to the next, which begins where the swizzle does."""
        return -(-self.rows * self.row_bytes // self.align) * self.align

    @property
    def tile_bytes(self) -> int:
        """The bytes from one tile to the next."""
        return self.slabs * self.slab_bytes

    @property
    def nbytes(self) -> int:
        """The bytes that a copy of the tile moves."""
        return self.slabs * self.rows * self.row_bytes

    @property
    def align(self) -> int:
        """The alignment of the tile in bytes: that after which the swizzle repeats."""
        return max(_ALIGN, SWIZZLE_ROWS * span_of(self.swizzle))

    def boxes(self, rank: int) -> Boxes:
        """The box of a copy to or from a slab, for a tensor map with `rank` dimensions."""
        inner = (self.slab_columns, *self.shape[-2::-1])
        return Boxes(self.dtype, (*inner, *(1,) * (rank - len(inner))), self.swizzle)

    def fields(self, *, transposed: bool) -> int:
        """The bits of a `wgmma` matrix descriptor without the address: leading and stride byte offset
        and swizzle (PTX ISA, "Matrix descriptor format"). `transposed`: the rows are the K dimension
        of the product (MN-major), else the columns (K-major).
        """
        stride = SWIZZLE_ROWS * self.row_bytes
        leading = self.slab_bytes if transposed else _DESCRIPTOR_UNIT  # K-major: not used
        return (
            leading // _DESCRIPTOR_UNIT << 16 | stride // _DESCRIPTOR_UNIT << 32 | _CODES[self.swizzle] << 62
        )

    def step(self, k: int, *, transposed: bool) -> int:
        """The distance in bytes from the beginning of an operand to its part from index `k` of the K
        dimension on; `k` is a multiple of the 16 elements of one `wgmma`.
        """
        if transposed:
            return k * self.row_bytes
        slab, within = divmod(k, self.slab_columns)
        return slab * self.slab_bytes + within * self.dtype.nbytes


def span_of(swizzle: str) -> int:
    """The bytes of a row within which a swizzle permutes chunks of 16 bytes; 0 without a swizzle."""
    return 0 if swizzle == "none" else int(swizzle.removesuffix("B"))
