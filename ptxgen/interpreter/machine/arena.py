"""Device memory as an arena of real 64-bit addresses, over the memory of host arrays."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ptxgen.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptxgen.texture import Surface, Texture

    Lanes = np.ndarray[Any, np.dtype[Any]]

# Above 2**32, so that an address cut to 32 bits never points into a buffer.
FIRST_ADDRESS: Final = 1 << 33
RED_ZONE: Final = 1 << 20  # bytes between buffers that belong to none
_FREED_KEPT: Final = 1 << 10  # how many buffers that were given back are remembered
_NULL_PAGE: Final = 1 << 12  # addresses that a null pointer and an offset come to
BUFFER_ALIGN: Final = 256  # what cudaMalloc promises
# A buffer's address equals the host address modulo this, so that a misaligned view is misaligned
# here too.
HOST_ALIGN: Final = 16


class _Raw:
    """Host memory at an address, as numpy's array interface wants it."""

    def __init__(self, start: int, nbytes: int, writable: bool) -> None:
        self.__array_interface__ = {
            "data": (start, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class Window:
    """A row of bytes with addresses, seen as elements or vectors of any type; `base` is its first
    address.
    """

    def __init__(self, base: int, data: Lanes) -> None:
        self.base = base
        self.data = data
        self._views: dict[tuple[np.dtype[Any], int], tuple[int, Lanes]] = {}

    def elements(self, dtype: np.dtype[Any], count: int, address: int) -> Lanes:
        """Everything from the aligned `address` on: `[n]` for one value an element, else `[n,
        count]`.
        """
        found = self._views.get((dtype, count))
        if found is None:
            width = dtype.itemsize * count
            skipped = -self.base % width
            usable = max(len(self.data) - skipped, 0) // width * width
            view = self.data[skipped : skipped + usable].view(dtype)
            found = (self.base + skipped) // width, view.reshape(-1, count) if count > 1 else view
            self._views[dtype, count] = found
        first, view = found
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
        """The first address after it."""
        return self.base + self.nbytes


class DeviceArena:
    """Device memory: host arrays that have been given device addresses.

    An array is not copied: what a kernel writes is in the array at once. All bytes between the
    array's first and last element belong to its buffer, gaps between strides included; arrays that
    share memory share a buffer.
    """

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._bases: list[int] = []
        # What `ptxgen.interpreter.variables` keeps of each module, by its text or its id.
        self.modules: dict[str | int, Any] = {}
        # The buffers that kernels got by `malloc`, by where they begin: which of their bytes have
        # been written, or may have been, before the batch of CTAs that runs; bool.
        self.heap: dict[int, Lanes] = {}
        # Buffers that kernels have given back, and who did: base, end, its name, who. Addresses are
        # not used again.
        self._freed: tuple[tuple[int, int, str, str], ...] = ()
        self.bound: dict[int, Texture | Surface] = {}  # by handle
        self._last_end = 0
        self._workspace: Lanes | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers by rising address."""
        return tuple(self._buffers)

    def trust_heap(self) -> None:
        """Take all that kernels got by `malloc` for written, as nobody has watched."""
        for written in self.heap.values():
            written[...] = True

    def place(self, array: object, *, at: int | None = None, name: str = "") -> int:
        """The device address of the array's first element, after making the array device memory.

        `at` asks for an address (of the array's lowest byte, which is its first element unless a
        stride is negative), `name` is used in messages. Raises `LaunchError` if the address is
        taken or the array's memory is partly device memory already at addresses that do not fit.
        """
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            what = type(array).__name__
            if isinstance(array, np.ndarray):
                what = f"an array of {array.dtype}"
            raise LaunchError(f"device memory must be a numpy array of numbers, got {what}")
        low, high = byte_bounds(array) if array.size else (_pointer(array), _pointer(array))
        self.place_span(low, high, [array], array.flags.writeable, at=at, name=name)
        return self.address_of(array)

    def place_span(
        self,
        low: int,
        high: int,
        owners: list[object],
        writable: bool,
        *,
        at: int | None = None,
        name: str = "",
    ) -> Buffer:
        """Give host memory from `low` to `high` device addresses; joins what it overlaps. Raises
        `LaunchError`.
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
        made = Buffer(name, base, low, high - low, writable, owners)
        self._insert([made])
        return made

    def address_of(self, array: Lanes) -> int:
        """The device address of the first element of an array that was placed."""
        pointer = _pointer(array)
        met = [b for b in self._buffers if b.start <= pointer < b.start + max(b.nbytes, 1)]
        # An empty array may begin where another one does: the one with bytes is meant.
        found = max(met, key=lambda b: b.nbytes)
        return found.base + pointer - found.start

    def bind(self, bound: Texture | Surface) -> int:
        """The handle of a texture or a surface, which kernels take as 64 bits; the same for the
        same one.
        """
        for handle, other in self.bound.items():
            if other is bound:
                return handle
        handle = len(self.bound) + 1
        self.bound[handle] = bound
        return handle

    def grid_workspace(self) -> int:
        """The address of what the driver keeps for a cooperative launch, which is zero before it:
        its size and the count of CTAs that have come to `grid.sync()`, 4 bytes each.
        """
        if self._workspace is None:
            self._workspace = np.zeros(2, np.uint32)
        self._workspace[:] = 0
        return self.place(self._workspace, name="the workspace of the grid")

    def free(self, address: int, who: str) -> str:
        """Give up memory that `malloc` gave, for a kernel; `who` says by what in later messages.
        Returns where the address is, if that is not the beginning of such memory.
        """
        if address not in self.heap:
            return self.describe(address)
        (gone,) = (b for b in self._buffers if b.base == address)
        del self.heap[address]
        self._remove([gone])
        self._freed = (*self._freed[-_FREED_KEPT:], (gone.base, gone.end, gone.name, who))
        self._last_end = max(self._last_end, gone.end)
        return ""

    def find(self, low: int, high: int) -> Buffer | None:
        """The buffer that holds all addresses from `low` to `high - 1`, or None."""
        position = bisect.bisect_right(self._bases, low) - 1
        if position < 0:
            return None
        found = self._buffers[position]
        return found if high <= found.end else None

    def describe(self, address: int) -> str:
        """Where an address lies in relation to the nearest buffer."""
        if 0 <= address < _NULL_PAGE:
            return "a null pointer" + f" and {address} bytes" * bool(address)
        for base, end, name, who in self._freed:
            if base <= address < end:
                return (
                    f"at byte {address - base} of {name} ({base:#x}, {end - base} bytes), which "
                    f"{who} has freed"
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


def joined_spans(arrays: Iterable[tuple[str, Lanes]]) -> list[tuple[int, int, list[object], bool, str]]:
    """The host memory of named arrays as disjoint spans: low, high, arrays, whether writable,
    names.
    """
    spans = sorted(
        (*(byte_bounds(a) if a.size else (_pointer(a), _pointer(a))), i, name, a)
        for i, (name, a) in enumerate(arrays)
    )
    joined: list[tuple[int, int, list[object], bool, str]] = []
    for low, high, _, name, array in spans:
        writable = array.flags.writeable
        if joined and low < joined[-1][1]:
            low, last, owners, others, names = joined.pop()
            joined.append((low, max(last, high), [*owners, array], others or writable, f"{names}, {name}"))
        else:
            joined.append((low, high, [array], writable, name))
    return joined


def _pointer(array: Lanes) -> int:
    return int(array.__array_interface__["data"][0])
