"""The fields of an encoded tensor map, which `tensormap.replace` sets."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import ConfigError
from ptxgen.tensormap import DTYPES, MAGIC, MOST_DIMS

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

# By field of `tensormap.replace`: the `struct` format of all that precedes it in the encoded map,
# the bytes of one entry, and the number of entries.
_FIELDS: Final[dict[str, tuple[str, int, int]]] = {
    "elemtype": ("<8s", 1, 1),
    "rank": ("<8sB", 1, 1),
    "swizzle_mode": ("<8s2B", 1, 1),
    "fill_mode": ("<8s3B", 1, 1),
    "global_address": ("<8s5B3x", 8, 1),
    "global_dim": ("<8s5B3xQ", 8, MOST_DIMS),
    "global_stride": ("<8s5B3xQ5Q", 8, MOST_DIMS - 1),
    "box_dim": ("<8s5B3xQ5Q4Q", 2, MOST_DIMS),
    "element_stride": ("<8s5B3xQ5Q4Q5H", 1, MOST_DIMS),
}
# PTX ISA, "tensormap.replace": the element types in the order of their values there, which differ
# from the driver's enumeration values.
_ELEMTYPES: Final = (
    "u8",
    "u16",
    "u32",
    "s32",
    "u64",
    "s64",
    "f16",
    "f32",
    "f32.ftz",
    "f64",
    "bf16",
    "tf32",
    "tf32.ftz",
    "b4x16",
    "b4x16_p64",
    "b6x16_p32",
)


def holds_map(first: Array) -> Array:
    """Whether an encoded map begins with `first`: its first 8 bytes as a uint64, one per lane."""
    held: Array = first.astype(np.uint64) == np.uint64(MAGIC)
    return held


def part_of(field: str, index: int, value: Array) -> tuple[int, int, Array]:
    """The byte offset and size of a field of an encoded map, and its encoding of `value`.

    `field` is a field name of `tensormap.replace` (PTX ISA); `index` is the index of the entry, for
    a field with an entry per dimension or stride, else 0. Raises `ConfigError` for an entry or an
    element type that does not exist, and for interleaved layouts.
    """
    if field == "interleave_layout":
        if value.any():
            raise ConfigError("interleaved layouts are not modelled; give tensormap.replace 0")
        field, value = "elemtype", np.zeros(0)  # an encoded map has no layout field: write no lane
    before, nbytes, count = _FIELDS[field]
    if not 0 <= index < count:
        raise ConfigError(f"{field} of a tensor map has index 0 to {count - 1}, got {index}")
    if field == "elemtype" and value.size:
        numbers = np.array([DTYPES[name] for name in _ELEMTYPES])
        if int(value.max()) >= len(numbers):
            raise ConfigError(f"elemtype is from 0 to {len(numbers) - 1}, got {int(value.max())}")
        value = numbers[value]
    # A value too large for its field becomes the largest of it, which copies with the map refuse.
    most = (1 << 8 * nbytes) - 1
    return (
        struct.calcsize(before) + nbytes * index,
        nbytes,
        np.minimum(value.astype(np.uint64), np.uint64(most)),
    )
