"""Tiles of Q, K and V on their way to shared memory by tensor copies, and of O on its way back."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import ClassVar, Final

from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.mask import if_seen
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.nonfinite import RestoredValues, hides_rows
from flash.device.pages import PagedMatrix
from flash.families.wgmma import WGMMA_ROWS, WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import layout_of, map_name, mapped, rank_of, stores_by_warpgroup
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import AsyncStores, BoxTile, Corner, PingPong, Ring

_BATCHED: Final = 4  # dimensions of a tensor with batches: these, heads, rows, columns


class TmaPipeline:
    """The tensor maps of arrays, after the other parameters, and the rings of tiles that the producer fills.
    `queries` is a tile that consumers fill themselves if Q has no tensor map. O leaves from `out`, which
    lies in the tile of Q if it has room there; splits that are to be merged, which are f32, leave from
    registers (None).
    """

    reworked: ClassVar[bool] = False  # whether the producer works on all tiles that have been copied
    gathered: ClassVar[bool] = False  # whether threads of the producer copy the rows of K and V
    clears_copies: ClassVar[bool] = True  # whether the producer clears tiles of V as they were copied

    queries: Ring | BoxTile
    keys: Ring
    values: Ring
    out: BoxTile | None
    nonfinite: RestoredValues | None  # what clears NaN and infinity in V
    stores: AsyncStores | None = None  # of warpgroups that store O by themselves
    ping_pong: PingPong | None = None  # the order of warpgroups that goes on from work tile to work tile

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> None:
        self.k = k
        self.config = config
        self.tile = t.tile  # keys
        self.producer = producer
        self.maps = {
            array: k.tma.tensor_map(map_name(array), config.element_of(array).scalar, rank_of(config, array))
            for array in mapped(config)
        }
        self.declare(t, consumer)

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """Declare the pipeline's rings of tiles of Q, K and V in shared memory."""
        k, config, producer = self.k, self.config, self.producer
        keys, values = (layout_of(t, config.dtype, array) for array in "KV")
        over = self.declare_queries(t, consumer)
        clears = self.clears_copies and hides_rows(config)
        ring = functools.partial(k.tma.ring, t.stages, producer, consumer, gathered=self.gathered)
        if t.separate_output:
            self.declare_output(t, None)
        self.keys = ring(reworked=self.reworked, k=keys)
        self.values = ring(reworked=self.reworked or clears, v=values)
        if not t.separate_output:
            self.declare_output(t, over if t.output_is_over_queries else None)
        self.nonfinite = ClearedValues(k, config, producer, consumer, self.values) if clears else None

    def declare_queries(self, t: WgmmaTiling, consumer: Role) -> BoxTile:
        """Declare the ring of Q, or its tile if Q has no tensor map; returns the tile in either case."""
        k, q = self.k, layout_of(t, self.config.dtype, "Q")
        if "Q" in mapped(self.config):
            self.queries = k.tma.ring(t.query_stages, self.producer, consumer, q=q)
            return self.queries.tile("q")
        self.queries = k.tma.tile("Q_tile", q.shape, q.dtype, swizzle=q.swizzle)
        return self.queries

    def declare_output(self, t: WgmmaTiling, over: BoxTile | None) -> None:
        """Declare the tile from which O leaves, `over` memory of another one. Of warpgroups that store by
        themselves it has the rows of one, and the columns of each next to those of the one before.
        """
        out = layout_of(t, self.config.element_of("O"), "O")
        if stores_by_warpgroup(self.config):
            out = replace(out, shape=(WGMMA_ROWS, t.consumers * out.columns))
        self.out = None
        if not self.config.features.splits:
            self.out = self.k.tma.tile("out", out.shape, out.dtype, swizzle=out.swizzle, over=over)

    @contextmanager
    def consumed(self) -> Iterator[None]:
        """Run the body, in which consumers take all their work tiles."""
        yield

    def free_queries(self) -> None:
        """Let the producer fetch the queries of the next work tile, if there may be one, where no ring tells
        that their memory has been read.
        """

    def corner(self, array: str, cta: Cta, row: Value, column: Value | int = 0) -> Corner:
        """The coordinates, in an array, of a row of the CTA's head, or of its head of K and V, from `column`
        on.
        """
        of = self.maps[array]
        batch, head, begin = cta.batch, cta.head, cta.queries_from
        if array in ("K", "V"):
            batch, head, begin = cta.kv_sequence, cta.kv_head, cta.keys_from
        outer = (batch, head) if of.type.rank == _BATCHED else (head,)
        return of[(*outer, row if begin is None else begin + row, _in_slice(array, cta, column))]

    def first_key(self, n: Value) -> Value:
        """The first key of the tile with -n - 1 tiles before it."""
        return (-1 - n) * self.tile

    @marked("wgmma rings: fill")
    def load_work_tile(self, cta: Cta, has_tiles: Value) -> None:
        """The producer's code for a work tile, which may have no tiles of keys."""
        with self.sent_findings(), self.k.when(has_tiles, uniform=True):
            self.load(cta)

    def sent_findings(self) -> AbstractContextManager[None]:
        """The context in which a work tile is loaded: see `ClearedValues.sent_findings`."""
        clears = self.nonfinite
        return clears.sent_findings() if isinstance(clears, ClearedValues) else nullcontext()

    @marked("wgmma rings: fill")
    def load(self, cta: Cta) -> None:
        """The producer's part: the queries of the CTA, and its tiles of keys from the last to the first. A
        tile between others that no query sees is skipped. There is at least one tile, and the last is always
        loaded, so that consumers begin with it.
        """
        self.load_queries(cta)
        with self.each_tile(cta) as (n, row):
            self.load_keys(cta, row)
            self.load_values(cta, row, self.follows(cta, n))
        self.end_loads(cta)

    @marked("persistent rings: fill")
    def load_after_first_keys(self, cta: Cta) -> None:
        """Load all tiles of a persistent CTA's work tile but Q and the first tile of K."""
        k = self.k
        self.load_values(cta, self.first_key(-cta.tiles))
        with k.loop(1 - cta.tiles, 0 if cta.first_tile is None else -cta.first_tile) as n:
            row = self.first_key(n)
            with if_seen(k, cta.mask.sees_tile(row)):
                self.load_keys(cta, row)
                self.load_values(cta, row, follows=True)
        self.end_loads(cta)

    @contextmanager
    @marked("wgmma rings: fill")
    def each_tile(self, cta: Cta, after: int = 0) -> Iterator[tuple[Value, Value]]:
        """Run the body for each tile of keys that is loaded, the last first, or for those `after` the first
        so many. Gives `n`, before which there are -n - 1 tiles, and the first key of the tile; both are s32.
        """
        k = self.k
        with k.loop(
            after - cta.tiles if after else -cta.tiles, 0 if cta.first_tile is None else -cta.first_tile
        ) as n:
            row = self.first_key(n)
            seen = cta.mask.sees_tile(row)
            with if_seen(k, None if seen is None else seen | (n == -cta.tiles)):
                yield n, row

    @marked("wgmma rings: fill")
    def load_queries(self, cta: Cta) -> None:
        """Start the copy of the queries of the CTA, unless consumers load them."""
        if isinstance(self.queries, Ring):
            with self.queries.fill() as stage:
                self.k.tma.load(stage.q, self.corner("Q", cta, cta.first_row))

    @marked("wgmma rings: fill")
    def load_keys(self, cta: Cta, row: Value) -> None:
        """Start the copy of the tile of K whose first key is `row`."""
        with self.keys.fill() as stage:
            self.k.tma.load(stage.k, self.corners("K", cta, row))

    @marked("wgmma rings: fill")
    def load_values(self, cta: Cta, row: Value, follows: Value | bool = False) -> None:
        """Start the copy of the tile of V whose first key is `row`. `follows` is whether it follows another
        tile of V, which may have to be cleared.
        """
        with self.clearing(cta, row, follows) as hides, self.values.fill(reworked=hides) as stage:
            self.k.tma.load(stage.v, self.corners("V", cta, row))

    def clearing(self, cta: Cta, row: Value, follows: Value | bool) -> AbstractContextManager[Value | None]:
        """The context in which a tile of V is filled: see `ClearedValues.fills`."""
        clears = self.nonfinite
        return clears.fills(cta, row, follows) if isinstance(clears, ClearedValues) else nullcontext()

    def follows(self, cta: Cta, n: Value) -> Value | bool:
        """Whether the tile with -n - 1 tiles before it is loaded after another one; False if no caller needs
        it.
        """
        return n != -cta.tiles if isinstance(self.nonfinite, ClearedValues) else False

    def end_loads(self, cta: Cta) -> None:
        """End the loads of a work tile, after its last tile of V: clear that tile if the producer clears
        tiles.
        """
        if isinstance(self.nonfinite, ClearedValues):
            self.nonfinite.clear_last(cta)

    def cleared(self, cta: Cta) -> list[tuple[Value | int, Value]]:
        """The keys, first and end, in whose values NaN and infinity were cleared: those of tiles with hidden
        keys, and of the last tile.
        """
        k = self.k
        ranges: list[tuple[Value | int, Value]] = []
        for end, first, masking in masked_tiles(k, cta, lambda: cta):
            if masking is Masking.FULL:
                first = k.min(first, k.max(cta.tiles - 1, 0))
            if masking.hides:
                ranges.append((cta.first_key_of(k, first), end * self.tile))
        return ranges

    def corners(self, array: str, cta: Cta, row: Value, column: Value | int = 0) -> Corner | list[Corner]:
        """The coordinates of the rows of a tile of K or V, from `row` and `column` on: of keys in pages,
        those of several boxes.
        """
        if not isinstance(cta.K, PagedMatrix):
            return self.corner(array, cta, row, column)
        pages, of = cta.K.pages, self.maps[array]
        rows = math.gcd(pages.page_size, self.tile)
        boxes = pages.boxes(self.k, row, rows, self.tile // rows)
        first = _in_slice(array, cta, column)
        return [of[page, cta.kv_head, down, first] for page, down in boxes]


def _in_slice(array: str, cta: Cta, column: Value | int) -> Value | int:
    """The column of an array as this CTA counts it: of V and O from the first that the CTA computes."""
    return column if cta.slice is None or array in ("Q", "K") else cta.slice.first + column


class PersistentPipeline(TmaPipeline):
    """See `TmaPipeline`; stages and phases of the rings go on from work tile to work tile, and so does the
    order of the warpgroups, of which one may begin the next work tile while another finishes its rows.
    """

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        super().declare(t, consumer)
        if t.ping_pong:
            self.ping_pong = self.k.ping_pong(consumer)

    @contextmanager
    @marked("persistent rings: consumers")
    def consumed(self) -> Iterator[None]:
        """See `TmaPipeline`."""
        if stores_by_warpgroup(self.config):
            self.stores = self.k.tma.async_stores("warpgroup")
        if self.ping_pong is not None:
            self.ping_pong.begin()
        yield
        if self.ping_pong is not None:
            self.ping_pong.end()
        if self.stores is not None:
            self.stores.wait_read(meet=False)

    @marked("persistent rings: fill")
    def load_work_tile(self, cta: Cta, has_tiles: Value) -> None:
        """See `TmaPipeline`; the order is another one. The memory of Q is free last, when O has left it or
        the last scores are there; so the first tile of keys is fetched before. Q comes also where no keys
        are seen, so that nobody writes its memory while it belongs to consumers.
        """
        k = self.k
        with self.sent_findings():
            with k.when(has_tiles, uniform=True):
                self.load_keys(cta, self.first_key(-cta.tiles))
            self.load_queries(cta)
            with k.when(has_tiles, uniform=True):
                self.load_after_first_keys(cta)
