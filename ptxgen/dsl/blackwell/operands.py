"""Operands of products in tensor memory: tiles in shared memory, and what descriptors say of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS, Layout
from ptxgen.dsl.hopper.products import STEP_BYTES, Operand
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.ops import Ops
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Value
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.isa.descriptors import OF_MAPS, SharedMatrix
from ptxgen.types import ScalarType, bf16, f16, f32, u8, u32, u64

FP4: Final = "e2m1"  # elements of four bits, two in a byte of u8
_UNIT_SHIFT: Final = 4  # addresses count 16 bytes
_ADDRESS_BITS: Final = 0x3FFF
_UNIT: Final = 16  # bytes; also those of a row of scale factors that `tcgen05.cp` copies
# The kind of product and the name of the elements, by the type in memory.
_KINDS: Final = {f16: ("f16", "f16"), bf16: ("f16", "bf16"), f32: ("tf32", "tf32")}


class Format(NamedTuple):
    """Scale factors of blocks: the `kind` of products, the `vec` that chooses it, the type of a factor, and
    the `factors` of a row in one product (PTX ISA, "tcgen05.mma", "Block scaling").
    """

    kind: str
    vec: str
    scale: str
    factors: int


FORMATS: Final = {
    "nvf4": Format("mxf4nvf4", "block16", "ue4m3", 4),
    "mxf4": Format("mxf4", "scale_vec::2X", "ue8m0", 2),
    "mxf8": Format("mxf8f6f4", "block32", "ue8m0", 1),
}


def operand_of(caller: str, name: str, tile: object) -> Operand:
    """A tile in shared memory, or a part or a transpose of one, as an operand. Raises `TypeMismatchError`,
    whose message begins with `caller`, for another argument.
    """
    if isinstance(tile, BoxTile):
        return tile.part(0, tile.rows)
    if not isinstance(tile, Operand):
        raise TypeMismatchError(
            f"{caller}: {name} must be a tile in shared memory, such as stage.{name} or stage.{name}.T, got "
            f"{shown(tile)}"
        )
    return tile


def kind_of(dtype: ScalarType, fp8: str) -> tuple[str, str]:
    """The kind of products without scale factors, and the name of the type of the elements; empty strings for
    elements that no kind multiplies.
    """
    return ("f8f6f4", fp8) if fp8 else _KINDS.get(dtype, ("", ""))


def step_elements(dtype: ScalarType) -> int:
    """The elements along the K dimension that one `tcgen05.mma` reads from shared memory."""
    return STEP_BYTES // dtype.nbytes


class Descriptor:
    """The matrix descriptor of an operand for `tcgen05.mma` or `tcgen05.cp`: its lower half has the address,
    and the upper one is constant (PTX ISA, "Shared memory descriptor").
    """

    def __init__(self, k: Ops, units: Value, fields: SharedMatrix, offset: int = 0) -> None:
        self._k, self._units = k, units
        self._upper, lower = divmod(fields.bits, 1 << u32.bits)
        self._lower = lower + (offset >> _UNIT_SHIFT)

    @classmethod
    def of(cls, operand: Operand, *, k_is_rows: bool) -> Descriptor:
        """The descriptor of the beginning of an operand; `k_is_rows`: rows of the tile in memory are the K
        dimension of the product.
        """
        units = units_of(operand.at) if operand.units is None else operand.units
        return cls(operand.k, units, _fields(operand.layout, k_is_rows=k_is_rows), operand.offset)

    @classmethod
    def of_scales(cls, tile: BoxTile) -> Descriptor:
        """The descriptor of a tile of scale factors: rows of 16 bytes one after another, no swizzle."""
        at, fields = tile.at(0), SharedMatrix(0, _UNIT, SWIZZLE_ROWS * _UNIT, 0, OF_MAPS["none"])
        return cls(at.tile.k, units_of(at), fields)

    def moved(self, nbytes: int) -> Value:
        """The u64 matrix descriptor for an operand that begins `nbytes` bytes after this one."""
        k = self._k
        lower = self._units + (self._lower + (nbytes >> _UNIT_SHIFT))
        return k.pack([lower, k.mov(self._upper, type=u32)]).as_(u64)


def units_of(at: TilePointer) -> Value:
    """The register of an address in shared memory in units of 16 bytes, u32, as descriptors have it."""
    k = at.tile.k
    return k.and_(k.shr(k.add(at.value, at.offset), _UNIT_SHIFT), _ADDRESS_BITS)


def is_packed(operand: Operand) -> bool:
    """Whether products with scale factors take the elements of an operand as two e2m1 in each byte."""
    return operand.dtype is u8 and not operand.fp8


def _fields(layout: Layout, *, k_is_rows: bool) -> SharedMatrix:
    """The bits of a matrix descriptor that describe a tile's layout, without its address."""
    leading = layout.slab_bytes if k_is_rows else _UNIT  # K-major: not used
    return SharedMatrix(0, leading, SWIZZLE_ROWS * layout.row_bytes, 0, OF_MAPS[layout.swizzle])
