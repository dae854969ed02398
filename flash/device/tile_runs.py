"""The tiles of keys of a CTA in runs, by what a mask or the end of the keys cuts from them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from flash.device.cta import Cta
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Value


class Cut(enum.Enum):
    """Which keys of a run of tiles a row may not see."""

    NONE = enum.auto()
    IN_FRONT = enum.auto()  # only keys before the first that it sees; all keys exist
    ANYWHERE = enum.auto()

    @property
    def hides(self) -> bool:
        """Whether a row may not see some key of the tiles."""
        return self is not Cut.NONE

    def is_ragged(self, config: KernelConfig) -> bool:
        """Whether copies check for each row whether it exists. In `IN_FRONT` tiles all rows exist,
        but for packed sequences that is not proved.
        """
        return self is Cut.ANYWHERE or (self is Cut.IN_FRONT and config.features.varlen)


def tile_runs(
    k: KernelBuilder, cta: Cta, again: Callable[[], Cta]
) -> Iterator[tuple[Value, Value | int, Cut]]:
    """The tiles of keys from the last to the first, in runs of (end, first, which keys are cut),
    `end` exclusive.

    With a third run, keeping its bounds in registers through the first two would take more
    registers than there are: they are computed `again` in front of it.
    """
    first: Value | int = 0 if cta.first_tile is None else cta.first_tile
    if cta.mask.hides_anywhere:
        yield cta.tiles, first, Cut.ANYWHERE
        return
    end, begin = cta.whole_tiles(k)
    if begin is None:
        yield cta.tiles, end, Cut.ANYWHERE
        yield end, first, Cut.NONE
        return
    yield cta.tiles, k.max(end, first), Cut.ANYWHERE
    end, begin = again().whole_tiles(k)
    assert begin is not None
    yield end, begin, Cut.NONE
    cta = again()
    _, begin = cta.whole_tiles(k)
    assert begin is not None
    assert cta.first_tile is not None
    yield begin, cta.first_tile, Cut.IN_FRONT
