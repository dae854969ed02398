"""Tiles of f32 on their way to shared memory, where the warpgroup that has them copied splits them."""

from __future__ import annotations

from typing import ClassVar

from flash.device.cta import Cta
from flash.device.masked_tiles import masked_tiles
from flash.device.nonfinite import NonFinite
from flash.device.split_boxes import SplitBoxes
from flash.device.tma_pipeline import TmaPipeline
from flash.families.wgmma import WgmmaTiling
from ptxgen.dsl import Role, Value, marked
from ptxgen.types import u32


class SplitPipeline(TmaPipeline):
    """See `TmaPipeline`; tiles of f32 are split. Consumers split the tile of Q, the producer splits those of
    K and V. `SplitBoxes` tells the tiles of a stage apart by their `mark_of`.
    """

    reworked: ClassVar[bool] = True
    clears_copies: ClassVar[bool] = False  # tiles of V are cleared when they are split

    nonfinite: NonFinite

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        super().declare(t, consumer)
        k = self.k
        self.nonfinite = NonFinite(k, self.config)
        self.of_queries = SplitBoxes(k, "Q", t.block_q, 1)
        self.of_keys = SplitBoxes(k, "K", t.tile, t.stages)
        self.of_values = SplitBoxes(k, "V", t.tile, t.stages)

    def load(self, cta: Cta) -> None:
        """See `TmaPipeline`. While a tile of K and one of V are on their way, consumers take those before,
        and the tile of V before is split: it is needed after the next tile of K.
        """
        k = self.k
        self.load_queries(cta)
        before = k.var(u32, 0)
        with self.each_tile(cta) as (n, row):
            self.load_keys(cta, row)
            with k.when(before != 0, uniform=True):
                self._split_values(before)
            self._split_keys(mark_of(n))
            self.load_values(cta, row)
            before.set(mark_of(n))
        self._split_values(before)

    def cleared(self, cta: Cta) -> list[tuple[Value | int, Value]]:
        """See `TmaPipeline`: values of all tiles were cleared."""
        if cta.part is not None and cta.first_tile is not None:
            # The loops of a split follow one another.
            return [(cta.first_key_of(self.k, cta.first_tile), cta.tiles * self.tile)]
        return [
            (first * self.tile, end * self.tile) for end, first, _ in masked_tiles(self.k, cta, lambda: cta)
        ]

    def _split_keys(self, mark: Value) -> None:
        producer = self.producer
        with self.keys.rework() as stage:
            self.of_keys.split(stage.k, (producer.thread, producer.threads), mark, stage.index)

    @marked("wgmma split rings: values")
    def _split_values(self, mark: Value) -> None:
        producer = self.producer
        with self.values.rework() as stage:
            team = producer.thread, producer.threads
            self.of_values.split(stage.v, team, mark, stage.index, self.nonfinite.note_nonfinite)


def mark_of(n: Value) -> Value:
    """The mark of the tile with -n - 1 tiles before it, for `SplitBoxes`: u32, not 0."""
    return n.as_(u32)
