"""Tensor maps: how the tensor memory accelerator of sm_90 sees an array of one to five dimensions.

A `TensorMap` is what `cuTensorMapEncodeTiled` is told (CUDA Driver API, "Tensor Map Object
Management"), and is refused where the driver refuses it. Dimensions are in the order of PTX
coordinates, innermost first: the reverse of numpy's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import ConfigError, did_you_mean
from ptxgen.types import TYPES, ScalarType

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, np.dtype[Any]]

NBYTES: Final = 128  # of an encoded map, in parameter, constant or global memory
ALIGN: Final = 64
MOST_DIMS: Final = 5
CHUNK: Final = 16  # bytes that a swizzle moves as one

# The enumeration values of the driver (cuda.h); what is loaded as `tf32` is rounded on the way, and
# `.ftz` flushes subnormal numbers.
DTYPES: Final[dict[str, int]] = {
    "u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8,
    "bf16": 9, "f32.ftz": 10, "tf32": 11, "tf32.ftz": 12,
}  # fmt: skip
SWIZZLES: Final[dict[str, int]] = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
L2_PROMOTIONS: Final[dict[str, int]] = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
OOB_FILLS: Final[dict[str, int]] = {"zeros": 0, "nan": 1}

_MOST_BOX: Final = 256
_MOST_ELEMENT_STRIDE: Final = 8
_MOST_DIM: Final = 1 << 32
_MOST_STRIDE: Final = 1 << 40
_BASE_ALIGN: Final = 16

_MAGIC: Final = b"ptxgenTM"
_LAYOUT: Final = struct.Struct("<8s5B3xQ5Q4Q5H5B")  # padded with zeros to 128 bytes


def swizzled(address: Array, swizzle: str) -> Array:
    """Where a byte of a tile goes: its shared-memory address after the swizzle.

    The 16-byte units of `32B`, `64B` and `128B` rows are permuted by XORing address bits 4, 4-5 or
    4-6 with the ones three places higher (PTX ISA, "Tensors: Swizzling modes"). `none` leaves the
    address.
    """
    mask = (1 << SWIZZLES[swizzle]) - 1
    moved: Array = address ^ ((address >> 7 & mask) << 4)
    return moved


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor in global memory and the box of it that one copy moves.

    `base` is a numpy array, which gives the rest, or a device address as an integer; then `dtype`
    (one of `DTYPES`), `dims` (elements, innermost first) and `strides` (bytes, of all dimensions
    but the innermost) must be given. `box` is in elements, innermost first; with `element_strides`,
    every so many elements of a dimension are moved, and of `box` so many less; that of the
    innermost one is ignored. `swizzle` is how rows are permuted in shared memory, `oob_fill` what
    is loaded where the box lies outside the tensor. `l2_promotion` is a hint.

    Raises `ConfigError` for what the driver would refuse.
    """

    base: Array | int
    box: tuple[int, ...]
    dtype: str = ""
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    swizzle: str = "none"
    element_strides: tuple[int, ...] = ()
    oob_fill: str = "zeros"
    l2_promotion: str = "none"

    def __post_init__(self) -> None:
        if isinstance(self.base, np.ndarray):
            self._take_array(self.base)
        elif not self.dtype or not self.dims:
            raise ConfigError(
                "a tensor map of a device address needs dtype, dims and strides; "
                f"got dtype={self.dtype!r}, dims={self.dims}, strides={self.strides}"
            )
        for name in ("box", "dims", "strides", "element_strides"):
            self._set(name, tuple(int(n) for n in getattr(self, name)))
        if not self.element_strides:
            self._set("element_strides", (1,) * self.rank)
        _check(self)

    @property
    def rank(self) -> int:
        """How many dimensions the tensor has, 1 to 5."""
        return len(self.dims)

    @property
    def type(self) -> ScalarType:
        """The type of an element in memory; `tf32` is kept as `f32`."""
        return TYPES[_stored(self.dtype)]

    @property
    def box_shape(self) -> tuple[int, ...]:
        """The elements that one copy moves along each dimension, innermost first: the box divided
        by the element strides, rounded up; the innermost stride is ignored.
        """
        pairs = zip(self.box[1:], self.element_strides[1:], strict=True)
        return (self.box[0], *(-(-b // s) for b, s in pairs))

    @property
    def box_bytes(self) -> int:
        """The bytes that one copy moves to shared memory, and that an mbarrier counts."""
        total = self.type.nbytes
        for n in self.box_shape:
            total *= n
        return total

    def encode(self, base_address: int) -> bytes:
        """The map as the interpreter reads it, 128 bytes, for a tensor at `base_address`.

        It is a format of this project: what the GPU reads is made by the driver.
        """

        def filled(values: tuple[int, ...], count: int) -> list[int]:
            return [*values, *([0] * (count - len(values)))]

        if base_address % _BASE_ALIGN:
            raise ConfigError(_misaligned(base_address))
        packed = _LAYOUT.pack(
            _MAGIC, DTYPES[self.dtype], self.rank, SWIZZLES[self.swizzle],
            OOB_FILLS[self.oob_fill], L2_PROMOTIONS[self.l2_promotion], base_address,
            *filled(self.dims, MOST_DIMS), *filled(self.strides, MOST_DIMS - 1),
            *filled(self.box, MOST_DIMS), *filled(self.element_strides, MOST_DIMS),
        )  # fmt: skip
        return packed.ljust(NBYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """The map that `encode` made these bytes of, with the address as its base.

        Raises `ConfigError` for other bytes.
        """
        if len(data) != NBYTES or not data.startswith(_MAGIC):
            raise ConfigError(
                "these bytes are no tensor map: give the kernel a TensorMap as its argument"
            )
        _, dtype, rank, swizzle, fill, promotion, base, *rest = _LAYOUT.unpack(data[: _LAYOUT.size])
        dims, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
        return cls(
            base, tuple(box[:rank]), _name(DTYPES, dtype), tuple(dims[:rank]),
            tuple(strides[: rank - 1]), _name(SWIZZLES, swizzle), tuple(steps[:rank]),
            _name(OOB_FILLS, fill), _name(L2_PROMOTIONS, promotion),
        )  # fmt: skip

    def _take_array(self, array: Array) -> None:
        """Dimensions, strides and dtype of the array."""
        if self.dims or self.strides:
            raise ConfigError(
                "a tensor map of an array has its dims and strides from it; leave them out, "
                f"got dims={self.dims}, strides={self.strides}"
            )
        held = array.dtype.name
        found = next((n for n in DTYPES if TYPES[_stored(n)].dtype_name == held), None)
        if found is None:
            raise ConfigError(
                f"a tensor map must be of one of the dtypes {', '.join(DTYPES)}, got an array of "
                f"{held}; make a view of it as integers of the same size"
            )
        if not self.dtype:
            self._set("dtype", found)
        elif self.dtype in DTYPES and self.type.nbytes != array.dtype.itemsize:
            raise ConfigError(
                f"a tensor map of {self.dtype} needs elements of {self.type.nbytes} bytes, got an "
                f"array of {held}"
            )
        if array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.dtype.itemsize:
            raise ConfigError(
                "the last axis of a tensor map's array must be contiguous, got strides "
                f"{array.strides} for elements of {array.dtype.itemsize} bytes"
            )
        self._set("dims", array.shape[::-1])
        self._set("strides", array.strides[::-1][1:])

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _stored(dtype: str) -> str:
    """The type of memory that holds a dtype of a map."""
    return dtype.removesuffix(".ftz").replace("tf32", "f32")


def _name(names: dict[str, int], number: int) -> str:
    return next(name for name, n in names.items() if n == number)


def _misaligned(address: int) -> str:
    return (
        f"a tensor map's tensor must begin at a multiple of {_BASE_ALIGN} bytes, "
        f"got the address {address:#x}"
    )


def _check(made: TensorMap) -> None:
    """Everything that `cuTensorMapEncodeTiled` requires (CUDA Driver API)."""
    for what, names in (
        ("dtype", DTYPES), ("swizzle", SWIZZLES), ("oob_fill", OOB_FILLS),
        ("l2_promotion", L2_PROMOTIONS),
    ):  # fmt: skip
        got = getattr(made, what)
        if got not in names:
            raise ConfigError(
                f"a tensor map's {what} must be one of {', '.join(names)}, got {got!r}"
                f"{did_you_mean(str(got), names)}"
            )
    if not 1 <= made.rank <= MOST_DIMS:
        raise ConfigError(f"a tensor map has 1 to {MOST_DIMS} dimensions, got {made.rank}")
    for what, wanted in (("strides", made.rank - 1), ("box", made.rank),
                         ("element_strides", made.rank)):  # fmt: skip
        got = getattr(made, what)
        if len(got) != wanted:
            raise ConfigError(
                f"a tensor map of {made.rank} dimensions needs {wanted} {what}, got {got}"
            )
    if isinstance(made.base, int) and made.base % _BASE_ALIGN:
        raise ConfigError(_misaligned(made.base))
    _check_ranges(made)
    _check_box(made)


def _check_ranges(made: TensorMap) -> None:
    def each(what: str, why: str, fine: Callable[[int], bool]) -> None:
        values = getattr(made, what)
        for n, value in enumerate(values):
            if not fine(value):
                raise ConfigError(
                    f"a tensor map's {what} must be {why}, got {value} in {values} "
                    f"(number {n}, innermost first)"
                )

    each("dims", "from 1 to 2**32", lambda n: 1 <= n <= _MOST_DIM)
    each(
        "strides", "multiples of 16 bytes from 0 to 2**40 - 16",
        lambda n: n % _BASE_ALIGN == 0 and 0 <= n < _MOST_STRIDE,
    )  # fmt: skip
    each("box", f"from 1 to {_MOST_BOX}", lambda n: 1 <= n <= _MOST_BOX)
    each(
        "element_strides", f"from 1 to {_MOST_ELEMENT_STRIDE}",
        lambda n: 1 <= n <= _MOST_ELEMENT_STRIDE,
    )  # fmt: skip


def _check_box(made: TensorMap) -> None:
    row = made.box[0] * made.type.nbytes
    if row % CHUNK:
        raise ConfigError(
            f"a row of a tensor map's box must be a multiple of {CHUNK} bytes, got {made.box[0]} "
            f"elements of {made.type.nbytes} bytes"
        )
    if made.swizzle != "none" and row > int(made.swizzle.removesuffix("B")):
        raise ConfigError(
            f"a row of a box with the {made.swizzle} swizzle has at most {made.swizzle[:-1]} "
            f"bytes, got {row}; move the rest with another copy"
        )
    if made.oob_fill == "nan" and not made.type.is_float:
        raise ConfigError(f"oob_fill='nan' is for floating-point tensors, got {made.dtype}")
