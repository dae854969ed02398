"""Arrays for results, made by the library of the caller's arrays."""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.operands.dtypes import DType
from ptxgen.arrays.dlpack import CUDA, LEGACY_DEFAULT_STREAM, Contents, dense_strides, make_capsule
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.memory import Allocator, Owned
from ptxgen.arrays.views import BFLOAT16_TYPESTR, HOST, ArrayView


class DeviceArray:
    """A dense array on a GPU, for callers whose library cannot make one; `flash.to_device` makes a
    `DeviceArray` from an array on the host.

    Any library that reads DLPack or `__cuda_array_interface__` takes it without a copy; the memory
    is freed with the object. `__cuda_array_interface__` has no name for bfloat16, which is "<V2"
    here as in torch and ml_dtypes: few libraries read that, so use DLPack for bfloat16 arrays. It has
    none for fp8 either, whose arrays have DLPack alone.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, ordinal: int, memory: Allocator, stream: int
    ) -> None:
        self.shape = shape
        self.ordinal = ordinal
        self._dtype = dtype
        self._memory = memory
        self._stream = stream
        self.pointer = 0
        nbytes = dtype.nbytes * int(np.prod(shape, dtype=object))
        if nbytes:
            # The finalizer is registered before the allocation, so that no exception can leak it.
            owned = Owned(memory, ordinal)
            weakref.finalize(self, owned.free).atexit = False
            self.pointer = owned.allocate(nbytes)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy dtype; for bfloat16 the dtype of ml_dtypes."""
        return self._dtype.numpy

    def numpy(self) -> NDArray[Any]:
        """A copy of the array on the host, after all work on the stream that made the array."""
        host = np.empty(self.shape, self.dtype)
        if self.pointer:
            self._memory.copy_to_host(
                host.ctypes.data, self.pointer, host.nbytes, self._stream, ordinal=self.ordinal
            )
            self._memory.synchronize(self._stream, ordinal=self.ordinal)
        return host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._dtype.name not in _TYPESTRS:  # whoever reads the interface then asks for DLPack
            raise AttributeError(f"__cuda_array_interface__ has no name for {self._dtype.array_name}")
        return {
            "data": (self.pointer, False),
            "shape": self.shape,
            "strides": None,
            "typestr": _TYPESTRS[self._dtype.name],
            "stream": self._stream or LEGACY_DEFAULT_STREAM,  # 0 is not allowed in the interface
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,  # an unversioned capsule is always allowed
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the array. Its consumer may use the array on `stream` at once;
        streams are numbered as in DLPack: None is the default stream, -1 if the consumer itself
        waits.

        Raises `BufferError` if a copy or another device is asked for.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                "DeviceArray: __dlpack__ must be asked for the array itself, on "
                f"{self.__dlpack_device__()}, got copy={copy}, dl_device={dl_device}; copy what "
                "the consumer makes of it"
            )
        producer_stream = self._stream or LEGACY_DEFAULT_STREAM
        if (LEGACY_DEFAULT_STREAM if stream is None else stream) not in (producer_stream, _NO_WAIT):
            self._memory.synchronize(self._stream, ordinal=self.ordinal)
        contents = Contents(
            self.pointer,
            self.shape,
            dense_strides(self.shape),
            self._dtype.array_name,
            self.__dlpack_device__(),
        )
        return make_capsule(contents, self)


class ResultMaker(ABC):
    """An array with `__cuda_array_interface__` that can make an array for the result of a launch."""

    @abstractmethod
    def result(self) -> object:
        """The array for the result, of the right shape and type."""


def empty(
    like: ArrayView,
    shape: tuple[int, ...],
    dtype: DType,
    *,
    memory: Allocator | None = None,
    stream: int | None = None,
) -> object:
    """A new dense array, not initialised, of the library and on the device of `like`; on the host a
    numpy array if the kind of `like` is "dlpack".

    `stream` is the stream that will write the array, None for the library's current stream: a
    memory pool reuses memory that was freed on a stream only for that stream. `memory` allocates
    for libraries that cannot make an array on a GPU.
    """
    if like.kind == "torch":
        torch: Any = sys.modules["torch"]
        device = like.owner.device  # type: ignore[attr-defined]  # a tensor
        with _pool_of(torch.cuda, like.device, stream):
            return torch.empty(shape, dtype=getattr(torch, dtype.array_name), device=device)
    if like.device == HOST:
        return np.empty(shape, numpy_type(dtype.array_name))
    if like.kind == "cupy":
        cupy: Any = sys.modules["cupy"]
        with cupy.cuda.Device(like.device[1]), _pool_of(cupy.cuda, like.device, stream):
            return cupy.empty(shape, dtype.numpy)
    if isinstance(like.owner, ResultMaker):
        return like.owner.result()
    assert memory is not None  # the arrays are on a GPU, so there is one
    return DeviceArray(shape, dtype, like.device[1], memory, stream or 0)


def _pool_of(cuda: Any, device: tuple[str, int], stream: int | None) -> AbstractContextManager[object]:
    """A context in which the library allocates for `stream`; None is its current stream."""
    if stream is None or device == HOST:
        return _CURRENT_POOL
    external = cuda.ExternalStream(stream, device[1])
    pool: AbstractContextManager[object] = (
        cuda.stream(external) if hasattr(cuda, "stream") and callable(cuda.stream) else external
    )
    return pool


def deliver(result: object, like: ArrayView) -> object:
    """`result` as an array of the caller's library, without a copy where that library can."""
    namespace = getattr(like.owner, "__array_namespace__", None) if like.kind == "dlpack" else None
    if namespace is None:
        return result
    # DLPack, because a `jax.Array` of bfloat16 is made from no other interface.
    return namespace().from_dlpack(result) if like.device != HOST else namespace().asarray(result)


_TYPESTRS: Final = {"f32": "<f4", "f16": "<f2", "bf16": BFLOAT16_TYPESTR, "i32": "<i4", "bool": "|b1"}
_NO_WAIT: Final = -1  # as the stream of `__dlpack__`
_CURRENT_POOL: Final = nullcontext()
