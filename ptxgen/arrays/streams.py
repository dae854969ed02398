"""CUDA streams of array libraries, as integers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from ptxgen.arrays.views import ArrayView
from ptxgen.errors import LaunchError, shown

_LARGEST: Final = 2**63 - 1  # the largest address of a process, which a handle is


def current_stream(like: ArrayView) -> int:
    """The current CUstream of the library and device of a GPU array; 0, the default stream, for a
    library without a current stream.
    """
    current = _CURRENT_STREAM.get(like.kind)
    return current(like.device[1]) if current else 0


def stream_handle(stream: object, caller: str = "launch") -> int:
    """The CUstream of a stream as an integer.

    `stream` is that integer, or an object with `__cuda_stream__` (cuda.core), `cuda_stream` (torch)
    or `ptr` (CuPy). Raises `LaunchError` for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle: object = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        handle = (protocol() if callable(protocol) else protocol)[1]  # (version, handle)
    else:
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(handle, int) or not 0 <= handle <= _LARGEST:
        raise LaunchError(
            f"{caller}: stream must be None, the integer of a CUstream, or an object with "
            f"__cuda_stream__, cuda_stream or ptr, got {shown(stream)}"
        )
    return handle


def _torch_stream(ordinal: int) -> int:
    torch: Any = sys.modules["torch"]
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def _cupy_stream(ordinal: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(ordinal).ptr)


_CURRENT_STREAM: Final[dict[str, Callable[[int], int]]] = {"torch": _torch_stream, "cupy": _cupy_stream}
