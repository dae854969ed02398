"""The attention problems on which the campaign runs a kernel: sizes and scores with which each
mistake can show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flash.config import AttentionConfig
from flash.mma_tiling import MMA_ROWS
from flash.tile_choice import AnyTiling
from flash.tiling import Tiling

LANE_ROWS: Final = MMA_ROWS // 2  # a lane of a tensor-core product has rows so far apart


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes of one attention problem. V of the keys from `nan_from` on, if it is not None, and of
    those before `nan_before` is NaN; with `negative`, the scale is that of the config negated;
    `scores` is a name in `SCORES` of `tools/mutation_arrays.py`. With `reverse`, the last row is
    the first in memory, and the last key of a bias or mask: nothing lies before them. Of causal
    kernels `section` heads take turns.

    `window` stands in place of the config's. Packed sequences have the (queries, keys) of
    `lengths`; without it they are `batch` of seq_q and seq_k.
    """

    seq_q: int
    seq_k: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    nan_from: int | None = None
    nan_before: int = 0
    negative: bool = False
    scores: str = "random"
    reverse: bool = False
    section: int = 1
    window: tuple[int | None, int | None] | None = None
    lengths: tuple[tuple[int, int], ...] = ()

    def config(self, config: AttentionConfig) -> AttentionConfig:
        """The config with what this problem changes of its numbers."""
        scale = -config.scale if self.negative else config.scale
        window = config.window if self.window is None else self.window
        return replace(config, softmax_scale=scale, window=window)

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """The queries and keys of each sequence."""
        return self.lengths or ((self.seq_q, self.seq_k),) * self.batch


def problems_of(config: AttentionConfig) -> tuple[Problem, ...]:
    """Ragged ends of every kind: each guard of an unrolled loop has a problem that ends there.

    The first goes round all buffers twice, in each loop. One has no key, some have more queries
    than keys.
    """
    kernel = config.kernel()
    t = kernel.tiling
    group = 2 if kernel.packed else 1  # heads whose rows a CTA has
    block = t.block_q // group  # queries of one

    ends_q = [1 + n * t.block_q // 16 for n in range(16)]  # rows of the last CTA
    ends_k = [1 + n * t.tile // 16 for n in range(16)]  # keys of the last tile
    three_tiles = 2 * t.tile + ends_k[6]
    queries = max(block + -(-ends_q[6] // group) + 1, three_tiles)
    # A bottom-right mask must show two whole tiles to all rows, too.
    first = Problem(queries, three_tiles + queries * (config.causal == "bottom_right"))
    ragged = [
        Problem(block + -(-end // group), ends_k[n] + t.tile * (n // 8), heads=group)
        for n, end in enumerate(ends_q)
    ]
    whole = Problem(block, 2 * t.tile)
    batches = Problem(block + 5, t.tile - 3, batch=2, section=3)
    grouped = Problem(t.block_q, t.tile // 2 + 1, 1, 3 * group if kernel.packed else 4, 2)
    no_score = Problem(block, t.tile + 1, scores="none")
    negative = Problem(block, t.tile + 1, negative=True)
    growing = Problem(block, 3 * t.tile, scores="growing")
    # Several tiles that are whole, and several that a diagonal or the end cuts.
    parting = Problem(2 * block, 2 * block + 3 * t.tile // 2, heads=group, scores="parting")
    # The last row sees all keys: no tile is cut.
    uncut = Problem(block + 1, 3 * t.tile, reverse=True)
    special = Problem(3, 0), grouped, no_score, negative, growing, parting, uncut
    hidden = [Problem(block + 1, t.tile + 3, reverse=True)] * config.features.hides_anywhere
    hidden += _hidden(config, t, group)
    return (*_largest(config, block), first, whole, batches, *special, *hidden, *ragged)


def _largest(config: AttentionConfig, block: int) -> list[Problem]:
    """One in which a kernel with packed sequences, or with a window, goes all of its ways."""
    t, found = config.kernel().tiling, []
    if config.varlen:
        # Of a CTA's rows all, some, or none are of its sequence, and the same of a tile's keys.
        lengths = ((block + 5, t.tile + 3), (0, 7), (3, 0), (9, 3 * t.tile + 5), (2 * block, 1))
        found.append(Problem(0, 0, lengths=lengths))
    if config.window is not None:
        left, right = (0 if side is None else side for side in config.window)
        # Tiles that are cut on the left, whole ones, and tiles that are cut on the right.
        found.append(Problem(2 * block, 2 * block + left + right + t.tile, heads=1))
    return found


def _hidden(config: AttentionConfig, t: AnyTiling, group: int) -> list[Problem]:
    """What a row does not see must not matter, wherever in a tile it begins."""
    found = []
    apart = t.groups if isinstance(t, Tiling) else LANE_ROWS  # a thread's rows are
    apart, block = max(apart // group, 1), t.block_q // group
    row = block - apart  # of the first of the last rows that threads have, the query
    ahead = range(1, t.tile + apart, max(apart - 1, 1))
    if config.causal:
        # Each of a thread's rows in turn with each key of a tile behind its diagonal. Then a first
        # row that sees whole tiles alone, and a block of one row that sees NaN.
        turns = [Problem(block, block + n, heads=group, nan_from=row + n + 1) for n in ahead]
        whole = Problem(block, block + t.tile - 1, heads=group, nan_from=t.tile)
        alone = Problem(block + 1, block + t.tile // 2 + 1, heads=group, nan_from=block)
        found += [*turns, whole, alone]
    if config.window is not None and not config.causal:
        # The same on both sides of windows that end in one tile.
        rows = 2 * block
        found += [
            Problem(
                rows, rows + n, heads=group, nan_from=row + n + 3, nan_before=row + n - 5,
                window=(5, 2),
            )
            for n in ahead
        ]  # fmt: skip
    return found
