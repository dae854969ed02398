"""Boxes of tensors: the addresses of their elements in global memory, and their image in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.half import OOB_NAN
from ptxgen.packed_elements import GROUP
from ptxgen.tensormap import CHUNK, TensorMap, swizzled

if TYPE_CHECKING:
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

Reduce = Callable[["Lanes", "Lanes", "ScalarType"], "Lanes"]

_UNSIGNED: Final = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a box that lies inside the tensor: the slices `inside` of the box (outermost
    dimension first), with addresses from `first` to `last - 1` and the distances of elements in
    bytes.
    """

    inside: tuple[slice, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    last: int


def part_inside(of: TensorMap, corner: tuple[int, ...]) -> Part | None:
    """The part of a box that lies inside the tensor, given the coordinates of the box's first element; None
    if the box lies wholly outside.
    """
    assert isinstance(of.base, int)
    width = of.type.nbytes
    steps = (1, *of.element_strides[1:])
    inside, shape, strides = [], [], []
    first, last = of.base, of.base + width
    units = (of.units(corner[0]), *corner[1:])
    for at, count, extent, step, stride in zip(
        units, of.box_shape, of.extents, steps, (width, *of.strides), strict=True
    ):
        low = -(min(at, 0) // step)
        high = min(count, -(-(extent - at) // step))
        if low >= high:
            return None
        begin = (at + low * step) * stride
        first, last = first + begin, last + begin + (high - low - 1) * step * stride
        inside.append(slice(low, high))
        shape.append(high - low)
        strides.append(step * stride)
    return Part(tuple(inside[::-1]), tuple(shape[::-1]), tuple(strides[::-1]), first, last)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of a tensor with a map, by the coordinates of their first elements, whose images lie one after
    another in shared memory: together, these are the image of a box of the map `image`.
    """

    map: TensorMap
    image: TensorMap
    corners: tuple[tuple[int, ...], ...]

    @property
    def parts(self) -> list[Part | None]:
        """The part of each box that lies inside the tensor."""
        return [part_inside(self.map, corner) for corner in self.corners]

    def split(self, chunks: Lanes) -> list[Lanes]:
        """The 16-byte chunks of each box, of those of all boxes."""
        return np.split(chunks, len(self.corners))

    def inside(self, chunks: Lanes) -> list[tuple[Lanes, Part]]:
        """The 16-byte chunks of each box with a part inside the tensor, and that part."""
        pairs = zip(self.split(chunks), self.parts, strict=True)
        return [(some, part) for some, part in pairs if part is not None]


def of_rows(of: TensorMap, count: int) -> TensorMap:
    """The map of a matrix with `count` rows to a box, from one with a single row."""
    return TensorMap(
        of.base,
        (of.box[0], count),
        of.dtype,
        of.dims,
        of.strides,
        of.swizzle,
        oob_fill=of.oob_fill,
        l2_promotion=of.l2_promotion,
    )


def rows_of_all(parts: list[Part]) -> tuple[Lanes, int]:
    """The addresses of the rows of parts whose rows have equal bytes, int64, and the bytes of a row."""
    rows = [rows_of(part) for part in parts]
    return (np.concatenate([first for first, _ in rows]), rows[0][1]) if rows else (np.zeros(0, np.int64), 0)


def rows_of(part: Part) -> tuple[Lanes, int]:
    """The addresses of the rows of a part, int64, and the bytes of a row."""
    starts = np.zeros(1, np.int64)
    for count, stride in zip(part.shape[:-1], part.strides[:-1], strict=True):
        starts = (starts[:, None] + stride * np.arange(count)).reshape(-1)
    return starts + part.first, part.shape[-1] * part.strides[-1]


def elements_of(of: TensorMap, part: Part, data: Lanes, base: int) -> Lanes:
    """The elements of a part, as a view of `data`, the bytes from address `base` on; unsigned
    integers, outermost dimension first.
    """
    dtype = _UNSIGNED[of.type.nbytes]
    view: Lanes = np.ndarray(
        part.shape, dtype, buffer=data.data, offset=part.first - base, strides=part.strides
    )
    return view


def empty_box(of: TensorMap) -> Lanes:
    """The values loaded for a box wholly outside the tensor, as unsigned integers."""
    width = of.type.nbytes
    if of.oob_fill == "zeros":
        return np.zeros(of.box_shape[::-1], _UNSIGNED[width])
    # The NaN that `fma.oob` looks for; the manual does not give its bits.
    fill = np.frombuffer(OOB_NAN.tobytes() * (width // 2), _UNSIGNED[width])
    return np.full(of.box_shape[::-1], fill[0], _UNSIGNED[width])


def loaded(of: TensorMap, elements: Lanes) -> Lanes:
    """Elements as a load delivers them: `.ftz` flushes subnormal numbers, `tf32` rounds."""
    if of.dtype not in ("tf32", "f32.ftz", "tf32.ftz"):
        return elements
    values = elements.view(np.float32)
    if of.dtype.endswith(".ftz"):
        values = numeric.flush(values, ftz=True)
    if of.dtype.startswith("tf32"):
        values = numeric.to_tf32(values, "rna")
    return np.ascontiguousarray(values).view(np.uint32)


def chunk_addresses(of: TensorMap, start: int) -> Lanes:
    """The shared-memory addresses of the 16-byte chunks of an image that begins at `start`, in the
    order of the box, int64.

    The rows are contiguous; with a swizzle, each row takes the swizzle's width (CUDA C++
    Programming Guide, "Tensor Memory Access: Swizzle").
    """
    row, pitch, rows = of.row_bytes, _pitch(of), _rows(of)
    lines = start + pitch * np.arange(rows)
    chunks = lines[:, None] + CHUNK * np.arange(row // CHUNK)
    return swizzled(chunks.reshape(-1), of.swizzle)


def image_bytes(of: TensorMap) -> int:
    """The bytes of shared memory from the beginning to the end of an image."""
    return _rows(of) * _pitch(of)


def _pitch(of: TensorMap) -> int:
    """The bytes from a row of an image to the next."""
    return of.row_bytes if of.swizzle == "none" else int(of.swizzle.removesuffix("B"))


def _rows(of: TensorMap) -> int:
    return math.prod(of.box_shape[1:])


def chunks_of(of: TensorMap, box: Lanes, gap: int) -> Lanes:
    """The bytes of the 16-byte chunks of the image of a box, uint8 `[chunks, 16]`; those between packed
    elements, which a copy does not write, have the value `gap`.
    """
    if not of.spaced:
        return box.reshape(-1).view(np.uint8).reshape(-1, CHUNK)
    groups = box.reshape(-1, of.units(GROUP))
    chunks = np.full((len(groups), CHUNK), gap, np.uint8)
    chunks[:, : groups.shape[1]] = groups
    return chunks


def combine(target: Lanes, data: Lanes, reduce: Reduce | None, type: ScalarType) -> None:
    """Copy bytes into `target`, or reduce them into it as values of `type`."""
    if reduce is None:
        target[...] = data
        return
    values = target.view(type.dtype)
    values[...] = reduce(values.copy(), data.view(type.dtype), type)
