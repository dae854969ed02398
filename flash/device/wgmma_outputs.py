"""O of the warpgroups that compute, on its way from registers to global memory: as f32 if other splits of the
keys have parts of it, else through a tile in shared memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final, Protocol

from flash.device.box_rows import BoxRows
from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.parameters import ScoreArray
from flash.device.stored_sums import LaneColumns, store_sums
from flash.device.team import Team, WarpgroupTeam
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WARPGROUP, WGMMA_ROWS
from ptxgen.dsl import Role, Value, marked
from ptxgen.dsl.hopper import Accumulator, AsyncStores, BoxTile
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP
from ptxgen.records import dataclass
from ptxgen.types import s32

ROWS: Final = (0, FRAGMENT_STEP)  # of a thread's part of a product, counted from its first row


class Outputs(Protocol):
    """The rows of O that a warpgroup holds in registers, and how they are written to memory."""

    @property
    def sums(self) -> Accumulator:
        """The registers in which this thread holds its sums of O, f32."""

    def write(self, tile: BoxTile) -> None:
        """Write this warpgroup's O to a tile in shared memory, which other warpgroups may have read."""

    def lane_columns(self, width: int) -> LaneColumns:
        """The columns that this thread holds, where O has `width` columns."""


@dataclass(frozen=True)
class WarpgroupOutputs:
    """O of a warpgroup: all columns of its rows, from row `row` (u32) of the CTA on."""

    sums: Accumulator
    role: Role
    row: Value
    in_quad: Value

    @marked("wgmma: rows of O")
    def write(self, tile: BoxTile) -> None:
        """See `Outputs`."""
        self.role.barrier.sync()  # O may lie where rows of Q, or values, of another warpgroup were
        self.sums.write(tile, self.row)

    @marked("wgmma: rows of O")
    def start_store(self, work: WorkTile, cta: Cta, stores: AsyncStores) -> None:
        """Start storing the rows of this warpgroup from its part of the pipeline's tile, when the store of
        the work tile before has read that.
        """
        columns, out = self.sums.columns, work.pipeline.out
        assert out is not None
        stores.wait_read()
        tile = out.from_column(self.row // WGMMA_ROWS * columns, columns)
        self.sums.write(tile)
        stores.store(tile, work.pipeline.corner("O", cta, cta.first_row + work.k.signed(self.row)))

    def lane_columns(self, width: int) -> LaneColumns:
        """See `Outputs`."""
        return LaneColumns.of_tiles(self.in_quad.as_(s32) * 2, width)


@marked("wgmma: rows of O")
def store_outputs(
    work: WorkTile, cta: Cta, first_row: Value, outputs: Outputs, v_scale: ScoreArray | None
) -> None:
    """Store O, of which `first_row` is this thread's first row, and add NaN and infinity that were cleared in
    V, times its scale, to the rows that see them. `cta` is `work.cta`, computed again.
    """
    k, t, pipeline, nonfinite = work.k, work.t, work.pipeline, work.pipeline.nonfinite
    with findings(work) as was_cleared:
        if pipeline.stores is not None:
            assert isinstance(outputs, WarpgroupOutputs)
            outputs.start_store(work, cta, pipeline.stores)
            if nonfinite is not None:
                assert isinstance(was_cleared, Value)  # mapped kernels have `ClearedValues`
                with k.when(was_cleared):
                    pipeline.stores.wait_written(meet=False)
                team, cleared = WarpgroupTeam(work.role, pipeline.stores), pipeline.cleared(cta)
                group = k.thread_id() // WARPGROUP % t.consumers
                of_group = replace(cta, first_row=cta.first_row + k.signed(group * WGMMA_ROWS))
                nonfinite.restore(of_group, WGMMA_ROWS, cleared, team, v_scale)
            return
        if pipeline.out is None:
            columns = outputs.lane_columns(t.head_dim_v)
            store_sums(k, (cta.O, lambda: first_row), ROWS, columns, t.slices, outputs.sums.rows_of_thread)
        else:
            outputs.write(pipeline.out)
            send(work, cta, pipeline.out, visible=was_cleared)
        if nonfinite is not None:
            nonfinite.restore(cta, t.block_q, pipeline.cleared(cta), Team(work.role), v_scale)


def findings(work: WorkTile) -> AbstractContextManager[Value | bool]:
    """The context in which O is stored and restored; yields whether threads read the stored O."""
    nonfinite = work.pipeline.nonfinite
    if isinstance(nonfinite, ClearedValues):
        return nonfinite.received_findings()
    return nullcontext(nonfinite is not None)


@marked("wgmma: store of O")
def send(work: WorkTile, cta: Cta, out: BoxTile, visible: Value | bool) -> None:
    """Store the tile of O: by a tensor copy, unless rows after those of the CTA, or between them, belong to
    other CTAs. `visible` is whether threads read what it has stored.
    """
    k, whole = work.k, None
    if work.config.packed:
        _send_rows(work, cta, out)
        return
    if cta.queries_from is not None:
        whole = cta.first_row + work.t.block_q <= cta.O.rows
    with nullcontext() if whole is None else k.when(whole, uniform=True):
        k.tma.store(out, work.pipeline.corner("O", cta, cta.first_row), visible=visible)
    if whole is not None:
        with k.otherwise():
            _send_rows(work, cta, out)


def _send_rows(work: WorkTile, cta: Cta, out: BoxTile) -> None:
    """Store, by threads, the rows of O that belong to the CTA from the tile in shared memory."""
    work.role.barrier.sync()
    BoxRows(work.k, Team(work.role), out).store(cta.O, cta.first_row)
