"""Tensor maps as the GPU reads them: 128 bytes that the driver makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, NBYTES, OOB_FILLS, SWIZZLES, TensorMap

if TYPE_CHECKING:
    from ptxgen.runtime.cuda_driver import Driver


def encode_for_gpu(driver: Driver, of: TensorMap, address: int) -> bytes:
    """The map of a tensor at a device address, 128 bytes: the value of a kernel's parameter
    `.param .align 64 .b8 map[128]`.

    It is `cuTensorMapEncodeTiled` (CUDA Driver API, "Tensor Map Object Management"). Raises
    `BackendError` if there is no GPU to use, or the driver refuses the map.
    """
    cuda = driver.require()
    made = driver.call(
        "cuTensorMapEncodeTiled",
        cuda.CUtensorMapDataType(DTYPES[of.dtype]),
        of.rank,
        address,
        [cuda.cuuint64_t(n) for n in of.dims],
        [cuda.cuuint64_t(n) for n in of.strides],
        [cuda.cuuint32_t(n) for n in of.box],
        [cuda.cuuint32_t(n) for n in of.element_strides],
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cuda.CUtensorMapSwizzle(SWIZZLES[of.swizzle]),
        cuda.CUtensorMapL2promotion(L2_PROMOTIONS[of.l2_promotion]),
        cuda.CUtensorMapFloatOOBfill(OOB_FILLS[of.oob_fill]),
        doing=f"make the tensor map of a {of.dtype} tensor with dims {of.dims} and box {of.box}",
    )
    data = b"".join(int(word).to_bytes(8, "little") for word in made.opaque)
    assert len(data) == NBYTES
    return data
