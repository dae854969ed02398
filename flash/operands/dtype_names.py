"""The types of the words and arrays that users pass: what a type checker accepts, and editors offer."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

Layout = Literal["bhsd", "bshd"]
KVLayout = Literal["NHD", "HND"]
Backend = Literal["auto", "cuda", "cpu", "compiled", "interpreter"]
CacheBackend = Literal["cuda", "cpu", "compiled", "interpreter"]
Causal = bool | Literal["bottom_right", "top_left"]
Precision = Literal["auto", "ieee", "f32_grade", "tf32"]
Scheduler = Literal["grid", "static", "mirrored", "ticket"]
Auto = Literal["auto"]
ScaleBlock = int | Literal["mx", "nv"]  # rows that share a scale, or blocks of elements that do


class HasDLPack(Protocol):
    """An array that other libraries read by DLPack: of numpy, torch, JAX, CuPy and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A capsule with the array."""


class HasCudaArrayInterface(Protocol):
    """An array on a GPU, as Numba and CuPy describe it."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """Address, shape and strides of the array on a GPU, as a dict."""


class HasArrayInterface(Protocol):
    """An array in memory, as numpy describes it."""

    @property
    def __array_interface__(self) -> Any:
        """Address, shape and strides of the array in memory, as a dict."""


AnyArray = HasDLPack | HasCudaArrayInterface | HasArrayInterface
# The caller's kind of array, which results have.
A = TypeVar("A", bound=AnyArray)


class DTypeObject(Protocol):
    """An element type of numpy or torch: `numpy.dtype("float16")`, `torch.float16`."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


DTypeName = Literal["f32", "f16", "bf16"]  # as configs name them
_Half = Literal["f16", "float16", "fp16", "half", "torch.float16", "torch.half"]
_Brain = Literal["bf16", "bfloat16", "torch.bfloat16"]
_Single = Literal["f32", "float32", "fp32", "single", "torch.float32"]
Narrow = Literal[
    "e4m3", "float8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn", "e5m2", "float8_e5m2", "torch.float8_e5m2"
]
# An element type: its name in any usual spelling, or that of an array library, such as numpy.float16.
DTypeLike = _Half | _Brain | _Single | type[Any] | DTypeObject
InputDTypeLike = DTypeLike | Narrow
Blocks = Literal["q8_0", "q4_0"]  # of elements with a scale, in a cache
Cached = Narrow | Blocks | Literal["int8", "torch.int8"]  # narrow types of K and V in a cache
StoredDTypeLike = DTypeLike | Cached
