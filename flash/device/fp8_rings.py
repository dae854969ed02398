"""Tiles of Q, K and V of one-byte elements on their way to shared memory, V also transposed there, and
of O on its way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flash.device.cta import Cta
from flash.device.fp8_nonfinite import Fp8NonFinite
from flash.device.fp8_values import Fp8Values
from flash.device.wgmma_rings import Rings, declared_maps, declared_queries
from flash.operands.dtypes import DType
from flash.problem.fp8_tiling import ONES, Fp8Tiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import layout_of
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role, Value
from ptxgen.dsl.hopper import Layout, Ring
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Fp8Rings(Rings):
    """The tensor maps and rings of a kernel with Q, K and V of fp8. Tiles of V are copied to the ring `raw`;
    `producer` transposes them to tiles of the ring `values`, [columns of V, keys], behind whose columns of V
    are `ONES` rows of ones. O leaves from the tiles of `values` if they have room, or as parts that are to be
    merged from registers.
    """

    clears_copies: ClassVar[bool] = False  # tiles of V are cleared when they are transposed

    odd: Fp8NonFinite | None
    raw: Ring
    producer: Role
    kind: DType  # of V

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """Declare the tensor maps, behind the other parameters, and the rings."""
        assert isinstance(t, Fp8Tiling)  # the tiling of a config of fp8
        maps = declared_maps(k, config)
        keys, v, out = (layout_of(t, config.element_of(array), array) for array in "KVO")
        queries, _ = declared_queries(k, config, t, producer, consumer)
        of_keys = k.tma.ring(t.stages, producer, consumer, k=keys)
        raw = k.tma.ring(t.stages, producer, producer, v=v)
        turned = Layout.of("V", (t.output_columns // ONES + 1, ONES, t.tile), v.dtype)
        values = k.tma.ring(t.stages, producer, consumer, written=True, v=turned)
        room = None
        if t.output_is_over_values:
            whole = Layout.of("V", (t.stages, *turned.shape), v.dtype)
            first = values.tile("v")
            room = type(first)(k, "values", whole, first.slab(0), first.owner)
        made = None
        if not config.features.splits:
            made = k.tma.tile("out", out.shape, out.dtype, swizzle=out.swizzle, over=room)
        # Without a mask, the only hidden keys are beyond the end, where the tile of V holds zeros, but of
        # packed sequences rows of the next one.
        odd = Fp8NonFinite(k, config) if config.hides_keys or config.features.varlen else None
        return cls(maps, queries, of_keys, values, made, t.tile, odd, raw, producer, config.dtype)

    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """See `Rings.fill`. A tile of V is transposed while the next one is on its way, and NaN and infinity
        in it are cleared if `odd` is not None.
        """
        turn = Fp8Values(k, self.producer, self.raw, self.values, self.odd)
        turn.add_ones(self.kind)
        self._fill_queries(k, cta)
        with self._each_tile(k, cta) as (n, row):
            self._fill_keys(k, cta, row)
            with self.raw.fill() as stage:
                k.tma.load(stage.v, self.places(k, "V", cta, row))
            with k.when(n != -cta.tiles, uniform=True):
                turn.transpose()
        turn.transpose()

    def cleared(self, k: KernelBuilder, cta: Cta) -> list[tuple[Value | int, Value]]:
        """See `Rings.cleared`: values of all tiles were cleared."""
        first: Value | int = 0 if cta.first_tile is None else cta.first_key_of(k, cta.first_tile)
        return [(first, cta.tiles * cta.tile)]
