"""Device memory as an arena of real 64-bit addresses, and how lanes reach memory.

An access is planned once for each value of its base register: the extremes of the addresses, their
common alignment and an index array are kept, so that many accesses at different constant offsets
from one register cost one gather each.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ptxgen.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptxgen.interpreter.machine import LaneMachine
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

# Above 2**32, so that an address cut to 32 bits never points into a buffer.
FIRST_ADDRESS: Final = 1 << 33
RED_ZONE: Final = 1 << 20  # bytes between buffers that belong to none
BUFFER_ALIGN: Final = 256  # what cudaMalloc promises
# A buffer's address equals the host address modulo this, so that a misaligned view is misaligned
# here too.
HOST_ALIGN: Final = 16

# What undefined registers, fresh shared memory and bytes still being copied hold: a quiet NaN as
# f32.
POISON: Final = 0x7FC0DEAD

# Where shared memory lies among generic addresses; below FIRST_ADDRESS, so it meets no buffer.
SHARED_WINDOW: Final = 1 << 32

_WIDEST: Final = 32  # bytes of the widest access, and the alignment of a CTA's shared memory


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
            np.asarray(_Raw(self.start, self.nbytes, self.writable))
            if self.nbytes
            else np.empty(0, np.uint8)
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

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers by rising address."""
        return tuple(self._buffers)

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
        return next(
            b.base + pointer - b.start
            for b in self._buffers
            if b.start <= pointer < b.start + max(b.nbytes, 1) and (array.size or not b.nbytes)
        )

    def find(self, low: int, high: int) -> Buffer | None:
        """The buffer that holds all addresses from `low` to `high - 1`, or None."""
        position = bisect.bisect_right(self._bases, low) - 1
        if position < 0:
            return None
        found = self._buffers[position]
        return found if high <= found.end else None

    def describe(self, address: int) -> str:
        """Where an address lies in relation to the nearest buffer."""
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
        after = self._buffers[-1].end + RED_ZONE if self._buffers else FIRST_ADDRESS
        return -(-after // BUFFER_ALIGN) * BUFFER_ALIGN + low % HOST_ALIGN

    def _check_free(self, base: int, end: int, name: str) -> None:
        if not base >= SHARED_WINDOW * 2 or end >= 1 << 63:
            raise LaunchError(
                f"{name or 'the array'}: device addresses must lie from {SHARED_WINDOW * 2:#x} to 2**63, got {base:#x}"
            )
        for b in self._buffers:
            if b.base < end + HOST_ALIGN and base < b.end + HOST_ALIGN:
                raise LaunchError(
                    f"{name or 'the array'}: {base:#x} to {end:#x} is taken by {b.name or 'a buffer'} "
                    f"({b.base:#x} to {b.end:#x}); ask for another address"
                )

    def _remove(self, gone: list[Buffer]) -> None:
        self._buffers = [b for b in self._buffers if b not in gone]
        self._bases = [b.base for b in self._buffers]

    def _insert(self, new: list[Buffer]) -> None:
        self._buffers = sorted([*self._buffers, *new], key=lambda b: b.base)
        self._bases = [b.base for b in self._buffers]


def joined_spans(
    arrays: Iterable[tuple[str, Lanes]],
) -> list[tuple[int, int, list[object], bool, str]]:
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
            joined.append(
                (low, max(last, high), [*owners, array], others or writable, f"{names}, {name}")
            )
        else:
            joined.append((low, high, [array], writable, name))
    return joined


def _pointer(array: Lanes) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass(slots=True, eq=False)
class Plan:
    """Where active lanes will access a space, before a constant offset is added.

    `relative` is int64 bytes from `low`, the lowest address (plus the CTA's part of shared memory);
    inactive lanes hold those of an active one. `spread` has the low bits in which the addresses
    differ.
    """

    low: int
    high: int
    spread: int
    relative: Lanes
    mask: Lanes | None
    window: Window | None  # None: the lanes reach several buffers, or none
    first: int  # addresses that may be accessed: from `first`
    last: int  # to `last - 1`
    writable: bool = True
    ids: Lanes | None = (
        None  # the active lanes' numbers in the batch, once the race detector has asked
    )
    units: Lanes | None = None  # and the units of the detector that `relative` of these lanes is
    indices: dict[int, Lanes] = field(default_factory=dict)

    def index(self, width: int) -> Lanes:
        """`relative` in units of `width` bytes, a power of two."""
        found = self.indices.get(width)
        if found is None:
            found = self.indices[width] = self.relative >> (width.bit_length() - 1)
        return found


class Base:
    """The lanes of a register that addresses start from, with the plans made for them."""

    __slots__ = ("lanes", "plans")

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.plans: dict[str, Plan] = {}

    def at(self, offset: int) -> Address:
        """The address `offset` bytes further."""
        return Address(self, offset)


class Address:
    """Address lanes: a base and a constant offset. Becomes uint64 lanes when numpy asks for them."""

    __slots__ = ("base", "offset")

    def __init__(self, base: Base, offset: int) -> None:
        self.base = base
        self.offset = offset

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Lanes:
        lanes = self.signed() + self.offset
        return lanes.view(np.uint64).astype(dtype or np.uint64, copy=bool(copy))

    def signed(self) -> Lanes:
        """The base as int64 lanes; 32-bit ones are signed, so that a negative base and a positive
        offset meet.
        """
        return signed_lanes(self.base.lanes)


def signed_lanes(lanes: Lanes) -> Lanes:
    """Addresses as int64."""
    if lanes.dtype.itemsize == 8:
        return lanes.view(np.int64)
    return lanes.view(np.int32).astype(np.int64)


def gather(
    plan: Plan, window: Window, offset: int, type: ScalarType, count: int
) -> tuple[Lanes, ...]:
    """`count` values of `type` for each lane, from a window; the access is known to be legal."""
    width = type.nbytes * count
    source = window.elements(type.dtype, count, plan.low + offset)
    if count == 1:
        return (source.take(plan.index(width)),)
    return tuple(np.ascontiguousarray(source.take(plan.index(width), axis=0).T))


def scatter(
    plan: Plan, window: Window, offset: int, type: ScalarType, values: tuple[Lanes, ...]
) -> None:
    """Write `values` of each active lane to a window; of lanes that collide, the last wins."""
    count = len(values)
    index, mask = plan.index(type.nbytes * count), plan.mask
    if mask is not None:
        index = index[mask]
        values = tuple(v[mask] if v.ndim else v for v in values)
    if count == 1:
        window.elements(type.dtype, 1, plan.low + offset)[index] = values[0]
        return
    rows = np.empty((len(index), count), type.dtype)
    for column, value in enumerate(values):
        rows[:, column] = value
    unit = _UNITS.get(type.nbytes * count)
    if unit is None:  # two units of 16 bytes, because numpy has no wider number
        half = count // 2
        for part in range(2):
            whole = window.elements(_UNITS[16], 2, plan.low + offset)
            whole[index, part] = np.ascontiguousarray(
                rows[:, part * half : (part + 1) * half]
            ).view(_UNITS[16])[:, 0]
        return
    window.elements(unit, 1, plan.low + offset)[index] = rows.view(unit)[:, 0]


# Numbers as wide as a vector: numpy assigns them about ten times faster than rows.
_UNITS: Final[dict[int, np.dtype[Any]]] = {
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}


def make_plan(machine: LaneMachine, space: str, lanes: Lanes, mask: Lanes | None) -> Plan:
    """Plan accesses to `space` ("global", "shared" or "param") from a base for the lanes of `mask`,
    at least one.
    """
    addresses = signed_lanes(lanes)
    if addresses.ndim == 0 or len(addresses) != machine.selection.count:
        addresses = np.full(machine.selection.count, addresses, np.int64)
    if mask is not None:
        addresses = np.where(mask, addresses, addresses[int(mask.argmax())])
    low, high = int(addresses.min()), int(addresses.max())
    relative = addresses - low
    spread = int(np.bitwise_or.reduce(relative)) & (_WIDEST - 1)
    if space == "shared":
        if machine.selection.shared_base is not None:
            relative += machine.selection.shared_base
        return Plan(
            low, high, spread, relative, mask, machine.shared.window, 0, machine.shared.nbytes
        )
    if space == "param":
        window = machine.params
        return Plan(low, high, spread, relative, mask, window, 0, len(window.data), writable=False)
    return Plan(low, high, spread, relative, mask, None, 0, 0)


def shared_stride(nbytes: int) -> int:
    """Bytes from one CTA's shared memory to the next one's."""
    return -(-nbytes // _WIDEST) * _WIDEST


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The shared memory of all CTAs of a batch, poisoned at first; each CTA addresses it from 0."""

    nbytes: int
    stride: int
    window: Window

    @classmethod
    def poisoned(cls, nbytes: int, ctas: int) -> SharedMemory:
        """Fresh shared memory for `ctas` CTAs of `nbytes` each."""
        stride = shared_stride(nbytes)
        data = np.full(stride * ctas // 4, POISON, np.uint32).view(np.uint8)
        return cls(nbytes, stride, Window(0, data))
