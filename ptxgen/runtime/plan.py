"""Checked launches, and the argument block that a kernel reads.

Parameters have the layout of the CUDA ABI in `.param` space: in order, each at the next multiple of
its own size (CUDA C++ Programming Guide, "Driver API", "Kernel Execution").
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ptxgen.errors import LaunchError
from ptxgen.ir import Param
from ptxgen.runtime.attributes import NO_ATTRIBUTES, LaunchAttributes
from ptxgen.target import MAX_BLOCK, MAX_GRID, MAX_THREADS
from ptxgen.tensormap import TensorMap
from ptxgen.types import TYPES, scalar_type

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

# `struct` codes of PTX types. bf16, which `struct` does not know, and packed types are passed as
# unsigned integers of their bits.
_INTEGER_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOAT_CODES: Final = {"f16": "e", "f32": "f", "f64": "d"}
_CODES: Final = {
    name: _FLOAT_CODES.get(name)
    or (_INTEGER_CODES[t.nbytes].lower() if t.is_signed else _INTEGER_CODES[t.nbytes])
    for name, t in TYPES.items()
    if t.nbytes in _INTEGER_CODES  # `pred` and `b128` are in no parameter
}


LaunchValue = int | float | bytes | TensorMap


class ParamSlot(NamedTuple):
    """The position of one parameter in the argument block; `offset` and `nbytes` are in bytes.

    A parameter with more bytes than its type has is an array, such as a tensor map; its value is
    its bytes.
    """

    name: str
    type: str
    offset: int
    nbytes: int


def param_slots(params: tuple[Param, ...]) -> tuple[ParamSlot, ...]:
    """The slots of a kernel's parameters in the argument block, in order.

    Raises `ModifierError` for a type that does not exist, `LaunchError` for a type that memory
    cannot hold (`pred`).
    """
    slots = []
    end = 0
    for param in params:
        nbytes = scalar_type(param.type).nbytes
        if param.type not in _CODES:
            raise LaunchError(
                f"kernel parameter {param.name} is {param.type}, which cannot be a parameter; "
                f"use one of {', '.join(_CODES)}"
            )
        align = max(nbytes, param.align)
        offset, nbytes = -(-end // align) * align, nbytes * max(param.count, 1)
        slots.append(ParamSlot(param.name, param.type, offset, nbytes))
        end = offset + nbytes
    return tuple(slots)


@functools.lru_cache(maxsize=256)
def _layout(slots: tuple[ParamSlot, ...]) -> struct.Struct:
    """The `struct.Struct` that packs one value per slot, with the padding between slots."""
    codes = ["<"]
    end = 0
    for slot in slots:
        codes.append(f"{slot.offset - end}x{_code(slot)}")
        end = slot.offset + slot.nbytes
    return struct.Struct("".join(codes))


def _code(slot: ParamSlot) -> str:
    is_array = slot.nbytes > TYPES[slot.type].nbytes
    return f"{slot.nbytes}s" if is_array else _CODES[slot.type]


@dataclass(frozen=True)
class LaunchPlan:
    """A launch that has been checked against everything but the device it will run on.

    `grid` is in blocks, `block` in threads, `dynamic_shared` in bytes per block. `values` has one
    int or float for each of `slots`, and the bytes of an array; a pointer is its address, and a tensor
    map of a device address is itself, which a backend encodes. `maps` has the index of each such
    value, and that of the value with the address. `attributes` are what the launch asks for beyond
    that. Raises `LaunchError` for an extent, a number of values or a value that does not fit.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int
    slots: tuple[ParamSlot, ...]
    values: tuple[LaunchValue, ...]
    attributes: LaunchAttributes = NO_ATTRIBUTES
    maps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        _check_extent(self.entry, "grid", self.grid, MAX_GRID, "blocks")
        _check_extent(self.entry, "block", self.block, MAX_BLOCK, "threads")
        if self.threads > MAX_THREADS:
            raise LaunchError(
                f"{self.entry}: a block of {self.block} has {self.threads} threads, "
                f"more than {MAX_THREADS}; use a smaller block"
            )
        if self.dynamic_shared < 0:
            raise LaunchError(
                f"{self.entry}: dynamic_shared must be at least 0 bytes, got {self.dynamic_shared}"
            )
        require_whole_clusters(self.entry, self.grid, self.attributes.cluster)
        if len(self.values) != len(self.slots):
            names = ", ".join(slot.name for slot in self.slots)
            raise LaunchError(
                f"{self.entry} has {len(self.slots)} parameters ({names}), got {len(self.values)} values"
            )
        pack(self)

    @functools.cached_property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.block)

    def with_pointers(self, addresses: Sequence[int]) -> LaunchPlan:
        """A copy of the plan for other arrays: `addresses` replace the first values, which are
        pointers, and tensor maps get them, too.

        It is for repeated launches, and checks little: a null address raises `LaunchError` here, an
        address that does not fit u64 raises it when the launch packs the arguments.
        """
        if 0 in addresses:
            name = self.slots[list(addresses).index(0)].name
            raise LaunchError(f"{self.entry}: parameter {name} is a null pointer")
        values = [*addresses, *self.values[len(addresses) :]]
        for index, pointer in self.maps:
            of = values[index]
            assert isinstance(of, TensorMap)  # see `maps`
            values[index] = of.at(addresses[pointer])
        return self.with_values(tuple(values))

    def on_host(self, memory: Sequence[Array]) -> list[Any]:
        """The arguments of an interpreted launch: the values, in which the arrays `memory` of the host
        have replaced the first ones, which are pointers, and those of tensor maps.
        """
        args: list[Any] = [*memory, *self.values[len(memory) :]]
        for index, pointer in self.maps:
            args[index] = args[index].over(memory[pointer])
        return args

    def with_values(self, values: tuple[LaunchValue, ...]) -> LaunchPlan:
        """A copy of the plan for other values, one for each slot, which are checked when the launch
        packs them.
        """
        plan = object.__new__(LaunchPlan)
        # `__init__` is skipped on purpose: it takes ten times as long as the rest of this method.
        plan.__dict__.update(self.__dict__)
        plan.__dict__["values"] = values
        return plan


