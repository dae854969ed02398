"""Views of arrays of any library: address, shape, strides, dtype and device in one record."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import dlpack
from ptxgen.arrays.elements import numpy_type, typestr
from ptxgen.errors import LaunchError

UNKNOWN_DEVICE: Final = -1  # `__cuda_array_interface__` does not say on which GPU an array is

HOST: Final = ("cpu", 0)

# From an address to the ordinal of its GPU, or None, as `CudaBackend.device_of_pointer`.
FindDevice = Callable[[int], int | None]

_BFLOAT16: Final = "bfloat16"
BFLOAT16_TYPESTR: Final = "<V2"  # in `__cuda_array_interface__`


class ArrayView(NamedTuple):
    """A view of an array of the caller, which is not copied.

    `pointer` is the address of the first element; `strides` are in elements and may be zero or negative;
    `dtype` is numpy's name for the element type; `device` is ("cpu", 0) or ("cuda", ordinal). `kind` names
    the library that makes arrays for results: "numpy", "torch", "cupy", "cuda_array_interface" or "dlpack".
    `owner` is the caller's object, `keep` another object that must live as long as the pointer is used.
    `stream` is the CUDA stream that writes the elements, or that waits for their write; None if they are
    complete, or the caller's stream waits for them.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: tuple[str, int]
    read_only: bool
    kind: str
    owner: object
    keep: object = None
    stream: int | None = None

    @property
    def device_name(self) -> str:
        """The device as text, such as "cpu" or "cuda:0"."""
        kind, ordinal = self.device
        return kind if kind == "cpu" else f"{kind}:{'?' if ordinal == UNKNOWN_DEVICE else ordinal}"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


Reader = Callable[[Any, str, int | None, FindDevice | None], ArrayView]


def view(
    array: object, name: str, stream: int | None = None, find_device: FindDevice | None = None
) -> ArrayView:
    """The view of `array`, which messages call `name`.

    Takes numpy arrays, torch tensors (the callers refuse those that require gradients),
    and anything with `__cuda_array_interface__` or `__dlpack__`. `stream` is the CUDA stream that
    will use the array, for producers that order their work before it. `find_device` is asked for
    the GPU of an array whose interface does not say it; without an answer the view has
    `UNKNOWN_DEVICE`.
    Raises `LaunchError` for anything else.
    """
    return reader_of(type(array))(array, name, stream, find_device)


def _reader_of(kind: Any) -> Reader:
    """The function that makes views of objects of a class, with the arguments and errors of `view`."""
    if issubclass(kind, np.ndarray):
        return _refuse_masked if issubclass(kind, np.ma.MaskedArray) else _view_numpy
    if not _is_tensor_class(kind):
        return _view_by_interface
    return _view_torch if holds_its_values(kind) else _refuse_tensor


reader_of: Final[Callable[[Any], Reader]] = functools.lru_cache(maxsize=256)(_reader_of)


