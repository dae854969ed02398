"""Tiles of Q, K and V on their way to shared memory by tensor copies, and of O on its way back."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from flash.device.cta import Cta
from flash.device.nonfinite import NonFinite
from flash.device.pages import PagedMatrix
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import layout_of, map_name, mapped, rank_of
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import BoxTile, Corner, Ring, TensorParameter
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from typing import Self

_BATCHED: Final = 4  # dimensions of a tensor with batches: these, heads, rows, columns


@dataclass(frozen=True)
class Rings:
    """The tensor maps of arrays, by array, and the rings of tiles that the producer fills. `queries` is a
    tile that consumers fill themselves if Q has no tensor map. O leaves from `out`, which lies in the tile
    of Q if it has room there; parts that are to be merged, which are f32, leave from registers (None).
    """

    maps: Mapping[str, TensorParameter]
    queries: Ring | BoxTile
    keys: Ring
    values: Ring
    out: BoxTile | None
    tile: int  # keys
    odd: NonFinite | None  # what clears NaN and infinity in V, if the producer does so

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """Declare the tensor maps, behind the other parameters, and the rings."""
        return cls(**cls.declared(k, config, t, producer, consumer, reworked=False), odd=None)

    @staticmethod
    def declared(
        k: KernelBuilder,
        config: KernelConfig,
        t: WgmmaTiling,
        producer: Role,
        consumer: Role,
        *,
        reworked: bool,
        gathered: bool = False,
    ) -> dict[str, Any]:
        """The fields of this class but `odd`. `reworked` is whether the producer works on tiles of K and V
        that have been copied, `gathered` whether its threads copy their rows.
        """
        maps = declared_maps(k, config)
        keys, values, out = (layout_of(t, config.dtype, array) for array in "KVO")
        queries, over = declared_queries(k, config, t, producer, consumer)
        room = over if t.output_is_over_queries else None
        merged = config.features.splits
        ring = functools.partial(
            k.tma.ring, t.stages, producer, consumer, reworked=reworked, gathered=gathered
        )
        return {
            "maps": maps,
            "queries": queries,
            "keys": ring(k=keys),
            "values": ring(v=values),
            "out": None
            if merged
            else k.tma.tile("out", out.shape, out.dtype, swizzle=out.swizzle, over=room),
            "tile": t.tile,
        }

    def place(self, array: str, cta: Cta, row: Value, column: Value | int = 0) -> Corner:
        """The place of a row of the CTA's head, or of its head of K and V, in an array, from `column` on."""
        of = self.maps[array]
        batch, head, begin = cta.batch, cta.head, cta.queries_from
        if array in ("K", "V"):
            batch, head, begin = cta.kv_sequence, cta.kv_head, cta.keys_from
        outer = (batch, head) if of.type.rank == _BATCHED else (head,)
        return of[(*outer, row if begin is None else begin + row, column)]

    def first_key(self, n: Value) -> Value:
        """The first key of the tile with -n - 1 tiles before it."""
        return (-1 - n) * self.tile

    @marked("wgmma rings: fill")
    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """The producer's part: the queries of the CTA, and its tiles of keys from the last to the first,
        but for those between others that no query sees. There is at least one, and the last is always
        loaded, so that consumers begin with it.
        """
        self._fill_queries(k, cta)
        with self._each_tile(k, cta) as (_, row):
            self._fill_keys(k, cta, row)
            self._fill_values(k, cta, row)

    @contextmanager
    @marked("wgmma rings: fill")
    def _each_tile(self, k: KernelBuilder, cta: Cta) -> Iterator[tuple[Value, Value]]:
        """Run the body for each tile of keys that is loaded, the last first. Gives `n`, before which there
        are -n - 1 tiles, and the first key of the tile; both are s32.
        """
        with k.loop(-cta.tiles, 0 if cta.first_tile is None else -cta.first_tile) as n:
            row = self.first_key(n)
            seen = cta.mask.sees_tile(row)
            wanted = None if seen is None else seen | (n == -cta.tiles)
            with nullcontext() if wanted is None else k.when(wanted, uniform=True):
                yield n, row

    @marked("wgmma rings: fill")
    def _fill_queries(self, k: KernelBuilder, cta: Cta) -> None:
        """Have the queries of the CTA copied, unless consumers load them."""
        if isinstance(self.queries, Ring):
            with self.queries.fill() as stage:
                k.tma.load(stage.q, self.place("Q", cta, cta.first_row))

    @marked("wgmma rings: fill")
    def _fill_keys(self, k: KernelBuilder, cta: Cta, row: Value) -> None:
        """Have the tile of K copied whose first key is `row`."""
        with self.keys.fill() as stage:
            k.tma.load(stage.k, self.places(k, "K", cta, row))

    @marked("wgmma rings: fill")
    def _fill_values(self, k: KernelBuilder, cta: Cta, row: Value) -> None:
        """Have the tile of V copied whose first key is `row`."""
        with self.values.fill() as stage:
            k.tma.load(stage.v, self.places(k, "V", cta, row))

    def places(
        self, k: KernelBuilder, array: str, cta: Cta, row: Value, column: Value | int = 0
    ) -> Corner | list[Corner]:
        """Where the rows of a tile of K or V are, from `row` and `column` on: of keys in pages several
        places.
        """
        if not isinstance(cta.K, PagedMatrix):
            return self.place(array, cta, row, column)
        pages, of = cta.K.pages, self.maps[array]
        rows = math.gcd(pages.page_size, self.tile)
        found = pages.boxes(k, row, rows, self.tile // rows)
        return [of[page, cta.kv_head, place, column] for page, place in found]


def declared_maps(k: KernelBuilder, config: KernelConfig) -> Mapping[str, TensorParameter]:
    """Declare the tensor maps, behind the other parameters."""
    return {
        array: k.tma.tensor_map(map_name(array), config.element_of(array).scalar, rank_of(config, array))
        for array in mapped(config)
    }


def declared_queries(
    k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
) -> tuple[Ring | BoxTile, BoxTile]:
    """Declare the ring of Q, or its tile if Q has no tensor map; and the tile in either case."""
    q = layout_of(t, config.dtype, "Q")
    if "Q" not in mapped(config):
        tile = k.tma.tile("Q_tile", q.shape, q.dtype, swizzle=q.swizzle)
        return tile, tile
    ring = k.tma.ring(1, producer, consumer, q=q)
    return ring, ring.tile("q")
