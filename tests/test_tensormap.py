"""Tensor maps: what the driver would refuse, and their bytes."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from error_texts import refused

from ptxgen.errors import ConfigError
from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, OOB_FILLS, SWIZZLES, TensorMap, swizzled

TENSOR = np.zeros((3, 40, 128), np.float16)


def test_an_array_gives_dims_strides_and_dtype_innermost_first() -> None:
    view = np.zeros((2, 8, 4, 64), ml_dtypes.bfloat16).transpose(0, 2, 1, 3)
    built = TensorMap(view, box=(64, 8, 1, 1), swizzle="128B")
    assert (built.rank, built.dims, built.strides) == (4, (64, 8, 4, 2), (512, 128, 4096))
    assert (built.dtype, built.type.name, built.element_strides) == ("bf16", "bf16", (1, 1, 1, 1))
    assert built.box_bytes == 1024


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((np.uint8, "u8"), (np.uint16, "u16"), (np.uint32, "u32"), (np.int32, "s32"), (np.uint64, "u64")),
        *((np.int64, "s64"), (np.float16, "f16"), (np.float32, "f32"), (np.float64, "f64")),
        (ml_dtypes.bfloat16, "bf16"),
    ],
)
def test_every_dtype_of_the_driver_is_found(dtype: Any, name: str) -> None:
    assert TensorMap(np.zeros((4, 16), dtype), box=(16, 1)).dtype == name


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
def test_a_map_of_an_address_is_laid_over_an_array(dtype: Any) -> None:
    memory = np.arange(4 * 48).reshape(4, 48).astype(dtype)
    nbytes = 48 * memory.itemsize
    kind = "f16" if memory.itemsize == 2 else "u8"
    built = TensorMap(0x10, (16, 1), kind, (16, 4), (nbytes,)).over(memory[:, 32:])
    assert isinstance(built.base, np.ndarray)
    assert built.base.dtype == memory.dtype
    assert built.base.tobytes() == memory[:, 32:].tobytes()
    assert np.shares_memory(built.base, memory)


def test_element_strides_move_fewer_elements_but_along_the_innermost_dimension() -> None:
    built = TensorMap(TENSOR, box=(32, 10, 2), element_strides=(2, 3, 2))
    assert (built.box_shape, built.box_bytes) == ((32, 4, 1), 256)


@pytest.mark.parametrize(
    ("dtype", "row", "dims", "box_bytes", "row_bytes"),
    [("b4x16", 128, 256, 192, 64), ("b4x16_p64", 128, 256, 192, 128), ("b6x16_p32", 192, 256, 288, 128)],
)
def test_packed_elements_lie_in_bytes_and_are_counted_without_gaps(
    dtype: str, row: int, dims: int, box_bytes: int, row_bytes: int
) -> None:
    memory = np.zeros((2, 8, row), np.uint8)
    built = TensorMap(memory, box=(128, 3, 1), dtype=dtype)
    assert (built.dims, built.strides, built.extents) == ((dims, 8, 2), (row, 8 * row), (row, 8, 2))
    assert (built.type.name, built.box_bytes, built.row_bytes) == ("u8", box_bytes, row_bytes)
    assert np.shares_memory(built.over(memory[:, 2:]).base, memory)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_encoded_is_decoded(dtype: str) -> None:
    swizzles, promotions, fills = list(SWIZZLES), list(L2_PROMOTIONS), list(OOB_FILLS)
    n = DTYPES[dtype]
    fill = "zeros" if dtype[0] in "usb" and dtype != "bf16" else fills[n % 2]
    built = TensorMap(
        0x7F00_0000_0020,
        (128, 4, 2, 256, 1),
        dtype,
        (1 << 32, 7, 1, 12, 3),
        (1 << 37, 32, (1 << 40) - 32, 0),
        "none",
        (1, 8, 1, 2, 1),
        fill,
        promotions[n % 4],
    )
    data = built.encode(0x7F00_0000_0020)
    assert len(data) == 128
    again = TensorMap.decode(data)
    assert again.base == 0x7F00_0000_0020
    names = ["box", "dtype", "dims", "strides", "swizzle", "element_strides", "oob_fill"]
    names.append("l2_promotion")
    assert [getattr(again, x) for x in names] == [getattr(built, x) for x in names]
    for swizzle in swizzles:
        small = TensorMap(TENSOR, box=(16, 1, 1), swizzle=swizzle)
        assert TensorMap.decode(small.encode(0)).swizzle == swizzle


def test_other_bytes_are_no_tensor_map() -> None:
    for data in (bytes(128), TensorMap(TENSOR, box=(16, 1, 1)).encode(0)[:127]):
        with refused(
            ConfigError, "these bytes are no tensor map: give the kernel a TensorMap as its argument"
        ):
            TensorMap.decode(data)


@pytest.mark.parametrize("field", ["dtype", "swizzle", "oob_fill", "l2_promotion"])
def test_bytes_with_an_unknown_number_are_refused_by_the_field(field: str) -> None:
    names = (DTYPES, {}, SWIZZLES, OOB_FILLS, L2_PROMOTIONS)  # as their bytes follow a mark of 8
    location = ("dtype", "rank", "swizzle", "oob_fill", "l2_promotion").index(field)
    values = names[location]
    data = bytearray(TensorMap(TENSOR, box=(16, 1, 1)).encode(0))
    data[8 + location] = 250
    with pytest.raises(ConfigError) as refused:
        TensorMap.decode(bytes(data))
    known = ", ".join(f"{n} ({name})" for name, n in values.items())
    assert str(refused.value) == f"{field} of a tensor map is one of {known}, got 250"


def test_swizzles_exchange_the_units_of_a_row_by_its_number() -> None:
    address = np.arange(0, 2048, 16)
    for name, units in (("32B", 2), ("64B", 4), ("128B", 8)):
        got = swizzled(address, name)
        for a, b in zip(address.tolist(), got.tolist(), strict=True):
            row = a // 128 % units
            assert b == a // (16 * units) * 16 * units + (a // 16 % units ^ row) * 16
    assert np.array_equal(swizzled(address, "none"), address)


BYTES: Final = np.zeros((4, 128), np.uint8)
NIBBLES: Final[dict[str, Any]] = {"base": BYTES, "box": (128, 1), "dtype": "b4x16"}
SPACED: Final[dict[str, Any]] = {"base": BYTES, "box": (128, 1), "dtype": "b4x16_p64"}

# By the message: what differs from a map of TENSOR with one row as its box.
REFUSED: dict[str, dict[str, Any]] = {
    "a tensor map of 3 dimensions needs 3 box, got (64, 1)": {"box": (64, 1)},
    "a tensor map of 3 dimensions needs 3 element_strides, got (1, 1)": {"element_strides": (1, 1)},
    "a tensor map's box must be from 1 to 256, got 0 in (64, 1, 0) (index 2, innermost first)": {
        "box": (64, 1, 0)
    },
    "a tensor map's box must be from 1 to 256, got 257 in (64, 257, 1) (index 1, innermost first)": {
        "box": (64, 257, 1)
    },
    "a tensor map's element_strides must be from 1 to 8, got 9 in (1, 9, 1) (index 1, innermost first)": {
        "element_strides": (1, 9, 1)
    },
    "a row of a tensor map's box must be a multiple of 16 bytes, got 12 elements of 2 bytes": {
        "box": (12, 1, 1)
    },
    "a row of a box with the 128B swizzle has at most 128 bytes, got 144; move the rest with another copy": {
        "box": (72, 1, 1),
        "swizzle": "128B",
    },
    "a tensor map's swizzle must be one of none, 32B, 64B, 128B, got '128b'; did you mean '128B'?": {
        "swizzle": "128b"
    },
    "a tensor map's oob_fill must be one of zeros, nan, got 'ones'": {"oob_fill": "ones"},
    "a tensor map's l2_promotion must be one of none, 64B, 128B, 256B, got '32B'": {"l2_promotion": "32B"},
    "a tensor map of an array has its dims and strides from it; leave them out, got "
    "dims=(128, 40, 3), strides=()": {"dims": (128, 40, 3)},
    "a tensor map of f32 needs elements of 4 bytes, got an array of float16": {"dtype": "f32"},
    "the last axis of a tensor map's array must be contiguous, got strides (10240, 256, 4) for "
    "elements of 2 bytes": {"base": TENSOR[:, :, ::2]},
    "a tensor map's strides must be multiples of 16 bytes from 0 to 2**40 - 16, got -256 in "
    "(-256, 10240) (index 0, innermost first)": {"base": TENSOR[:, ::-1]},
    "a tensor map's strides must be multiples of 16 bytes from 0 to 2**40 - 16, got 24 in (24,) "
    "(index 0, innermost first)": {"base": np.zeros((4, 12), np.float16), "box": (8, 1)},
    "a tensor map's dims must be from 1 to 2**32, got 0 in (0, 4) (index 0, innermost first)": {
        "base": np.zeros((4, 0), np.float16),
        "box": (8, 1),
    },
    "a tensor map has 1 to 5 dimensions, got 6": {
        "base": np.zeros((2,) * 5 + (16,), np.float16),
        "box": (8,) * 6,
    },
    "a tensor map must be of one of the dtypes u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, "
    "f32.ftz, tf32, tf32.ftz, b4x16, b4x16_p64, b6x16_p32, got an array of complex64; make a view of "
    "it as integers of the same size": {"base": np.zeros((4, 16), np.complex64), "box": (8, 1)},
    "oob_fill='nan' is for floating-point tensors, got u8": {
        "base": np.zeros((4, 16), np.uint8),
        "box": (16, 1),
        "oob_fill": "nan",
    },
    "oob_fill='nan' is for floating-point tensors, got b4x16": {**NIBBLES, "oob_fill": "nan"},
    "a row of a tensor map's box must be a multiple of 16 bytes, got 16 elements of b4x16": {
        **NIBBLES,
        "box": (16, 1),
    },
    "a row of a box with the 32B swizzle has at most 32 bytes, got 64; move the rest with another copy": {
        **NIBBLES,
        "swizzle": "32B",
    },
    "a tensor map of b4x16 needs an array of uint8 whose last axis is contiguous and has the packed "
    "elements, 4 bits each, got float16 of shape (4, 128) with strides (256, 2)": {
        **NIBBLES,
        "base": np.zeros((4, 128), np.float16),
    },
    "a row of a tensor of b4x16 must be a multiple of 2 elements, got 33": {
        **NIBBLES,
        "base": 0,
        "dims": (33, 4),
        "strides": (32,),
    },
    "a row of a tensor of b4x16_p64 must be a multiple of 128 elements, got 192": {
        **SPACED,
        "base": np.zeros((4, 96), np.uint8),
    },
    "a row of a box of b4x16_p64 must have 128 elements, got 64": {**SPACED, "box": (64, 1)},
    "a tensor map's strides must be multiples of 32 bytes from 0 to 2**40 - 32, got 144 in (144,) (index 0, "
    "innermost first)": {**SPACED, "base": 0, "dims": (256, 4), "strides": (144,)},
    "a tensor map's tensor must begin at a multiple of 32 bytes, got the address 0x1010": {
        **SPACED,
        "base": 0x1010,
        "dims": (256, 4),
        "strides": (160,),
    },
    "a tensor map of a device address needs dtype, dims and strides; got dtype='', dims=(), strides=()": {
        "base": 4096,
        "box": (64,),
    },
    "a tensor map's tensor must begin at a multiple of 16 bytes, got the address 0x1004": {
        "base": 4100,
        "box": (64,),
        "dtype": "f16",
        "dims": (64,),
    },
}


@pytest.mark.parametrize(("message", "changes"), REFUSED.items())
def test_what_the_driver_would_refuse_is_refused_in_words(message: str, changes: dict[str, Any]) -> None:
    with refused(ConfigError, message):
        TensorMap(**{"base": TENSOR, "box": (64, 1, 1), **changes})


def test_a_map_is_encoded_for_aligned_addresses_only() -> None:
    with refused(
        ConfigError, "a tensor map's tensor must begin at a multiple of 16 bytes, got the address 0x1008"
    ):
        TensorMap(TENSOR, box=(16, 1, 1)).encode(0x1008)