def _view_by_interface(
    array: Any, name: str, stream: int | None, find_device: FindDevice | None
) -> ArrayView:
    try:  # of the object, not its class: a jax.Array has it on a GPU only, where bfloat16 raises RuntimeError
        interface = array.__cuda_array_interface__
    except (AttributeError, RuntimeError):
        return _view_without_interface(array, name, stream)
    if interface.get("mask") is not None:
        raise LaunchError(f"{name} must not have a mask, which would be ignored; fill it first")
    of: Any = type(array)
    pointer, read_only = interface["data"]
    shape = tuple(interface["shape"])
    dtype, itemsize = _type_of(interface["typestr"])
    strides = interface.get("strides")
    if strides is None:  # of version 3: dense
        strides = _dense_strides(shape)
    elif any(stride % itemsize for stride in strides):
        raise LaunchError(
            f"{name} must have strides that are whole elements of {itemsize} bytes, got "
            f"{tuple(strides)} bytes; copy it to a contiguous array"
        )
    else:
        strides = tuple([stride // itemsize for stride in strides])
    device = getattr(array, "device", None)
    ordinal = None if device is None else getattr(device, "id", None)
    if ordinal is None and pointer and find_device is not None:
        ordinal = find_device(pointer)
    return _new_view(
        (
            pointer or 0,
            shape,
            strides,
            dtype,
            ("cuda", UNKNOWN_DEVICE if ordinal is None else ordinal),
            bool(read_only),
            _kind_of(of),
            array,
            None,
            interface.get("stream"),
        )
    )


def _view_without_interface(array: Any, name: str, stream: int | None) -> ArrayView:
    """The view of an array that has `__dlpack__`; anything else is refused."""
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _view_dlpack(array, name, stream)
    raise LaunchError(
        f"{name} must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), "
        f"got {type(array).__name__}; convert with numpy.asarray({name}, numpy.float32)"
    )


def is_tensor(array: object) -> bool:
    """Whether `array` is a torch tensor; torch is not imported for this test."""
    kind: Any = type(array)
    return _is_tensor_class(kind)


@functools.lru_cache(maxsize=256)
def _is_tensor_class(kind: Any) -> bool:
    return any(map(_is_tensor, kind.__mro__))


def _is_tensor(kind: type) -> bool:
    return kind.__module__ == "torch" and kind.__name__ == "Tensor"


@functools.lru_cache(maxsize=256)
def holds_its_values(kind: Any) -> bool:
    """Whether the memory of a torch tensor of a class holds its values: not where the class gives functions
    or operators of PyTorch another meaning.
    """
    return has_usual_functions(kind) and not _differs(kind, "__torch_dispatch__")


@functools.lru_cache(maxsize=256)
def has_usual_functions(kind: Any) -> bool:
    """Whether a class of torch tensors leaves PyTorch's functions their meaning (`__torch_function__`). It
    may give another one to operators (`__torch_dispatch__`), which PyTorch's dispatcher then calls.
    """
    name = "__torch_function__"
    # What turns it off, as in `torch.nn.Parameter`: PyTorch's functions see the memory alone.
    is_off = getattr(kind, name, None) is getattr(
        sys.modules.get("torch._C"), "_disabled_torch_function_impl", 0
    )
    return is_off or not _differs(kind, name)


def _differs(kind: Any, method: str) -> bool:
    """Whether a class of torch tensors overrides a method of `torch.Tensor`."""
    of_class, of_tensors = (
        getattr(getattr(of, method, None), "__func__", getattr(of, method, None))
        for of in (kind, next(t for t in kind.__mro__ if _is_tensor(t)))
    )
    return of_class is not of_tensors


def not_its_values(tensor: object, name: str) -> str:
    """The error message, after the tensor's name, for a tensor whose class does not hold its values."""
    return (
        f"must be a plain tensor, got a {type(tensor).__name__}, which gives the operations of tensors a "
        f"meaning of its own, so that its memory may hold other values; if it does not, pass "
        f"{name}.as_subclass(torch.Tensor)"
    )


WITH_TANGENT: Final = (
    "has a tangent of forward-mode differentiation, which is not computed: the derivative would be 0 "
    "without a word; use reverse mode, such as torch.func.vjp, or pass "
    "torch.autograd.forward_ad.unpack_dual({0}).primal"
)


_MODULES: Final = sys.modules
_FORWARD_AD: Final = "torch.autograd.forward_ad"


def has_tangent(tensor: Any) -> bool:
    """Whether a torch tensor has a tangent at the current level of forward-mode differentiation. The
    arguments of an operator in a call that PyTorch traces have none, and cannot be asked for it: the
    dispatcher has finished autograd by then.
    """
    forward_ad: Any = _MODULES.get(_FORWARD_AD)
    if forward_ad is None or forward_ad._current_level < 0:
        return False
    try:
        return forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:
        of: Any = sys.modules["torch"]._C
        if of._dispatch_tls_is_dispatch_key_excluded(of.DispatchKey.AutogradFunctionality):
            return False
        raise


def unreadable(arrays: dict[str, object], stream: int | None) -> list[str]:
    """One message for each of `arrays`, given by name, that `view` refuses."""
    problems = []
    for name, array in arrays.items():
        try:
            view(array, name, stream)
        except LaunchError as error:
            problems.append(str(error))
    return problems


def host_array(of: ArrayView) -> NDArray[Any]:
    """A numpy array on the memory of a view on the host; it keeps the view's owner alive."""
    if type(of.owner) is np.ndarray:
        return of.owner
    for array in (of.owner, of.keep):
        if isinstance(array, np.ndarray):
            return np.asarray(array)
    # `.view` sets the dtype, because the interface has no name for bfloat16.
    return np.asarray(_HostMemory(of)).view(numpy_type(of.dtype))


class _HostMemory:
    """An object whose `__array_interface__` describes the memory of a view."""

    def __init__(self, of: ArrayView) -> None:
        self.view = of  # the numpy array's base is this object
        self.__array_interface__ = array_interface(of)


def array_interface(of: ArrayView) -> dict[str, Any]:
    """`__array_interface__` of a view; elements of types that numpy does not have are untyped. numpy does
    arithmetic on the address and does not read the memory.
    """
    dtype = numpy_type(of.dtype)
    return {
        "data": (of.pointer, of.read_only),
        "shape": tuple(of.shape),
        "strides": tuple(stride * dtype.itemsize for stride in of.strides),
        "typestr": typestr(dtype),
        "version": 3,
    }


def _refuse_masked(array: Any, name: str, *_: object) -> ArrayView:  # noqa: ARG001
    raise LaunchError(
        f"{name} must not be a masked array, whose mask would be ignored; fill it with {name}.filled(...)"
    )


def _view_numpy(array: Any, name: str, *_: object) -> ArrayView:
    dtype = array.dtype
    size, dtype_name = _numpy_dtype(dtype)
    strides = _steps(array.strides, size)
    if strides is None:
        raise LaunchError(
            f"{name} must have strides that are whole elements of {size} bytes, got {array.strides} "
            f"bytes; copy it with numpy.ascontiguousarray({name})"
        )
    pointer, read_only = array.__array_interface__["data"]  # in a third of the time of `array.ctypes`
    return _new_view(
        (
            pointer if array.size else 0,
            array.shape,
            strides,
            dtype_name,
            HOST,
            read_only,
            "numpy",
            array,
            None,
            None,
        )
    )


@functools.lru_cache(maxsize=1024)
def _steps(strides: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Strides of bytes as elements of `size` bytes; None where one is not a whole number of elements."""
    return None if any(stride % size for stride in strides) else tuple([stride // size for stride in strides])


@functools.lru_cache(maxsize=256)
def _numpy_dtype(dtype: Any) -> tuple[int, str]:
    """The bytes of an element and the name of a numpy type, which shows a non-native byte order. numpy has
    types of 0 bytes, which are refused later and have 1 here.
    """
    return dtype.itemsize or 1, dtype.name if dtype.isnative else dtype.str


def _view_torch(array: Any, name: str, *_: object) -> ArrayView:
    if array.is_cuda:  # these take a third of the time of `array.device.type` and `array.device.index`
        device = "cuda", array.get_device()
    elif array.is_cpu:
        device = HOST
    else:
        raise LaunchError(
            f"{name} must be on the CPU or a CUDA device, got a torch tensor on {array.device}; move it "
            f"with {name}.to('cuda')"
        )
    layout = array.layout
    if (layout not in _STRIDED and not _is_strided(layout)) or array.is_neg():
        what = f"layout {layout}" if not array.is_neg() else "a pending negation"
        cure = f"{name}.to_dense()" if not array.is_neg() else f"{name}.resolve_neg()"
        raise LaunchError(f"{name} must be a plain strided tensor, got one with {what}; use {cure}")
    dtype = array.dtype
    try:
        pointer, shape, strides = array.data_ptr(), array.shape, array.stride()
    except RuntimeError as error:  # inside torch.func transforms, and for nested tensors
        raise LaunchError(
            f"{name} must be a tensor with memory of its own, got a {type(array).__name__} whose "
            "memory torch does not give; call outside torch.func transforms, on plain tensors"
        ) from error
    forward_ad: Any = _MODULES.get(_FORWARD_AD)
    if forward_ad is not None and forward_ad._current_level >= 0 and has_tangent(array):
        raise LaunchError(f"{name} {WITH_TANGENT.format(name)}")
    return _new_view(
        (
            pointer,
            shape,
            strides,
            _TORCH_DTYPES.get(dtype) or _TORCH_DTYPES.setdefault(dtype, str(dtype).removeprefix("torch.")),
            device,
            array.requires_grad,  # a write to it would bypass autograd
            "torch",
            array,
            None,
            None,
        )
    )


def _refuse_tensor(array: Any, name: str, *_: object) -> ArrayView:
    """Raise `LaunchError` for a tensor whose class does not hold its values, or what `_view_torch` raises."""
    _view_torch(array, name)
    raise LaunchError(f"{name} {not_its_values(array, name)}")


def _is_strided(layout: object) -> bool:
    """Whether a layout of torch is that of strided tensors; its text takes long to make."""
    if str(layout) != "torch.strided":
        return False
    _STRIDED.add(layout)
    return True


# A view of all of its fields: the constructor of a NamedTuple takes three times as long.
_new_view: Final = functools.partial(tuple.__new__, ArrayView)

_dense_strides = functools.lru_cache(maxsize=1024)(dlpack.dense_strides)


@functools.lru_cache(maxsize=256)
def _kind_of(of: type) -> str:
    """The `ArrayView.kind` of arrays of a class with `__cuda_array_interface__`."""
    return "cupy" if of.__module__.partition(".")[0] == "cupy" else "cuda_array_interface"


@functools.cache
def _type_of(typestr: str) -> tuple[str, int]:
    """Numpy's name of a typestr, which shows a non-native byte order, and its size in bytes.

    "<V2" is bfloat16: the interface has no name for it, and torch and ml_dtypes write this. JAX
    gives bfloat16 arrays through DLPack only, not through this interface.
    """
    if typestr == BFLOAT16_TYPESTR:
        return _BFLOAT16, 2
    dtype = np.dtype(typestr)
    return dtype.name if dtype.isnative else dtype.str, dtype.itemsize


def _view_dlpack(array: Any, name: str, stream: int | None) -> ArrayView:
    device, ordinal = array.__dlpack_device__()
    if device in (dlpack.CPU, dlpack.CUDA_HOST):
        return _view_dlpack_on_host(array, name)
    if device not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise LaunchError(f"{name} must be on the CPU or a CUDA device, got DLPack device type {int(device)}")
    capsule = array.__dlpack__(stream=stream or dlpack.LEGACY_DEFAULT_STREAM)
    contents = dlpack.read_capsule(capsule)
    return ArrayView(
        contents.pointer,
        contents.shape,
        contents.strides,
        contents.dtype,
        ("cuda", int(ordinal)),
        False,
        "dlpack",
        array,
        capsule,
        dlpack.LEGACY_DEFAULT_STREAM if stream is None else None,
    )


def _view_dlpack_on_host(array: Any, name: str) -> ArrayView:
    try:
        host = np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        view = _view_bfloat16(array)
        if view is None:
            raise LaunchError(
                f"{name} must be an array that numpy can read through DLPack, got "
                f"{type(array).__name__}: {error}; convert it to float32, float16 or bfloat16"
            ) from error
        return view
    return _view_numpy(host, name)._replace(kind="dlpack", owner=array, keep=host)


def _view_bfloat16(array: Any) -> ArrayView | None:
    """A view of a bfloat16 array on the host, read from its DLPack capsule because `np.from_dlpack`
    does not know the type; None for any other array.
    """
    try:
        capsule = array.__dlpack__()
    except (BufferError, RuntimeError, TypeError):
        return None
    contents = dlpack.read_capsule(capsule)
    if contents.dtype != _BFLOAT16:
        return None
    # Unversioned capsules have no read-only flag; like numpy, take their arrays as read-only.
    return ArrayView(
        contents.pointer,
        contents.shape,
        contents.strides,
        contents.dtype,
        HOST,
        True,
        "dlpack",
        array,
        capsule,
    )


_TORCH_DTYPES: Final[dict[object, str]] = {}
_STRIDED: Final = set[object]()  # the layouts of torch that are strided
