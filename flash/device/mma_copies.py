"""The tiles of Q, K and V of a kernel with `mma.sync` in shared memory, and the first copies to them. Q is
there as the products take it: rotated, negated if the scale is negative, split or converted.
"""

from __future__ import annotations

from collections.abc import Sequence

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta
from flash.device.half_queries import convert_queries
from flash.device.mma_products import Tiles, WarpCoordinates
from flash.device.panel_loader import PanelLoader
from flash.device.pipeline import KeyValuePipeline
from flash.device.split_products import QUERIES_MARK, SplitTiles
from flash.device.tiles import await_copies
from flash.device.token_scales import ScaleCopies
from flash.device.widening_loader import widening_loader
from flash.families.mma import MmaTiling
from flash.families.precision import PAIRS
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Var, marked
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.types import f32


@marked("mma: first copies")
def start_copies(
    k: KernelBuilder,
    config: KernelConfig,
    t: MmaTiling,
    cta: Cta,
    me: WarpCoordinates,
    appended: AppendedKV | None,
    factors: Sequence[Var],
) -> tuple[Tiles, SplitTiles | None, KeyValuePipeline, tuple[ScaleCopies, ScaleCopies] | None]:
    """Declare the tiles of Q, K and V, and start the first copies. The tile of Q is split already if
    tiles are to be split, and converted if there are `factors`, which are set then. Returns the tiles, what
    splits them, their pipeline, and what copies the scales of rows of K and V, if these have any.
    """
    k.note("shared memory, and the first tiles on their way there")
    dtype = config.multiplied.scalar
    Q_tile = k.swizzled("Q_tile", (t.block_q, t.score_width), dtype)
    K_tile = k.swizzled("K_tile", (t.tile, t.score_width), dtype, stages=t.stages)
    V_tile = k.swizzled("V_tile", (t.tile, t.output_width), dtype, stages=t.stages)
    narrow = config.features.kv_dtype
    of_both = list(zip((cta.K, cta.V), (K_tile, V_tile), strict=True))
    Q_loader, scales = PanelLoader(k, cta.Q, Q_tile), _scale_copies(k, cta, (K_tile, V_tile))
    K_loader: PanelLoader
    V_loader: PanelLoader
    if narrow is None:
        # Eight warps share 16 long rows: by whole rows, half of them would neither copy nor split.
        K_loader, V_loader = (PanelLoader(k, *both, by_halves=t.has_long_rows) for both in of_both)
    else:
        of_rows = scales or (None, None)
        K_loader, V_loader = (
            widening_loader(k, *both, narrow, copies) for both, copies in zip(of_both, of_rows, strict=True)
        )
    split = SplitTiles(k, Q_loader, K_loader, V_loader) if t.operands is PAIRS else None
    guarded = cta.part is not None and (cta.mask.reach.left is not None or cta.mask.narrows)
    pipeline = KeyValuePipeline(
        k,
        K_loader,
        V_loader,
        cta.tiles,
        cta.first_tile,
        guarded=guarded,
        is_asynchronous=any(x.is_asynchronous for x in (Q_loader, K_loader, V_loader)),
        sees_tile=cta.mask.sees_tile,
    )
    with k.when(pipeline.has_tiles, uniform=True):
        Q_loader.start(cta.first_row)
        pipeline.fill()
        Q_loader.land()
        if cta.scoring is None:
            with k.when(cta.scale_log2 < 0.0, uniform=True):  # the softmax takes a positive scale
                if Q_loader.is_asynchronous:
                    await_copies(k)
                Q_loader.flip_signs()
        if appended is not None and appended.rotates:
            if Q_loader.is_asynchronous:
                await_copies(k)
            k.barrier()
            appended.rotate_queries(Q_tile.pointer)
        if split is not None:
            await_copies(k)
            k.barrier()
            split.queries.split(QUERIES_MARK)
        if factors:
            if Q_loader.is_asynchronous:
                await_copies(k)
            k.barrier()
            convert_queries(k, t, me, Q_tile, factors)
    return (Q_tile, K_tile, V_tile), split, pipeline, scales


def _scale_copies(
    k: KernelBuilder, cta: Cta, tiles: tuple[SwizzledTile, SwizzledTile]
) -> tuple[ScaleCopies, ScaleCopies] | None:
    """The copies of the scales of the rows of K and of V to shared memory; None if the rows have no scales of
    their own.
    """
    if cta.token_scales is None:
        return None
    of_keys, of_values = (
        ScaleCopies.of(k, scales, k.shared(f"{name}_scales", (tile.stages, tile.rows), f32), tile.stage_bytes)
        for name, tile, scales in zip("KV", tiles, cta.token_scales, strict=True)
    )
    return of_keys, of_values
