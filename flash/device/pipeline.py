"""Tiles of K and V on their way through a ring of stages in shared memory.

The copies are, in this order, K₀ V₀ K₁ V₁ …, each a group of its own (`cp.async.commit_group`).
When tile n of K is waited for, the copies up to K of tile n + stages - 1 have been started; so all
but the last 2 * (stages - 1) groups must be complete, and the same holds for V. The barrier after
each wait also says that nobody still reads the stage that is filled next. With one stage this is
FlashAttention-2's order: V arrives during Q Kᵀ, the next K during P V; on targets without asynchronous
copies in registers, from which the wait writes it to shared memory (`PanelLoader.land`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from flash.device.panel_loader import PanelLoader
from ptxgen.dsl import KernelBuilder, Value, marked
from ptxgen.dsl.matrices.ring import StageRing
from ptxgen.types import u32

Arrival = Callable[[PanelLoader, Value | None], None]  # (loader, stage)


class KeyValuePipeline:
    """Feeds a CTA the tiles of K and V, from tile `tiles` - 1 down to tile `first` (None: 0). With `guarded`
    every copy checks whether its row is in the matrix, which is only needed where the proof cannot show it.
    `is_asynchronous`: some copies are asynchronous, if only those of Q, which are in the first group.
    `sees_tile(first_key)` gives whether some query sees the tile that begins with this key; other tiles are
    not copied. It gives None if each tile is seen.

    The kernel's loops count in `n`, which is -(t + 1) when tile t is next.
    """

    def __init__(
        self,
        k: KernelBuilder,
        keys: PanelLoader,
        values: PanelLoader,
        tiles: Value,
        first: Value | None = None,
        *,
        guarded: bool,
        is_asynchronous: bool,
        sees_tile: Callable[[Value], Value | None] = lambda _: None,
    ) -> None:
        self.k = k
        self.keys = keys
        self.values = values
        self.tiles = tiles
        self.first = first
        self.guarded = guarded
        self._sees_tile = sees_tile
        self.stages = keys.tile.stages
        self._is_asynchronous = is_asynchronous
        self._in_flight = 2 * (self.stages - 1)
        sizes = [loader.tile.stage_bytes for loader in (keys, values)]
        self._key_stage, self._value_stage = (StageRing(k, self.stages, size) for size in sizes)
        # The stages that are filled next, once `fill` has filled the first.
        self._key_fill = StageRing(k, self.stages, sizes[0])
        self._value_fill = StageRing(k, self.stages, sizes[1], first=self.stages - 1)

    @property
    def has_tiles(self) -> Value:
        """Whether the CTA has any tile of keys to compute, a predicate."""
        return self._has(0)

    @marked("pipeline: tiles ahead")
    def _has(self, ahead: int) -> Value:
        """Whether the CTA has more than `ahead` tiles of keys left, a predicate."""
        return self.tiles > (ahead if self.first is None else self.first + ahead)

    def first_key(self, n: Value, ahead: int = 0) -> Value:
        """The first key of the tile that is `ahead` tiles after the next."""
        return (-1 - ahead - n) * self.keys.tile.rows

    def fill(self) -> None:
        """Start the first copies, up to K of the `stages`-th tile. There is at least one tile."""
        for ahead in range(self.stages):
            self._start(self.keys, ahead)
            if ahead < self.stages - 1:
                self._start(self.values, ahead)

    def _start(self, loader: PanelLoader, ahead: int) -> None:
        k = self.k
        stage = k.mov(ahead * loader.tile.stage_bytes, type=u32) if ahead else None
        with k.when(self._has(ahead), uniform=True) if ahead else nullcontext():
            first_key = self.first_key(-self.tiles, ahead)
            with self._only_where(self._sees_tile(first_key), loader):
                loader.start(first_key, stage=stage, ragged=self.guarded or not ahead)
        self._commit()

    @property
    def key_stage(self) -> Value | None:
        """The byte at which the current tile of K begins in shared memory; None if there is one
        stage.
        """
        return self._key_stage.at

    @property
    def value_stage(self) -> Value | None:
        """The byte at which the current tile of V begins in shared memory; None if there is one
        stage.
        """
        return self._value_stage.at

    @marked("pipeline: keys there")
    def await_keys(self, *, on_arrival: Arrival | None = None) -> None:
        """Wait for the next tile of K; then `start_values` may fill the free stage of V.

        `on_arrival(loader, stage)` emits what a thread does to its own part of the tile of K before
        other threads read it.
        """
        self._await()
        self.keys.land(self.key_stage)
        if on_arrival is not None:
            on_arrival(self.keys, self.key_stage)
        self.k.barrier()

    def await_queries(self) -> None:
        """Wait for the tile of Q, which was copied before the first tile of K."""
        self._await()
        self.k.barrier()

    def start_values(self, n: Value, *, ragged: bool) -> None:
        """Start the copy of a tile of V into the stage that is free once K was waited for.

        `ragged`: rows of that tile may lie beyond the matrix.
        """
        self._start_next(self.values, self._value_fill, n, self.stages - 1, ragged)

    def await_values(self, *, on_arrival: Arrival | None = None) -> None:
        """Wait for the next tile of V; then `start_keys` may fill the free stage of K.

        `on_arrival(loader, stage)` emits what a thread does to its own part of the tile of V before
        other threads read it.
        """
        self._await()
        self.values.land(self.value_stage)
        if on_arrival is not None:
            on_arrival(self.values, self.value_stage)
        self.k.barrier()

    def start_keys(self, n: Value) -> None:
        """Start the copy of a tile of K into the stage that is free once V was waited for."""
        self._start_next(self.keys, self._key_fill, n, self.stages, ragged=False)

    def pass_over(self, n: Value) -> None:
        """Skip the next tile, which no query sees and which was not copied."""
        self._await()
        self.k.barrier()
        if self.stages > 1:
            self._start_next(self.values, self._value_fill, n, self.stages - 1, ragged=False)
        else:
            self._commit()
        self._await()
        self.k.barrier()
        self.start_keys(n)
        self.advance()

    @marked("pipeline: commit")
    def _commit(self) -> None:
        if self._is_asynchronous:
            self.k.cp_async_commit_group()

    @marked("pipeline: wait")
    def _await(self) -> None:
        if self._is_asynchronous:
            self.k.cp_async_wait_group(self._in_flight)

    def advance(self) -> None:
        """Go on to the pipeline stages of the next tiles of K and V."""
        self._key_stage.advance()
        self._value_stage.advance()

    @marked("pipeline: next tile")
    def _start_next(self, loader: PanelLoader, fill: StageRing, n: Value, ahead: int, ragged: bool) -> None:
        if ahead:
            left = n if self.first is None else n + self.first  # minus the tiles that are left
            with self._only_where(left < -ahead, loader):
                first_key = self.first_key(n, ahead)
                with self._only_where(self._sees_tile(first_key), loader):
                    loader.start(first_key, stage=fill.at, ragged=self.guarded)
        else:
            first_key = self.first_key(n)
            with self._only_where(self._sees_tile(first_key), loader):
                loader.start(first_key, stage=fill.at, ragged=self.guarded or ragged)
        self._commit()
        fill.advance()

    @contextmanager
    def _only_where(self, condition: Value | None, loader: PanelLoader) -> Iterator[None]:
        """A context for copies that start only where a condition, uniform in the CTA, holds; None: always."""
        if condition is None:
            yield
            return
        with self.k.when(condition, uniform=True):
            yield
        if loader.prefetches:
            with self.k.otherwise():
                loader.forget()
