"""Tiles of f32 on their way to shared memory, where the warpgroup that has them copied splits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flash.device.cta import Cta
from flash.device.masked_tiles import masked_tiles
from flash.device.nonfinite import NonFinite
from flash.device.split_boxes import SplitBoxes
from flash.device.wgmma_rings import Rings
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.records import dataclass
from ptxgen.types import u32

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class SplitRings(Rings):
    """The tensor maps and rings of a kernel that splits tiles of f32. Consumers split the tile of Q, the
    producer splits those of K and V. `SplitBoxes` tells the tiles of a place apart by their `mark_of`.
    """

    clears_copies: ClassVar[bool] = False  # tiles of V are cleared when they are split

    odd: NonFinite
    of_queries: SplitBoxes
    of_keys: SplitBoxes
    of_values: SplitBoxes
    producer: Role

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """See `Rings.declare`."""
        rings = cls.declared(k, config, t, producer, consumer, reworked=True)
        return cls(
            **{**rings, "odd": NonFinite(k, config)},
            of_queries=SplitBoxes(k, "Q", t.block_q, 1),
            of_keys=SplitBoxes(k, "K", t.tile, t.stages),
            of_values=SplitBoxes(k, "V", t.tile, t.stages),
            producer=producer,
        )

    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """See `Rings.fill`. While a tile of K and one of V are on their way, consumers take those before,
        and the tile of V before is split: it is needed after the next tile of K.
        """
        self._fill_queries(k, cta)
        before = k.var(u32, 0)
        with self._each_tile(k, cta) as (n, row):
            self._fill_keys(k, cta, row)
            with k.when(before != 0, uniform=True):
                self._split_values(before)
            self._split_keys(mark_of(n))
            self._fill_values(k, cta, row)
            before.set(mark_of(n))
        self._split_values(before)

    def cleared(self, k: KernelBuilder, cta: Cta) -> list[tuple[Value | int, Value]]:
        """See `Rings.cleared`: values of all tiles were cleared."""
        if cta.part is not None and cta.first_tile is not None:
            # The loops of a split follow one another.
            return [(cta.first_key_of(k, cta.first_tile), cta.tiles * self.tile)]
        return [(first * self.tile, end * self.tile) for end, first, _ in masked_tiles(k, cta, lambda: cta)]

    def _split_keys(self, mark: Value) -> None:
        producer = self.producer
        with self.keys.rework() as stage:
            self.of_keys.split(stage.k, (producer.thread, producer.threads), mark, stage.index)

    @marked("wgmma split rings: values")
    def _split_values(self, mark: Value) -> None:
        producer = self.producer
        with self.values.rework() as stage:
            team = producer.thread, producer.threads
            self.of_values.split(stage.v, team, mark, stage.index, self.odd.found)


def mark_of(n: Value) -> Value:
    """The mark of the tile with -n - 1 tiles before it, for `SplitBoxes`: u32, not 0."""
    return n.as_(u32)
