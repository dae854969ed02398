"""O in tensor memory: rescaled where a maximum has grown, and at the end divided by the sums of weights and
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flash.device.cta import Cta
from flash.device.parameters import ScoreArray
from flash.device.team import Team
from flash.device.tensor_pipeline import TensorPipeline
from flash.device.warpgroup_roles import has_tiles
from flash.device.wgmma_outputs import findings, send
from flash.device.work_tiles import WorkTile
from flash.families.tcgen05 import TCGEN05_ROWS
from ptxgen.dsl import Pointer, SharedTile, Value, marked
from ptxgen.dsl.blackwell import TensorRing, TensorStage
from ptxgen.types import f32, u32

_PIECE: Final = 32  # columns of O that a thread has in registers at once
_WIDEST: Final = 4  # elements of f32 in one store


class Correction:
    """The work of the warpgroup that rescales O: it takes the row tiles of `rows` in turn, when the softmax
    has written the `factors` of their rows; None: a subclass receives them.
    """

    @marked("correction: begin")
    def __init__(self, work: WorkTile, rows: TensorRing, factors: SharedTile | None, row_tiles: int) -> None:
        self.k = k = work.k
        self.work, self.cta, self.rows, self.row_tiles = work, work.cta, rows, row_tiles
        self.row = k.thread_id() % TCGEN05_ROWS
        if factors is not None:
            self.factor_at = factors.pointer(0, self.row)

    @marked("correction: tiles")
    def run(self) -> None:
        """Rescale O before each tile of keys but the first, and store O after the last."""
        k = self.k
        with k.when(has_tiles(self.cta), uniform=True):
            self._follow()
        cta = self.work.cta_again()
        with k.when(has_tiles(cta), uniform=True):
            self._finish(cta)
        with k.otherwise():
            self._write_zeros(cta)
        if self.work.config.is_persistent:
            # The wait that follows is a loop: its head would otherwise also be where the two branches meet.
            k.bar_warp_sync(-1)
        self._store(cta)
        pipeline = self.work.pipeline
        assert isinstance(pipeline, TensorPipeline)
        pipeline.free_queries()

    def _follow(self) -> None:
        """Rescale O in tensor memory before each tile of keys but the first."""
        for _ in self._each():
            pass  # O has no sums yet
        self._begin_tile(None)
        with self.work.pipeline.each_tile(self.cta, after=1) as (n, _):
            self._begin_tile(n)
            for stage, factor in self._each():
                self._rescale(stage, factor)

    def _finish(self, cta: Cta) -> None:
        """Write the rows of O, divided by the sums of softmax weights, when all tiles of keys are done."""
        for i, (stage, inverse) in enumerate(self._each()):
            self._write(cta, stage, i, inverse)

    @marked("correction: row tile")
    def _each(self) -> Iterator[tuple[TensorStage, Value]]:
        """Each row tile, when the softmax has handed it on, with the factor of this thread's row."""
        for i in range(self.row_tiles):
            with self.rows.drain() as stage:
                yield stage, self.k.load(self.factor_at.step(rows=i))

    def _begin_tile(self, n: Value | None) -> None:
        """Prepare for the tile of keys with -n - 1 tiles before it, or for the last tile if `n` is None."""

    @marked("correction: rescale")
    def _rescale(self, stage: TensorStage, factor: Value) -> None:
        """Multiply O by the factor of its row, in the warps where a softmax shift has moved."""
        k = self.k
        with k.when(k.warp.any(factor != 1.0), uniform="warp"):
            stage.o.scale(factor)

    def _v_scale(self, cta: Cta) -> ScoreArray | None:  # noqa: ARG002
        """The fp8 scales of V; None if its elements have no scales."""
        return None

    @marked("correction: rows of O")
    def _write(self, cta: Cta, stage: TensorStage, i: int, inverse: Value) -> None:
        """Write the rows of a row tile, times `inverse`: to shared memory, or as f32 to global
        memory if other CTAs compute the same rows over other splits of the keys.
        """
        out = self.work.pipeline.out
        if out is not None:
            stage.o.write(out, i * TCGEN05_ROWS, factor=inverse)
            return
        columns = self.work.t.slices.width
        for first in range(0, columns, _PIECE):
            count = min(_PIECE, columns - first)
            self._store_sums(cta, i, first, [x * inverse for x in stage.o.load(first, count)])

    @marked("correction: sums of O")
    def _store_sums(self, cta: Cta, i: int, first: int, values: list[Value]) -> None:
        """Store neighbouring columns of this thread's row, from column `first` on."""
        k, O = self.k, cta.O
        row = cta.first_row + k.signed(self.row + i * TCGEN05_ROWS)
        width = min(_WIDEST, O.width)
        with k.when(row < O.rows):
            at = O.row(k, row)
            for column in range(0, len(values), width):
                to = Pointer(at, "global", f32, (first + column) * f32.nbytes)
                some = values[column : column + width]
                k.store(to, some if width > 1 else some[0])

    @marked("correction: no keys")
    def _write_zeros(self, cta: Cta) -> None:
        """Write zeros as O, for rows none of which sees a key."""
        k, out, role = self.k, self.work.pipeline.out, self.work.role
        if out is None:
            zero = k.mov(0.0, type=f32)
            for i in range(self.row_tiles):
                self._store_sums(cta, i, 0, [zero] * self.work.t.slices.width)
            return
        for at in out.chunks(role.thread, role.threads):
            k.store(at, [k.mov(0, type=u32)] * _WIDEST)

    @marked("correction: store of O")
    def _store(self, cta: Cta) -> None:
        """Store O, and add NaN and infinity that were cleared in V to the rows that see them."""
        work, pipeline = self.work, self.work.pipeline
        with findings(work) as was_cleared:
            if pipeline.out is not None:
                send(work, cta, pipeline.out, visible=was_cleared)
            if pipeline.nonfinite is not None:
                cleared, team = pipeline.cleared(cta), Team(work.role)
                pipeline.nonfinite.restore(cta, work.t.block_q, cleared, team, self._v_scale(cta))
