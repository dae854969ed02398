"""The access of lanes to memory.

An access is planned once for each value of its base register: the lowest and the highest address,
their common alignment and an index array are cached, so that accesses at many constant offsets from
one register cost one gather each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.address_map import RANK_REACH, RANK_SHIFT, split_rank
from ptxgen.interpreter.machine.arena import Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptxgen.interpreter.machine.address_map import Addresses
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.machine.lanes import Batch, Selection
    from ptxgen.isa.atomic_scans import Scan
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

# The value of undefined registers, of fresh shared memory and of bytes that are still being copied:
# a quiet NaN as f32.
POISON: Final = 0x7FC0DEAD

_WIDEST: Final = 32  # bytes of the widest access, and alignment of a CTA's shared memory
# By width of an access in bytes: its logarithm, as an array because numpy takes that faster than a number.
_SHIFTS: Final = {1 << n: np.array(n) for n in range(_WIDEST.bit_length())}


@dataclass(slots=True, eq=False)
class Plan:
    """The addresses of the active lanes in a space, before a constant offset is added.

    `relative` are the distances in bytes from `low`, the lowest address (including the offset of
    the CTA's shared memory), int64; inactive lanes have the value of an active one. `spread` has
    the low bits in which the addresses differ.
    """

    low: int
    high: int
    spread: int
    relative: Lanes
    mask: Lanes | None
    window: Window | None  # None: the lanes reach several buffers, or none
    first: int  # the first address that may be accessed
    last: int  # the end of the addresses that may be accessed
    writable: bool = True
    watched: bool = False  # whether the window is shared memory
    buffer: Buffer | None = None  # the array in global memory that `window` belongs to
    ids: Lanes | None = None  # numbers in the batch of the active lanes, made for the sanitizers
    units: Lanes | None = None  # `relative` of the active lanes in the sanitizers' units
    indices: dict[int, Lanes] = field(default_factory=dict)
    traffic: dict[Any, tuple[int, int, int]] = field(default_factory=dict)  # costs of the accesses

    def index(self, width: int) -> Lanes:
        """`relative` in units of `width` bytes, a power of two."""
        index = self.indices.get(width)
        if index is None:
            index = self.indices[width] = self.relative >> _SHIFTS[width]
        return index


class Base:
    """The lanes of a register that addresses are based on, with the plans made for them. `same` is the
    address, if it is known to be the same in all lanes.
    """

    __slots__ = ("inside", "lanes", "plans", "same")

    def __init__(self, lanes: Lanes, same: int | None = None) -> None:
        self.lanes = lanes
        self.same = same
        self.plans: dict[str, Plan] = {}
        self.inside: dict[str, Base] = {}  # by space: these addresses, if generic, converted to it

    def at(self, offset: int) -> Address:
        """The address `offset` bytes further."""
        return Address(self, offset)


class Address:
    """The address of each lane: a base and a constant offset. numpy sees it as uint64 lanes."""

    __slots__ = ("base", "offset")

    def __init__(self, base: Base, offset: int) -> None:
        self.base = base
        self.offset = offset

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Lanes:
        lanes = self.signed() + self.offset
        return lanes.view(np.uint64).astype(dtype or np.uint64, copy=bool(copy))

    def signed(self) -> Lanes:
        """The base as int64 lanes. 32-bit bases count as signed, so that a negative base and a
        positive offset cancel.
        """
        return signed_lanes(self.base.lanes)


def signed_lanes(lanes: Lanes) -> Lanes:
    """Addresses as int64."""
    if lanes.dtype.itemsize == 8:
        return lanes.view(np.int64)
    return lanes.view(np.int32).astype(np.int64)


def gather(plan: Plan, window: Window, offset: int, type: ScalarType, count: int) -> tuple[Lanes, ...]:
    """`count` values of `type` for each lane from a window; the access is known to be legal."""
    width = type.nbytes * count
    source = window.elements(type.dtype, count, plan.low + offset)
    if count == 1:
        return (source.take(plan.index(width)),)
    return tuple(np.ascontiguousarray(source.take(plan.index(width), axis=0).T))


def scatter(plan: Plan, window: Window, offset: int, type: ScalarType, values: tuple[Lanes, ...]) -> None:
    """Write `values` of each active lane to a window; if lanes collide, the last one wins."""
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
            whole[index, part] = np.ascontiguousarray(rows[:, part * half : (part + 1) * half]).view(
                _UNITS[16]
            )[:, 0]
        return
    window.elements(unit, 1, plan.low + offset)[index] = rows.view(unit)[:, 0]


# Numbers as wide as a vector: numpy assigns them about ten times faster than rows.
_UNITS: Final[dict[int, np.dtype[Any]]] = {
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}


def make_plan(
    selection: Selection,
    shared: SharedMemory,
    spaces: Mapping[str, Space],
    space: str,
    base: Base,
    mask: Lanes | None,
) -> Plan:
    """Plan accesses to a space from a base for the lanes of `mask`, at least one. `spaces` are all
    spaces but shared, global and generic memory.
    """
    ctas = selection.shared_base
    ranks = selection.rank_base if space == "shared" else None
    if base.same is not None and ranks is None:
        low = high = base.same
        relative, spread = np.zeros(selection.count, np.int64), 0
    else:
        addresses = signed_lanes(base.lanes)
        if ranks is None:
            addresses = _of_active(addresses, mask)
        else:
            addresses, ctas = _in_clusters(selection, addresses, ranks, mask)
        first = int(addresses.argmin())  # faster than `min`
        lowest = addresses[first : first + 1]
        low, high = lowest.item(), addresses.item(int(addresses.argmax()))
        relative = addresses - lowest
        spread = int(np.bitwise_or.reduce(relative)) & (_WIDEST - 1)
    if space == "shared":
        if ctas is not None:
            relative += ctas
        return Plan(low, high, spread, relative, mask, shared.window, 0, shared.nbytes, watched=True)
    known = spaces.get(space)
    if known is None:
        return Plan(low, high, spread, relative, mask, None, 0, 0)
    if known.stride:
        relative += selection.ids * known.stride
    last = known.first + known.nbytes
    return Plan(low, high, spread, relative, mask, known.window, known.first, last, writable=known.writable)


def _in_clusters(
    selection: Selection, addresses: Lanes, ranks: Lanes, mask: Lanes | None
) -> tuple[Lanes, Lanes | None]:
    """Addresses in the shared memory of CTAs of clusters, without the ranks of these, and the position of
    the memory of each lane's CTA. `ranks` are the addresses of byte 0 of the lanes' own CTAs.
    """
    offsets = _of_active(addresses - ranks, mask)
    if int(offsets.min()) >= -RANK_REACH and int(offsets.max()) < RANK_REACH:
        return offsets, selection.shared_base  # in the lanes' CTAs
    addresses, ctas = in_cluster(selection.batch, selection.ids, _of_active(addresses, mask))
    return addresses, ctas * selection.batch.shared_stride


def _of_active(lanes: Lanes, mask: Lanes | None) -> Lanes:
    """Lanes whose inactive ones have the value of an active one."""
    return lanes if mask is None else np.where(mask, lanes, lanes[int(mask.argmax())])


def in_cluster(batch: Batch, lanes: Addresses, addresses: Addresses) -> tuple[Addresses, Addresses]:
    """For addresses in shared memory that lanes of a batch use, one or int64 arrays: the offset in the CTA
    that the address lies in, and the number of this CTA in the batch.
    """
    mine = lanes // batch.width
    ranks = split_rank(addresses)[0]
    known = (ranks >= 0) & (ranks < batch.cluster_size)
    # A rank that does not exist stays part of the address, which is then out of bounds.
    return addresses - (ranks << RANK_SHIFT) * known, mine + (ranks - mine % batch.cluster_size) * known


def in_own_cta(batch: Batch, lane: int, address: int) -> int:
    """The offset of an address in shared memory if it lies in the lane's CTA, else the address itself."""
    offset, cta = in_cluster(batch, lane, address)
    return offset if cta == lane // batch.width else address


@dataclass(slots=True)
class Space:
    """A state space that is one row of bytes from address `first`, the same for all threads, or
    with a `stride`, `nbytes` for each lane.
    """

    first: int
    nbytes: int
    window: Window
    stride: int = 0
    writable: bool = False

    @classmethod
    def local(cls, first: int, nbytes: int, lanes: int) -> Space:
        """New local memory, `nbytes` for each lane, filled with poison."""
        stride = shared_stride(nbytes)
        data = np.full(stride * lanes // 4, POISON, np.uint32).view(np.uint8)
        return cls(first, nbytes, Window(first, data), stride, writable=True)


def shared_stride(nbytes: int) -> int:
    """The bytes from one CTA's shared memory to the next one's."""
    return -(-nbytes // _WIDEST) * _WIDEST


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The shared memory of all CTAs of a batch, poisoned at first; each CTA addresses its part from 0."""

    nbytes: int
    stride: int
    window: Window

    @classmethod
    def poisoned(cls, nbytes: int, ctas: int) -> SharedMemory:
        """New shared memory for `ctas` CTAs of `nbytes` each, filled with poison."""
        stride = shared_stride(nbytes)
        data = np.full(stride * ctas // 4, POISON, np.uint32).view(np.uint8)
        return cls(nbytes, stride, Window(0, data))


class Meetings:
    """The lanes of an atomic operation grouped by the cells that they update, given the index of
    each lane's cell; several lanes may update one cell.
    """

    def __init__(self, lanes: Lanes, index: Lanes) -> None:
        order = np.argsort(index, kind="stable")
        self._lanes = lanes[order]  # by cell, and in rising order for each cell
        self._index = index[order]
        changes = self._index[1:] != self._index[:-1]
        self._starts = np.flatnonzero(np.concatenate(([True], changes)))

    def scan(self, scan: Scan, cells: Lanes, operands: tuple[Lanes, ...], old: Lanes) -> bool:
        """Update the cells for all lanes at once, and write to `old`, for each lane, the value of its cell
        before that lane's update. False if nothing was done, because no lanes share a cell or the scan
        declined.
        """
        if len(self._starts) == len(self._lanes):
            return False
        where, count = self._index[self._starts], len(self._lanes)
        ordered = tuple(x[self._lanes] if np.ndim(x) else np.full(count, x, cells.dtype) for x in operands)
        result = scan(cells[where], self._starts, ordered)
        if result is None:
            return False
        old[self._lanes], cells[where] = result
        return True

    def rounds(self) -> list[Lanes]:
        """Groups of lanes that share no cell; the lanes of one cell are in rising order over the groups."""
        lengths = np.diff(np.append(self._starts, len(self._lanes)))
        rank = np.arange(len(self._lanes)) - np.repeat(self._starts, lengths)
        by_rank = np.argsort(rank, kind="stable")
        bounds = np.cumsum(np.bincount(rank))[:-1]
        return [np.sort(self._lanes[part]) for part in np.split(by_rank, bounds)]
