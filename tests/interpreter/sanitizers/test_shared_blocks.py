"""Blocks of shared memory say that a product comes after the copies of its tiles only if it does."""

from __future__ import annotations

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


def test_a_copy_does_not_land_for_a_later_one_to_its_block() -> None:
    tiles = Tiles(1, 9)
    tiles.starts(0, 9)
    assert not tiles.blocks.land(access(0), 1)
    assert not tiles.is_after([0, 0])
    assert tiles.blocks.land(access(0), 9)
    assert tiles.is_after([0, 0])


def test_the_accesses_of_products_have_their_units_of_each_cta() -> None:
    first, rows = np.array([[32, 512], [64, 96]]), np.array([1, 0])
    product = Product(0, np.array([0, 32]), first, rows, np.array([0, UNITS]), 16)
    got = product.access()
    assert (got.ids.tolist(), got.first.tolist()) == ([0, 0, 32, 32], [64, 96, UNITS + 32, UNITS + 512])
    assert (got.width, got.low, got.high) == (16, 32, 528)


def test_a_kernel_without_shared_memory_has_no_blocks() -> None:
    nothing: Any = SimpleNamespace(group=4)
    blocks = Blocks(nothing, nothing, np.zeros(0, np.int64), 0)
    assert isinstance(blocks, Blocks)
