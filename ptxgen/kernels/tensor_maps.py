"""Tensor maps of a launch: arrays checked by name, and maps made of them for a GPU or the interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.views import ArrayView
from ptxgen.contract.expressions import Expression
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.tensormap import Boxes, TensorMapType

MAP_ALIGN: Final = 16  # bytes of the address and of all strides; CUDA Driver API, cuTensorMapEncodeTiled
_MOST_STRIDE: Final = 1 << 40  # bytes
_MOST_EXTENT: Final = 1 << 32


def map_problems(name: str, type: TensorMapType, array: ArrayView) -> Iterator[str]:
    """Messages why an array cannot have a tensor map: its element type, rank, address, extents and
    strides.
    """
    if array.dtype != type.dtype.dtype_name:
        yield f"{name} must be {type.dtype.dtype_name} ({type}), got {array.dtype}; convert it"
        return
    shape, strides = list(array.shape), [step * type.dtype.nbytes for step in array.strides]
    if len(shape) != type.rank:
        yield f"{name} must have {type.rank} dimensions ({type}), got shape {shape}; reshape it"
        return
    if not all(1 <= n <= _MOST_EXTENT for n in shape):
        yield f"{name} must have 1 to 2**32 elements along each dimension, got shape {shape}"
    if shape[-1] > 1 and strides[-1] != type.dtype.nbytes:
        yield (
            f"{name} must have a contiguous last dimension for its tensor map, got strides {strides} bytes; "
            "copy it"
        )
    if array.pointer % MAP_ALIGN:
        yield (
            f"{name} must begin at a multiple of {MAP_ALIGN} bytes for its tensor map, got "
            f"{array.pointer:#x}; copy it"
        )
    for axis, step in enumerate(strides[:-1]):
        if step % MAP_ALIGN or not 0 <= step < _MOST_STRIDE:
            yield (
                f"{name} must have strides of a multiple of {MAP_ALIGN} bytes below 2**40 for its tensor "
                f"map, got {step} bytes along axis {axis} of shape {shape}; pad its rows"
            )


class MapEncoder:
    """Encodes the tensor maps of launches, and caches them by the array's address, shape and strides."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._cache = BoundedCache[tuple[Boxes, int, tuple[int, ...], tuple[int, ...]], bytes]()

    def values(
        self,
        maps: Mapping[str, Boxes],
        values: Mapping[str, Any],
        views: Mapping[str, ArrayView],
        ordinal: int,
    ) -> list[Any]:
        """The values of the parameters, with encoded tensor maps, of arrays on device `ordinal`, for those in
        `maps`.
        """
        return [self._of(maps[n], views[n], ordinal) if n in maps else value for n, value in values.items()]

    def _of(self, boxes: Boxes, array: ArrayView, ordinal: int) -> bytes:
        shape, strides = tuple(array.shape), tuple(array.strides)
        key = boxes, array.pointer, shape, strides
        encoded = self._cache.get(key)
        if encoded is None:
            nbytes = numpy_type(array.dtype).itemsize
            steps = tuple(step * nbytes for step in strides[-2::-1])
            of = boxes.of(array.pointer, shape[::-1], steps)
            encoded = self._cache.keep(key, self._backend.encode(of, ordinal))
        return encoded


def described(
    address: str, boxes: Boxes, dims: Sequence[Expression], strides: Sequence[Expression]
) -> dict[str, Any]:
    """A tensor map in a launch contract, as plain data: the arguments of
    `cuTensorMapEncodeTiled`, innermost dimension first, with expressions of the array's extents
    (`dims`, elements) and of the strides of all dimensions but the innermost (bytes). `address` is the
    parameter with the address.
    """
    return {
        "dtype": boxes.dtype.name,
        "rank": len(boxes.box),
        "address": address,
        "dims": list(dims),
        "strides": list(strides),
        "box": list(boxes.box),
        "element_strides": [1] * len(boxes.box),
        "interleave": "none",
        "swizzle": boxes.swizzle,
        "l2_promotion": "none",
        "oob_fill": "zeros",
        "alignment": MAP_ALIGN,
        "access": [word for word, has in (("load", boxes.loads), ("store", boxes.stores)) if has],
    }


def described_array(name: str, boxes: Boxes) -> dict[str, Any]:
    """The JSON of the tensor map of an array whose shape (elements) and strides (bytes) the host has."""
    axes = range(len(boxes.box))[::-1]
    shape, strides = ([f"{name}.{what}[{axis}]" for axis in axes] for what in ("shape", "strides"))
    return described(name, boxes, shape, strides[1:])
