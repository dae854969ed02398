"""Shared memory by blocks of units, for asynchronous copies and multiplications, which access whole tiles.

A block has the stamp of the last write if all of its units have the same, and for each warp's twin the stamp
of the last multiplication that has read any of it. Nearly always they show that an access to a tile has no
conflict; where they do not, the race detectors look at its units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.conflicts import Access
from ptxgen.interpreter.sanitizers.stamps import ASYNC, CLOCK, CLOCK_MASK, PENDING

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.operations import Operations

    Lanes = np.ndarray[Any, np.dtype[Any]]

_BLOCK: Final = 256  # units of a block
_MIXED: Final = -1  # instead of the stamp of a block whose units have different ones


@dataclass(slots=True)
class Product:
    """The reads of multiplications that whole warps start, each given by one of `lanes`, by instruction `at`:
    `width` units from each of the units `first` of a CTA on, `[matrices, n]`. For each lane, `rows` has the
    number of its matrix, and `bases` the first unit of its CTA.
    """

    at: int
    lanes: Lanes
    first: Lanes
    rows: Lanes
    bases: Lanes
    width: int
    blocks: Lanes | None = None  # that each lane reads

    @property
    def low(self) -> int:
        """The lowest unit of a CTA that is read."""
        return int(self.first.min())

    @property
    def high(self) -> int:
        """The highest unit of a CTA that is read, plus 1."""
        return int(self.first.max()) + self.width

    def key(self) -> tuple[int, bytes]:
        """A key that reads of the same units by the same lanes and instruction share."""
        return self.at, b"".join(x.tobytes() for x in (self.lanes, self.bases, self.rows, self.first))

    def access(self) -> Access:
        """The accesses, as many for each lane."""
        units = self.first[self.rows] + self.bases[:, None]
        lanes = np.repeat(self.lanes, units.shape[1])
        return Access(lanes, units.reshape(-1), self.width, self.low, self.high)


class Blocks:
    """The blocks of the shared memory of all CTAs of a batch, `units` units each; `written` has the stamp of
    the last write to each unit.
    """

    def __init__(self, clocks: Clocks, operations: Operations, written: Lanes, units: int) -> None:
        self._clocks = clocks
        self._operations = operations
        self._of_units = written
        self._units = units
        self._of_cta = -(-units // _BLOCK)
        count = len(written) // units * self._of_cta if units else 0
        self._written = np.zeros(count, np.int64)
        self._read = np.zeros((clocks.group, count), np.int64)

    def _numbers(self, first: Lanes) -> Lanes:
        cta, unit = np.divmod(first, self._units)
        numbers: Lanes = cta * self._of_cta + unit // _BLOCK
        return numbers

    def _range(self, access: Access) -> slice:
        """The blocks from the first unit to the last one of an access by one lane to one CTA's memory."""
        first = int(access.first[0]) // self._units * self._of_cta
        return slice(first + access.low // _BLOCK, first + (access.high - 1) // _BLOCK + 1)

    def _units_of(self, blocks: slice) -> tuple[int, int]:
        """The first unit of blocks of one CTA, and the last one plus 1; its last block may have fewer."""
        cta, first = divmod(blocks.start, self._of_cta)
        high = min((first + blocks.stop - blocks.start) * _BLOCK, self._units)
        return cta * self._units + first * _BLOCK, cta * self._units + high

    def _of(self, product: Product) -> Lanes:
        """The blocks that each lane of a multiplication reads, `[lanes, n]`; some more than once."""
        if product.blocks is not None:
            return product.blocks
        met = np.zeros((len(product.first), self._of_cta), np.bool_)
        met[np.arange(len(met))[:, None], product.first // _BLOCK] = True
        counts = met.sum(axis=1)
        each = np.flatnonzero(met) % self._of_cta
        if (counts == counts[0]).all():
            blocks = each.reshape(len(met), -1)
        else:
            ends = np.cumsum(counts)
            which = np.minimum(np.arange(counts.max()), counts[:, None] - 1) + (ends - counts)[:, None]
            blocks = each[which]
        product.blocks = blocks[product.rows] + (product.bases // self._units * self._of_cta)[:, None]
        return product.blocks

    # ------------------------------------------------------------------------------------- writes

    def mix(self, access: Access) -> None:
        """Record that ordinary instructions write the units of an access."""
        self._written[self._numbers(access.first)] = _MIXED

    def put(self, access: Access) -> None:
        """Record that the stamps of the units of an access, which one lane makes, have changed."""
        blocks = self._range(access)
        low, high = self._units_of(blocks)
        if high - low != (blocks.stop - blocks.start) * _BLOCK:
            self._written[blocks] = _MIXED
            return
        units = self._of_units[low:high].reshape(-1, _BLOCK)
        newest = units.max(axis=1)
        same = newest == units.min(axis=1)
        self._written[blocks] = np.where(same, newest, _MIXED)

    def copy_is_after_writes(self, access: Access) -> bool:
        """Whether all blocks of an asynchronous access by one lane were last written by complete copies that
        it comes after, or never.
        """
        stamps = set(self._written[self._range(access)].tolist())
        if not all(s == 0 or ASYNC <= s < PENDING for s in stamps):
            return False
        numbers = np.array([s >> CLOCK & CLOCK_MASK for s in stamps if s], np.int64)
        return bool(self._operations.after(access.ids[:1], numbers).all())

    def product_is_after_writes(self, product: Product) -> bool:
        """Whether all blocks that multiplications read were last written by complete copies that the warps
        come after.
        """
        stamps = self._written[self._of(product)]
        if int(stamps.min()) < ASYNC or int(stamps.max()) >= PENDING:
            return False
        numbers = stamps >> CLOCK & CLOCK_MASK
        if (numbers == numbers[:, :1]).all():
            return bool(self._operations.after(product.lanes, numbers[:, 0]).all())
        return bool(self._operations.after(product.lanes[:, None], numbers).all())

    def land(self, access: Access, number: int) -> bool:
        """Record that the copy `number` is complete. Returns whether it was the last to write each of its
        blocks, and all of it; else the stamps of its units are left as they are.
        """
        blocks = self._range(access)
        stamps = self._written[blocks]
        stamp, (low, high) = int(stamps[0]), self._units_of(blocks)
        if stamp < PENDING or stamp >> CLOCK & CLOCK_MASK != number or (stamps != stamp).any():
            return False
        self._of_units[low:high] = self._written[blocks] = stamp - PENDING
        return True

    # -------------------------------------------------------------------------------------- reads

    def read(self, product: Product, stamps: Lanes) -> None:
        """Record that multiplications with these stamps read the blocks of their matrices."""
        # The stamps of a twin rise.
        self._read[self._clocks.column(product.lanes, False)[:, None], self._of(product)] = stamps[:, None]

    def is_after_reads(self, access: Access) -> bool:
        """Whether a write comes after all multiplications that have read the blocks of its units."""
        clocks, group = self._clocks, self._clocks.group
        warp = access.ids // WARP
        if access.ids[0] == access.ids[-1]:  # one lane, or a copy: other lanes are in rising order
            newest, warp = self._read[:, self._range(access)].max(axis=1), warp[0]
        else:
            newest = self._read[:, self._numbers(access.first)].T
        return bool((newest <= clocks.known[warp, group : 2 * group]).all())
