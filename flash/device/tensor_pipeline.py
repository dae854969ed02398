"""Tiles of Q, K and V on their way to shared memory, from which one thread multiplies them, and of O on its
way back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Protocol

from flash.device.append_in_place import AppendedKV
from flash.device.box_rows import BoxRows
from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.gathered_pipeline import GatheredPipeline
from flash.device.nonfinite import hides_rows
from flash.device.parameters import Parameters
from flash.device.team import Team
from flash.device.tiles import await_copies, commit_copies
from flash.device.tma_pipeline import TmaPipeline
from flash.families.wgmma import WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import layout_of, mapped
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.blackwell import TensorMemory
from ptxgen.dsl.hopper import BoxTile, Ring
from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS
from ptxgen.types import u32

_WORDS: Final = 4  # of a stage without elements, the fewest that a tile has
_ROTATED: Final = 2048  # pairs of columns


class TensorRoles(Protocol):
    """The warp roles that exchange tiles through shared memory."""

    @property
    def loading(self) -> Role:
        """The role of warps that has tiles of Q, K and V copied to shared memory."""

    @property
    def multiplying(self) -> Role:
        """The role of warps of which one thread starts the matrix products (`tcgen05.mma`)."""

    @property
    def correction(self) -> Role:
        """The role of warps that writes O to memory."""


class TensorPipeline(TmaPipeline):
    """See `TmaPipeline`; commits of products release the tiles of Q, K and V. The threads that load copy
    rows of Q if that has no tensor map, and rotate them if the kernel does.
    """

    cleared_values: ClassVar[type[ClearedValues]] = ClearedValues

    queries: Ring
    free: Ring | None  # a step for each work tile, when the memory of Q is free; None: there is one work tile
    parameters: Parameters  # of the work tile whose queries are rotated

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, roles: TensorRoles, memory: TensorMemory
    ) -> None:
        self.memory = memory
        self.correction = roles.correction
        self.multiplying = roles.multiplying
        self.rotates = config.features.rotation is not None
        super().__init__(k, config, t, roles.loading, roles.multiplying)

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        k, config, producer = self.k, self.config, self.producer
        q, keys, values = (layout_of(t, config.dtype, array) for array in "QKV")
        ring = functools.partial(k.tma.ring, released_by=self.memory)
        clears, is_mapped = self.clears_copies and hides_rows(config), "Q" in mapped(config)
        changes = (self.reworked or self.rotates) and is_mapped
        self.queries = ring(1, producer, consumer, written=not is_mapped, reworked=changes, q=q)
        of_keys = functools.partial(ring, gathered=self.gathered)
        self.keys = of_keys(t.key_stages, producer, consumer, reworked=self.reworked, k=keys)
        self.values = of_keys(t.stages, producer, consumer, reworked=self.reworked or clears, v=values)
        over: BoxTile | None = self.queries.tile("q") if t.output_is_over_queries else None
        self.declare_output(t, over)
        of = self.cleared_values
        self.nonfinite = of(k, config, producer, self.correction, self.values) if clears else None
        self.free = None
        if config.is_persistent:
            self.free = k.tma.ring(1, self.correction, producer, written=True, free=((1, _WORDS), u32))

    @contextmanager
    @marked("tensor rings: memory of Q")
    def consumed(self) -> Iterator[None]:
        """See `TmaPipeline`; the memory of Q is free."""
        self.free_queries()
        yield

    @marked("tensor rings: memory of Q")
    def free_queries(self) -> None:
        """See `TmaPipeline`; O leaves from the memory of Q."""
        if self.free is not None:
            with self.free.write():
                pass

    @marked("tensor rings: work tile")
    def load_work_tile(self, cta: Cta, has_tiles: Value) -> None:
        """See `PersistentPipeline`; Q comes only where there are keys."""
        k = self.k
        if self.free is None:
            super().load_work_tile(cta, has_tiles)
            return
        with self.sent_findings():
            with k.when(has_tiles, uniform=True):
                self.load_keys(cta, self.first_key(-cta.tiles))
            with self.free.drain():
                pass
            with k.when(has_tiles, uniform=True):
                self.load_queries(cta)
                self.load_after_first_keys(cta)

    @marked("tensor rings: queries")
    def load_queries(self, cta: Cta) -> None:
        """See `TmaPipeline`."""
        if self.queries.written:
            with self.queries.write() as stage:
                BoxRows(self.k, Team(self.producer), stage.q).load(cta.Q, cta.first_row)
                commit_copies(self.k)
                await_copies(self.k)
                if self.reworked or self.rotates:
                    self.producer.barrier.sync()  # a thread changes what others have copied
                    self._change(cta, stage.q)
            return
        with self.queries.fill() as stage:
            self.k.tma.load(stage.q, self.corner("Q", cta, cta.first_row))
        if self.reworked or self.rotates:
            with self.queries.rework() as stage:
                self._change(cta, stage.q)

    def _change(self, cta: Cta, tile: BoxTile) -> None:
        """Rotate the queries in their tile, by all threads that load."""
        appended = AppendedKV.of(self.k, self.config, self.parameters, cta)
        assert appended is not None
        assert appended.rotation is not None  # of kernels that rotate
        # Proofs follow a loop of so many pairs of columns.
        pairs = appended.rotation.rotary_dim // 2
        count = max(_ROTATED // pairs // SWIZZLE_ROWS, 1) * SWIZZLE_ROWS
        for first in range(0, tile.rows, count):
            appended.rotate_queries(tile.pointer, Team(self.producer), first, min(count, tile.rows - first))


class GatheredTensorPipeline(GatheredPipeline, TensorPipeline):
    """A `TensorPipeline` whose tiles of K and V threads copy row by row, as in `GatheredPipeline`."""
