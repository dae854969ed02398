"""Tiles of Q and K on their way to shared memory by tensor copies where V is columns of K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from flash.device.cta import Cta
from flash.device.nonfinite import NonFinite, hides_rows
from flash.device.shared_rows_softmax import Exchange
from flash.device.wgmma_rings import Rings, declared_maps, declared_queries
from flash.problem.kernel_config import KernelConfig
from flash.problem.latent_tiling import LatentTiling
from flash.problem.tensor_maps import layout_of
from flash.problem.wgmma_tiling import WGMMA_ROWS, WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role, SharedTile, Value, marked
from ptxgen.dsl.hopper import BoxTile, Ring, Stage
from ptxgen.records import dataclass
from ptxgen.types import s32, u32

if TYPE_CHECKING:
    from typing import Self

_HALVES: Final = 2  # of the columns of a tile that are V


@dataclass(frozen=True)
class LatentRings(Rings):
    """The tensor maps and rings of a kernel in which V is columns of K.

    Two warpgroups have the same rows, each with half of the columns of O, and take turns at tiles: one
    computes the scores of a tile, its own one, and passes on the weights, through `weights`, and shifts of
    rows, through `rooms`. A tile of K comes in parts, which are given back one by one: in `keys`, which is
    also `values`, two halves of the columns that are V, first that of the warpgroup whose tile it is; and in
    `rest` the columns behind these, if there are any.
    """

    clears_copies: ClassVar[bool] = False  # consumers clear tiles, which they also read as K

    odd: NonFinite | None
    rest: Ring | None
    weights: BoxTile
    rooms: tuple[SharedTile, SharedTile]  # see `Exchange`

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """Declare the tensor maps, behind the other parameters, and the rings."""
        assert isinstance(t, LatentTiling)  # no other kernel has these rings
        maps, element = declared_maps(k, config), config.dtype.scalar
        weights = k.tma.tile("P_tile", (WGMMA_ROWS, t.tile), element)
        queries, over = declared_queries(k, config, t, producer, consumer)
        # Each room lies behind barriers, where the next tile does not begin.
        shifts, rest = Exchange.room(k, "shifts", WGMMA_ROWS), None
        if t.rest_columns:
            columns = ((t.tile, t.rest_columns), element)
            rest = k.tma.ring(t.stages, producer, consumer, dealt=True, gathered=t.gathers, k=columns)
        rests = Exchange.room(k, "rests_of_shifts", WGMMA_ROWS)
        half = (t.tile, t.columns_of_consumer)
        stages, parts = _HALVES * t.stages, t.parts_of_half
        how: dict[str, Any] = {"dealt": True, "gathered": t.gathers, "parts": parts}
        keys = k.tma.ring(stages, producer, consumer, **how, v=(half, element))
        out, leaves = layout_of(t, config.dtype, "O"), None
        if not config.features.splits:
            leaves = k.tma.tile("out", out.shape, out.dtype, swizzle=out.swizzle, over=over)
        odd = NonFinite(k, config) if hides_rows(config) else None
        return cls(maps, queries, keys, keys, leaves, t.tile, odd, rest, weights, (shifts, rests))

    @marked("latent rings: fill")
    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """See `Rings`; the parts of a tile come in the order in which scores are summed."""
        self._fill_queries(k, cta)
        width = self.keys.tiles["v"].columns
        first = k.var(s32, 0)  # the first column of the warpgroup whose tile is next
        with self._each_tile(k, cta) as (_, row):
            if self.rest is not None:
                with self.rest.fill() as stage:
                    k.tma.load(stage.k, self.places(k, "K", cta, row, _HALVES * width))
            for column in (first, width - first):
                with self.keys.fill() as stage:
                    k.tma.load(stage.v, self.places(k, "K", cta, row, column))
            first.set(width - first)


class PingPongTiles:
    """The tiles of keys in the order in which they come, which two warpgroups take in turns: this warpgroup,
    number `group` (u32, 0 or 1), begins with tile `group`. `turn` is the warpgroup whose tile is next.
    """

    def __init__(self, k: KernelBuilder, rings: LatentRings, group: Value) -> None:
        self.k = k
        self.rings = rings
        self.turn = k.var(u32, 0)
        self._group = group
        self._stages = rings.keys.stages // _HALVES  # tiles
        # With two stages, the tiles of a warpgroup are always in the same one.
        self._at = None if self._stages == _HALVES else k.var(u32, 0)
        self._parity = k.var(u32, 0)

    @property
    def is_mine(self) -> Value:
        """Whether the next tile is this warpgroup's."""
        return self.turn == self._group

    @marked("latent turns: rest")
    def rest(self) -> Stage | None:
        """The columns of this warpgroup's tile behind those that are V, when they are there; None if there
        are none.
        """
        rest = self.rings.rest
        return None if rest is None else rest.take(self._stage, self._parity)

    @marked("latent turns: half")
    def half(self, nth: int) -> Stage:
        """The half of this warpgroup's tile that has its columns of O (0), or the other one (1), when the
        first part is there.
        """
        return self.rings.keys.take(self._stage * _HALVES + nth, self._parity)

    @marked("latent turns: half before")
    def half_before(self) -> Stage:
        """The half of the tile before, the other warpgroup's, that has this warpgroup's columns of O, when it
        is there.
        """
        k, wraps = self.k, self._stage == 0
        before = k.selp(self._stages - 1, self._stage - 1, wraps)
        half = self.rings.keys.take(before * _HALVES + 1, self._parity ^ k.selp(1, 0, wraps, type=u32))
        for part in range(1, self.rings.keys.parts):
            half.wait(part)
        return half

    @marked("latent turns: advance")
    def advance(self) -> None:
        """Go on to the next tile."""
        k, at, parity = self.k, self._at, self._parity
        if at is None:
            parity.set(parity ^ self.turn)
        else:
            is_last = at == self._stages - 1
            parity.set(k.selp(parity ^ 1, parity, is_last))
            at.set(k.selp(0, at + 1, is_last))
        self.turn.set(self.turn ^ 1)

    @property
    def _stage(self) -> Value:
        """The stage of this warpgroup's tile, if it is the next."""
        return self._group if self._at is None else self._at
