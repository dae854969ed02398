"""Elements of 4 and 6 bits of tensors that tensor maps describe.

Names are those of PTX ISA, "Tensor Dimension, size and format: Sub-byte types". Elements lie side by side in
global memory, the first in the lowest bits. Rules are those of `cuTensorMapEncodeTiled` (CUDA Driver API) and
of PTX ISA, "Restriction on Tensor Copy instructions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

PACKED_BITS: Final = {"b4x16": 4, "b4x16_p64": 4, "b6x16_p32": 6}  # by type, of an element
# The types that a copy spaces: in shared memory, 16 elements take 16 bytes, the last of which it does not
# write.
SPACED: Final = ("b4x16_p64", "b6x16_p32")
GROUP: Final = 16  # elements that are spaced together
SPACED_ROW: Final = 128  # elements of a row of a box; they divide the row of a tensor and the coordinate
SPACED_ALIGN: Final = 32  # bytes, of the address and of the strides


def dims_of_bytes(array: Array, dtype: str) -> tuple[int, ...]:
    """The extents in elements, innermost first, of a tensor whose packed elements lie in an array of bytes.
    Raises `ConfigError` for another array.
    """
    bits = PACKED_BITS[dtype]
    if array.dtype.name != "uint8" or not array.ndim or array.shape[-1] > 1 != array.strides[-1]:
        raise ConfigError(
            f"a tensor map of {dtype} needs an array of uint8 whose last axis is contiguous and has the "
            f"packed elements, {bits} bits each, got {array.dtype.name} of shape {array.shape} with strides "
            f"{array.strides}"
        )
    return (array.shape[-1] * 8 // bits, *array.shape[-2::-1])


def check_packed(dtype: str, dims: tuple[int, ...], box: tuple[int, ...]) -> None:
    """Check what only types of 4 and 6 bits require of the extents of a tensor and of its boxes, in elements,
    innermost first; raises `ConfigError`.
    """
    spaced = dtype in SPACED
    count = SPACED_ROW if spaced else 2
    if dims[0] % count:
        raise ConfigError(
            f"a row of a tensor of {dtype} must be a multiple of {count} elements, got {dims[0]}"
        )
    if spaced and box[0] != SPACED_ROW:
        raise ConfigError(f"a row of a box of {dtype} must have {SPACED_ROW} elements, got {box[0]}")
