"""Reads and makes DLPack capsules (DLPack specification, "C API", `dlpack.h` version 0.8; the codes of fp8
are those of version 1.1).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

CPU: Final = 1
CUDA: Final = 2
CUDA_HOST: Final = 3  # pinned host memory
CUDA_MANAGED: Final = 13

LEGACY_DEFAULT_STREAM: Final = 1  # its number in `__dlpack__(stream=…)`, which refuses 0

_NAME: Final = b"dltensor"  # the name of a capsule that is not consumed yet
_Sizes = ctypes.POINTER(ctypes.c_int64)
_CODES: Final = {  # code, bits
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "bool": (6, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
}
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
_WHOLE: Final = {code: name for name, (code, _) in _CODES.items() if code not in _KINDS}  # without bits


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
        ("shape", _Sizes),
        ("strides", _Sizes),  # in elements; null: row-major and dense
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """`DLManagedTensor`: the consumer of the array calls `deleter` once it is done with it."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Contents(NamedTuple):
    """The array that a capsule describes; strides are in elements, device is (type, ordinal)."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: tuple[int, int]


def read_capsule(capsule: object) -> Contents:
    """The array in an unversioned capsule. The capsule stays unconsumed and owns the memory: keep
    it alive as long as the memory is used.

    Raises ValueError (from CPython) for anything but an unversioned, unconsumed capsule.
    """
    get_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(get_pointer(capsule, _NAME))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense_strides(shape)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Contents(
        pointer, shape, strides, _dtype_name(tensor.dtype), (tensor.device.type, tensor.device.id)
    )


def make_capsule(contents: Contents, owner: object) -> object:
    """An unversioned capsule of an array. `owner` is kept alive until the consumer of the array
    calls the deleter, or until the capsule is destroyed without a consumer.

    Raises KeyError for a dtype that DLPack has no code for.
    """
    rank = len(contents.shape)
    code, bits = _CODES[contents.dtype]
    shape, strides = ((ctypes.c_int64 * rank)(*n) for n in (contents.shape, contents.strides))
    tensor = _Tensor(
        contents.pointer,
        _Device(*contents.device),
        rank,
        _DataType(code, bits, 1),
        ctypes.cast(shape, _Sizes),
        ctypes.cast(strides, _Sizes),
        0,
    )
    managed = _Managed(tensor, None, ctypes.cast(_DELETE, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _EXPORTED[address] = (managed, shape, strides, owner)
    new_capsule: Any = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new_capsule(address, _NAME, ctypes.cast(_DESTROY, ctypes.c_void_p))


_EXPORTED: Final[dict[int, object]] = {}  # objects in use, by the address of their `_Managed`


def _callbacks() -> tuple[Any, Any]:
    """C functions of one pointer: the deleter of a `_Managed`, and the destructor of a capsule.

    They use no module globals and are never freed, because capsules outlive modules at exit.
    """
    of_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    is_valid = of_capsule(("PyCapsule_IsValid", ctypes.pythonapi))
    get_pointer = of_capsule(("PyCapsule_GetPointer", ctypes.pythonapi))
    exported, name = _EXPORTED, _NAME

    def delete(address: int) -> None:
        exported.pop(address, None)

    def destroy(capsule: int) -> None:
        # `capsule` is an address: the object is being destroyed and must not be referenced. A
        # consumed capsule has another name.
        if is_valid(capsule, name):
            delete(get_pointer(capsule, name))

    callbacks = [ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work) for work in (delete, destroy)]
    for function in callbacks:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    return callbacks[0], callbacks[1]


_DELETE, _DESTROY = _callbacks()


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major array without gaps."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _dtype_name(dtype: Any) -> str:
    name = _WHOLE.get(dtype.code) or f"{_KINDS.get(dtype.code, f'type {dtype.code} of ')}{dtype.bits}"
    return name if dtype.lanes == 1 else f"{name}x{dtype.lanes}"
