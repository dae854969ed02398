"""The tiles of keys of a CTA from the last to the first, in loops by what the mask or the end of the keys
hides in them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from flash.device.cta import Cta
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Value


class Masking(enum.Enum):
    """The keys of a tile that a row may not see: none, only those left of its first key, or any."""

    NONE = enum.auto()
    LEFT = enum.auto()  # only keys before the first that it sees; all keys exist
    FULL = enum.auto()  # any key

    @property
    def hides(self) -> bool:
        """Whether some row may not see some key of such a tile, so that a mask applies."""
        return self is not Masking.NONE

    def is_ragged(self, config: KernelConfig) -> bool:
        """Whether copies check for each row whether it exists. In `LEFT` tiles all rows exist, but for packed
        sequences that is not proved.
        """
        return self is Masking.FULL or (self is Masking.LEFT and config.features.varlen)


def all_tiles(cta: Cta) -> tuple[Value | int, Value]:
    """The range (first, end) of the tiles of keys that a CTA computes, `end` exclusive."""
    return 0 if cta.first_tile is None else cta.first_tile, cta.tiles


def masked_tiles(
    k: KernelBuilder,
    cta: Cta,
    again: Callable[[], Cta],
    tiles_of: Callable[[Cta], tuple[Value | int, Value]] = all_tiles,
) -> Iterator[tuple[Value, Value | int, Masking]]:
    """The tiles of keys from the last to the first, one loop after another: (end, first, masking of its
    tiles), `end` exclusive. Of tiles that a mask cuts, they are those that `tiles_of` gives, (first, end).

    With a third loop, keeping its bounds in registers through the first two would take more registers than
    there are: they are computed `again` before it.
    """
    first, tiles = tiles_of(cta)
    if cta.mask.hides_anywhere:
        yield tiles, first, Masking.FULL
        return
    end, begin = cta.whole_tiles(k)
    if begin is None:
        yield tiles, end, Masking.FULL
        yield end, first, Masking.NONE
        return
    yield tiles, k.max(end, first), Masking.FULL
    end, begin = again().whole_tiles(k)
    assert begin is not None
    yield end, begin, Masking.NONE
    cta = again()
    _, begin = cta.whole_tiles(k)
    assert begin is not None
    yield begin, tiles_of(cta)[0], Masking.LEFT
