"""Device memory: an arena of 64-bit addresses for the memory of host arrays."""

from __future__ import annotations

import bisect
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ptxgen.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptxgen.interpreter.machine.heap import HeapBytes
    from ptxgen.texture import Surface, Texture

    Lanes = np.ndarray[Any, np.dtype[Any]]

# Above 2**32, so that an address cut to 32 bits never points into a buffer.
FIRST_ADDRESS: Final = 1 << 33
RED_ZONE: Final = 1 << 20  # bytes between buffers that belong to none
_MOST_FREED: Final = 1 << 10  # freed buffers that are remembered
_NULL_PAGE: Final = 1 << 12  # addresses that are reported as a null pointer plus an offset
BUFFER_ALIGN: Final = 256  # alignment that cudaMalloc promises
# A buffer's address equals its host address modulo this, so that a misaligned view has a misaligned
# device address.
HOST_ALIGN: Final = 16


class _Raw:
    """Host memory at an address, in the form of numpy's array interface."""

    def __init__(self, start: int, nbytes: int, writable: bool) -> None:
        self.__array_interface__ = {
            "data": (start, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class Window:
    """A row of bytes with addresses, viewed as elements or vectors of any type; `base` is the first
    address.
    """

    def __init__(self, base: int, data: Lanes) -> None:
        self.base = base
        self.data = data
        self._views: dict[tuple[np.dtype[Any], int], tuple[int, Lanes]] = {}

    def elements(self, dtype: np.dtype[Any], count: int, address: int) -> Lanes:
        """All elements from the aligned `address` on: `[n]` if `count` is 1, else `[n, count]`."""
        cached = self._views.get((dtype, count))
        if cached is None:
            width = dtype.itemsize * count
            skipped = -self.base % width
            usable = max(len(self.data) - skipped, 0) // width * width
            view = self.data[skipped : skipped + usable].view(dtype)
            cached = (self.base + skipped) // width, view.reshape(-1, count) if count > 1 else view
            self._views[dtype, count] = cached
        first, view = cached
        return view[address // (dtype.itemsize * count) - first :]


@dataclass(slots=True, eq=False)
class Buffer:
    """Device memory that one or several host arrays share."""

    name: str
    base: int
    start: int  # the host address of `base`
    nbytes: int
    writable: bool
    owners: list[object]
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        raw = (
            np.asarray(_Raw(self.start, self.nbytes, self.writable)) if self.nbytes else np.empty(0, np.uint8)
        )
        self.window = Window(self.base, raw)

    @property
    def end(self) -> int:
        """The first address after the buffer."""
        return self.base + self.nbytes


class DeviceArena:
    """Device memory: host arrays that have been given device addresses.

    An array is not copied: a kernel writes directly into it. All bytes between the array's first
    and last element belong to its buffer, gaps between strides included; arrays that share memory
    share a buffer.
    """

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._bases: list[int] = []
        # The variables of each module (`ptxgen.interpreter.variables`), by its text or its id.
        self.modules: dict[str | int, Any] = {}
        # The buffers from `malloc`, by their first addresses.
        self.heap: dict[int, HeapBytes] = {}
        # The buffers that kernels have freed: first address, end, name, and the thread that freed
        # it. Addresses are not reused.
        self._freed: tuple[tuple[int, int, str, str], ...] = ()
        self.bound: dict[int, Texture | Surface] = {}  # textures and surfaces by handle
        self._last_end = 0
        self._workspace: Lanes | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers in the order of their addresses."""
        return tuple(self._buffers)

    def heap_bytes(self, address: int, nbytes: int) -> tuple[HeapBytes, int] | None:
        """The state of the memory from `malloc` that has these bytes, and the index of the first one there;
        None if they are in no such memory.
        """
        buffer = self.find(address, address + nbytes)
        held = None if buffer is None else self.heap.get(buffer.base)
        return None if buffer is None or held is None else (held, address - buffer.base)

    def trust_heap(self) -> None:
        """Treat all memory from `malloc` as written, because no sanitizer has watched it."""
        for held in self.heap.values():
            held.define()

    def place(self, array: object, *, at: int | None = None, name: str = "") -> int:
        """Make the array device memory, and return the device address of its first element.

        `at` asks for an address of the array's lowest byte (which is in its first element unless a
        stride is negative); `name` is used in messages. Raises `LaunchError` if the address is
        taken or if part of the array is device memory already at addresses that do not fit.
        """
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            what = type(array).__name__
            if isinstance(array, np.ndarray):
                what = f"an array of {array.dtype}"
            raise LaunchError(f"device memory must be a numpy array of numbers, got {what}")
        low, high = byte_bounds(array) if array.size else (_pointer(array), _pointer(array))
        self.add_buffer(low, high, [array], array.flags.writeable, at=at, name=name)
        return self.address_of(array)

    def add_buffer(
        self,
        low: int,
        high: int,
        owners: list[object],
        writable: bool,
        *,
        at: int | None = None,
        name: str = "",
    ) -> Buffer:
        """Give the host memory from `low` to `high` device addresses, joined with the buffers that
        it overlaps. Raises `LaunchError`.
        """
        met = [b for b in self._buffers if b.start < high and low < b.start + b.nbytes]
        shifts = {b.base - b.start for b in met} | ({at - low} if at is not None else set())
        if len(shifts) > 1:
            raise LaunchError(
                f"{name or 'the array'} shares host memory with device memory at other addresses; "
                "place the array that contains all of it first"
            )
        for b in met:
            low, high = min(low, b.start), max(high, b.start + b.nbytes)
            owners, writable, name = [*b.owners, *owners], writable or b.writable, b.name or name
        base = low + shifts.pop() if shifts else self._free_address(low)
        self._remove(met)
        try:
            self._check_free(base, base + high - low, name)
        except LaunchError:
            self._insert(met)
            raise
        buffer = Buffer(name, base, low, high - low, writable, owners)
        self._insert([buffer])
        return buffer

    def address_of(self, array: Lanes) -> int:
        """The device address of the first element of an array that was placed."""
        pointer = _pointer(array)
        met = [b for b in self._buffers if b.start <= pointer < b.start + max(b.nbytes, 1)]
        # An empty array may begin where another one does: the buffer with bytes counts.
        largest = max(met, key=lambda b: b.nbytes)
        return largest.base + pointer - largest.start

    def bind(self, bound: Texture | Surface) -> int:
        """The handle of a texture or a surface, a 64-bit argument of kernels; the same object
        always has the same handle.
        """
        for handle, other in self.bound.items():
            if other is bound:
                return handle
        handle = len(self.bound) + 1
        self.bound[handle] = bound
        return handle

    def grid_workspace(self) -> int:
        """The address of the driver's workspace of a cooperative launch. It holds its own size and
        the number of CTAs that have come to `grid.sync()`, 4 bytes each, both zero before the
        launch.
        """
        if self._workspace is None:
            self._workspace = np.zeros(2, np.uint32)
        self._workspace[:] = 0
        return self.place(self._workspace, name="the workspace of the grid")

    def free(self, address: int, caller: str) -> str:
        """Free memory that `malloc` gave. `caller` names the thread in later messages. Returns a
        description of the address if it is not the beginning of such memory, else the empty string.
        """
        if address not in self.heap:
            return self.describe(address)
        (gone,) = (b for b in self._buffers if b.base == address)
        del self.heap[address]
        self._remove([gone])
        self._freed = (*self._freed[-_MOST_FREED:], (gone.base, gone.end, gone.name, caller))
        self._last_end = max(self._last_end, gone.end)
        return ""

    def find(self, low: int, high: int) -> Buffer | None:
        """The buffer that holds all addresses from `low` to `high - 1`, or None."""
        position = bisect.bisect_right(self._bases, low) - 1
        if position < 0:
            return None
        buffer = self._buffers[position]
        return buffer if high <= buffer.end else None

    def describe(self, address: int) -> str:
        """The position of an address relative to the nearest buffer, in words."""
        if 0 <= address < _NULL_PAGE:
            return "a null pointer" + f" and {address} bytes" * bool(address)
        for base, end, name, caller in self._freed:
            if base <= address < end:
                return (
                    f"at byte {address - base} of {name} ({base:#x}, {end - base} bytes), which "
                    f"{caller} has freed"
                )
        if not self._buffers:
            return "no buffer exists"
        near = min(self._buffers, key=lambda b: max(b.base - address, address - b.end + 1, 0))
        if address < near.base:
            where = f"{near.base - address} bytes before the start of"
        elif address >= near.end:
            where = f"{address - near.end} bytes after the end of"
        else:
            where = f"at byte {address - near.base} of"
        return f"{where} {near.name or 'a buffer'} ({near.base:#x}, {near.nbytes} bytes)"

    def _free_address(self, low: int) -> int:
        last = max(self._last_end, self._buffers[-1].end if self._buffers else 0)
        after = last + RED_ZONE if last else FIRST_ADDRESS
        return -(-after // BUFFER_ALIGN) * BUFFER_ALIGN + low % HOST_ALIGN

    def _check_free(self, base: int, end: int, name: str) -> None:
        if not base >= FIRST_ADDRESS or end >= 1 << 63:
            raise LaunchError(
                f"{name or 'the array'}: device addresses must lie from {FIRST_ADDRESS:#x} to "
                f"2**63, got {base:#x}"
            )
        for b in self._buffers:
            if b.base < end + HOST_ALIGN and base < b.end + HOST_ALIGN:
                raise LaunchError(
                    f"{name or 'the array'}: {base:#x} to {end:#x} is taken by "
                    f"{b.name or 'a buffer'} "
                    f"({b.base:#x} to {b.end:#x}); ask for another address"
                )

    def _remove(self, gone: list[Buffer]) -> None:
        self._buffers = [b for b in self._buffers if b not in gone]
        self._bases = [b.base for b in self._buffers]

    def _insert(self, new: list[Buffer]) -> None:
        self._buffers = sorted([*self._buffers, *new], key=lambda b: b.base)
        self._bases = [b.base for b in self._buffers]


def joined_ranges(arrays: Iterable[tuple[str, Lanes]]) -> list[tuple[int, int, list[object], bool, str]]:
    """The host memory of named arrays as disjoint ranges: low, high, arrays, whether writable, names; in the
    order of the first array of each, which does not depend on host addresses.
    """
    ranges = sorted(
        (*(byte_bounds(a) if a.size else (_pointer(a), _pointer(a))), i, name, a)
        for i, (name, a) in enumerate(arrays)
    )
    joined: list[tuple[int, tuple[int, int, list[object], bool, str]]] = []
    for low, high, number, name, array in ranges:
        writable = array.flags.writeable
        if joined and low < joined[-1][1][1]:
            first, (low, last, owners, others, names) = joined.pop()
            both = low, max(last, high), [*owners, array], others or writable, f"{names}, {name}"
            joined.append((min(first, number), both))
        else:
            joined.append((number, (low, high, [array], writable, name)))
    return [of for _, of in sorted(joined, key=operator.itemgetter(0))]


def _pointer(array: Lanes) -> int:
    return int(array.__array_interface__["data"][0])
