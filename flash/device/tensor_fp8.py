"""Weights of fp8 in tensor memory: a row tile's softmax, and the sums of its rounded weights."""

from __future__ import annotations

from flash.device.cta import Cta
from flash.device.fp8_nonfinite import Fp8ClearedValues
from flash.device.fp8_softmax import LiftedSoftmax
from flash.device.parameters import ScoreArray
from flash.device.row_softmax import RowSoftmax
from flash.device.row_tiles import RowTiles
from flash.device.tensor_correction import Correction
from flash.device.tensor_pipeline import TensorPipeline
from flash.device.warpgroup_roles import has_tiles
from flash.device.work_tiles import WorkTile
from flash.families.tcgen05_fp8 import SUM_COLUMNS
from flash.families.wgmma import WgmmaTiling
from ptxgen.dsl import Fragment, Role, Value, marked
from ptxgen.dsl.blackwell import TensorStage
from ptxgen.dsl.hopper import BoxTile
from ptxgen.types import u8, u32


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


class LiftedRowSoftmax(RowSoftmax, LiftedSoftmax):
    """A `LiftedSoftmax` of one row in each thread."""


class Fp8RowTiles(RowTiles):
    """See `RowTiles`; `stage.l` has the sum of the rounded weights of each row, by which O is divided."""

    softmax: LiftedRowSoftmax

    @marked("fp8 row tiles: sign")
    def _take_sign(self, S: Fragment) -> None:
        """See `RowTiles`. Scales come from memory: that all threads have the same is not proved."""
        k = self.k
        with k.when(self.cta.scale_log2 < 0.0):
            for score in S.all():
                k.neg(score, into=score)

    def _end(self) -> None:
        """See `RowTiles`."""
        k = self.k
        with k.when(has_tiles(self.cta), uniform=True), self.rows.drain() as stage:
            k.note("the correction multiplies O by the scale of V / sum")
            self.softmax.rounded_sum[0].set(stage.l.load(0, 1)[0])
            cta = self.work.cta_again()
            inverse = cta.weighed(self.softmax.finish(0).inverse)
            self._send(stage, inverse * v_scale_of(self.work, cta).of_sequence(k, cta.kv_head))
        self._finish()

    @marked("fp8 row tiles: begin")
    def _softmax(self) -> LiftedRowSoftmax:
        """See `RowTiles`."""
        k, cta = self.k, self.cta
        scale = None if cta.scoring is not None else self._scale()
        sinks = cta.sinks(k, k.mov(0, type=u32), (0,), lambda: self.row)
        return LiftedRowSoftmax(k, 1, [], scale, sinks, with_lse=self.work.config.return_lse)


class Fp8Correction(Correction):
    """See `Correction`; sums of weights are rescaled together with O."""

    def _multiply(self, stage: TensorStage, factor: Value) -> None:
        """See `Correction`. All columns of the sum are alike, and one is read."""
        super()._multiply(stage, factor)
        stage.l.store([stage.l.load(0, 1)[0] * factor])

    def _v_scale(self, cta: Cta) -> ScoreArray:
        """See `Correction`."""
        return v_scale_of(self.work, cta)


def v_scale_of(work: WorkTile, cta: Cta) -> ScoreArray:
    """The scales of V of the item of a CTA."""
    return work.parameters.operands["v_scale"].part(work.k, cta.batch)
