"""Tensor maps as parameters of a kernel, and boxes of their tensors as ends of copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from ptxgen import ir
from ptxgen.arguments import is_one_of
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tensors import TensorPointer
from ptxgen.dsl.values import Scalar, Value
from ptxgen.errors import ConfigError, TypeMismatchError, did_you_mean, shown
from ptxgen.isa.bulk import BOX_REDUCTIONS, unreduced
from ptxgen.tensormap import Boxes, TensorMapType, misplaced
from ptxgen.types import ScalarType, b64, u64

Reduction: TypeAlias = Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"]


class TensorParameter:
    """A parameter that is a tensor map; `A[row, column]` is a corner of a box in the tensor, outermost
    first.

    `boxes` are the properties of the map that the kernel fixes, set by the first copy; None before it.
    """

    def __init__(self, k: Roles, name: str, type: TensorMapType) -> None:
        self.k = k
        self.name = name
        self.type = type
        self.boxes: Boxes | None = None
        self.address: Value = k.cvta(k.mov(ir.Symbol(name), type=b64).as_(u64), space="param")

    def __repr__(self) -> str:
        return f"TensorParameter({self.name!r}, {self.type})"

    def __getitem__(self, index: Scalar | tuple[Scalar, ...]) -> Corner:
        coordinates = index if isinstance(index, tuple) else (index,)
        if len(coordinates) != self.type.rank:
            raise TypeMismatchError(
                f"{self.name} has {self.type.rank} dimensions ({self.type}), got {len(coordinates)} "
                "coordinates"
            )
        return Corner(self, coordinates)

    def fix(self, boxes: Boxes) -> None:
        """Note the boxes of a copy. Raises `ConfigError` if an earlier copy has other boxes."""
        if self.boxes is None:
            self.boxes = boxes
            return
        if (self.boxes.box, self.boxes.swizzle) != (boxes.box, boxes.swizzle):
            raise ConfigError(
                f"{self.name}: a tensor map has one box and one swizzle; a copy before has box "
                f"{list(self.boxes.box)} (innermost first) with swizzle {self.boxes.swizzle}, this one "
                f"{list(boxes.box)} with {boxes.swizzle}; declare another parameter, and pass the array twice"
            )
        self.boxes = replace(
            boxes, loads=self.boxes.loads or boxes.loads, stores=self.boxes.stores or boxes.stores
        )


class Corner:
    """The first element of a box: coordinates of a tensor, outermost first."""

    def __init__(self, of: TensorParameter, coordinates: tuple[Scalar, ...]) -> None:
        self.of = of
        self.coordinates = coordinates

    def pointer(self, columns: int) -> TensorPointer:
        """The tensor operand of a bulk copy whose box begins `columns` columns after this corner."""
        *outer, last = self.coordinates
        moved = last + columns if columns else last
        return TensorPointer(self.of.address, self.of.type.dtype, (moved, *reversed(outer)))


def boxes_of(caller: str, tile: object, corner: object) -> Boxes:
    """The boxes of a copy between a tile and a tensor. Raises `TypeMismatchError` for arguments of other
    types and elements of two types, and `ConfigError` for a constant column that no copy reaches; messages
    begin with `caller`.
    """
    if not isinstance(tile, BoxTile) or not isinstance(corner, Corner):
        raise TypeMismatchError(
            f"{caller}: it takes a tile and a place in a tensor, such as A[row, column], got "
            f"{shown(tile)} and {shown(corner)}"
        )
    of, layout = corner.of, tile.layout
    if layout.dtype is not of.type.dtype or len(layout.shape) > of.type.rank:
        raise TypeMismatchError(
            f"{caller}: tile {tile.name!r} has {len(layout.shape)} dimensions of {layout.dtype}, "
            f"{of.name} is {of.type}; they must have one element type, and the tensor at least as "
            "many dimensions"
        )
    first = corner.coordinates[-1]
    if isinstance(first, int) and (why := misplaced(first, layout.dtype)):
        raise ConfigError(f"{caller}: {of.name}: {why}")
    return layout.boxes(of.type.rank)


def copy_slabs(copy: Callable[..., None], tile: BoxTile, corner: Corner, **modifiers: str) -> None:
    """Emit `copy` between each slab of a tile and its box of the tensor."""
    dim = f"{corner.of.type.rank}d"
    for number in range(tile.layout.slabs):
        at = corner.pointer(number * tile.layout.slab_columns)
        copy(at, tile.slab(number), dim=dim, **modifiers)


def require_reduction(caller: str, op: object, name: str, dtype: ScalarType) -> None:
    """Raise `ConfigError` unless `op` is a reduction, and `TypeMismatchError` unless it combines elements
    of `dtype`, which `name` has; messages begin with `caller`.
    """
    if not is_one_of(op, BOX_REDUCTIONS):
        raise ConfigError(
            f"{caller}: op must be one of {', '.join(BOX_REDUCTIONS)}, got {shown(op)}"
            f"{did_you_mean(op, BOX_REDUCTIONS)}"
        )
    if why := unreduced(str(op), dtype):
        raise TypeMismatchError(f"{caller}: {name}: {why}")
