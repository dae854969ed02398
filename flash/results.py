"""Arrays for results, made by the library the caller's arrays are from."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import numpy as np

from flash.arrays import HOST, ArrayView
from flash.dlpack import LEGACY_DEFAULT_STREAM
from flash.tiling import F32_BYTES
from ptxgen.errors import LaunchError


class Allocator(Protocol):
    """Where memory of a GPU comes from: the `cuda` backend."""

    def allocate(self, nbytes: int, *, ordinal: int) -> int:
        """The address of new memory on device `ordinal`."""

    def free(self, address: int, *, ordinal: int) -> None:
        """Give it back."""


class DeviceArray:
    """A dense f32 array on a GPU, for callers whose library cannot make one.

    Any library that reads `__cuda_array_interface__` takes it without a copy; the memory is freed
    with the object.
    """

    def __init__(
        self, shape: tuple[int, ...], ordinal: int, memory: Allocator, stream: int
    ) -> None:
        self.shape = shape
        self.ordinal = ordinal
        self._stream = stream
        self.pointer = 0
        nbytes = F32_BYTES * int(np.prod(shape, dtype=object))
        if nbytes:
            self.pointer = memory.allocate(nbytes, ordinal=ordinal)
            weakref.finalize(self, memory.free, self.pointer, ordinal=ordinal).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.pointer, False),
            "shape": self.shape,
            "strides": None,
            "typestr": "<f4",
            "stream": self._stream or LEGACY_DEFAULT_STREAM,  # 0 is not allowed in the interface
            "version": 3,
        }


def empty(
    like: ArrayView,
    shape: tuple[int, ...],
    *,
    memory: Allocator | None = None,
    stream: int | None = None,
) -> object:
    """A new dense f32 array of the library and on the device of `like`; on the host numpy's for
    "dlpack".

    `stream` is the one that will write it, None for the library's current one: memory pools reuse
    what was freed on a stream for that stream only. `memory` serves libraries that make no arrays
    here.
    """
    if like.kind == "torch":
        torch: Any = sys.modules["torch"]
        device = like.owner.device  # type: ignore[attr-defined]  # a tensor
        with _pool_of(torch.cuda, like.device, stream):
            return torch.empty(shape, dtype=torch.float32, device=device)
    if like.device == HOST:
        return np.empty(shape, np.float32)
    if like.kind == "cupy":
        cupy: Any = sys.modules["cupy"]
        with cupy.cuda.Device(like.device[1]), _pool_of(cupy.cuda, like.device, stream):
            return cupy.empty(shape, np.float32)
    assert memory is not None  # the arrays are on a GPU, so there is one
    return DeviceArray(shape, like.device[1], memory, stream or 0)


def _pool_of(
    cuda: Any, device: tuple[str, int], stream: int | None
) -> AbstractContextManager[object]:
    """The library's memory pool of a stream it did not make; nothing to do for its current one."""
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
    return result if namespace is None else namespace().asarray(result)


def current_stream(like: ArrayView) -> int:
    """The current CUstream of the library and device of a GPU array; 0, the default one, if it has
    none.
    """
    current = _CURRENT_STREAM.get(like.kind)
    return current(like.device[1]) if current else 0


def stream_handle(stream: object) -> int:
    """The CUstream of a stream as an integer.

    `stream` is that integer, or an object with `__cuda_stream__` (cuda.core), `cuda_stream` (torch)
    or `ptr` (CuPy). Raises `LaunchError` for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        found: object = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        found = (protocol() if callable(protocol) else protocol)[1]  # (version, handle)
    else:
        found = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(found, int) or found < 0:
        raise LaunchError(
            "launch: stream must be None, the integer of a CUstream, or an object with "
            f"__cuda_stream__, cuda_stream or ptr, got {stream!r}"
        )
    return found


def _torch_stream(ordinal: int) -> int:
    torch: Any = sys.modules["torch"]
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def _cupy_stream(ordinal: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(ordinal).ptr)


_CURRENT_POOL: Final = nullcontext()
_CURRENT_STREAM: Final[dict[str, Callable[[int], int]]] = {
    "torch": _torch_stream,
    "cupy": _cupy_stream,
}
