"""What a DLPack capsule says about an array (DLPack specification, "C API", `dlpack.h` version
0.8).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3  # pinned host memory
CUDA_MANAGED: Final = 13

LEGACY_DEFAULT_STREAM: Final = 1  # as `__dlpack__(stream=…)` numbers it; 0 is not allowed there

_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; null: row-major and dense
        ("byte_offset", ctypes.c_uint64),
    )


class Contents(NamedTuple):
    """One array as a capsule describes it; `strides` are in elements, `device` is (type,
    ordinal).
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: tuple[int, int]


def read_capsule(capsule: object) -> Contents:
    """The array in an unversioned capsule, which stays unconsumed: keep it alive to keep the
    memory.

    Raises ValueError (from CPython) for anything but such a capsule.
    """
    get_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(get_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = (
        tuple(tensor.strides[i] for i in range(tensor.ndim))
        if tensor.strides
        else dense_strides(shape)
    )
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Contents(
        pointer, shape, strides, _dtype_name(tensor.dtype), (tensor.device.type, tensor.device.id)
    )


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major array without gaps."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _dtype_name(dtype: Any) -> str:
    kind = _KINDS.get(dtype.code, f"type {dtype.code} of ")
    name = kind if kind == "bool" else f"{kind}{dtype.bits}"
    return name if dtype.lanes == 1 else f"{name}x{dtype.lanes}"
