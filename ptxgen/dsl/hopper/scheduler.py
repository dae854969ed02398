"""Persistent CTAs (`k.tile_scheduler`): each runs several tiles of the work, one after another."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.dsl.blocks import block
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.values import Value, is_count
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.ir import Origin
from ptxgen.types import u32


class TileScheduler:
    """Deals the tiles 0 … `count` - 1 of the work to the CTAs of a launch along x, of which there may be any
    number: CTA n takes the tiles n, n + CTAs, n + 2 CTAs, …. If it is `mirrored`, the last CTA takes the
    first tile of every other round: where tiles are sorted, the longest first, CTAs then end together.

    `with scheduler.tiles() as tile:` runs its body for each tile of the CTA, in each role that it is
    entered in: all of them see the same tiles in the same order, so that rings and barriers keep their
    phases from tile to tile. `count` is at least 1, u32, the same in all threads, and together with the
    CTAs below 2**32; in a cluster a multiple of its CTAs, which take neighbouring tiles.
    """

    def __init__(self, k: Roles, count: Value, mirrored: bool) -> None:
        check_count(count)
        self.k = k
        self.count = count
        self.mirrored = mirrored
        self.account = k.account
        self._inside = False

    def origin(self) -> Origin:
        """The line of the kernel's Python source that is being executed, with its file."""
        return self.k.origin()

    @block
    def tiles(self) -> Iterator[Value]:
        """Run the body for each tile of this CTA; its number, u32, is below `count`.

        All threads of the role, or outside of roles of the CTA, must come here; the body may hold their
        barriers. Raises `ConfigError` inside the same scheduler's `tiles`, and `TypeMismatchError` in a
        block that some threads may not run.
        """
        k = self.k
        if self._inside:
            raise ConfigError("scheduler.tiles is inside another one of the same scheduler")
        k.require_present("scheduler.tiles")
        self._inside = True
        try:
            # The body runs below the count anyway; the minimum shows it to analyses of the body alone.
            if not self.mirrored:
                with k.dealt(self.count) as index:
                    yield k.min(index, self.count - 1)
                return
            ctas, cta = k.blocks(), k.block_id()
            from_end = ctas - 1 - cta
            with k.loop(0, (self.count + (ctas - 1)) // ctas) as round:
                number = round * ctas + k.selp(cta, from_end, round & 1 == 0)
                with k.when(number < self.count, uniform=True):
                    yield k.min(number, self.count - 1)
        finally:
            self._inside = False


def check_count(count: object) -> None:
    """Raise `TypeMismatchError` for a number of tiles that is no u32 value."""
    if getattr(count, "type", None) is not u32:
        raise TypeMismatchError(
            "tile_scheduler: the number of tiles must be a u32 value, such as k.param('tiles', u32), "
            f"got {shown(count)}{_hint(count)}"
        )


def _hint(count: object) -> str:
    """The hint in an error about a number of tiles that is a Python int, known while building."""
    return f"; use k.mov({count}, type=u32) for a number" if is_count(count) else ""
