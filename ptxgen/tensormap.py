"""Tensor maps: descriptions of arrays for the tensor memory accelerator (TMA) of sm_90 and newer.

A `TensorMap` holds the arguments of `cuTensorMapEncodeTiled` (CUDA Driver API, "Tensor Map Object
Management"), and is refused where the driver refuses it. An array has one to five dimensions, in
the order of PTX coordinates, innermost first: the reverse of numpy's order.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.arguments import integer, is_one_of
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.packed_elements import PACKED_BITS, SPACED, SPACED_ALIGN, SPACED_ROW, check_packed, dims_of_bytes
from ptxgen.records import dataclass
from ptxgen.types import TYPES, ScalarType

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, np.dtype[Any]]

NBYTES: Final = 128  # bytes of an encoded map, in parameter, constant or global memory
ALIGN: Final = 64  # bytes, of the address of an encoded map
MOST_DIMS: Final = 5
CHUNK: Final = 16  # bytes that a swizzle moves together

# The enumeration values of the driver (cuda.h). A copy of a `tf32` tensor rounds its elements to
# tf32, and `.ftz` flushes subnormal elements to zero.
DTYPES: Final[dict[str, int]] = {
    "u8": 0,
    "u16": 1,
    "u32": 2,
    "s32": 3,
    "u64": 4,
    "s64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
    "f32.ftz": 10,
    "tf32": 11,
    "tf32.ftz": 12,
    "b4x16": 13,  # CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B
    "b4x16_p64": 14,  # CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B
    "b6x16_p32": 15,  # CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B
}
SWIZZLES: Final[dict[str, int]] = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
L2_PROMOTIONS: Final[dict[str, int]] = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
OOB_FILLS: Final[dict[str, int]] = {"zeros": 0, "nan": 1}

_MOST_BOX: Final = 256
_MOST_ELEMENT_STRIDE: Final = 8
_MOST_DIM: Final = 1 << 32
MOST_STRIDE: Final = 1 << 40  # bytes; strides are less
_BASE_ALIGN: Final = 16

_MAGIC: Final = b"ptxgenTM"
MAGIC: Final = int.from_bytes(_MAGIC, "little")  # the first 8 bytes of an encoded map
_LAYOUT: Final = struct.Struct("<8s5B3xQ5Q4Q5H5B")  # padded with zeros to 128 bytes


def swizzled(address: Array, swizzle: str) -> Array:
    """The shared-memory byte addresses that a tile's byte addresses have after the swizzle.

    The 16-byte units of `32B`, `64B` and `128B` rows are permuted by XORing address bits 4, 4-5 or
    4-6 with the bits three positions higher (PTX ISA, "Tensors: Swizzling modes"). `none` changes
    no address.
    """
    mask = (1 << SWIZZLES[swizzle]) - 1
    moved: Array = address ^ ((address >> 7 & mask) << 4)
    return moved


def misplaced(first: int, type: ScalarType) -> str:
    """Why no box of elements of `type` may begin at innermost coordinate `first`; empty if one may.

    The manuals do not have this rule. A load that breaks it traps with an illegal instruction on an
    H200, where it was measured; Triton states it of all tensor copies (its tutorial "gluon/04-tma").
    """
    if first * type.nbytes % CHUNK == 0:
        return ""
    return (
        f"the innermost coordinate of a box must be a multiple of {CHUNK} bytes, {CHUNK // type.nbytes} "
        f"elements of {type}, got {first}"
    )


@dataclass(frozen=True)
class TensorMapType:
    """The type of an annotation such as `TensorMap[f16]`, which says that a parameter is a tensor map of an
    array of `dtype` elements with `rank` dimensions. `TensorMap[f16, 4]` is for four; two are the default.
    """

    dtype: ScalarType
    rank: int = 2

    def __post_init__(self) -> None:
        name = getattr(self.dtype, "name", self.dtype)
        if not is_one_of(name, DTYPES):
            known = ", ".join(n for n in DTYPES if n in TYPES)
            raise ConfigError(f"TensorMap[...]: the elements must be one of {known}, got {shown(name)}")
        if integer(self.rank, 1, MOST_DIMS) is None:
            raise ConfigError(
                f"TensorMap[{name}, ...]: a tensor map has 1 to {MOST_DIMS} dimensions, got "
                f"{shown(self.rank)}"
            )

    def __str__(self) -> str:
        return f"TensorMap[{self.dtype}, {self.rank}]"


@dataclass(frozen=True)
class Boxes:
    """The properties of a tensor map that a kernel fixes: the element type, the `box` of a copy in elements,
    innermost first, and the `swizzle` of its rows in shared memory. `loads` and `stores` say whether
    the kernel copies from the tensor, and to it; a reduction does both.
    """

    dtype: ScalarType
    box: tuple[int, ...]
    swizzle: str
    loads: bool = False
    stores: bool = False

    def of(self, base: Array | int, dims: tuple[int, ...] = (), strides: tuple[int, ...] = ()) -> TensorMap:
        """The tensor map of a numpy array, or of the tensor at a device address, as in `TensorMap`."""
        return TensorMap(base, self.box, self.dtype.name, dims, strides, self.swizzle)

    def smallest(self) -> TensorMap:
        """The tensor map of a tensor of one element, where only the boxes of copies matter."""
        return self.of(0, (1,) * len(self.box), (_BASE_ALIGN,) * (len(self.box) - 1))


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor in global memory and the box of it that one copy moves.

    `base` is a numpy array, from which `dtype`, `dims` and `strides` are taken, or a device address
    as an integer; an address needs `dtype` (one of `DTYPES`), `dims` (elements, innermost first)
    and `strides` (bytes, of all dimensions but the innermost). `box` is in elements, innermost
    first. An element stride s of a dimension moves every s-th element of the box, ceil(box / s) in
    all; the element stride of the innermost dimension is ignored. `swizzle` (one of `SWIZZLES`)
    says how rows are permuted in shared memory, `oob_fill` (one of `OOB_FILLS`) which value is
    loaded for elements outside the tensor. `l2_promotion` (one of `L2_PROMOTIONS`) is a hint.

    Elements of 4 and 6 bits, dtypes `b4x16`, `b4x16_p64` and `b6x16_p32`, are packed in an array of uint8;
    `box` and `dims` count the elements.

    Raises `ConfigError` for arguments that the driver would refuse.
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

    def __class_getitem__(cls, of: ScalarType | tuple[ScalarType, int]) -> TensorMapType:
        return TensorMapType(*of) if isinstance(of, tuple) else TensorMapType(of)

    def __post_init__(self) -> None:
        if isinstance(self.base, np.ndarray):
            self._take_array(self.base)
        elif integer(self.base, 0) is None:
            raise ConfigError(
                "a tensor map's base must be a numpy array or a device address, an integer from 0, "
                f"got {shown(self.base)}"
            )
        elif not is_one_of(self.dtype, DTYPES) or _is_empty(self.dims):
            raise ConfigError(
                "a tensor map of a device address needs dtype, dims and strides; "
                f"got dtype={shown(self.dtype)}, dims={shown(self.dims)}, "
                f"strides={shown(self.strides)}"
            )
        for name in ("box", "dims", "strides", "element_strides"):
            self._set(name, _integers(name, getattr(self, name)))
        if not self.element_strides:
            self._set("element_strides", (1,) * self.rank)
        _check(self)

    @property
    def rank(self) -> int:
        """The number of dimensions of the tensor, 1 to 5."""
        return len(self.dims)

    @property
    def type(self) -> ScalarType:
        """The type of what copies move in memory: `f32` for a `tf32` tensor, a byte, `u8`, for packed
        elements of 4 or 6 bits.
        """
        return TYPES[_stored(self.dtype)]

    @property
    def spaced(self) -> bool:
        """Whether 16 elements of 4 or 6 bits take 16 bytes of shared memory."""
        return self.dtype in SPACED

    @property
    def packed(self) -> bool:
        """Whether the elements of the tensor have 4 or 6 bits and are packed in memory."""
        return self.dtype in PACKED_BITS

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the tensor in units of `type`, innermost first."""
        return (self.units(self.dims[0]), *self.dims[1:])

    def units(self, elements: int) -> int:
        """The units of `type` that so many elements along the innermost dimension have."""
        return elements * PACKED_BITS.get(self.dtype, self.type.bits) // self.type.bits

    @property
    def box_shape(self) -> tuple[int, ...]:
        """The units of `type` that one copy moves along each dimension, innermost first.

        It is the box divided by the element strides, rounded up; the innermost element stride is
        ignored.
        """
        pairs = zip(self.box[1:], self.element_strides[1:], strict=True)
        return (self.units(self.box[0]), *(-(-b // s) for b, s in pairs))

    @property
    def row_bytes(self) -> int:
        """The bytes from the first to the last of a row of a box in shared memory."""
        return self.box[0] if self.spaced else self.box_shape[0] * self.type.nbytes

    @property
    def box_bytes(self) -> int:
        """The bytes that one copy moves to shared memory, and that an mbarrier counts; the gaps between
        packed elements are not among them.
        """
        total = self.type.nbytes
        for n in self.box_shape:
            total *= n
        return total

    @property
    def coordinate_step(self) -> int:
        """The elements of which the innermost coordinate of a box must be a multiple: 16 bytes of them, as in
        `misplaced`, or 128 of those that a copy spaces (PTX ISA, "Restriction on Tensor Copy
        instructions").
        """
        if self.spaced:
            return SPACED_ROW
        return CHUNK * 8 // PACKED_BITS.get(self.dtype, self.type.bits)

    def misplaced(self, first: int) -> str:
        """Why no box may begin at innermost coordinate `first`; empty if one may."""
        if not self.packed:
            return misplaced(first, self.type)
        if first % self.coordinate_step == 0:
            return ""
        return (
            f"the innermost coordinate of a box must be a multiple of {self.coordinate_step} elements of "
            f"{self.dtype}, got {first}"
        )

    def at(self, address: int) -> TensorMap:
        """The map of an equal tensor at another device address. Raises `ConfigError` for an address that
        is not a multiple of 16 bytes, or of 32 for a type that copies space.
        """
        self._check_address(address)
        moved = object.__new__(TensorMap)
        moved.__dict__.update(self.__dict__)  # all else is checked already
        moved._set("base", address)
        return moved

    def over(self, memory: Array) -> TensorMap:
        """The map of the tensor that begins where the array `memory` does."""
        # numpy does not make strided views of ml_dtypes.float8_e5m2: it does not know its own name of it.
        bits = memory.view(f"u{memory.dtype.itemsize}")
        view = np.lib.stride_tricks.as_strided(
            bits, self.extents[::-1], (*self.strides[::-1], memory.dtype.itemsize)
        ).view(memory.dtype)
        moved = object.__new__(TensorMap)
        moved.__dict__.update(self.__dict__)
        moved._set("base", view)
        return moved

    @property
    def layout(self) -> tuple[object, ...]:
        """All properties but the base: equal for equal tensors and boxes."""
        return (
            self.box,
            self.dtype,
            self.dims,
            self.strides,
            self.swizzle,
            self.element_strides,
            self.oob_fill,
            self.l2_promotion,
        )

    def encode(self, base_address: int) -> bytes:
        """The 128 bytes of the map that the interpreter reads, for a tensor at `base_address`.

        The format is this project's own: the driver makes the bytes that a GPU reads
        (`ptxgen.runtime.tensormaps`). Raises `ConfigError` for an address that is not a multiple of
        16 bytes, or of 32 for a type that copies space.
        """

        def filled(values: tuple[int, ...], count: int) -> list[int]:
            return [*values, *([0] * (count - len(values)))]

        self._check_address(base_address)
        packed = _LAYOUT.pack(
            _MAGIC,
            DTYPES[self.dtype],
            self.rank
            - 1,  # so that zeros, of which Triton makes maps by `tensormap.replace`, have one dimension
            SWIZZLES[self.swizzle],
            OOB_FILLS[self.oob_fill],
            L2_PROMOTIONS[self.l2_promotion],
            base_address,
            *filled(self.dims, MOST_DIMS),
            *filled(self.strides, MOST_DIMS - 1),
            *filled(self.box, MOST_DIMS),
            *filled(self.element_strides, MOST_DIMS),
        )
        return packed.ljust(NBYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """The map that `encode` made these bytes from; its base is the address in them.

        Raises `ConfigError` for bytes without the mark of `encode`, and for a map that the driver
        would refuse.
        """
        if len(data) != NBYTES or not data.startswith(_MAGIC):
            raise ConfigError("these bytes are no tensor map: give the kernel a TensorMap as its argument")
        _, dtype, last, swizzle, fill, promotion, base, *rest = _LAYOUT.unpack(data[: _LAYOUT.size])
        rank = last + 1
        dims, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
        return cls(
            base,
            tuple(box[:rank]),
            name_of("dtype", DTYPES, dtype),
            tuple(dims[:rank]),
            tuple(strides[: rank - 1]),
            name_of("swizzle", SWIZZLES, swizzle),
            tuple(steps[:rank]),
            name_of("oob_fill", OOB_FILLS, fill),
            name_of("l2_promotion", L2_PROMOTIONS, promotion),
        )

    def _take_array(self, array: Array) -> None:
        """Take the dimensions, strides and dtype from the array."""
        if not (_is_empty(self.dims) and _is_empty(self.strides)):
            raise ConfigError(
                "a tensor map of an array has its dims and strides from it; leave them out, "
                f"got dims={shown(self.dims)}, strides={shown(self.strides)}"
            )
        held = array.dtype.name
        if is_one_of(self.dtype, PACKED_BITS):
            self._set("dims", dims_of_bytes(array, self.dtype))
            self._set("strides", array.strides[::-1][1:])
            return
        dtype = next((n for n in DTYPES if TYPES[_stored(n)].dtype_name == held), None)
        if dtype is None:
            raise ConfigError(
                f"a tensor map must be of one of the dtypes {', '.join(DTYPES)}, got an array of "
                f"{held}; make a view of it as integers of the same size"
            )
        if is_one_of(self.dtype, ("",)):
            self._set("dtype", dtype)
        elif is_one_of(self.dtype, DTYPES) and self.type.nbytes != array.dtype.itemsize:
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

    def _check_address(self, address: int) -> None:
        align = SPACED_ALIGN if self.spaced else _BASE_ALIGN
        if address % align:
            raise ConfigError(
                f"a tensor map's tensor must begin at a multiple of {align} bytes, got the address "
                f"{address:#x}"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _stored(dtype: str) -> str:
    """The name of the PTX type that an element of map dtype `dtype` has in memory."""
    return "u8" if dtype in PACKED_BITS else dtype.removesuffix(".ftz").replace("tf32", "f32")


def name_of(field: str, names: dict[str, int], number: int) -> str:
    """The name of a field's encoded value. Raises `ConfigError` for a value without a name."""
    for name, n in names.items():
        if n == number:
            return name
    known = ", ".join(f"{n} ({name})" for name, n in names.items())
    raise ConfigError(f"{field} of a tensor map is one of {known}, got {number}")


def _is_empty(value: object) -> bool:
    return isinstance(value, tuple | list) and not value


def _integers(what: str, values: object) -> tuple[int, ...]:
    """A sequence of integers of any class as a tuple of ints; raises `ConfigError` otherwise."""
    one_axis = isinstance(values, tuple | list) or getattr(values, "ndim", 0) == 1
    numbers = [integer(n, -MOST_STRIDE, MOST_STRIDE) for n in values] if one_axis else [None]  # type: ignore[attr-defined]  # these have elements
    if any(n is None for n in numbers):
        raise ConfigError(
            f"a tensor map's {what} must be integers of at most 2**40 either way, innermost first, "
            f"got {shown(values)}"
        )
    return tuple(n for n in numbers if n is not None)


def _check(tensor_map: TensorMap) -> None:
    """Check all that `cuTensorMapEncodeTiled` requires (CUDA Driver API); raises `ConfigError`."""
    for what, names in (
        ("dtype", DTYPES),
        ("swizzle", SWIZZLES),
        ("oob_fill", OOB_FILLS),
        ("l2_promotion", L2_PROMOTIONS),
    ):
        got = getattr(tensor_map, what)
        if not is_one_of(got, names):
            raise ConfigError(
                f"a tensor map's {what} must be one of {', '.join(names)}, got {shown(got)}"
                f"{did_you_mean(got, names)}"
            )
    if not 1 <= tensor_map.rank <= MOST_DIMS:
        raise ConfigError(f"a tensor map has 1 to {MOST_DIMS} dimensions, got {tensor_map.rank}")
    for what, wanted in (
        ("strides", tensor_map.rank - 1),
        ("box", tensor_map.rank),
        ("element_strides", tensor_map.rank),
    ):
        got = getattr(tensor_map, what)
        if len(got) != wanted:
            raise ConfigError(
                f"a tensor map of {tensor_map.rank} dimensions needs {wanted} {what}, got {got}"
            )
    if isinstance(tensor_map.base, int):
        tensor_map._check_address(tensor_map.base)
    _check_ranges(tensor_map)
    _check_box(tensor_map)
    if tensor_map.packed:
        check_packed(tensor_map.dtype, tensor_map.dims, tensor_map.box)


def _check_ranges(tensor_map: TensorMap) -> None:
    def each(what: str, why: str, fine: Callable[[int], bool]) -> None:
        values = getattr(tensor_map, what)
        for n, value in enumerate(values):
            if not fine(value):
                raise ConfigError(
                    f"a tensor map's {what} must be {why}, got {value} in {values} "
                    f"(index {n}, innermost first)"
                )

    each("dims", "from 1 to 2**32", lambda n: 1 <= n <= _MOST_DIM)
    align = SPACED_ALIGN if tensor_map.spaced else _BASE_ALIGN
    each(
        "strides",
        f"multiples of {align} bytes from 0 to 2**40 - {align}",
        lambda n: n % align == 0 and 0 <= n < MOST_STRIDE,
    )
    each("box", f"from 1 to {_MOST_BOX}", lambda n: 1 <= n <= _MOST_BOX)
    each("element_strides", f"from 1 to {_MOST_ELEMENT_STRIDE}", lambda n: 1 <= n <= _MOST_ELEMENT_STRIDE)


def _check_box(tensor_map: TensorMap) -> None:
    row = tensor_map.row_bytes
    if row % CHUNK:
        of = tensor_map.dtype if tensor_map.packed else f"{tensor_map.type.nbytes} bytes"
        raise ConfigError(
            f"a row of a tensor map's box must be a multiple of {CHUNK} bytes, got {tensor_map.box[0]} "
            f"elements of {of}"
        )
    if tensor_map.swizzle != "none" and row > int(tensor_map.swizzle.removesuffix("B")):
        raise ConfigError(
            f"a row of a box with the {tensor_map.swizzle} swizzle has at most {tensor_map.swizzle[:-1]} "
            f"bytes, got {row}; move the rest with another copy"
        )
    if tensor_map.oob_fill == "nan" and not tensor_map.type.is_float:
        raise ConfigError(f"oob_fill='nan' is for floating-point tensors, got {tensor_map.dtype}")
