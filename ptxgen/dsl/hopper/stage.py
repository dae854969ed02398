"""One stage of a ring, in the hands of one role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Value, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown

if TYPE_CHECKING:
    from ptxgen.dsl.hopper.ring import Ring


def barriers_of_stage(parts: int) -> int:
    """The barriers of a stage whose tiles arrive in `parts`: a full one for each, and an empty one."""
    return parts + 1


class Stage:
    """A stage of a ring in the hands of one role: `stage.a` is its tile `a`."""

    __slots__ = (
        *("_depth", "_parity", "_tiles", "_turn"),
        *("empty", "full", "index", "is_open", "loaded", "ready", "ring"),
    )

    def __init__(self, ring: Ring, turn: str, index: Value | int, parity: Value | None = None) -> None:
        self.ring = ring
        self.index = index
        self.loaded: set[str] = set()
        self.is_open = True
        self.full = ring.barrier(index, 0)
        self.empty = ring.barrier(index, ring.parts * ring.stages)
        self.ready = self.full
        if ring.reworked:
            self.ready = ring.barrier(index, barriers_of_stage(ring.parts) * ring.stages)
        self._turn = turn
        self._parity = parity
        self._depth = ring.k.block_depth
        # All at once: what a branch computes is not there behind it.
        self._tiles = {name: ring.tile(name, index, self) for name in ring.tiles}

    def __getattr__(self, name: str) -> BoxTile:
        if name.startswith("_") or name not in self._tiles:
            raise AttributeError(f"{self.ring!r} has no tile {name!r}")
        self.use(f"tile {name!r}")
        return self._tiles[name]

    def arrival(self, part: int) -> TilePointer:
        """The full barrier of a part."""
        return self.full.step(columns=part * self.ring.stages) if part else self.full

    def wait(self, part: int) -> None:
        """Wait until a part of a stage that `take` has given has arrived, too. The variable with the parity
        has not been set since. All threads of the warpgroup come here.
        """
        self.use("the stage")
        if self._parity is None or not is_int(part) or not 0 <= part < self.ring.parts:
            raise ConfigError(
                f"stage.wait of ring {self.ring.name!r}: it is for stages that take has given, and parts "
                f"below {self.ring.parts}, got {shown(part)}"
            )
        self.ring.wait(self.arrival(part), self._parity)

    def use(self, what: str) -> None:
        """Raise `TypeMismatchError` for a use behind the end of the turn."""
        if not self.is_open:
            raise TypeMismatchError(
                f"{what} of ring {self.ring.name!r} is used behind its {self._turn}, when another role may "
                f"have it; move the use into 'with ring.{self._turn}() as stage:'"
            )

    def note_load(self, name: str) -> None:
        """Note that a tile is loaded. Raises `ConfigError` outside of `fill`, and for a second load."""
        self.use(f"tile {name!r}")
        if self._turn != "fill":
            raise ConfigError(
                f"ring {self.ring.name!r}: tma.load is in a {self._turn}; the producer loads in ring.fill()"
            )
        if name in self.loaded:
            raise ConfigError(
                f"ring {self.ring.name!r}: tile {name!r} is loaded twice in one fill, but the barrier "
                f"counts its {self.ring.tiles[name].nbytes} bytes once"
            )
        if self.ring.k.block_depth != self._depth:
            raise ConfigError(
                f"ring {self.ring.name!r}: tile {name!r} is loaded in a block inside the fill, where it "
                "may be loaded never or again, but the barrier counts its bytes once; load it directly in "
                "the fill"
            )
        self.loaded.add(name)

    def release(self) -> None:
        """Give the stage back to the producer: one lane of each warp arrives, when all have read.

        Raises `TypeMismatchError` while a product is known to read the stage.
        """
        k, ring = self.ring.k, self.ring
        self.use("the stage")
        if self._turn != "drain":
            raise TypeMismatchError(
                f"ring {ring.name!r}: {self._turn} gives its stage on at the end of the 'with'"
            )
        if ring.dealt:  # a warpgroup comes here
            k.require_role(f"ring {ring.name!r}: release", ring.consumer)
            k.refuse_predicated(f"ring {ring.name!r}: release")
        else:
            k.require_whole_role(f"ring {ring.name!r}: release", ring.consumer)
        if ring.overlapped:
            raise TypeMismatchError(
                f"ring {ring.name!r} is overlapped: the end of the next drain, or finish, gives back the "
                "stage"
            )
        k.flight.touched(self, k.origin())
        ring.arrive(self.empty)
        self.close()

    def close(self) -> None:
        """Refuse any later use."""
        self.is_open = False
