"""Weights of fp8 in tensor memory: a row tile's softmax, and the sums of its rounded weights."""

from __future__ import annotations

from collections.abc import Sequence

from flash.device.cta import Cta
from flash.device.fp8_nonfinite import Fp8ClearedValues
from flash.device.fp8_scales import BlockScales, ValueUnits
from flash.device.fp8_softmax import LIFT, RoundedSums
from flash.device.parameters import ScoreArray
from flash.device.row_softmax import RowSoftmax
from flash.device.row_tiles import RowTiles
from flash.device.softmax import FirstTerms
from flash.device.tensor_correction import Correction
from flash.device.tensor_pipeline import TensorPipeline
from flash.device.tile_scores import TileScores
from flash.device.warpgroup_roles import has_tiles
from flash.device.work_tiles import WorkTile
from flash.families.tcgen05 import by_polynomial
from flash.families.tcgen05_fp8 import SUM_COLUMNS
from flash.families.wgmma import WgmmaTiling
from flash.scores.scoring import Scoring
from ptxgen.dsl import Fragment, KernelBuilder, Role, SharedTile, Value, Var, marked
from ptxgen.dsl.blackwell import TensorRing, TensorStage
from ptxgen.dsl.hopper import BoxTile
from ptxgen.types import f32, u8, u32


class Fp8TensorPipeline(TensorPipeline):
    """See `TensorPipeline`. `ones` is a tile of rows of ones, the columns of a right operand whose product
    with the weights is their sum.
    """

    cleared_values = Fp8ClearedValues
    ones: BoxTile

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        super().declare(t, consumer)
        self.ones = self.k.tma.tile("ones", (SUM_COLUMNS, t.tile), u8)


class LiftedRowSoftmax(RowSoftmax, RoundedSums):
    """A `RowSoftmax` whose largest weight is 2^LIFT. Its shift moves with every new maximum. Sums of weights
    before they are rounded serve the log-sum-exp alone, and exist only with `with_lse`.
    """

    def __init__(
        self,
        k: KernelBuilder,
        scale: Value | None,
        sinks: Sequence[FirstTerms],
        *,
        with_lse: bool,
        by_polynomial: int,
    ) -> None:
        super().__init__(k, scale, LIFT, sinks, by_polynomial=by_polynomial, sinks_last=True)
        self.keeps_sums = with_lse
        self.rounded_sum = [k.var(f32, 0.0)]


class Fp8RowTiles(RowTiles):
    """See `RowTiles`; `stage.l` has the sum of the rounded weights of each row, by which O is divided."""

    softmax: LiftedRowSoftmax
    blocks: BlockScales | None = None  # if blocks of rows have scales of their own

    def _scores(self) -> TileScores:
        """See `RowTiles`."""
        work = self.work
        if work.config.features.scale_block:
            self.blocks = BlockScales(self.k, work.config, work.parameters, self.cta, self.row)
        return super()._scores()

    def _scoring(self, S: Fragment, n: Value, top: Var | None) -> Scoring | None:
        """See `RowTiles`."""
        if self.blocks is None:
            return super()._scoring(S, n, top)
        scoring = self.blocks.take(S, self.blocks.of_tile(-1 - n))
        if top is not None:
            top.set(self.softmax.largest(S))
        return scoring

    def _scale(self) -> Value:
        """See `RowTiles`."""
        return super()._scale() if self.blocks is None else self.blocks.scale

    @marked("fp8 row tiles: sign")
    def _take_sign(self, S: Fragment, top: Var | None) -> None:
        """See `RowTiles`. Scales come from memory: that all threads have the same is not proved."""
        k = self.k
        with k.when(self.is_negative):
            for score in S.all():
                k.neg(score, into=score)
            if top is not None:
                top.set(self.softmax.largest(S))

    @marked("fp8 row tiles: end")
    def _end(self) -> None:
        """See `RowTiles`."""
        k = self.k
        with k.when(has_tiles(self.cta), uniform=True), self.rows.drain() as stage:
            k.note("the correction multiplies O by the scale of V / sum")
            self.softmax.rounded_sum[0].set(stage.l.load(0, 1)[0])
            cta = self.work.cta_again()
            self._send(stage, self._weigh_outputs(cta, cta.weighed(self.softmax.finish(0).inverse)))
        self._finish()

    def _weigh_outputs(self, cta: Cta, inverse: Value) -> Value:
        """What O is multiplied by: `inverse`, and the scale of V if rows of a head share one."""
        if self.blocks is not None:
            return inverse
        return inverse * v_scale_of(self.work, cta).of_sequence(self.k, cta.kv_head)

    @marked("fp8 row tiles: begin")
    def _softmax(self) -> LiftedRowSoftmax:
        """See `RowTiles`."""
        k, cta = self.k, self.cta
        scale = None if cta.scoring is not None else self._scale()
        sinks = cta.sinks(k, k.mov(0, type=u32), (0,), lambda: self.row)
        config = self.work.config
        polynomials = by_polynomial(config.target)
        return LiftedRowSoftmax(k, scale, sinks, with_lse=config.return_lse, by_polynomial=polynomials)


class Fp8Correction(Correction):
    """See `Correction`; sums of weights are rescaled together with O. If blocks of rows have scales of their
    own, O is in units of that of V of the present tile.
    """

    def __init__(self, work: WorkTile, rows: TensorRing, factors: SharedTile, row_tiles: int) -> None:
        super().__init__(work, rows, factors, row_tiles)
        k = self.k
        self.units: ValueUnits | None = None
        if work.config.features.scale_block:
            self.units = ValueUnits(k, work.config, work.parameters, self.cta)
            self.unit, self.of_units = k.var(f32, 1.0), k.var(f32, 1.0)

    def _begin_tile(self, n: Value | None) -> None:
        """See `Correction`."""
        if self.units is not None:
            unit = self.units.of_tile(self.cta.tiles - 1 if n is None else -1 - n)
            self.of_units.set(self.unit * self.k.rcp_rn(unit))
            self.unit.set(unit)

    @marked("fp8 correction: rescale")
    def _rescale(self, stage: TensorStage, factor: Value) -> None:
        """See `Correction`. All columns of the sum of weights are alike, and one is read."""
        k = self.k
        of_output = factor if self.units is None else factor * self.of_units
        with k.when(k.warp.any((factor != 1.0) | (of_output != 1.0)), uniform="warp"):
            stage.o.scale(of_output)
            stage.l.store([stage.l.load(0, 1)[0] * factor])

    def _write(self, cta: Cta, stage: TensorStage, i: int, inverse: Value) -> None:
        """See `Correction`."""
        super()._write(cta, stage, i, inverse if self.units is None else inverse * self.unit)

    def _v_scale(self, cta: Cta) -> ScoreArray | None:
        """See `Correction`."""
        return v_scale_of(self.work, cta)


def v_scale_of(work: WorkTile, cta: Cta) -> ScoreArray:
    """The fp8 scales of V of the batch item that a CTA computes."""
    return work.parameters.operands["v_scale"].part(work.k, cta.batch)
