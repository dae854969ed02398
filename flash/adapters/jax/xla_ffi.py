"""Handlers of XLA's foreign function interface (FFI), written in Python.

The structures are those of `xla/ffi/api/c_api.h`, version 0.3, which XLA keeps binary compatible
(`jax.ffi.include_dir()` has the header). A handler is called by a thread of XLA, which waits for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax

from ptxgen.errors import ConfigError, LaunchError

_VERSION: Final = (0, 3)
_METADATA: Final = 1  # XLA_FFI_Extension_Metadata
_EXECUTE: Final = 3  # XLA_FFI_ExecutionStage_EXECUTE
_STRING: Final = 4  # XLA_FFI_AttrType_STRING
_INVALID_ARGUMENT, _INTERNAL = 3, 13  # XLA_FFI_Error_Code

# XLA_FFI_DataType, by numpy's names.
_DTYPES: Final = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
    16: "bfloat16",
}


class _Extension(ctypes.Structure):
    """The structure XLA_FFI_Extension_Base."""


class _Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("api_version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type_id", ctypes.c_int64),
    )


_Extension._fields_ = (
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.POINTER(_Extension)),
)


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))

    def text(self) -> str:
        return ctypes.string_at(self.address, self.length).decode()


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Buffers(ctypes.Structure):
    """The structures XLA_FFI_Args and XLA_FFI_Rets, which have the same fields."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )


class _ErrorCreate(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class _StreamGet(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class _ErrorMessage(ctypes.Structure):
    """The structure XLA_FFI_Error_GetMessage_Args, and without its last field XLA_FFI_Error_Destroy_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
    )


class _Api(ctypes.Structure):
    """The first fields of XLA_FFI_Api."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("error_create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorCreate))),
        ("error_message", ctypes.CFUNCTYPE(None, ctypes.POINTER(_ErrorMessage))),
        ("error_destroy", ctypes.CFUNCTYPE(None, ctypes.POINTER(_ErrorMessage))),
        ("register", ctypes.c_void_p),
        ("stream_get", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_StreamGet))),
    )


class _Frame(ctypes.Structure):
    """The structure XLA_FFI_CallFrame."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


class Buffer(NamedTuple):
    """A dense array in row-major order: its address, its shape, and numpy's name of its type."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str


class Frame(NamedTuple):
    """One call of a handler: its arrays, its attributes, which are strings, and the CUstream of its work."""

    arguments: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    attributes: dict[str, str]
    stream: int


_HANDLER: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))


def handler(execute: Callable[[Frame], None]) -> Any:
    """A handler, as a function of ctypes, that calls `execute`, whose exceptions become XLA's errors.
    Keep it as long as XLA may call it.
    """

    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            if frame.extension and frame.extension.contents.type == _METADATA:
                _say_version(frame.extension)
            elif frame.stage == _EXECUTE:
                arguments, results = _buffers(frame.arguments), _buffers(frame.results)
                execute(Frame(arguments, results, _strings(frame.attributes), stream_of(frame)))
        except BaseException as error:  # ctypes would print it, and XLA take the results for computed
            return _failure(frame, error)
        return None

    return _HANDLER(handle)


def register(name: str, function: Any, platform: str) -> None:
    """Let programs for `platform` call `function`, which `handler` made, as `name`."""
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform=platform, api_version=1)


def _say_version(extension: Any) -> None:
    metadata = ctypes.cast(extension, ctypes.POINTER(_MetadataExtension)).contents.metadata.contents
    metadata.api_version.major, metadata.api_version.minor = _VERSION
    metadata.traits = 0  # not for command buffers: the first call loads the kernel


def _buffers(array: _Buffers) -> tuple[Buffer, ...]:
    contents = (array.buffers[i].contents for i in range(array.size))
    return tuple([Buffer(b.data or 0, tuple(b.dims[: b.rank]), _dtype(b.dtype)) for b in contents])


def _dtype(number: int) -> str:
    if number not in _DTYPES:
        raise LaunchError(f"arrays of XLA's type {number} are not known; use {', '.join(_DTYPES.values())}")
    return _DTYPES[number]


def _strings(of: _Attributes) -> dict[str, str]:
    return {
        of.names[i].contents.text(): ctypes.cast(of.values[i], ctypes.POINTER(_Span)).contents.text()
        for i in range(of.size)
        if of.types[i] == _STRING
    }


def stream_of(frame: Any) -> int:
    """The stream of a call frame. Raises `RuntimeError` with XLA's message if there is none."""
    api = frame.api.contents
    asked = _StreamGet(ctypes.sizeof(_StreamGet), None, frame.context, None)
    error = api.stream_get(ctypes.byref(asked))
    if error:
        about = _ErrorMessage(ctypes.sizeof(_ErrorMessage), None, error, None)
        api.error_message(ctypes.byref(about))
        message = (about.message or b"").decode(errors="replace")
        about.struct_size = _ErrorMessage.message.offset
        api.error_destroy(ctypes.byref(about))
        raise RuntimeError(f"XLA gives no stream: {message}")
    return asked.stream or 0


def _failure(frame: Any, error: BaseException) -> int:
    is_of_caller = isinstance(error, (LaunchError, ConfigError))
    message = f"{error}" if is_of_caller else f"{type(error).__name__}: {error}"
    code = _INVALID_ARGUMENT if is_of_caller else _INTERNAL
    asked = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, message.encode(), code)
    return int(frame.api.contents.error_create(ctypes.byref(asked)))
