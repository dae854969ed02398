"""The memory of a ring, and one stage of it as one role uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ptxgen.dsl.hopper.layouts import Layout
from ptxgen.dsl.hopper.products import Owner, Products
from ptxgen.dsl.hopper.role import WARPGROUP, Role
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.tiles import ANYBODY, BoxTile
from ptxgen.dsl.tiles import SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, Value, Var, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.ir import Origin
from ptxgen.records import dataclass
from ptxgen.types import u64

_BARRIER_BYTES: Final = 8


def barriers_of_stage(parts: int) -> int:
    """The barriers of a stage whose tiles arrive in `parts`: a full one for each, and an empty one."""
    return parts + 1


@dataclass
class Cursor:
    """The next stage of a role, an int where its code takes all in turn, and the parity of the phase that it
    waits for. Of an overlapped ring's consumer `held` is the stage that it has not released yet, if `holds`
    is 1; `holds` is 0 if there is none.
    """

    index: Var | int
    parity: Var
    held: Var | None = None
    holds: Var | None = None


class RingMemory:
    """The tiles and barriers of a ring, and its roles' cursors; see `Ring`."""

    def __init__(
        self,
        k: Roles,
        name: str,
        producer: Role,
        consumer: Role,
        tiles: Mapping[str, Layout],
        regions: Mapping[str, SharedTile],
        barriers: SharedTile,
        ctas: int,
        overlapped: bool,
        written: bool = False,
        reworked: bool = False,
        gathered: bool = False,
        dealt: bool = False,
        parts: int = 1,
        stored: Sequence[str] = (),
        at_once: bool = False,
        products: Products | None = None,
    ) -> None:
        self.k = k
        self.name = name
        self.producer = producer
        self.consumer = consumer
        self.tiles = tiles
        self.overlapped = overlapped
        self.written = written
        self.reworked = reworked
        self.gathered = gathered
        self.dealt = dealt
        self.parts = parts
        self.stored = tuple(stored)
        self.at_once = at_once
        self.products = products
        self._owes_second = False  # whether a fill, in program order, waits for its second step
        self.ctas = ctas
        self.spans_cluster = ctas > 1 or self.of_pair
        self.stages = barriers.columns // (barriers_of_stage(parts) + reworked)
        self._regions = regions
        self._barriers = barriers.pointer()
        self.account = k.account
        self._cursors: dict[str, Cursor] = {}  # by step, "fill" or "drain"
        self._second: Cursor | None = None  # the producer's next stage in `rework` or `store`
        self._filling: Stage | None = None
        self._steps: set[str] = set()  # of "fill" and "store", those that the producer's code has

    @property
    def nbytes(self) -> int:
        """The bytes of shared memory that the tiles of one stage take."""
        return sum(layout.nbytes for layout in self.tiles.values())

    @property
    def copied(self) -> Mapping[str, Layout]:
        """The tiles of a stage that copies fill, whose bytes its full barrier counts."""
        return {name: layout for name, layout in self.tiles.items() if name not in self.stored}

    @property
    def of_pair(self) -> bool:
        """Whether copies of both CTAs of a pair fill a stage, whose products the even CTA starts."""
        return self.products is not None and self.products.cta_group > 1

    def origin(self) -> Origin:
        """The line of the kernel's Python source that is being executed, with its file."""
        return self.k.origin()

    def prepare(self) -> None:
        """Initialise the mbarriers of the ring's stages, in one thread."""
        full = self.producer.warps if self.written else self.producer.threads if self.gathered else 1
        if self.stored and not self.reworked:
            full += self.producer.warps
        gives_back = WARPGROUP if self.dealt else self.consumer.warps * self.ctas
        if self.products is not None:
            gives_back = 1
        for stage in range(self.stages):
            for part in range(self.parts):
                arrived = self._barriers.step(columns=part * self.stages + stage)
                self.k.mbarrier_init(arrived, full, space="shared::cta")
            empty = self._barriers.step(columns=self.parts * self.stages + stage)
            self.k.mbarrier_init(empty, gives_back, space="shared::cta")
            if self.reworked:
                ready = self._barriers.step(columns=barriers_of_stage(self.parts) * self.stages + stage)
                hands_on = self.producer.threads if self.gathered else self.producer.warps
                self.k.mbarrier_init(ready, hands_on, space="shared::cta")

    def arrive(self, empty: TilePointer, condition: Value | None = None) -> None:
        """Arrive at an empty barrier, once for each warp when its lanes have read: in this CTA, or in
        each CTA of the cluster, a lane for each.
        """
        k = self.k
        k.bar_warp_sync(-1)
        if self.ctas == 1:
            arrives = self.consumer.is_first_lane
            with k.only_if(arrives if condition is None else arrives & condition):
                k.mbarrier_arrive(empty, space="shared::cta")
            return
        lane = self.consumer.lane
        arrives = lane < self.ctas
        there = k.mapa(k.add(empty.value, empty.offset), k.min(lane, self.ctas - 1), space="shared::cluster")
        with k.only_if(arrives if condition is None else arrives & condition):
            k.arrive_in_cluster(Pointer(there, "shared", u64))

    def barrier(self, index: Value | int, first: int) -> TilePointer:
        """The barrier of stage `index`; the barriers of its kind begin at column `first`."""
        if isinstance(index, int):
            return self._barriers.step(columns=first + index)
        at = self._barriers.step(columns=first)
        return at.moved(self.k.mad(index, _BARRIER_BYTES, at.value, mode="lo"))

    def tile(self, name: str, index: Value | int = 0, owner: Owner = ANYBODY) -> BoxTile:
        """The tile `name` of stage `index`, outside of steps: to reuse its memory after the last step.
        `fill`, `drain` and `acquire` return the tiles of a step.
        """
        layout, at = self.tiles[name], self._regions[name].pointer()
        if isinstance(index, Value):
            at = at.moved(self.k.mad(index, layout.tile_bytes, at.value, mode="lo"))
        elif index:
            at = at.plus_bytes(index * layout.tile_bytes)
        return BoxTile(self.k, name, layout, at, owner)

    def advance(self, cursor: Cursor) -> None:
        """Go on to the ring's next stage; after the last one to the first, with the other parity."""
        k = self.k
        if isinstance(cursor.index, int):
            cursor.index = (cursor.index + 1) % self.stages
            if cursor.index == 0:
                cursor.parity.set(cursor.parity ^ 1)
            return
        is_last = cursor.index == self.stages - 1
        cursor.parity.set(k.selp(cursor.parity ^ 1, cursor.parity, is_last))
        cursor.index.set(k.selp(0, cursor.index + 1, is_last))

    def wait(self, barrier: TilePointer, parity: Value, known: Value | None = None) -> None:
        """Wait until the phase of a barrier that has this parity is complete, unless that is `known`."""
        k = self.k
        k.repeat_until(lambda: k.mbarrier_try_wait_parity(barrier, parity, space="shared::cta"), known=known)


