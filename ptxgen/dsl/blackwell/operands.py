"""Operands of products in tensor memory: tiles in shared memory, and what descriptors say of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS, Layout
from ptxgen.dsl.hopper.products import STEP_BYTES, Operand, matrix_descriptor, moved
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.values import Value
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.isa.descriptors import OF_MAPS, SharedMatrix
from ptxgen.types import ScalarType, bf16, f16, f32, u8

FP4: Final = "e2m1"  # elements of four bits, two in a byte of u8
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
    "mxf8": Format("mxf8f6f4", "scale_vec::1X", "ue8m0", 1),
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
    """The elements of memory along K that one product reads."""
    return STEP_BYTES // dtype.nbytes


def descriptor(of: Operand, *, k_is_rows: bool) -> Value:
    """The matrix descriptor of the beginning of an operand for `tcgen05.mma`, u64; `k_is_rows`: the rows of
    the tile in memory are the K dimension of the product (PTX ISA, "Shared memory descriptor").
    """
    return moved(matrix_descriptor(of.at, _fields(of.layout, k_is_rows=k_is_rows).bits), of.offset)


def scales_descriptor(tile: BoxTile) -> Value:
    """The matrix descriptor of a tile of scale factors for `tcgen05.cp`: rows of 16 bytes one after another,
    without a swizzle.
    """
    fields = SharedMatrix(0, _UNIT, SWIZZLE_ROWS * _UNIT, 0, OF_MAPS["none"])
    return matrix_descriptor(tile.at(0), fields.bits)


def is_packed(operand: Operand) -> bool:
    """Whether products with scale factors take the elements of an operand as two e2m1 in each byte."""
    return operand.dtype is u8 and not operand.fp8


def _fields(layout: Layout, *, k_is_rows: bool) -> SharedMatrix:
    """What a descriptor says of a layout, but for the address."""
    leading = layout.slab_bytes if k_is_rows else _UNIT  # K-major: not used
    return SharedMatrix(0, leading, SWIZZLE_ROWS * layout.row_bytes, 0, OF_MAPS[layout.swizzle])
