"""Tiles of Q, K and V on their way to shared memory by tensor copies, and of O on its way back."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.nonfinite import RestoredValues, hides_rows
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

    clears_copies: ClassVar[bool] = True  # whether the producer clears tiles of V as they were copied

    maps: Mapping[str, TensorParameter]
    queries: Ring | BoxTile
    keys: Ring
    values: Ring
    out: BoxTile | None
    tile: int  # keys
    odd: RestoredValues | None  # what clears NaN and infinity in V

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """Declare the tensor maps, behind the other parameters, and the rings."""
        return cls(**cls.declared(k, config, t, producer, consumer))

    @classmethod
    def clears(cls, config: KernelConfig) -> bool:
        """Whether the producer clears NaN and infinity in the copied tiles of V of a kernel
        (`flash/device/cleared_values.py`).
        """
        return cls.clears_copies and hides_rows(config)

    @classmethod
    def declared(
        cls,
        k: KernelBuilder,
        config: KernelConfig,
        t: WgmmaTiling,
        producer: Role,
        consumer: Role,
        *,
        reworked: bool = False,
        gathered: bool = False,
    ) -> dict[str, Any]:
        """The fields of this class. `reworked` is whether the producer works on all tiles of K and V that
        have been copied, `gathered` whether its threads copy their rows.
        """
        maps = declared_maps(k, config)
        keys, values, out = (layout_of(t, config.dtype, array) for array in "KVO")
        queries, over = declared_queries(k, config, t, producer, consumer)
        room = over if t.output_is_over_queries else None
        clears, merged = cls.clears(config), config.features.splits
        ring = functools.partial(k.tma.ring, t.stages, producer, consumer, gathered=gathered)
        of_keys = ring(reworked=reworked, k=keys)
        of_values = ring(reworked=reworked or clears, v=values)
        return {
            "maps": maps,
            "queries": queries,
            "keys": of_keys,
            "values": of_values,
            "out": None
            if merged
            else k.tma.tile("out", out.shape, out.dtype, swizzle=out.swizzle, over=room),
            "tile": t.tile,
            "odd": ClearedValues(k, config, producer, consumer, of_values) if clears else None,
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
    def fill_part(self, k: KernelBuilder, cta: Cta, has_tiles: Value) -> None:
        """What the producer does for a part of the problem, which may have no tiles of keys."""
        with self._sent_findings(), k.when(has_tiles, uniform=True):
            self.fill(k, cta)

    @contextmanager
    def _sent_findings(self) -> Iterator[None]:
        """Run the body, which fills the tiles of a part of the problem, and send to consumers whether NaN or
        infinity were found in V.
        """
        if isinstance(self.odd, ClearedValues):
            self.odd.begin()
        yield
        if isinstance(self.odd, ClearedValues):
            self.odd.send_findings()

    @marked("wgmma rings: fill")
    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """The producer's part: the queries of the CTA, and its tiles of keys from the last to the first,
        but for those between others that no query sees. There is at least one, and the last is always
        loaded, so that consumers begin with it.
        """
        self._fill_queries(k, cta)
        with self._each_tile(k, cta) as (n, row):
            self._fill_keys(k, cta, row)
            self._fill_values(k, cta, row, self._follows(cta, n))
        self._end_fills(cta)

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
    def _fill_values(self, k: KernelBuilder, cta: Cta, row: Value, follows: Value | bool = False) -> None:
        """Have the tile of V copied whose first key is `row`. `follows` is whether there is one before, which
        may have to be cleared.
        """
        with self._clearing(cta, row, follows) as cut, self.values.fill(reworked=cut) as stage:
            k.tma.load(stage.v, self.places(k, "V", cta, row))

    def _clearing(self, cta: Cta, row: Value, follows: Value | bool) -> AbstractContextManager[Value | None]:
        """The context in which a tile of V is filled: see `ClearedValues.fills`."""
        odd = self.odd
        return odd.fills(cta, row, follows) if isinstance(odd, ClearedValues) else nullcontext()

    def _follows(self, cta: Cta, n: Value) -> Value | bool:
        """Whether there is a tile before the one with -n - 1 tiles before it; False if nobody asks."""
        return n != -cta.tiles if isinstance(self.odd, ClearedValues) else False

    def _end_fills(self, cta: Cta) -> None:
        """All tiles of V have been filled; there is one."""
        if isinstance(self.odd, ClearedValues):
            self.odd.clear_last(cta)

    def cleared(self, k: KernelBuilder, cta: Cta) -> list[tuple[Value | int, Value]]:
        """The keys, first and end, in whose values NaN and infinity were cleared: those of tiles with hidden
        keys, and of the last tile.
        """
        found: list[tuple[Value | int, Value]] = []
        for end, first, masking in masked_tiles(k, cta, lambda: cta):
            if masking is Masking.FULL:
                first = k.min(first, k.max(cta.tiles - 1, 0))
            if masking.hides:
                found.append((cta.first_key_of(k, first), end * self.tile))
        return found

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
