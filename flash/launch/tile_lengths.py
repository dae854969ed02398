"""Which tiles a launch has, where its config leaves block_q and tile to it.

A kernel with `tcgen05` has two row tiles where there is room for them. A launch with at most
as many queries as one of them has rows has one, as flash-attn-4 does: the other one would be multiplied in
vain. Of kernels with `wgmma`, tiles are those that were the fastest on an H200 for these numbers of queries
and keys (docs/tuning.md). Long sequences amortize the overhead of large blocks, short ones do not: with
causality, large blocks compute more scores that are masked. For fewer than 512 no clock has decided: of 128
or 256 rows blocks of 192 compute a third in vain, and by the model of launches (docs/measurements.md) blocks
of 128 are 13 to 27 % faster.

The length is that of the queries or of the keys, whichever are fewer. Blocks of more rows than the default
are taken only by a launch with many of them for each multiprocessor: of few the last round leaves more
multiprocessors without work. Calls with features of scores, packed sequences or caches have the default
tiles, because the others were measured without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flash.families.choice import family_of
from flash.families.tcgen05 import TCGEN05, TCGEN05_ROWS, Tcgen05Family
from flash.families.wgmma import WGMMA_TARGET, WgmmaTiling
from flash.launch.checks import Geometry
from flash.problem.config import AttentionConfig
from flash.scores.window import Window
from ptxgen.target import Target

_ROUNDS: Final = 6  # of larger blocks: then the last one is at most a twelfth of the time, in the mean
Size = tuple[int, int] | None  # block_q and tile; None: the default
# By the most columns, then for full and causal attention: the length from which a size is chosen.
_FULL: Final[dict[int, dict[int, Size]]] = {
    96: {0: (128, 128), 257: None},
    128: {0: (128, 128), 2048: (192, 80)},
    192: {0: (128, 64), 1024: (128, 80), 4096: None},
    256: {0: (128, 64), 16384: None},
}
_CAUSAL: Final[dict[int, dict[int, Size]]] = {
    96: {0: (128, 128), 2048: None},
    128: {0: (128, 128), 8192: (192, 80)},
    192: {0: (128, 64), 4096: None},
    256: {0: (128, 64), 16384: None},
}


def sized(
    config: AttentionConfig, geometry: Geometry, target: Target, alignment: int | None, multiprocessors: int
) -> AttentionConfig:
    """The config with the tiles of a launch, if the config leaves them to the launch and its kernel uses
    `wgmma` or `tcgen05`; else unchanged.
    """
    if {config.tile, config.block_q, config.stages} != {"auto"}:
        return config
    if TCGEN05.is_for(target):
        rows = geometry.longest_q if config.pack_gqa is False else geometry.packed_rows
        tiling = config.kernel(target, alignment).tiling
        is_one = rows <= TCGEN05_ROWS and isinstance(family_of(tiling), Tcgen05Family)
        return replace(config, block_q=TCGEN05_ROWS) if is_one else config
    if target.name != WGMMA_TARGET:
        return config
    features = config.features
    if features.registers or features.varlen or features.cached or features.has(Window) or geometry.pages:
        return config
    tiling = config.kernel(target, alignment).tiling
    if type(tiling) is not WgmmaTiling:  # another kind of product has tiles of its own
        return config
    columns = max(tiling.score_columns, tiling.output_columns)
    table = _CAUSAL if config.causal else _FULL
    by_length = next(sizes for most, sizes in table.items() if columns <= most)
    length = min(geometry.seq_q, geometry.seq_k)
    size = next((by_length[least] for least in sorted(by_length, reverse=True) if least <= length), None)
    if size is None:
        return config
    block_q, tile = size
    blocks = -(-geometry.seq_q // block_q) * geometry.heads * geometry.batch
    if block_q > tiling.block_q and blocks < _ROUNDS * multiprocessors:
        return config
    return replace(config, block_q=block_q, tile=tile, target=target.name)
