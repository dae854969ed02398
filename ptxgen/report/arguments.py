"""Copies of a launch's arguments, and their descriptions on a report's page."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.interpreter.arguments import Argument
from ptxgen.tensormap import TensorMap
from ptxgen.texture import Surface, Texture

_Array = NDArray[Any]
_Described = TypeVar("_Described", TensorMap, Texture, Surface)


def copies(arguments: Sequence[Argument]) -> list[Argument]:
    """Copies of arguments, for one run. Arrays keep their strides, and share memory as they did; memory
    around their elements is copied, too.
    """
    memory: dict[int, _Array] = {}
    return [_copy(value, memory) for value in arguments]


def _copy(value: Argument, memory: dict[int, _Array]) -> Argument:
    if isinstance(value, np.ndarray):
        return _copied(value, memory)
    if isinstance(value, TensorMap) and isinstance(value.base, np.ndarray):
        return _with(value, base=_copied(value.base, memory))
    if isinstance(value, Texture):
        return _with(value, array=_copied(value.array, memory))
    if isinstance(value, Surface):
        return _with(value, array=_copied(value.array, memory))
    return value


def _with(value: _Described, **fields: _Array) -> _Described:
    """A copy of a frozen value whose arrays are replaced by others of the same layout."""
    copied = copy.copy(value)
    for name, array in fields.items():
        object.__setattr__(copied, name, array)
    return copied


def _copied(array: _Array, memory: dict[int, _Array]) -> _Array:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not (owner.flags.c_contiguous or owner.flags.f_contiguous):
        copied = array.copy()
    else:
        if id(owner) not in memory:
            # Bytes, because numpy makes arrays of other packages' types from no other buffer.
            memory[id(owner)] = np.frombuffer(owner.tobytes("A"), np.uint8).copy()
        offset = array.ctypes.data - owner.ctypes.data
        copied = np.ndarray(array.shape, array.dtype, memory[id(owner)], offset, array.strides)
    copied.setflags(write=array.flags.writeable)
    return copied


def words_of(value: Argument) -> str:
    """A description of an argument that does not depend on its address in memory."""
    if isinstance(value, TensorMap):
        return f"tensor map of {words_of(value.base)}"
    if isinstance(value, Texture | Surface):
        return f"{type(value).__name__.lower()} of {words_of(value.array)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    return str(value)
