"""Pairs of tiles on their way through a ring of stages in shared memory: K and V, or Q and dO with
the numbers of their rows.

The copies of a pair are one group (`cp.async.commit_group`). With `stages` stages the copies of the
next stages - 1 pairs are under way while a pair is used; the barrier after each wait also says that
nobody still reads the stage that is filled next. With one stage a second barrier does, and with more
stages one before each further run over tiles. Where the warps meet after their last read of each
pair, neither is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flash.device.panel_loader import PanelLoader
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.dsl.matrices.ring import StageRing
from ptxgen.dsl.source_regions import marked

Copies = Callable[[Value, Value | None], None]


class TilePairs:
    """Feeds a CTA pairs of tiles, from tile `first` up to `end`, exclusive. `also(first_row, stage)`
    starts what else is copied with the pair that begins with row `first_row`, into the stage at byte
    `stage` (None: 0) of `also_bytes` each. `warps_meet`: all warps pass a barrier of the user's between
    their last read of a pair and `await_next` or `begin`.
    """

    def __init__(
        self,
        k: KernelBuilder,
        loaders: Sequence[PanelLoader],
        also: Copies | None = None,
        also_bytes: int = 0,
        *,
        warps_meet: bool = False,
    ) -> None:
        self.k = k
        self._warps_meet = warps_meet
        self.loaders = loaders
        self.stages = loaders[0].tile.stages
        self.rows = loaders[0].tile.rows
        self._also = also
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
        for ahead in range(self.stages - 1):
            self._start_ahead(first + ahead if ahead else first, end)

    @marked("tile pairs: wait")
    def await_next(self, tile: Value, end: Value, on_arrival: Callable[[], None]) -> None:
        """Wait for tile `tile`, and start the copies of the pair that is stages - 1 tiles further.
        `on_arrival` emits what a thread does to its own parts of the tiles before others read them.
        """
        k = self.k
        if self.stages == 1:
            if not self._warps_meet:
                k.barrier()
            self._start(tile)  # it exists: the user asks for it
        k.cp_async_wait_group(max(self.stages - 2, 0))
        on_arrival()
        k.barrier()
        if self.stages > 1:
            self._start_ahead(tile + (self.stages - 1), end)

    def stage(self, n: int) -> Value | None:
        """The byte at which the current tile of loader n begins, or, with n after the last loader, that of
        `also`. None: 0.
        """
        return self._used[self._sizes[n]].at

    def advance(self) -> None:
        """Go on to the stages of the next pair."""
        for ring in self._used.values():
            ring.advance()

    @marked("tile pairs: pair ahead")
    def _start_ahead(self, tile: Value, end: Value) -> None:
        """Start the copies of a pair that is not used yet, if it exists: its group may be empty."""
        with self.k.when(tile < end, uniform=True):
            self._copy(tile)
        self._close_group()

    def _start(self, tile: Value) -> None:
        self._copy(tile)
        self._close_group()

    def _copy(self, tile: Value) -> None:
        first_row = tile * self.rows
        for loader, size in zip(self.loaders, self._sizes, strict=False):
            loader.start(first_row, stage=self._filled[size].at)
        if self._also is not None:
            self._also(first_row, self._filled[self._sizes[-1]].at)

    @marked("tile pairs: group")
    def _close_group(self) -> None:
        self.k.cp_async_commit_group()
        for ring in self._filled.values():
            ring.advance()
