"""The tiles of Q, K and V of a kernel with `mma.sync` in shared memory, and the first copies to them. Q is
there as the products take it: rotated, negated if the scale is negative, split or converted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta
from flash.device.half_queries import convert_queries
from flash.device.mma_products import Tiles, WarpCoordinates
from flash.device.panel_loader import PanelLoader
from flash.device.pipeline import KeyValuePipeline
from flash.device.split_products import QUERIES_MARK, SplitTiles
from flash.device.tiles import await_copies
from flash.device.token_scales import ScaleCopies, TokenScales
from flash.device.widening_loader import WideningLoader
from flash.problem.kernel_config import KernelConfig
from flash.problem.mma_tiling import PAIRS, MmaTiling
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
) -> tuple[Tiles, SplitTiles | None, KeyValuePipeline]:
    """Declare the tiles of Q, K and V, and start the first copies. The tile of Q is split already if
    tiles are to be split, and converted if there are `factors`, which are set then.
    """
    k.note("shared memory, and the first tiles on their way there")
    dtype = config.multiplied.scalar
    Q_tile = k.swizzled("Q_tile", (t.block_q, t.score_width), dtype)
    K_tile = k.swizzled("K_tile", (t.tile, t.score_width), dtype, stages=t.stages)
    V_tile = k.swizzled("V_tile", (t.tile, t.output_width), dtype, stages=t.stages)
    narrow = config.features.kv_dtype
    # Eight warps share 16 long rows: by whole rows, half of them would neither copy nor split.
    wide = functools.partial(PanelLoader, by_halves=t.has_long_rows)
    loader = wide if narrow is None else functools.partial(WideningLoader, stored=narrow)
    Q_loader = PanelLoader(k, cta.Q, Q_tile)
    if cta.token_scales is None:
        K_loader, V_loader = loader(k, cta.K, K_tile), loader(k, cta.V, V_tile)
    else:
        K_loader, V_loader = _scaled_loaders(k, config, cta, (K_tile, V_tile))
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
    return (Q_tile, K_tile, V_tile), split, pipeline


def _scaled_loaders(
    k: KernelBuilder, config: KernelConfig, cta: Cta, tiles: tuple[SwizzledTile, SwizzledTile]
) -> tuple[WideningLoader, WideningLoader]:
    """The loaders of K and V that bring a scale for each row."""
    narrow = config.features.kv_dtype
    assert narrow is not None
    assert cta.token_scales is not None
    found = []
    for name, matrix, tile, of_rows in zip("KV", (cta.K, cta.V), tiles, cta.token_scales, strict=True):
        there = k.shared(f"{name}_scales", (tile.stages, tile.rows), f32)
        copies = ScaleCopies(k, of_rows, there, tile.stage_bytes)
        found.append(WideningLoader(k, matrix, tile, narrow, copies))
    return found[0], found[1]


def token_scales(
    k: KernelBuilder, me: WarpCoordinates, pipeline: KeyValuePipeline, rows: int
) -> TokenScales | None:
    """The scales that arrive with the rows of K and V; None if these have none of their own."""
    of_keys, of_values = (getattr(loader, "scales", None) for loader in (pipeline.keys, pipeline.values))
    if of_keys is None or of_values is None:
        return None
    return TokenScales(k, me, of_keys, of_values, rows)
