"""Tiles of Q, K and V on their way to shared memory, from which one thread multiplies them, and of O on its
way back.
"""

from __future__ import annotations

import functools
from typing import Protocol

from flash.device.box_rows import BoxRows
from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.nonfinite import hides_rows
from flash.device.team import Team
from flash.device.tiles import await_copies, commit_copies
from flash.device.tma_pipeline import TmaPipeline
from flash.families.wgmma import WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import layout_of, mapped
from ptxgen.dsl import KernelBuilder, Role, marked
from ptxgen.dsl.blackwell import TensorMemory
from ptxgen.dsl.hopper import BoxTile, Ring


class TensorRoles(Protocol):
    """The roles between which tiles of shared memory go."""

    @property
    def loading(self) -> Role:
        """The role that has tiles copied."""

    @property
    def multiplying(self) -> Role:
        """The role of which one thread starts products."""

    @property
    def correction(self) -> Role:
        """The role that writes O."""


class TensorPipeline(TmaPipeline):
    """See `TmaPipeline`; commits of products release the tiles of Q, K and V. The threads that load copy
    rows of Q if that has no tensor map.
    """

    queries: Ring

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, roles: TensorRoles, memory: TensorMemory
    ) -> None:
        self.memory = memory
        self.correction = roles.correction
        super().__init__(k, config, t, roles.loading, roles.multiplying)

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        k, config, producer = self.k, self.config, self.producer
        q, keys, values = (layout_of(t, config.dtype, array) for array in "QKV")
        ring = functools.partial(k.tma.ring, released_by=self.memory)
        clears = hides_rows(config)
        self.queries = ring(1, producer, consumer, written="Q" not in mapped(config), q=q)
        self.keys = ring(t.stages, producer, consumer, k=keys)
        self.values = ring(t.stages, producer, consumer, reworked=clears, v=values)
        over: BoxTile | None = self.queries.tile("q") if t.output_is_over_queries else None
        self.declare_output(t, over)
        self.nonfinite = ClearedValues(k, config, producer, self.correction, self.values) if clears else None

    @marked("tensor rings: queries")
    def load_queries(self, cta: Cta) -> None:
        """See `TmaPipeline`."""
        if not self.queries.written:
            super().load_queries(cta)
            return
        with self.queries.write() as stage:
            BoxRows(self.k, Team(self.producer), stage.q).load(cta.Q, cta.first_row)
            commit_copies(self.k)
            await_copies(self.k)
