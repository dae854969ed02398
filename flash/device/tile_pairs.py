"""Pairs of tiles on their way through a ring of stages in shared memory: K and V, or Q and dO with
the numbers of their rows.

The copies of a pair are one group (`cp.async.commit_group`). With `stages` stages the copies of the
next stages - 1 pairs are under way while a pair is used; the barrier after each wait also says that
nobody still reads the stage that is filled next. With one stage a second barrier does, and with more
stages one before each further run over tiles. Where the warps meet after their last read of each
pair, neither is needed. On targets without asynchronous copies there is one stage, and copies pass through
registers, in which the next pair may wait while a pair is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from flash.device.panel_loader import PanelLoader
from flash.device.tiles import await_copies, commit_copies
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.dsl.matrices.ring import StageRing
from ptxgen.dsl.source_regions import marked


class Copies(Protocol):
    """Copies of rows of one or more arrays to stages; the methods are those of `PanelLoader`."""

    def start(self, first_row: Value, *, stage: Value | None = None) -> None:
        """Begin copying the matrix rows from `first_row` on into the pipeline stage at byte `stage`."""

    def land(self, stage: Value | None = None) -> None:
        """Write the rows that wait in registers into the pipeline stage at byte `stage`."""

    def forget(self) -> None:
        """Set the registers in which no copy waits to 0, so that they are free."""


class TilePairs:
    """Feeds a CTA pairs of tiles, from tile `first` up to `end`, exclusive. `also` copies what else comes
    with a pair, into stages of `also_bytes` each. `warps_meet`: all warps pass a barrier of the user's
    between their last read of a pair and `await_next` or `begin`. `prefetches`: the next pair waits in
    registers, if the loaders can have it there.
    """

    def __init__(
        self,
        k: KernelBuilder,
        loaders: Sequence[PanelLoader],
        also: Copies | None = None,
        also_bytes: int = 0,
        *,
        warps_meet: bool = False,
        prefetches: bool = False,
    ) -> None:
        self.k = k
        self._prefetches = prefetches and all(loader.prefetches for loader in loaders)
        self._warps_meet = warps_meet
        self.loaders = loaders
        self.stages = loaders[0].tile.stages
        self.rows = loaders[0].tile.rows
        self._copies: list[Copies] = [*loaders, *([also] if also else [])]
        self._sizes = [*(loader.tile.stage_bytes for loader in loaders), *([also_bytes] if also else [])]
        self._used, self._filled = (
            {size: StageRing(k, self.stages, size) for size in self._sizes} for _ in range(2)
        )

    @marked("tile pairs: begin")
    def begin(self, first: Value, end: Value, *, again: bool = False) -> None:
        """Start the copies of the first stages - 1 pairs of the tiles from `first` up to `end`; `again`:
        after a run over tiles in the same shared memory.
        """
        if again and self.stages > 1 and not self._warps_meet:
            self.k.barrier()  # the tiles of the run before have been read by all
        for ahead in range(self._ahead):
            self._start_ahead(first + ahead if ahead else first, end)

    @property
    def _ahead(self) -> int:
        """The number of pairs of tiles whose copies are under way while a pair is used."""
        return 1 if self._prefetches else self.stages - 1

    @marked("tile pairs: wait")
    def await_next(self, tile: Value, end: Value, on_arrival: Callable[[], None]) -> None:
        """Wait for tile `tile`, and start the copies of the next pair that is not under way yet.
        `on_arrival` emits what a thread does to its own parts of the tiles before others read them.
        """
        k = self.k
        if self.stages == 1:
            if not self._warps_meet:
                k.barrier()
            if not self._prefetches:
                self._start(tile)  # it exists: the user asks for it
        await_copies(k, max(self.stages - 2, 0))
        for copies, size in zip(self._copies, self._sizes, strict=True):
            copies.land(self._used[size].at)
        on_arrival()
        k.barrier()
        if self._ahead:
            self._start_ahead(tile + self._ahead, end)

    def stage(self, n: int) -> Value | None:
        """The byte at which the current tile of loader n begins, or, with n after the last loader, that of
        `also`. None: 0.
        """
        return self._used[self._sizes[n]].at

    def advance(self) -> None:
        """Go on to the pipeline stages of the next pair of tiles."""
        for ring in self._used.values():
            ring.advance()

    @marked("tile pairs: pair ahead")
    def _start_ahead(self, tile: Value, end: Value) -> None:
        """Start the copies of a pair that is not used yet, if it exists: its group may be empty."""
        with self.k.when(tile < end, uniform=True):
            self._copy(tile)
        if self._prefetches:
            with self.k.otherwise():
                for copies in self._copies:
                    copies.forget()
        self._close_group()

    def _start(self, tile: Value) -> None:
        self._copy(tile)
        self._close_group()

    def _copy(self, tile: Value) -> None:
        first_row = tile * self.rows
        for copies, size in zip(self._copies, self._sizes, strict=True):
            copies.start(first_row, stage=self._filled[size].at)

    @marked("tile pairs: group")
    def _close_group(self) -> None:
        commit_copies(self.k)
        for ring in self._filled.values():
            ring.advance()
