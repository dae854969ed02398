"""The GPUs of arrays: where an array is, and the work that may still be writing it."""

from __future__ import annotations

from collections.abc import Iterable

from ptxgen.arrays.dlpack import LEGACY_DEFAULT_STREAM
from ptxgen.arrays.views import UNKNOWN_DEVICE, ArrayView
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda import CudaBackend


def located(backend: CudaBackend, array: ArrayView, caller: str) -> ArrayView:
    """The array with its device filled in, for interfaces that do not say the device. Raises
    `LaunchError` if the address is on no GPU of this process.
    """
    ordinal = ordinal_of(backend, array, caller)
    return array if ordinal == array.device[1] else array._replace(device=("cuda", ordinal))


def ordinal_of(backend: CudaBackend, array: ArrayView, caller: str) -> int:
    """The ordinal of the GPU that an array is on; `UNKNOWN_DEVICE` for one without memory whose
    interface does not say it. Raises `LaunchError` as `located` does.
    """
    ordinal = array.device[1]
    if ordinal != UNKNOWN_DEVICE or not array.pointer:
        return ordinal
    known = backend.device_of_pointer(array.pointer)
    if known is None:
        raise LaunchError(
            f"{caller}: address {array.pointer:#x} of a {type(array.owner).__name__} is not on "
            "a GPU of this process; pass an array whose memory is alive"
        )
    return known


def wait_for_producers(backend: CudaBackend, arrays: Iterable[ArrayView], stream: int, ordinal: int) -> None:
    """Wait for the streams that may still write the arrays, except `stream` itself (CUDA Array
    Interface, "Synchronization": a consumer on another stream waits for the producer's).
    """
    for array in arrays:
        if array.stream is not None and array.stream != (stream or LEGACY_DEFAULT_STREAM):
            backend.synchronize(array.stream, ordinal=ordinal)
