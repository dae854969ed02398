"""Tensor maps in the format that GPUs read: 128 bytes, made by the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, NBYTES, OOB_FILLS, SWIZZLES, TensorMap

if TYPE_CHECKING:
    from ptxgen.runtime.cuda_driver import Driver


def encode_for_gpu(driver: Driver, of: TensorMap, address: int, ordinal: int) -> bytes:
    """The 128 bytes of the tensor map `of` for a tensor at `address` on device `ordinal`.

    They are the value of a kernel parameter `.param .align 64 .b8 map[128]`, made by
    `cuTensorMapEncodeTiled` (CUDA Driver API, "Tensor Map Object Management"). Raises
    `BackendError` if there is no usable GPU, or the driver refuses the map.
    """
    cuda = driver.require()
    doing = f"make the tensor map of a {of.dtype} tensor with dims {of.dims} and box {of.box}"
    arguments = (
        cuda.CUtensorMapDataType(DTYPES[of.dtype]),
        of.rank,
        address,
        [cuda.cuuint64_t(n) for n in of.dims],
        [
            cuda.cuuint64_t(n) for n in of.strides or (0,)
        ],  # no list is empty: the driver refuses a null pointer
        [cuda.cuuint32_t(n) for n in of.box],
        [cuda.cuuint32_t(n) for n in of.element_strides],
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cuda.CUtensorMapSwizzle(SWIZZLES[of.swizzle]),
        cuda.CUtensorMapL2promotion(L2_PROMOTIONS[of.l2_promotion]),
        cuda.CUtensorMapFloatOOBfill(OOB_FILLS[of.oob_fill]),
    )
    with driver.on(ordinal, doing):  # a thread without a context is refused (CUDA_ERROR_INVALID_CONTEXT)
        encoded = driver.call("cuTensorMapEncodeTiled", *arguments, doing=doing)
    data = b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)
    assert len(data) == NBYTES
    return data
