"""What the kernels of gradients with `wgmma` share: tiles on their way to and from shared memory by tensor
copies, and the order in which a CTA takes tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flash.device.box_rows import BoxRows
from flash.device.gradient_parts import GradientParameters
from flash.device.nonfinite import clear_together
from flash.device.team import Team
from flash.device.tiles import Matrix
from flash.families.wgmma import WARPGROUP, WGMMA_ROWS
from flash.families.wgmma_gradient import CONSUMERS
from flash.problem.gradient_maps import gradient_layout, gradient_maps, gradient_rank
from flash.problem.gradients import GradientConfig
from flash.problem.tensor_maps import map_name
from ptxgen.dsl import KernelBuilder, Value, marked
from ptxgen.dsl.hopper import Accumulator, BoxTile, Corner, Layout, TensorParameter
from ptxgen.dsl.hopper.products import Operand, Product
from ptxgen.dsl.hopper.stage import Stage
from ptxgen.target import WARP_SIZE

_BATCHED: Final = 4  # dimensions of a tensor with batches: these, heads, rows, columns


class GradientPipeline:
    """The tensor maps of matrices, after the other parameters; the two roles; `owned`, a ring of one stage
    with the tiles of the two matrices whose rows the CTA owns; and `walked`, a ring of those that it walks
    over, and the tiles in `stored`, to which the threads of the producer store. Where a score may be hidden,
    they also set NaN and infinity in walked tiles to 0 (`clears`), before the consumer has these, and in one
    sweep in the keys that the CTA owns (`clears_owned`). With fp8 the factors of the products that sum
    gradients also have tiles of bf16.
    """

    @marked("gradient pipeline: declarations")
    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        owned: Sequence[str],
        walked: Sequence[str],
        *,
        stored: Mapping[str, Layout] | None = None,
    ) -> None:
        self.k, self.config, self.names = k, config, (tuple(owned), tuple(walked))
        self.clears = config.hides_keys or config.features.varlen
        self.maps = {name: map_of(k, config, name) for name in gradient_maps(config)}
        to_copy, to_compute = config.wgmma.registers_of_roles
        self.producer = k.warpgroup_role("producer", registers=to_copy)
        self.consumer = k.warpgroup_role("consumer", warpgroups=CONSUMERS, registers=to_compute)
        tiles: list[dict[str, Any]] = [
            {name.lower(): gradient_layout(config, name) for name in names} for names in self.names
        ]
        self.clears_owned = self.clears and config.wgmma.adds_queries  # whose keys are a factor of dQ
        first: dict[str, Any] = {"reworked": self.clears_owned, "at_once": self.clears_owned}
        self.owned = k.tma.ring(1, self.producer, self.consumer, **first, **tiles[0])
        tiles[1] |= stored or {}
        how: dict[str, Any] = {"reworked": self.clears, "stored": tuple(stored or ())}
        how["at_once"] = self.clears or stored is not None
        self.walked = k.tma.ring(config.wgmma.stages, self.producer, self.consumer, **how, **tiles[1])
        written = [name for name, boxes in gradient_maps(config).items() if boxes.stores]
        self.results = {name: self._result(name, None) for name in written} if config.is_fp8 else {}

    def _result(self, name: str, over: BoxTile | None) -> BoxTile:
        """The tile of a gradient, in the memory of the tile `over` if that is not None."""
        layout = gradient_layout(self.config, name)
        of = layout.shape, layout.dtype
        return self.k.tma.tile(f"{name}_tile", *of, swizzle=layout.swizzle, over=over)

    @marked("gradient pipeline: loads")
    def load(
        self,
        stage: Stage,
        names: Sequence[str],
        parameters: GradientParameters,
        batch: Value,
        head: Value,
        row: Value,
    ) -> None:
        """Start the copies of the tiles of a stage whose first row is `row` of a head."""
        for name in names:
            at = corner_of(self.maps[name], name, parameters, batch, head, row)
            self.k.tma.load(getattr(stage, name.lower()), at)

    @marked("gradient pipeline: clear")
    def clear(self, stage: Stage, names: Sequence[str]) -> None:
        """Set NaN and infinity in tiles of a stage to 0, by all threads of the producer."""
        k, producer = self.k, self.producer
        for name in names:
            tile: BoxTile = getattr(stage, name.lower())
            for at in tile.chunks(producer.thread, producer.threads):
                clear_together(k, self.config.factor_type.scalar, (at,), lambda: None)

    def product(self, rows: Operand, of_rows: str, others: Operand, of_others: str) -> Product:
        """The product of rows of the matrix `of_rows` and a transposed tile of `of_others`."""
        if self.config.is_fp8:
            rows, others = (
                tile.as_fp8(self.config.type_of(name).name)
                for tile, name in ((rows, of_rows), (others, of_others))
            )
        return rows @ others

    def factor(self, stage: Stage, of: str) -> BoxTile:
        """The tile of a stage from which the products that sum gradients read the matrix `of`."""
        tile: BoxTile = getattr(stage, self.config.factor_of(of).lower())
        return tile

    @marked("gradient pipeline: results")
    def store(
        self,
        name: str,
        of: str,
        sums: Accumulator,
        parameters: GradientParameters,
        batch: Value,
        head: Value,
        first_row: Value,
    ) -> None:
        """Write the rows of a gradient that the CTA owns, rounded, through the tile of the owned matrix `of`,
        which all consumers have read. With fp8 that tile is too small: gradients have their own.
        """
        k = self.k
        out = self.results[name] if self.config.is_fp8 else self._result(name, self.owned.tile(of.lower()))
        t = self.config.wgmma
        if t.splits_columns:
            columns = t.summed_columns(out.columns)
            sums.write(out.from_column(self.group() * columns, columns))
        else:
            sums.write(out, self.group_row())
        to = corner_of(self.maps[name], name, parameters, batch, head, first_row)
        matrix = parameters.rows(k, name, batch, head)
        store_rows(k, self.config, Team(self.consumer), out, to, (matrix, first_row))

    def group(self) -> Value:
        """The number of this warpgroup of the consumer, in a form that the assembler knows to be the same in
        all lanes.
        """
        return self.k.warp_index // (WARPGROUP // WARP_SIZE) % CONSUMERS

    def group_row(self) -> Value | int:
        """The first row, counted in the CTA, of this warpgroup of the consumer."""
        return 0 if self.config.wgmma.splits_columns else self.group() * WGMMA_ROWS

    def first_row(self, first: Value) -> Value:
        """The first row of this warpgroup of the consumer in a CTA whose first row is `first`, s32."""
        row = self.group_row()
        return first if isinstance(row, int) else first + self.k.signed(row)

    def thread_row(self, sums: Accumulator) -> Value:
        """The first row of `sums` that this thread has, counted in the CTA, s32."""
        k = self.k
        if self.config.wgmma.splits_columns:
            return k.signed(sums.row)
        return k.signed(sums.row + k.thread_id() // WARPGROUP % CONSUMERS * WGMMA_ROWS)


def map_of(k: KernelBuilder, config: GradientConfig, name: str) -> TensorParameter:
    """Declare the kernel parameter that is the tensor map of a matrix."""
    return k.tma.tensor_map(map_name(name), config.type_of(name).scalar, gradient_rank(config))


def corner_of(
    of: TensorParameter, name: str, parameters: GradientParameters, batch: Value, head: Value, row: Value
) -> Corner:
    """The coordinates of row `row` of a head in the matrix `name`, whose map is `of`."""
    begin = parameters.matrices[name].begin
    outer = (batch, head) if of.type.rank == _BATCHED else (head,)
    return of[(*outer, row if begin is None else begin + row, 0)]


@marked("gradient pipeline: results")
def store_rows(
    k: KernelBuilder,
    config: GradientConfig,
    team: Team,
    tile: BoxTile,
    to: Corner,
    rows: tuple[Matrix, Value],
) -> None:
    """Store the rows of `tile`, which the threads of `team` have written to shared memory, in a matrix:
    `rows` is the matrix and the first row to store, s32, and `to` that row's coordinates in the tensor map.
    TMA stores whole tiles; the last tile of a packed sequence is stored by threads, because the rows of
    another sequence may follow in memory.
    """
    if not config.features.varlen:
        k.tma.store(tile, to)
        return
    matrix, first_row = rows
    with k.when(first_row + tile.rows <= matrix.rows, uniform=True):
        k.tma.store(tile, to)
    with k.otherwise():
        team.sync(k)
        BoxRows(k, team, tile).store(matrix, first_row)


@dataclass(frozen=True)
class WalkedTiles:
    """The tiles from `first` up to `end`, exclusive, that a CTA walks over. Those from `whole` up to
    `whole_end`, exclusive, have no score that is hidden; None: any may have some.
    """

    first: Value
    end: Value
    whole: tuple[Value, Value] | None

    @marked("gradient pipeline: tiles")
    def is_cut(self, n: Value) -> Value | bool:
        """Whether a mask may hide some scores of tile n."""
        if self.whole is None:
            return True
        whole, whole_end = self.whole
        return n >= whole_end if whole is self.first else (n < whole) | (n >= whole_end)

    @marked("gradient pipeline: tiles")
    def each(self, k: KernelBuilder, take: Callable[[Value, bool], None]) -> None:
        """Emit `take(n, cut)` for each tile n, in loops by whether some of its scores are hidden (`cut`)."""
        if self.whole is None:
            with k.loop(self.first, self.end) as n:
                take(n, True)
            return
        whole, whole_end = self.whole
        if whole is not self.first:
            with k.loop(self.first, whole) as n:
                take(n, True)
        with k.loop(whole, whole_end) as n:
            take(n, False)
        with k.loop(whole_end, self.end) as n:
            take(n, True)
