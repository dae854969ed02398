"""Tiles of Q, K and V on their way to shared memory by tensor copies, and of O on its way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flash.device.cta import Cta
from flash.problem.config import KernelConfig
from flash.problem.tensor_maps import MAPPED, RANK, layout_of, map_name
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import BoxTile, Ring, TensorParameter

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Rings:
    """The tensor maps of the four arrays, [batch, heads, rows, columns], and the rings of tiles that the
    producer fills. `out` is the tile of Q, from which O is copied.
    """

    Q: TensorParameter
    K: TensorParameter
    V: TensorParameter
    O: TensorParameter
    queries: Ring
    keys: Ring
    values: Ring
    out: BoxTile
    tile: int  # keys

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """Declare the tensor maps, behind the other parameters, and the rings."""
        dtype = config.dtype.scalar
        Q, K, V, O = (k.tma.tensor_map(map_name(array), dtype, RANK) for array in MAPPED)
        q, keys, values, out = (layout_of(t, config.dtype, array) for array in MAPPED)
        queries = k.tma.ring(1, producer, consumer, q=q)
        return cls(
            Q,
            K,
            V,
            O,
            queries,
            k.tma.ring(t.stages, producer, consumer, k=keys),
            k.tma.ring(t.stages, producer, consumer, v=values),
            k.tma.tile("out", out.shape, dtype, swizzle=out.swizzle, over=queries.tile("q")),
            t.tile,
        )

    def first_key(self, n: Value) -> Value:
        """The first key of the tile with -n - 1 tiles before it."""
        return (-1 - n) * self.tile

    @marked("wgmma rings: fill")
    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """The producer's part: the queries of the CTA, and its tiles of keys from the last to the first.
        There is at least one.
        """
        with self.queries.fill() as stage:
            k.tma.load(stage.q, self.Q[cta.batch, cta.head, cta.first_row, 0])
        with k.loop(-cta.tiles, 0 if cta.first_tile is None else -cta.first_tile) as n:
            row = self.first_key(n)
            with self.keys.fill() as stage:
                k.tma.load(stage.k, self.K[cta.batch, cta.kv_head, row, 0])
            with self.values.fill() as stage:
                k.tma.load(stage.v, self.V[cta.batch, cta.kv_head, row, 0])
