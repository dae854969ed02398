"""Blocks of shared memory say that a product comes after the copies of its tiles only if it does."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from ptxgen.interpreter.sanitizers.conflicts import Access
from ptxgen.interpreter.sanitizers.shared_blocks import Blocks, Product
from ptxgen.interpreter.sanitizers.stamps import ASYNC, CLOCK, PENDING

BLOCK: Final = 256
UNITS: Final = 4 * BLOCK  # of each of two CTAs


class Tiles:
    """The blocks of two CTAs, each of which a copy of its number plus 1 has written."""

    def __init__(self, *waited: int) -> None:
        done = np.array(waited)
        operations: Any = SimpleNamespace(
            after=lambda ids, numbers: np.isin(np.broadcast_arrays(ids, numbers)[1], done)
        )
        clocks: Any = SimpleNamespace(group=4)
        self.written = np.zeros(2 * UNITS, np.int64)
        self.blocks = Blocks(clocks, operations, self.written, UNITS)
        for block in range(8):
            self.starts(block, block + 1)
            assert self.blocks.land(access(block), block + 1)

    def starts(self, block: int, number: int) -> None:
        """A copy starts to write a block."""
        self.written[block * BLOCK : (block + 1) * BLOCK] = PENDING | ASYNC | number << CLOCK
        self.blocks.put(access(block))

    def is_after(self, *tiles: list[int], cta: int = 0) -> bool:
        """Whether products come after the writes of their tiles, each given by two blocks of a CTA."""
        first = np.array([[block * BLOCK for block in tile] for tile in tiles])
        rows, lanes = np.arange(len(tiles)), np.arange(len(tiles)) * 32
        bases = np.full(len(tiles), cta * UNITS)
        return self.blocks.product_is_after_writes(Product(0, lanes, first, rows, bases, 16))


def access(block: int) -> Access:
    first = block % 4 * BLOCK
    return Access(np.zeros(1, np.int64), np.array([block * BLOCK]), BLOCK, first, first + BLOCK)


@pytest.mark.parametrize(("waited", "wanted"), [((1, 2), True), ((1,), False), ((2,), False)])
def test_a_product_comes_after_each_copy_of_its_tile(waited: tuple[int, ...], wanted: bool) -> None:
    assert Tiles(*waited).is_after([0, 1]) == wanted


@pytest.mark.parametrize(("waited", "wanted"), [((1, 2, 3), True), ((1, 2), False), ((1, 3), False)])
def test_tiles_may_lie_in_different_numbers_of_blocks(waited: tuple[int, ...], wanted: bool) -> None:
    assert Tiles(*waited).is_after([0, 0], [1, 2]) == wanted


def test_ordinary_writes_are_seen_in_the_block_and_cta_that_they_are_in() -> None:
    tiles = Tiles(*range(1, 9))
    tiles.blocks.mix(Access(np.zeros(1, np.int64), np.array([UNITS + BLOCK]), 1, BLOCK, BLOCK + 1))
    fine = [(cta, block) for cta in (0, 1) for block in range(4) if tiles.is_after([block, block], cta=cta)]
    assert fine == [(cta, block) for cta in (0, 1) for block in range(4) if (cta, block) != (1, 1)]


def test_no_copy_has_written_a_block_that_a_lane_fills() -> None:
    tiles = Tiles(1, 2)
    tiles.written[:BLOCK] = 1 << CLOCK
    tiles.blocks.put(access(0))
    assert not tiles.is_after([0, 0])
    assert not tiles.is_after([0, 1])


def test_a_copy_does_not_land_for_a_later_one_to_its_block() -> None:
    tiles = Tiles(1, 9)
    tiles.starts(0, 9)
    assert not tiles.blocks.land(access(0), 1)
    assert not tiles.is_after([0, 0])
    assert tiles.blocks.land(access(0), 9)
    assert tiles.is_after([0, 0])


def test_the_accesses_of_products_have_their_units_of_each_cta() -> None:
    first, rows = np.array([[32, 512, 768], [64, 96, 128]]), np.array([1, 0])
    product = Product(0, np.array([0, 32]), first, rows, np.array([0, UNITS]), 16)
    got = product.access()
    assert got.ids.tolist() == [0, 0, 0, 32, 32, 32]
    assert got.first.tolist() == [64, 96, 128, UNITS + 32, UNITS + 512, UNITS + 768]
    assert (got.width, got.low, got.high) == (16, 32, 784)


def test_a_kernel_without_shared_memory_has_no_blocks() -> None:
    nothing: Any = SimpleNamespace(group=4)
    blocks = Blocks(nothing, nothing, np.zeros(0, np.int64), 0)
    assert isinstance(blocks, Blocks)


# ----------------------------------------------------------------------------- block by block

PARTLY: Final = 3 * BLOCK + 64  # units of a CTA, whose last block is not whole
CTAS: Final = 3
WARPS: Final = 4  # of a cluster; each CTA here is one of its own
MIXED: Final = -1  # instead of the stamp of a block


class ByBlock:
    """What blocks should say, in dictionaries by CTA and number, with a random history of accesses."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.done: set[tuple[int, int]] = set()  # warps and the copies that they come after
        operations: Any = SimpleNamespace(
            after=lambda ids, numbers: np.vectorize(lambda i, n: (i // 32, n) in self.done, otypes=[bool])(
                *np.broadcast_arrays(ids, numbers)
            )
        )
        self.known = np.zeros((CTAS * WARPS, 5 * WARPS), np.int64)
        clocks: Any = SimpleNamespace(
            group=WARPS, known=self.known, column=lambda lanes, twin: lanes // 32 % WARPS + WARPS * twin
        )
        self.units = np.zeros(CTAS * PARTLY, np.int64)
        self.blocks = Blocks(clocks, operations, self.units, PARTLY)
        self.stamps = {(cta, block): 0 for cta in range(CTAS) for block in range(4)}
        self.reads = {(*at, twin): 0 for at in self.stamps for twin in range(WARPS)}
        self.under_way: list[tuple[Access, int]] = []
        self.count = 0

    def copied(self) -> Access:
        """Rows that one lane copies to a CTA: a part of a block, whole blocks, or some."""
        cta, low = self.rng.randrange(CTAS), self.rng.randrange(4) * BLOCK
        width = self.rng.choice((1, 16))
        high = min(low + self.rng.choice((width, BLOCK, BLOCK + width, 2 * BLOCK, 3 * BLOCK)), PARTLY)
        first = np.arange(low, high, width) + cta * PARTLY
        if self.rng.random() < 0.2:
            first = first[[0, -1]]
        lane = self.rng.randrange(CTAS * WARPS * 32)
        return Access(np.full(len(first), lane), first, width, low, high)

    def stored(self) -> Access:
        """Units that lanes store to in their CTA, the lanes in rising order; or a block that one fills."""
        cta, count = self.rng.randrange(CTAS), self.rng.randrange(1, 5)
        if self.rng.random() < 0.1:
            lane, low = cta * WARPS * 32, self.rng.randrange(3) * BLOCK
            first = np.arange(low, low + BLOCK)
            return Access(np.full(BLOCK, lane), first + cta * PARTLY, 1, low, low + BLOCK)
        lanes = np.array(sorted(self.rng.sample(range(WARPS * 32), count))) + cta * WARPS * 32
        first = np.array([self.rng.randrange(PARTLY // 16) * 16 for _ in lanes])
        return Access(lanes, first + cta * PARTLY, 16, int(first.min()), int(first.max()) + 16)

    def product(self) -> Product:
        """Reads of two or three matrices by each of some warps of a CTA."""
        cta, count = self.rng.randrange(CTAS), self.rng.randrange(1, WARPS + 1)
        width = self.rng.choice((1, 2, 3))
        first = [[self.rng.randrange(3 * BLOCK // 16) * 16 for _ in range(width)] for _ in range(3)]
        rows = np.array([self.rng.randrange(3) for _ in range(count)])
        lanes = (np.arange(count) + cta * WARPS) * 32
        return Product(0, lanes, np.array(first), rows, np.full(count, cta * PARTLY), 16)

    def range_of(self, access: Access) -> list[tuple[int, int]]:
        cta = int(access.first[0]) // PARTLY
        return [
            (cta, block)
            for block in range(4)
            if access.low < (block + 1) * BLOCK and access.high > block * BLOCK
        ]

    def read_by(self, product: Product) -> list[tuple[int, int, int]]:
        """The lane, CTA and block of each read."""
        each = zip(product.lanes.tolist(), product.rows.tolist(), product.bases.tolist(), strict=True)
        return [
            (lane, base // PARTLY, unit // BLOCK)
            for lane, row, base in each
            for unit in product.first[row].tolist()
        ]

    def is_settled(self, warp: int, stamp: int, *, never: bool) -> bool:
        if stamp == 0:
            return never
        return ASYNC <= stamp < PENDING and (warp, stamp >> CLOCK & 0x1FFFFFF) in self.done

    def put(self, access: Access) -> None:
        """The units of a copy have new stamps: so have their blocks."""
        self.blocks.put(access)
        touched = self.range_of(access)
        for cta, block in touched:
            units = set(self.units[cta * PARTLY + block * BLOCK :][:BLOCK].tolist())
            whole = (cta, 3) not in touched and len(units) == 1
            self.stamps[cta, block] = units.pop() if whole else MIXED

    def copy(self) -> None:
        access = self.copied()
        warp, touched = int(access.ids[0]) // 32, self.range_of(access)
        wanted = all(self.is_settled(warp, self.stamps[at], never=True) for at in touched)
        assert self.blocks.copy_is_after_writes(access) == wanted
        known = self.known[warp, WARPS : 2 * WARPS]
        wanted = all(self.reads[*at, twin] <= known[twin] for at in touched for twin in range(WARPS))
        assert self.blocks.is_after_reads(access) == wanted
        self.count += 1
        self.units[access.units()] = PENDING | ASYNC | self.count << CLOCK | int(access.ids[0])
        self.put(access)
        self.under_way.append((access, self.count))
        if self.rng.random() < 0.2:
            self.wait(self.count)  # by other lanes for which it is complete

    def land(self) -> None:
        if not self.under_way:
            return
        access, number = self.under_way.pop(-self.rng.randrange(1, min(len(self.under_way), 2) + 1))
        touched = self.range_of(access)
        stamp = PENDING | ASYNC | number << CLOCK | int(access.ids[0])
        wanted = all(self.stamps[at] == stamp for at in touched)
        units = self.units.copy()
        assert self.blocks.land(access, number) == wanted
        if wanted:
            for cta, block in touched:
                units[cta * PARTLY + block * BLOCK :][:BLOCK] -= PENDING
                self.stamps[cta, block] -= PENDING
        assert np.array_equal(self.units, units)
        if not wanted:
            self.units[access.units()] &= ~PENDING
            self.put(access)
        if self.rng.random() < 0.9:
            self.wait(number)

    def wait(self, number: int) -> None:
        self.done |= {(warp, number) for warp in range(CTAS * WARPS) if self.rng.random() < 0.9}

    def store(self) -> None:
        access = self.stored()
        each = [
            (lane // 32, *divmod(unit, PARTLY))
            for lane, unit in zip(access.ids.tolist(), access.first.tolist(), strict=True)
        ]
        wanted = all(
            self.reads[cta, unit // BLOCK, twin] <= self.known[warp, WARPS + twin]
            for warp, cta, unit in each
            for twin in range(WARPS)
        )
        assert self.blocks.is_after_reads(access) == wanted
        if self.rng.random() < 0.1:
            self.units[access.units()] = self.rng.randrange(1, 9) << CLOCK
            self.blocks.mix(access)
            self.stamps |= {(cta, unit // BLOCK): MIXED for _, cta, unit in each}

    def multiply(self) -> None:
        product = self.product()
        each = self.read_by(product)
        wanted = all(
            self.is_settled(lane // 32, self.stamps[cta, block], never=False) for lane, cta, block in each
        )
        assert self.blocks.product_is_after_writes(product) == wanted
        self.count += 1
        stamps = self.count + np.arange(len(product.lanes))
        self.blocks.read(product, stamps)
        of_lane = dict(zip(product.lanes.tolist(), stamps.tolist(), strict=True))
        self.reads |= {(cta, block, lane // 32 % WARPS): of_lane[lane] for lane, cta, block in each}
        for warp in range(CTAS * WARPS):
            twins = WARPS + np.array([self.rng.randrange(WARPS) for _ in range(2 * WARPS)])
            self.known[warp, twins] = self.count + 1


@pytest.mark.parametrize("seed", range(4))
def test_blocks_say_what_each_of_them_says_alone(seed: int) -> None:
    history = ByBlock(random.Random(seed))
    events = (history.copy, history.land, history.copy, history.land, history.store, history.multiply)
    for _ in range(600):
        history.rng.choice(events)()
