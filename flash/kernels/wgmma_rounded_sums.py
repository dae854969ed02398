"""The kernel for Hopper after the sweep by keys, if it is the only sweep: it writes dQ, its sums times the
scale, rounded once. A CTA owns the rows of one block of sums, which has a half of the columns for each of two
warpgroups in the order of threads (`flash/device/wgmma_query_sums.py`).
"""

from __future__ import annotations

from flash.device.gradient_parts import RowsPart
from flash.device.gradient_tiles import begun
from flash.device.team import WHOLE_CTA
from flash.device.wgmma_gradient_pipeline import corner_of, map_of, store_rows
from flash.families.wgmma import WARPGROUP, WGMMA_ROWS
from flash.problem.gradient_maps import gradient_layout
from flash.problem.gradients import GradientConfig
from ptxgen import ir
from ptxgen.dsl import marked
from ptxgen.target import WARP_SIZE


@marked("wgmma rounded sums")
def wgmma_rounded_sums(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    layout, dQ_map = gradient_layout(config, "dQ"), map_of(k, config, "dQ")
    out = k.tma.tile("dQ_tile", layout.shape, layout.dtype, swizzle=layout.swizzle)
    part = RowsPart.of(k, config, parameters)
    columns = config.sums.half_columns
    group = k.warp_index // (WARPGROUP // WARP_SIZE)
    sums = k.wgmma.accumulator(WGMMA_ROWS, columns, zero=False)
    n = part.first_row // layout.rows
    block = part.parameters.block_of_sums(k, part.batch, part.head, n, layout.rows, layout.columns)
    sums.read_in_thread_order(block, k.thread_id() // WARPGROUP * (WGMMA_ROWS * columns))
    for value in sums.all():
        k.mul(value, part.parameters.scale, into=value)
    sums.write(out.from_column(group * columns, columns))
    to = corner_of(dQ_map, "dQ", part.parameters, part.batch, part.head, part.first_row)
    matrix = part.parameters.rows(k, "dQ", part.batch, part.head)
    store_rows(k, config, WHOLE_CTA, out, to, (matrix, part.first_row))
    return k.finish()
