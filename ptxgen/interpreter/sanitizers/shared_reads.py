"""The reads of shared memory that a happens-before race detector keeps, by the clocks of
`ptxgen.interpreter.sanitizers.clocks`.

Reads are only logged; they are put into the shadow, which has the last read of each unit by each warp, and by
its twin, when a write to the same range of addresses comes before a barrier.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict
from ptxgen.interpreter.sanitizers.stamps import INSTR_MASK

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.exchanges import Exchanges
    from ptxgen.interpreter.sanitizers.shared_blocks import Blocks, Product

    Lanes = np.ndarray[Any, np.dtype[Any]]

# The bits of a stamp of a read: clock << 32 | instruction << 11 | lane in the warp.
_READ_CLOCK: Final = 32
_READ_INSTR: Final = 11
_READ_LANE: Final = 63
_SEVERAL: Final = 63  # more than one lane has read with this clock
_LOG_LIMIT: Final = 4096  # reads that may be logged
_NOTED_LIMIT: Final = 256  # records of the ranges of such reads


@dataclass(slots=True)
class _Reads:
    """Logged reads by warps with the same clocks, kept until the floors of all of their `clusters` have
    reached `newest`, the newest of these clocks.
    """

    version: int  # version of the clocks
    ids: Lanes
    clusters: Lanes
    clock: Lanes  # clocks of all warps at the read
    newest: Lanes
    entries: list[tuple[Access, int]] = field(default_factory=list)
    low: int = sys.maxsize  # the range of units of a CTA in which all entries lie
    high: int = 0
    readers: Lanes | None = None  # by warp, whether it has read; only if it was asked for

    def known(self, warp: int, clocks: Clocks) -> bool:
        """Whether a warp comes after all reads by warps of its cluster."""
        if self.version < 0:
            return False
        if self.readers is None:
            self.readers = np.zeros(len(self.clock), np.bool_)
            self.readers[self.ids // WARP] = True
        cluster = slice(warp // clocks.group * clocks.group, (warp // clocks.group + 1) * clocks.group)
        known = clocks.known[warp, : clocks.group] >= self.clock[cluster]
        return bool((known | ~self.readers[cluster]).all())

    def meets(self, access: Access) -> bool:
        """Whether any entry has units in the range of an access."""
        return (
            self.low < access.high
            and access.low < self.high
            and any(a.low < access.high and access.low < a.high for a, _ in self.entries)
        )


class SharedReads:
    """The reads of the shared memory of all CTAs of a batch; `units` is the number of units of a CTA.
    There are `blocks` if warps multiply asynchronously.
    """

    def __init__(self, clocks: Clocks, ctas: int, units: int, blocks: Blocks | None) -> None:
        self._clocks = clocks
        self._units = ctas * units
        self._blocks = blocks
        agents = clocks.group * (1 + (blocks is not None))
        self._read = np.zeros(agents * ctas * units, np.int64)  # by agent, then unit
        self._logged: list[_Reads] = []
        # By key, the last reads of the same units, with the stamps of the twins that have started them.
        self._products: dict[Any, tuple[Product, Lanes]] = {}
        self._entries = 0
        self._noted: list[_Reads] = []  # reads already in `_read`, kept for their ranges
        self._floor = clocks.floor
        # By instruction: whether it is a volatile access to an address that is not a flag.
        self.volatile: Lanes = np.zeros(1, np.bool_)
        self.exchanges: Exchanges | None = None  # between lanes of a warp
        self._clusters_of: tuple[Lanes, Lanes] = (np.empty(0, np.int64), np.empty(0, np.int64))

    def oldest(self, ids: Lanes) -> int:
        """The newest stamp that all warps of the clusters of lanes know of all others."""
        self._refresh()
        return int(self._floor[self._clusters(ids)].min())

    def log(self, access: Access, at: int) -> None:
        """Log a read of lanes by instruction `at`."""
        clocks = self._clocks
        last = self._logged[-1] if self._logged else None
        if last is None or last.version != clocks.version or last.ids is not access.ids:
            clusters = self._clusters(access.ids)
            clock = clocks.clock.copy()
            newest = clock.reshape(-1, clocks.group)[clusters].max(axis=1)
            last = _Reads(clocks.version, access.ids, clusters, clock, newest)
            self._logged.append(last)
        last.entries.append((access, at))
        last.low, last.high = min(last.low, access.low), max(last.high, access.high)
        self._entries += 1
        if self._entries > _LOG_LIMIT:
            self._note(0, self._units)

    def _note(self, low: int, high: int) -> None:
        """Put logged reads of units in this range into the shadow."""
        some = False
        for reads in self._logged:
            if reads.low >= high or low >= reads.high:
                continue
            met = [(a, at) for a, at in reads.entries if a.low < high and low < a.high]
            if not met:
                continue
            some = True
            for access, at in met:
                self._note_read(access, at, reads.clock)
            self._noted.append(replace(reads, entries=met))
            reads.entries = [(a, at) for a, at in reads.entries if not (a.low < high and low < a.high)]
        if some:
            self._drop(lambda r: not r.entries)
            self._forget_noted()

    def _drop(self, over: Callable[[_Reads], bool]) -> None:
        self._logged = [r for r in self._logged if not over(r)]
        self._entries = sum(len(r.entries) for r in self._logged)

    def _note_products(self, low: int, high: int) -> None:
        """Put multiplications that have read units of this range into the shadow."""
        for key, (product, stamps) in list(self._products.items()):
            if product.low < high and low < product.high:
                self._note_twins(product.access(), product.at, stamps)
                del self._products[key]

    def _note_twins(self, access: Access, at: int, stamps: Lanes) -> None:
        agent = self._clocks.column(access.ids, True)
        stamp = np.repeat(stamps, len(access.ids) // len(stamps))
        mine = (stamp << _READ_CLOCK) | (at << _READ_INSTR) | (access.ids % WARP)
        units = access.units() + (agent * self._units)[:, None]
        # Reads of other ranges may have been put there out of order: the newest stays.
        self._read[units] = np.maximum(self._read[units], mine[:, None])

    def _note_read(self, access: Access, at: int, clock: Lanes) -> None:
        agent = self._clocks.column(access.ids, False)
        units = access.units() + (agent * self._units)[:, None]
        mine = ((clock[access.ids // WARP] << _READ_CLOCK) | (at << _READ_INSTR) | (access.ids % WARP))[
            :, None
        ]
        before = self._read[units]
        others = ((before >> _READ_CLOCK) == (mine >> _READ_CLOCK)) & (
            (before & _READ_LANE) != (mine & _READ_LANE)
        )
        stamps = np.where(others, mine | _SEVERAL, mine)
        # Reads of other ranges may have been put there out of order: the newest stays.
        stamps = np.where((before >> _READ_CLOCK) > (mine >> _READ_CLOCK), before, stamps)
        self._read[units] = stamps
        several = self._read[units] != stamps
        if several.any():
            self._read[units[several]] |= _SEVERAL

    def start_product(self, product: Product, stamp: Lanes) -> None:
        """Log the reads of multiplications, by the stamps of their twins."""
        assert self._blocks is not None
        self._blocks.read(product, stamp)
        # Later reads of the same units hide earlier ones.
        self._products[product.key()] = product, stamp
        if len(self._products) > _NOTED_LIMIT:
            self._note_products(0, self._units)

    def conflicts(self, access: Access, at: int, *, volatile: bool) -> list[Conflict]:
        """The conflicts of a write by instruction `at` with earlier reads that nothing orders before it.
        `volatile` says that volatile reads conflict, too.
        """
        self._refresh()
        self._note(access.low, access.high)
        after_products = self._blocks is None or self._blocks.is_after_reads(access)
        if not after_products:
            self._note_products(access.low, access.high)
        elif all(self._settled(reads, access) for reads in self._noted):
            return []
        clocks = self._clocks
        agents = np.arange(clocks.group * (1 + (self._blocks is not None)))
        stamps = self._read[access.units()[:, :, None] + agents * self._units]
        same_agent = agents == clocks.column(access.ids, False)[:, None, None]
        same = same_agent & ((stamps & _READ_LANE) == (access.ids % WARP)[:, None, None])
        known = clocks.known[access.ids // WARP, : len(agents)][:, None, :]
        wrong = ((stamps >> _READ_CLOCK) > known) & ~same
        if not volatile:
            wrong &= ~self.volatile.take(stamps >> _READ_INSTR & INSTR_MASK, mode="clip")
        if (wrong & same_agent).any():
            wrong &= ~(same_agent & self._met_readers(access, stamps))
        if wrong.any():
            wrong &= (agents >= clocks.group) | ~self._released_by_readers(access, stamps)
        if (wrong & same_agent).any() and self.exchanges is not None:
            mine = np.nonzero(wrong & same_agent)
            met, ids = stamps[mine], access.ids[mine[0]]
            wrong[mine] = ~self.exchanges.ordered(at, ids, met & _READ_LANE, _reader(met), met >> _READ_CLOCK)
        if not wrong.any():
            return []
        row, column, reader = (int(i[0]) for i in np.nonzero(wrong))
        stamp = int(stamps[row, column, reader])
        lane = stamp & _READ_LANE
        warp = int(access.ids[row]) // WARP // clocks.group * clocks.group + reader % clocks.group
        other = -1 if lane == _SEVERAL else warp * WARP + lane
        unit = int(access.first[row]) + column
        by, clock = _reader(stamp), stamp >> _READ_CLOCK
        if reader >= clocks.group:
            return [Conflict("race", row, unit, by, other, "was read by", clock)]
        others_arrived = int(clocks.reached(access.ids[row] // WARP, np.array(warp))) >= clock
        return [Conflict("race", row, unit, by, other, "was read by", others_arrived=others_arrived)]

    def _settled(self, reads: _Reads, access: Access) -> bool:
        """Whether an access has no conflict with some reads: no units in common, or the one lane that makes
        it comes after them.
        """
        if not reads.meets(access):
            return True
        first = int(access.ids[0])
        return first == int(access.ids[-1]) and reads.known(first // WARP, self._clocks)

    def _met_readers(self, access: Access, stamps: Lanes) -> Lanes:
        """Whether lanes have synchronised, in a part of their warps, with the lanes of their warps
        that have read with these stamps, `[lanes, width, agents]`.
        """
        clocks, ids = self._clocks, np.broadcast_to(access.ids[:, None, None], stamps.shape)
        lane, clock = stamps & _READ_LANE, stamps >> _READ_CLOCK
        one = clocks.met(ids, ids // WARP * WARP + lane % WARP, clock)
        met: Lanes = np.where(lane == _SEVERAL, clocks.met_some(ids, clock), one)
        return met

    def _released_by_readers(self, access: Access, stamps: Lanes) -> Lanes:
        """Whether lanes come after arrivals of the lanes that have read with these stamps,
        `[lanes, width, agents]`, without the rest of their warps.
        """
        clocks, ids = self._clocks, access.ids[:, None, None]
        cluster = ids // (WARP * clocks.group)
        warp = cluster * clocks.group + np.arange(stamps.shape[-1]) % clocks.group
        return clocks.released_in_part(ids, warp, stamps & _READ_LANE, stamps >> _READ_CLOCK)

    def _over(self, reads: _Reads) -> bool:
        """Whether all warps come after the reads."""
        return reads.version >= 0 and bool((self._floor[reads.clusters] >= reads.newest).all())

    def _refresh(self) -> None:
        """Forget reads that all warps come after."""
        if self._floor is not self._clocks.floor:
            self._floor = self._clocks.floor
            self._drop(self._over)
            self._noted = [r for r in self._noted if not self._over(r)]

    def _forget_noted(self) -> None:
        # The exact ranges only save time.
        if len(self._noted) > _NOTED_LIMIT:
            none = np.empty(0, np.int64)
            whole = Access(none, none, 1, 0, self._units)
            self._noted = [_Reads(-1, none, none, none, none, [(whole, 0)], 0, self._units)]

    def _clusters(self, ids: Lanes) -> Lanes:
        if self._clusters_of[0] is not ids:
            clusters = ids // (WARP * self._clocks.group)
            self._clusters_of = ids, clusters[np.flatnonzero(np.diff(clusters, prepend=-1))]
        return self._clusters_of[1]


def _reader(stamps: Any) -> Any:
    """The numbers of the instructions in stamps of reads."""
    return stamps >> _READ_INSTR & ((1 << (_READ_CLOCK - _READ_INSTR)) - 1)
