"""Keeps track of the tiles that copies started by `k.tma.async_stores` may still read, as far as this is
known while a kernel is built.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ptxgen.dsl.grid import Extents
from ptxgen.dsl.matrices.builder_methods import Matrices
from ptxgen.dsl.tiles import SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Var
from ptxgen.errors import TypeMismatchError
from ptxgen.ir import Origin, Reg
from ptxgen.records import dataclass
from ptxgen.target import Target

BlockPath = tuple[tuple[int, str], ...]  # the number and the kind of each open block, outermost first

_CONDITIONAL = ("when", "otherwise", "only_if")  # blocks of which a thread may run one and not another


class Extent(NamedTuple):
    """`nbytes` of shared memory in `region`, from `offset` bytes after the address in register `base` on;
    None for a register that changes.
    """

    region: SharedTile
    base: Reg | None
    offset: int
    nbytes: int

    @classmethod
    def of(cls, at: TilePointer, nbytes: int) -> Extent:
        """The extent of `nbytes` bytes of shared memory from a pointer on."""
        return cls(at.tile, None if isinstance(at.base, Var) else at.value.reg, at.offset, nbytes)

    @property
    def is_constant(self) -> bool:
        """Whether the address is the same each time that the code runs."""
        return self.base == self.region.pointer().value.reg

    @property
    def is_region(self) -> bool:
        """Whether the extent is the whole region of shared memory."""
        start = self.region.pointer().offset
        end = start + self.region.rows * self.region.row_bytes
        return self.is_constant and self.offset <= start and end <= self.offset + self.nbytes

    def has(self, other: Extent, *, later: bool) -> bool:
        """Whether `other` is known to lie in this extent; `later` is in another iteration of a loop, in
        which registers may hold other addresses.
        """
        if other.region is not self.region:
            return False
        if self.is_region:
            return True
        same = self.base is not None and self.base == other.base and (self.is_constant or not later)
        return (
            same and self.offset <= other.offset and other.offset + other.nbytes <= self.offset + self.nbytes
        )


@dataclass(eq=False)
class Copy:
    """A copy of tile `name` from shared memory, which the thread of `stores` started at `origin` inside of
    the blocks of `path`; `owner` is the owner of the tile's memory.
    """

    name: str
    extent: Extent
    owner: object
    stores: Hashable
    origin: Origin
    path: BlockPath


class _Event(NamedTuple):
    """A step in the order of the kernel's text: a copy that starts, a wait for all copies of `stores` but
    the newest `pending`, or a write to `written` inside of the blocks of `path`.
    """

    copy: Copy | None = None
    stores: Hashable = None
    pending: int = 0
    written: Extent | None = None
    origin: Origin | None = None
    path: BlockPath = ()


class PendingReads:
    """The copies that may still read their tiles, and those that may still write global memory, newest
    last.

    A loop is replayed at its end: copies that are pending there are pending at its beginning, too.
    """

    def __init__(self) -> None:
        self._reading: list[Copy] = []
        self._writing: list[Copy] = []
        self._left: list[Copy] = []  # reading where the code of a role ends
        self._events: list[_Event] = []

    def started(self, copy: Copy) -> None:
        """Note that a copy from shared memory starts; it is a bulk group by itself in its thread."""
        self._reading.append(copy)
        self._writing.append(copy)
        self._events.append(_Event(copy=copy))

    def waited(self, stores: Hashable, pending: int, *, read: bool) -> None:
        """Note that the thread of `stores` has waited for all its copies but the newest `pending`: with
        `read` only until they have read their tiles.
        """
        self._events.append(_Event(stores=stores, pending=pending))
        self._reading = _newest(self._reading, stores, pending)
        if not read:
            self._writing = _newest(self._writing, stores, pending)

    def completed(self, stores: Hashable) -> None:
        """Note that the copies of `stores` are complete, which only their thread knows."""
        self._writing = _newest(self._writing, stores, 0)

    def written(self, extent: Extent, origin: Origin, path: BlockPath) -> None:
        """Note a store to shared memory. Raises `TypeMismatchError` if a pending copy is known to read
        it.
        """
        self._events.append(_Event(written=extent, origin=origin, path=path))
        _check(self._reading, extent, origin, path, later=False)

    def released(self, owner: object, what: str, origin: Origin, path: BlockPath) -> None:
        """Raise `TypeMismatchError` if a pending copy reads memory of `owner`, which goes to other
        threads.
        """
        for copy in self._reading:
            if copy.owner is owner and not _are_exclusive(copy.path, path):
                raise TypeMismatchError(
                    f"{what} is released at {origin} while the copy of tile {copy.name!r} started at "
                    f"{copy.origin} may still read it; wait before with wait_read()"
                )

    def mark(self) -> int:
        """The number of the step that the kernel has reached, with which `replay` begins."""
        return len(self._events)

    def replay(self, start: int) -> None:
        """Follow the steps since `start`, the beginning of a loop, once more from its end. Raises
        `TypeMismatchError` if they write what a copy of the previous iteration reads.
        """
        reading = list(self._reading)
        for event in self._events[start:] if reading else ():
            if event.copy is not None:
                reading.append(event.copy)
            elif event.written is None:
                reading = _newest(reading, event.stores, event.pending)
            else:
                assert event.origin is not None  # every write has one
                _check(reading, event.written, event.origin, event.path, later=True)

    def unfinished(self, start: int) -> Copy | None:
        """A copy started since step `start` that may still write global memory; None if there is none."""
        since = [event.copy for event in self._events[start:]]
        return next((copy for copy in self._writing if copy in since), None)

    def land(self) -> None:
        """Note that the code of the present role ends; copies from shared memory may be pending."""
        self._left += self._reading
        self._reading, self._writing = [], []

    def require_landed(self, kernel: str) -> None:
        """Raise `TypeMismatchError` if the kernel does not wait for all reads: a CTA that has ended gives
        its shared memory to the next one.
        """
        for copy in [*self._left, *self._reading]:
            raise TypeMismatchError(
                f"kernel {kernel!r}: the copy of tile {copy.name!r} started at {copy.origin} may still read "
                "it where the code of its threads ends; wait after it with wait_read()"
            )


class GuardedStores(Matrices):
    """Refuses stores to tiles that pending copies are known to read."""

    def __init__(self, name: str, target: Target, block_shape: Extents) -> None:
        super().__init__(name, target, block_shape)
        self.pending_reads = PendingReads()

    def store(self, at: Pointer, values: Scalar | Sequence[Scalar]) -> None:
        """Write one element at a pointer, or 2 or 4 consecutive elements. Raises `TypeMismatchError` if a
        copy of `k.tma.async_stores` is known to read the element still.
        """
        super().store(at, values)
        if isinstance(at, TilePointer):
            count = len(values) if isinstance(values, Sequence) else 1
            self.note_write(Extent.of(at, count * at.dtype.nbytes))

    def note_write(self, extent: Extent) -> None:
        """Note that the last instruction writes shared memory. Raises `TypeMismatchError` if a copy of
        `k.tma.async_stores` is known to read it still.
        """
        origin = getattr(self._statements[-1], "origin", None)
        assert origin is not None  # the statement is an instruction that has just been emitted
        self.pending_reads.written(extent, origin, self.block_path)


def _newest(copies: list[Copy], stores: Hashable, count: int) -> list[Copy]:
    """The copies without those of `stores` that are older than its newest `count`."""
    of_stores = [copy for copy in copies if copy.stores == stores]
    old = of_stores[: len(of_stores) - count] if count < len(of_stores) else []
    return [copy for copy in copies if copy not in old] if old else copies


def _check(copies: list[Copy], extent: Extent, origin: Origin, path: BlockPath, *, later: bool) -> None:
    for copy in copies:
        if copy.extent.has(extent, later=later) and not _are_exclusive(copy.path, path):
            when = " in the iteration before" if later else ""
            raise TypeMismatchError(
                f"tile {copy.name!r} is written at {origin} while the copy started at {copy.origin}{when} "
                "may still read it; wait before with wait_read()"
            )


def _are_exclusive(one: BlockPath, other: BlockPath) -> bool:
    """Whether threads may run the code of one path or of the other, and not both: each of the paths is in a
    conditional block that the other one is not in.
    """
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return all(any(kind in _CONDITIONAL for _, kind in path[common:]) for path in (one, other))
