"""Tiles of Q, K and V of one-byte elements on their way to shared memory, V also transposed there, and
of O on its way back.
"""

from __future__ import annotations

from flash.device.cta import Cta
from flash.device.fp8_nonfinite import Fp8NonFinite
from flash.device.fp8_values import Fp8Values
from flash.device.tma_pipeline import TmaPipeline
from flash.families.wgmma import WgmmaTiling
from flash.families.wgmma_fp8 import FP8, ONES
from flash.problem.tensor_maps import layout_of
from ptxgen.dsl import Role, Value
from ptxgen.dsl.hopper import Layout


class Fp8Pipeline(TmaPipeline):
    """See `TmaPipeline`. Tiles of V are copied to the ring `raw`; the producer transposes them to tiles of
    the ring `values`, [columns of V, keys], after whose columns of V are `ONES` rows of ones. O leaves from
    the tiles of `values` if they have room.
    """

    nonfinite: Fp8NonFinite | None  # tiles of V are cleared when they are transposed

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        t = FP8.require(t)
        k, config, producer = self.k, self.config, self.producer
        keys, v = (layout_of(t, config.element_of(array), array) for array in "KV")
        self.declare_queries(t, consumer)
        self.keys = k.tma.ring(t.stages, producer, consumer, k=keys)
        self.raw = k.tma.ring(t.stages, producer, producer, v=v)
        transposed = Layout.of("V", (t.output_columns // ONES + 1, ONES, t.tile), v.dtype)
        self.values = k.tma.ring(t.stages, producer, consumer, written=True, v=transposed)
        over = None
        if t.output_is_over_values:
            whole = Layout.of("V", (t.stages, *transposed.shape), v.dtype)
            first = self.values.tile("v")
            over = type(first)(k, "values", whole, first.slab(0), first.owner)
        self.declare_output(t, over)
        # Without a mask, the only hidden keys are beyond the end, where the tile of V holds zeros, but of
        # packed sequences rows of the next one.
        clears = config.hides_keys or config.features.varlen
        self.nonfinite = Fp8NonFinite(k, config) if clears else None

    def load(self, cta: Cta) -> None:
        """See `TmaPipeline`. A tile of V is transposed while the next one is on its way, and NaN and infinity
        in it are cleared if `nonfinite` is not None.
        """
        k = self.k
        values = Fp8Values(k, self.producer, self.raw, self.values, self.nonfinite)
        values.add_ones(self.config.dtype)
        self.load_queries(cta)
        with self.each_tile(cta) as (n, row):
            self.load_keys(cta, row)
            with self.raw.fill() as stage:
                k.tma.load(stage.v, self.corners("V", cta, row))
            with k.when(n != -cta.tiles, uniform=True):
                values.transpose()
        values.transpose()

    def cleared(self, cta: Cta) -> list[tuple[Value | int, Value]]:
        """See `TmaPipeline`: values of all tiles were cleared."""
        first: Value | int = 0 if cta.first_tile is None else cta.first_key_of(self.k, cta.first_tile)
        return [(first, cta.tiles * cta.tile)]
