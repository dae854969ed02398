from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_driver import A100, FakeDriver, real
from messages import message

from ptxgen.errors import BackendError
from ptxgen.runtime.cuda_driver import Driver
from ptxgen.runtime.tensormaps import encode_for_gpu
from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, OOB_FILLS, SWIZZLES, TensorMap


class Encoder(FakeDriver):
    """A driver that writes down what it is asked to encode."""

    def __init__(self, status: int = 0) -> None:
        super().__init__(A100)
        self.status = real.CUresult(status)
        self.encoded: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[Any, Any]:
        self.encoded.append(arguments)
        return self.status, SimpleNamespace(opaque=[real.cuuint64_t(n) for n in range(16)])


def test_the_driver_is_told_the_whole_map() -> None:
    encoder = Encoder()
    array = np.zeros((3, 40, 128), np.float16)
    of = TensorMap(
        array, box=(64, 8, 2), swizzle="128B", element_strides=(1, 2, 1), oob_fill="nan", l2_promotion="256B"
    )
    data = encode_for_gpu(Driver(encoder), of, 0x10000, 0)
    assert data == b"".join(n.to_bytes(8, "little") for n in range(16))
    dtype, rank, address, dims, strides, box, steps, *modes = encoder.encoded[0]
    assert (dtype, rank, address) == (real.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, 65536)
    assert [[int(n) for n in x] for x in (dims, strides, box, steps)] == [
        [128, 40, 3],
        [256, 10240],
        [64, 8, 2],
        [1, 2, 1],
    ]
    assert modes == [
        real.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        real.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        real.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        real.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
    ]


THEIRS = [
    (
        *("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32"),
        *("tf32.ftz", "b4x16", "b4x16_p64", "b6x16_p32"),
    ),
    (
        *("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64"),
        *("BFLOAT16", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B"),
        "16U6_ALIGN16B",
    ),
]


def test_the_numbers_of_names_are_the_drivers() -> None:
    def number(kind: tuple[str, str], name: str) -> int:
        names = getattr(real, f"CUtensorMap{kind[0]}")
        return int(getattr(names, f"CU_TENSOR_MAP_{kind[1]}_{name}"))

    def numbers(kind: tuple[str, str], *names: str) -> list[int]:
        return [number(kind, name) for name in names]

    pairs = dict(zip(*THEIRS, strict=True))
    assert pairs.keys() == DTYPES.keys()
    kind = "DataType", "DATA_TYPE"
    assert [DTYPES[ours] for ours in pairs] == numbers(kind, *pairs.values())
    assert list(SWIZZLES.values()) == numbers(("Swizzle", "SWIZZLE"), "NONE", *list(SWIZZLES)[1:])
    levels = [f"L2_{name}" for name in list(L2_PROMOTIONS)[1:]]
    kind = "L2promotion", "L2_PROMOTION"
    assert list(L2_PROMOTIONS.values()) == numbers(kind, "NONE", *levels)
    kind = "FloatOOBfill", "FLOAT_OOB_FILL"
    assert list(OOB_FILLS.values()) == numbers(kind, "NONE", "NAN_REQUEST_ZERO_FMA")


def test_a_map_that_the_driver_refuses_is_an_error_that_describes_it() -> None:
    of = TensorMap(4096, box=(64,), dtype="bf16", dims=(256,))
    assert message(lambda: encode_for_gpu(Driver(Encoder(status=1)), of, 4096, 0), BackendError) == (
        "cannot make the tensor map of a bf16 tensor with dims (256,) and box (64,): "
        "cuTensorMapEncodeTiled returned CUDA_ERROR_INVALID_VALUE (1), invalid value; see the CUDA "
        "Driver API manual for this error"
    )