def require_whole_clusters(caller: str, grid: Sequence[int], cluster: Sequence[int]) -> None:
    """Raise `LaunchError` unless the grid is a multiple of the cluster along each axis."""
    for axis, count, size in zip("xyz", grid, cluster, strict=True):
        if count % size:
            raise LaunchError(
                f"{caller}: grid.{axis} must be a multiple of {size}, because the kernel runs in clusters of "
                f"{tuple(cluster)} CTAs, got {count}"
            )


def pack(plan: LaunchPlan) -> bytes:
    """The argument block of `plan`: every value at its slot's offset, gaps zero, little-endian.

    A tensor map has the bytes of `TensorMap.encode`, which a GPU does not read. Raises `LaunchError`,
    which names the parameter, for a value that its type cannot hold.
    """
    try:
        return _layout(plan.slots).pack(*map(_packed, plan.values))
    except (struct.error, OverflowError, TypeError):
        raise _misfit(plan) from None


def _packed(value: LaunchValue) -> int | float | bytes:
    """A value as `struct` packs it: a tensor map as its bytes, any other as it is."""
    if not isinstance(value, TensorMap):
        return value
    assert isinstance(value.base, int)  # see `LaunchPlan`
    return value.encode(value.base)


class ArgumentBlock:
    """Memory for the arguments of one kernel, rewritten for each launch.

    `address` is the address of an array of pointers to the values, the argument `kernelParams` of
    `cuLaunchKernel`. Hold `lock` from `write` until that call has returned, since the driver copies
    the values during the call.
    """

    __slots__ = ("_buffer", "_pack_into", "_pointers", "address", "lock", "slots")

    def __init__(self, slots: tuple[ParamSlot, ...]) -> None:
        layout = _layout(slots)
        self.slots = slots
        self.lock = threading.Lock()
        self._pack_into = layout.pack_into
        self._buffer = ctypes.create_string_buffer(max(layout.size, 1))
        start = ctypes.addressof(self._buffer)
        addresses = [start + slot.offset for slot in slots]
        self._pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self.address = ctypes.addressof(self._pointers)

    def write(self, plan: LaunchPlan) -> None:
        """Write the values of `plan`, which must have the slots of this block.

        Raises `LaunchError` as `pack` does.
        """
        try:
            self._pack_into(self._buffer, 0, *plan.values)
        except (struct.error, OverflowError, TypeError):
            raise _misfit(plan) from None


def _check_extent(entry: str, what: str, extent: Sequence[int], most: Iterable[int], unit: str) -> None:
    for axis, count, limit in zip("xyz", extent, most, strict=True):
        if not 1 <= count <= limit:
            hint = "" if axis == "x" else f"; put the larger count into {what}.x"
            raise LaunchError(f"{entry}: {what}.{axis} must be from 1 to {limit} {unit}, got {count}{hint}")


def _misfit(plan: LaunchPlan) -> LaunchError:
    """The error for the first value that does not fit, found by packing the values one by one."""
    for slot, value in zip(plan.slots, plan.values, strict=True):
        try:
            struct.pack(f"<{_code(slot)}", value)
        except (struct.error, OverflowError, TypeError):
            return LaunchError(
                f"{plan.entry}: parameter {slot.name} is {slot.type}, which holds "
                f"{_range(slot)}, got {value!r}"
            )
    raise AssertionError("every value fits, one by one")


def _range(slot: ParamSlot) -> str:
    if _code(slot).endswith("s"):
        return f"{slot.nbytes} bytes"
    if slot.type in _FLOAT_CODES:
        return "a floating-point number of its range"
    bits = 8 * slot.nbytes
    if slot.type.startswith("s"):
        return f"an integer from {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}"
    return f"an integer from 0 to {2**bits - 1}"
