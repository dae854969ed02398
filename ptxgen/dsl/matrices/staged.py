"""Blocks of a matrix in shared memory, as operands of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Scalar, Value, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.types import ScalarType, u8

FP8: Final = ("e4m3", "e5m2")
INT4: Final = "int4"  # two elements in a byte, the first one in the low bits
_INT4_BITS: Final = 4


class Arrival:
    """Whether the data that copies bring into a tile may be read; `problem` is the reason why not, or
    empty.
    """

    __slots__ = ("problem",)

    def __init__(self, problem: str = "") -> None:
        self.problem = problem


_ARRIVED: Final = Arrival()


class StagedTile:
    """A block of a matrix in shared memory: a stage of a swizzled tile.

    `row` and `column` are where the block begins in the matrix. `T` is the transposed block, which
    costs nothing: products read it in the other direction. Products take blocks, and
    `block[row, column]` loads an element.
    """

    def __init__(
        self,
        tile: SwizzledTile,
        *,
        stage: Value | None = None,
        origin: Callable[[], tuple[Scalar, Scalar]] = lambda: (0, 0),
        arrival: Arrival = _ARRIVED,
        transposed: bool = False,
        encoding: str = "",
        zero: int = 0,
    ) -> None:
        self.tile = tile
        self.stage = stage
        self.is_transposed = transposed
        self.arrival = arrival
        self.encoding = encoding
        self.zero = zero
        self._origin = origin

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"{self.tile.name} ({rows} x {columns} {self.kind})"

    @property
    def dtype(self) -> ScalarType:
        """The type of the block's elements in shared memory."""
        return self.tile.dtype

    @property
    def kind(self) -> str:
        """The type of the elements as products take them: that of the bytes (`as_fp8`, `as_int4`), or the
        name of `dtype`.
        """
        return self.encoding or self.dtype.name

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the number of columns of the block."""
        rows, columns = self.tile.rows, self.tile.columns * (2 if self.encoding == INT4 else 1)
        return (columns, rows) if self.is_transposed else (rows, columns)

    @property
    def T(self) -> StagedTile:
        """The transposed block, as an operand of a product: no element is moved."""
        return self._as(self.encoding, self.zero, transposed=not self.is_transposed)

    def as_fp8(self, name: str) -> StagedTile:
        """The block of bytes (u8) as elements of fp8, e4m3 or e5m2 as `name` says, for products. Raises
        `TypeMismatchError` for other elements or names.
        """
        self._require_bytes(f"as_fp8({shown(name)})")
        if name not in FP8:
            raise TypeMismatchError(
                f"as_fp8: {self!r} is taken as one of {', '.join(FP8)}, got {shown(name)}"
            )
        return self._as(name, 0, transposed=self.is_transposed)

    def as_int4(self, *, zero: int = 8) -> StagedTile:
        """The block of bytes (u8) as twice as many integers of 4 bits in a row, the first one of a byte in
        its low bits, less `zero`, from 0 to 15: the second factor of a product with f16, `b.as_int4().T`.
        Raises `TypeMismatchError` for other elements, and `ConfigError` for another `zero`.
        """
        self._require_bytes("as_int4()")
        if not is_int(zero) or not 0 <= zero < 1 << _INT4_BITS:
            raise ConfigError(f"as_int4: zero must be an integer from 0 to 15, got {shown(zero)}")
        return self._as(INT4, zero, transposed=self.is_transposed)

    def _as(self, encoding: str, zero: int, *, transposed: bool) -> StagedTile:
        turned = transposed is not self.is_transposed
        return StagedTile(
            self.tile,
            stage=self.stage,
            origin=(lambda: self._origin()[::-1]) if turned else self._origin,
            arrival=self.arrival,
            transposed=transposed,
            encoding=encoding,
            zero=zero,
        )

    def _require_bytes(self, word: str) -> None:
        if self.dtype is not u8 or self.encoding:
            raise TypeMismatchError(f"{word} takes a block of u8, got {self!r}")

    @property
    def row(self) -> Scalar:
        """The block's first row, counted in the matrix; it is computed anew each time."""
        return self._origin()[0]

    @property
    def column(self) -> Scalar:
        """The block's first column, counted in the matrix; it is computed anew each time."""
        return self._origin()[1]

    def pointer(self, row: Scalar, column: Scalar) -> TilePointer:
        """The address of an element; `row` and `column` are Python ints or u32."""
        self.require_arrived("an element")
        if self.encoding == INT4:
            raise TypeMismatchError(f"an element of {self!r} has 4 bits; load its byte from the block of u8")
        index = (column, row) if self.is_transposed else (row, column)
        at = self.tile.pointer(*index)
        return at if self.stage is None else at.moved(at.value + self.stage)

    def __getitem__(self, index: tuple[Scalar, Scalar]) -> Value:
        """Load the element at [row, column], in the type of the elements."""
        return self.tile.k.load(self.pointer(*index))

    def require_arrived(self, caller: str) -> None:
        """Raise `ConfigError` unless the copies into the block have been waited for."""
        if self.arrival.problem:
            raise ConfigError(f"{caller} of {self!r}: {self.arrival.problem}")