class StepStage:
    """A stage of a ring, which one role uses in a step of a `kind`, such as "fill", and not after its end."""

    __slots__ = ("_kind", "is_open", "ring")

    ring: RingMemory

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.is_open = True

    def use(self, what: str) -> None:
        """Raise `TypeMismatchError` if the step in which this stage may be used has ended."""
        if not self.is_open:
            raise TypeMismatchError(
                f"{what} of ring {self.ring.name!r} is used after its {self._kind}, when another role may "
                f"have it; move the use into 'with ring.{self._kind}() as stage:'"
            )

    def close(self) -> None:
        """End the step: any later use of this stage raises `TypeMismatchError`."""
        self.is_open = False


class Stage(StepStage):
    """A stage of a ring that one role uses: `stage.a` is its tile `a`."""

    __slots__ = (*("_depth", "_parity", "_tiles"), *("empty", "full", "index", "loaded", "ready"))

    def __init__(self, ring: RingMemory, kind: str, index: Value | int, parity: Value | None = None) -> None:
        super().__init__(kind)
        self.ring = ring
        self.index = index
        self.loaded: set[str] = set()
        self.full = ring.barrier(index, 0)
        self.empty = ring.barrier(index, ring.parts * ring.stages)
        self.ready = self.full
        if ring.reworked:
            self.ready = ring.barrier(index, barriers_of_stage(ring.parts) * ring.stages)
        self._parity = parity
        self._depth = ring.k.block_depth
        # All at once: what a branch computes is undefined after it.
        self._tiles = {name: ring.tile(name, index, self) for name in ring.tiles}

    def __getattr__(self, name: str) -> BoxTile:
        if name.startswith("_") or name not in self._tiles:
            raise AttributeError(f"{self.ring!r} has no tile {name!r}")
        self.use(f"tile {name!r}")
        if self._kind == "store" and name not in self.ring.stored:
            raise ConfigError(
                f"ring {self.ring.name!r}: store is for the tiles named in stored=, "
                f"{_listed(self.ring.stored)}, but copies to tile {name!r} may be under way; use it in "
                "rework, in a ring made with reworked=True"
            )
        return self._tiles[name]

    def arrival(self, part: int) -> TilePointer:
        """The mbarrier on which the bytes of part `part` of the stage arrive."""
        return self.full.step(columns=part * self.ring.stages) if part else self.full

    def wait(self, part: int) -> None:
        """Wait until part `part` of a stage from `take` has arrived, too. The variable with the parity must
        not have been set since `take`. All threads of the warpgroup come here.
        """
        self.use("the stage")
        if self._parity is None or not is_int(part) or not 0 <= part < self.ring.parts:
            raise ConfigError(
                f"stage.wait of ring {self.ring.name!r}: it is for stages that take has given, and parts "
                f"below {self.ring.parts}, got {shown(part)}"
            )
        self.ring.wait(self.arrival(part), self._parity)

    def note_load(self, name: str) -> None:
        """Note that a tile is loaded. Raises `ConfigError` outside of `fill`, and for a second load."""
        self.use(f"tile {name!r}")
        if self._kind != "fill":
            raise ConfigError(
                f"ring {self.ring.name!r}: tma.load is in a {self._kind}; the producer loads in ring.fill()"
            )
        if name in self.ring.stored:
            raise ConfigError(
                f"ring {self.ring.name!r}: tile {name!r} is loaded, but stored= says that the threads of the "
                "producer store to it; leave it out of stored, or store to it in ring.store()"
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
        """Release the stage to the producer: one lane of each warp arrives, when all lanes have read.

        Raises `TypeMismatchError` while a product is known to read the stage.
        """
        k, ring = self.ring.k, self.ring
        self.use("the stage")
        if self._kind != "drain":
            raise TypeMismatchError(
                f"ring {ring.name!r}: {self._kind} gives its stage on at the end of the 'with'"
            )
        if ring.products is not None:
            k.require_role(f"ring {ring.name!r}: release", ring.consumer)
            k.refuse_predicated(f"ring {ring.name!r}: release")
            ring.products.commit(self.empty)
            self.close()
            return
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
        k.flight.touched(self, k.origin)
        k.pending_reads.released(self, f"a stage of ring {ring.name!r}", k.origin(), k.block_path)
        ring.arrive(self.empty)
        self.close()


def _listed(names: Sequence[str]) -> str:
    """The names of tiles as a list in a sentence of an error message."""
    return " and ".join(repr(name) for name in names)
