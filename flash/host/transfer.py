"""Copies host arrays to a GPU, for programs without a library that has GPU arrays."""

from __future__ import annotations

from typing import Final

import numpy as np

from flash.host.caller import views_of
from flash.host.results import DeviceArray
from flash.operands.dtypes import BOOL, I32, INPUT_DTYPES, OF_ARRAYS, DType
from flash.problem.limits import INT32_MAX
from ptxgen.arguments import integer
from ptxgen.arrays.views import HOST, host_array
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.caller_arguments import gpu_of
from ptxgen.runtime.cuda import CudaBackend

_CALLER: Final = "to_device"
_TAKEN: Final[dict[str, DType]] = {t.array_name: t for t in (*INPUT_DTYPES.values(), I32, BOOL)}


def to_device(array: object, *, device: int | None = None, cuda: CudaBackend | None = None) -> DeviceArray:
    """A dense copy of a host array on GPU `device`, by default the current one. The copy is
    complete on return and freed with the object; its `numpy()` copies it back.

    `array`: float32, float16, bfloat16, fp8, int32 or bool, of numpy or any
    library whose arrays are read through DLPack, of any shape and strides. `cuda` is the GPU backend,
    by default that of the process.

    Raises `LaunchError` for any other array or device, `BackendError` if there is no GPU.
    """
    host = views_of({"array": array}, _CALLER)["array"]
    if host.device != HOST:
        raise LaunchError(
            f"{_CALLER}: array must be on the host, got {host.device_name}; it is on a GPU already: "
            "pass it as it is"
        )
    if host.dtype not in _TAKEN:
        raise LaunchError(f"{_CALLER}: array must be {', '.join(_TAKEN)}, got {host.dtype}; convert it")
    backend = gpu_of(_CALLER, cuda)
    ordinal = backend.current_device() if device is None else _device(device)
    source = np.ascontiguousarray(host_array(host))
    there = DeviceArray(tuple(host.shape), OF_ARRAYS[host.dtype], ordinal, backend, 0)
    if there.pointer:
        backend.copy_to_device(there.pointer, source.ctypes.data, source.nbytes, ordinal=ordinal)
        backend.synchronize(ordinal=ordinal)
    return there


def _device(device: object) -> int:
    ordinal = integer(device, 0, INT32_MAX)
    if ordinal is None:
        raise LaunchError(
            f"{_CALLER}: device must be the number of a GPU, from 0 on, got {shown(device)}; "
            "leave it out "
            "for the current one"
        )
    return ordinal
