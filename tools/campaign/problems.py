"""The attention problems on which the campaign runs a kernel: sizes and scores with which each mistake can
change a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from flash.families.choice import AnyTiling, family_of
from flash.families.mma import MMA, MMA_ROWS
from flash.families.precision import HALF, PAIRS, TF32
from flash.families.wgmma import WARPGROUP, WGMMA_ROWS, WgmmaTiling
from flash.families.wgmma_split import SPLIT
from flash.problem.config import AttentionConfig
from ptxgen.target import WARP_SIZE

# With these seeds and dropout=0.3, the random number of one score that counts, of 32 queries and 32
# keys, equals the threshold; each seed has it at another index of a thread's 16 x 16 fragment.
_SEEDS_AT_THRESHOLD: Final = (656, 1263, 5029, 5261, 13636, 13669, 17672, 32877)
ABOVE_HUGE: Final = 2.0**18  # one that makes those of random scores so large
# One with which the lowest f32, scaled, is less than 2**16, and more than the exponents of f32.
TINY: Final = 2.0**-112
LARGE_SOFTCAP: Final = 2.0**20
HUGE: Final = 2.0**15  # a factor of the scale that makes exponents of `growing` scores larger than 2**16
# A factor of the scale that makes scores of 2**33, of which f32 has multiples of 1024.
LARGEST: Final = 2.0**32
SMALL: Final = 2.0**-12  # a factor of the scale that makes scores of large rows as large as usual ones
_APART: Final = 5  # of so many problems that differ in their ends one is among few problems
LANE_ROWS: Final = MMA_ROWS // 2  # the distance of a lane's rows in a tensor-core product
SAMPLED: Final = 2  # kinds of mistakes in a kernel for Hopper, whose runs take long, in the short campaign
SPLIT_AT_ONCE: Final = 32  # queries that the consumers of a kernel for Hopper split at once


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes of one attention problem. V is NaN for keys from `nan_from` on, if it is not None, and
    for keys before `nan_before`; in one column of each head alone, if `nan_columns` has it. The scale
    is `times` that of the config; `scores` is a name in `SCORES` of
    `tools/campaign/arrays.py`. With `reverse`, the last row of an array, and the last key of a
    bias or mask, is the first in memory: no memory precedes it. With `alike`, all rows of Q, of K and
    of V share the memory of one row: no memory follows its last column. In causal kernels CTAs alternate
    between `section` heads.

    The rows `odd` have, in turn from the first, NaN in dO, infinity in dO, NaN in Q and with it in O and
    LSE, and infinity in O; they are for kernels of gradients.

    `window` and `softcap` replace the config's. Packed sequences have the (queries, keys) of
    `lengths`; if it is empty there are `batch` sequences of seq_q queries and seq_k keys. A bias has one
    element along the axes `broadcast`. A persistent kernel has a grid of `ctas`, which may be more than
    there are parts; if it is None, as many as a launch gives it.
    """

    seq_q: int
    seq_k: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    nan_from: int | None = None
    nan_before: int = 0
    times: float = 1.0
    scores: str = "random"
    reverse: bool = False
    alike: bool = False
    section: int = 1
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    lengths: tuple[tuple[int, int], ...] = ()
    dropout_seed: int = 0x0123_4567_89AB_CDEF  # both 32-bit words are nonzero
    broadcast: tuple[str, ...] = ()
    odd: tuple[int, ...] = ()
    ctas: int | None = None
    nan_columns: tuple[int, ...] = ()

    def config(self, config: AttentionConfig) -> AttentionConfig:
        """The config with this problem's softmax_scale, window and softcap."""
        scale = self.times * config.scale
        window = config.window if self.window is None else self.window
        softcap = config.softcap if self.softcap is None else self.softcap
        return replace(config, softmax_scale=scale, window=window, softcap=softcap)

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """The queries and keys of each sequence."""
        return self.lengths or ((self.seq_q, self.seq_k),) * self.batch


def problems_of(config: AttentionConfig, *, few: bool = False) -> tuple[Problem, ...]:
    """The problems for a kernel, with ragged ends of every kind: each guard of an unrolled loop has
    a problem that ends there, or with `few` some of them.

    The first problem uses all buffers twice in each loop. One problem has no key, some have more
    queries than keys.
    """
    kernel = config.kernel()
    t = kernel.tiling
    group = 2 if kernel.packed else 1  # heads in a CTA
    block = t.block_q // group  # queries of one head in a CTA

    ends_q = [1 + n * t.block_q // 16 for n in range(16)]  # rows of the last CTA
    ends_k = [1 + n * t.tile // 16 for n in range(16)]  # keys of the last tile
    three_tiles = 2 * t.tile + ends_k[6]
    queries = max(block + -(-ends_q[6] // group) + 1, three_tiles)
    # Under a bottom-right causal mask, too, all rows see two whole tiles.
    first = Problem(queries, three_tiles + queries * (config.causal == "bottom_right"))
    ragged = [
        Problem(block + -(-end // group), ends_k[n] + t.tile * (n // 8), heads=group)
        for n, end in enumerate(ends_q)
    ]
    whole = Problem(block, 2 * t.tile)
    batches = Problem(block + 5, t.tile - 3, batch=2, section=3)
    grouped = Problem(t.block_q, t.tile // 2 + 1, 1, 3 * group if kernel.packed else 4, 2)
    # Where V is columns of K, infinite keys would be infinite values of weights of 0.
    no_score = Problem(block, t.tile + 1, scores="none of queries" if config.shared_kv else "none")
    negative = Problem(block, t.tile + 1, times=-1.0)
    growing = Problem(block, 3 * t.tile, scores="growing")
    huge = replace(growing, times=HUGE)
    # Several whole tiles, and several tiles that the diagonal or the end cuts.
    parting = Problem(2 * block, 2 * block + 3 * t.tile // 2, heads=group, scores="parting")
    if few:
        ragged = ragged[::_APART]
        unseen = block * (config.causal == "bottom_right")  # by the first of the queries
        parting = replace(parting, seq_q=_few_queries(config, block), seq_k=unseen + 3 * t.tile // 2)
    # The last row sees all keys: no tile is cut.
    uncut = Problem(block + 1, 3 * t.tile, reverse=True)
    special = Problem(3, 0), grouped, no_score, negative, growing, huge, parting, uncut
    largest = [*_largest(config, block), first]
    hidden = _hidden(config, t, group, every=_APART if few else 1)
    # Rows without margins: a read after the last column is out of bounds.
    alike = replace(first if config.window is None else largest[0], alike=True)
    others = [*_of_features(config, block), *ragged, alike]
    large = _large(config, largest[0])
    rounded = _of_rounded_softmax(t, parting)
    problems = (*largest, *large, whole, batches, *special, *hidden, *others, *rounded)
    return _for_tensor_maps(problems, config, kernel.family.require(t)) if kernel.family.mapped else problems


def _for_tensor_maps(
    problems: tuple[Problem, ...], config: AttentionConfig, t: WgmmaTiling
) -> tuple[Problem, ...]:
    """The problems that tensor maps can describe, with strides above 0 and at least one key: each has more
    tiles of keys than there are stages. After them come some with fewer tiles, and with scores so large that
    shifts of the softmax are rounded by more than its weights may grow.
    """
    more = t.stages * t.tile
    before = 0 if config.causal == "top_left" else more  # the additional keys that rows see
    chosen = [
        replace(
            p,
            seq_k=p.seq_k + more,
            nan_from=None if p.nan_from is None else p.nan_from + before,
            nan_before=p.nan_before + more * bool(p.nan_before and config.window),
            reverse=False,
        )
        for p in problems
        if p.seq_k and not p.alike
    ]
    few = [Problem(t.block_q + 3, keys) for keys in (t.tile // 2 + 1, t.tile + 3)]
    if config.causal:  # NaN in the last tile that is taken: no turn orders its products
        few += [replace(p, nan_from=t.tile // 4) for p in few]
    keys = more + t.tile + 3
    # In the second problem some rows of each warp have such scores, and the others have none. In the last no
    # shift moves after the first tile, but what rounding left of it is subtracted from the scores of each.
    courses = ("random", "parting", "falling") if t.checks_sums else ("random", "parting")
    queries = _few_queries(config, t.block_q)
    largest = [Problem(queries, keys, scores=name, times=LARGEST) for name in courses]
    chosen = [*chosen, *few, *largest, *_lasting(chosen, config, t)]
    if config.causal == "top_left":  # the keys after those that queries see begin a tile
        chosen.append(Problem(t.tile, 2 * t.tile, heads=1))
    if config.causal == "bottom_right":  # the first CTA has no tile, and rows of the second see no key
        chosen.append(Problem(2 * t.block_q + 3, t.tile + 3, heads=1, nan_before=1, nan_columns=(0,)))
    many = Problem(t.block_q, t.block_q + 6 * t.tile, heads=1, times=LARGEST)
    chosen += [replace(many, scores=name) for name in config.kernel().family.score_courses]
    if config.kernel().is_persistent:  # the second CTA has no part
        chosen.append(Problem(t.block_q, keys, heads=1, ctas=2))
    if not config.is_fp8:
        return tuple(chosen)
    # Warps that transpose a tile look for NaN in some columns at a time, in the last tile by code of its own.
    columns = Problem(t.block_q, keys, heads=2, kv_heads=2, nan_columns=(0, config.value_dim - 1))
    # Shifts move with every new maximum, and a warp without one keeps its former factors.
    falling = Problem(t.block_q, keys, heads=1, scores="falling")
    return *_of_fp8(chosen), replace(columns, nan_from=keys - 2), replace(columns, nan_before=2), falling


def _few_queries(config: AttentionConfig, block: int) -> int:
    """A number of queries some of which see tiles that the mask does not cut: with a top-left mask those of
    the first block see none.
    """
    return block + WGMMA_ROWS * (config.causal == "top_left")


def _lasting(problems: Iterable[Problem], config: AttentionConfig, t: WgmmaTiling) -> list[Problem]:
    """A problem with so many tiles that, at a barrier which wrongly waits for one arrival less, the surplus
    arrivals add up to a phase; none if a problem has as many already.
    """
    arrivals = t.consumers * WARPGROUP // WARP_SIZE  # at a barrier in each of its phases
    keys = (t.stages * arrivals + 2) * t.tile
    queries = keys if config.causal == "top_left" else t.block_q  # the last of them see all keys
    return [] if max(p.seq_k for p in problems) >= keys else [Problem(queries, keys, heads=1)]


def _of_fp8(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems with numbers that e4m3 has, which has no infinity."""
    peaks = []
    for p in problems:
        if p.scores == "parting":
            yield replace(p, scores="parting in fp8")
            peaks.append(replace(p, scores="peaks in fp8"))
        elif p.scores != "none":
            yield p
    yield from peaks[:1]


def _largest(config: AttentionConfig, block: int) -> list[Problem]:
    """A problem that takes all branches of a kernel with packed sequences, or with a window."""
    t = config.kernel().tiling
    if config.varlen:
        # All, some or none of a CTA's rows, and of a tile's keys, belong to its sequence.
        lengths = ((block + 5, t.tile + 3), (0, 7), (3, 0), (block, 3 * t.tile + 5), (2 * block, 1))
        return [Problem(0, 0, lengths=lengths)]
    if config.window is not None:
        left, right = (0 if side is None else side for side in config.window)
        # Tiles that the window cuts on the left, whole tiles, and tiles cut on the right.
        return [Problem(2 * block, 2 * block + left + right + t.tile, heads=1)]
    return []


def _large(config: AttentionConfig, largest: Problem) -> list[Problem]:
    """Problems with numbers so large that rounding to tf32 would make them infinite, and for pairs of f16
    with rows of different magnitudes, some of which have infinity.
    """
    if config.precision == PAIRS.name:
        return _of_pairs(config, largest)
    rounded = ("queries", "keys", "values") if config.precision == TF32.name else ()
    return [replace(largest, scores=f"large {of}") for of in rounded]


def _of_pairs(config: AttentionConfig, largest: Problem) -> list[Problem]:
    """Problems for elements that are split into pairs of f16: with rows of different magnitudes, and with
    infinity.
    """
    t = config.kernel().tiling
    if config.kernel().family is SPLIT:
        return _of_split_boxes(SPLIT.require(t), largest)
    sizes = [replace(largest, scores="uneven", times=SMALL)]
    more = replace(largest, seq_q=largest.seq_q + t.block_q, seq_k=largest.seq_k + t.block_q, times=SMALL)
    sizes += [replace(more, scores=of) for of in ("first uneven", "last uneven")]
    infinite = [replace(largest, scores=of) for of in ("infinite", "infinite values")]
    if config.window is None:
        return [*sizes, *infinite]
    # In three loops over tiles, with both turns of a tile: a head for each. The first query sees all keys
    # of the last tile that all see, and no more.
    left, right = 2 * t.block_q - t.tile + 1, t.tile - 1
    heads = 6 * t.block_q // t.tile
    ping_pong = Problem(
        t.block_q, 3 * t.block_q, 1, heads, heads, scores="infinite turn", window=(left, right)
    )
    return [*sizes, *infinite, ping_pong]


def _of_split_boxes(t: WgmmaTiling, largest: Problem) -> list[Problem]:
    """Problems for elements that a kernel with tensor copies splits into pairs of f16: with rows of different
    magnitudes, and with infinity. A launch has one CTA, or one for each head.
    """
    one = replace(largest, seq_q=t.block_q - t.tile + 2, heads=1)
    # Each turn in which queries are split has a head, and keys alone have one; no tile is cut.
    heads = t.block_q // SPLIT_AT_ONCE + 1
    uneven = Problem(t.block_q, 2 * t.tile, 1, heads, heads, times=SMALL, scores="turns uneven")
    panels = replace(one, seq_q=t.tile + 4, heads=3, kv_heads=3, scores="infinite panels")
    return [
        replace(one, scores="uneven", times=SMALL),
        uneven,
        replace(one, scores="infinite"),
        panels,
        # One warp of those that restore rows has no row, and no tile is cut.
        replace(panels, seq_q=t.consumers * WARPGROUP // WARP_SIZE - 1, seq_k=2 * t.tile),
    ]


def _of_features(config: AttentionConfig, block: int) -> list[Problem]:
    """Problems for softcap and dropout: scores that are small against the softcap, and random
    numbers that equal the threshold.
    """
    problems = []
    if config.softcap is not None:
        problems.append(Problem(block, config.kernel().tiling.tile + 1, softcap=LARGE_SOFTCAP))
    if config.dropout:
        problems += [Problem(32, 32, heads=1, dropout_seed=seed) for seed in _SEEDS_AT_THRESHOLD]
    return problems


def _of_rounded_softmax(tiling: AnyTiling, parting: Problem) -> list[Problem]:
    """Problems for kernels that add the rounded shift of a row to its scaled scores: in one all shifts are
    too large for that, in the other the scale is so small that even the first shift, the lowest f32, is not
    too large.
    """
    if family_of(tiling) is not MMA or tiling.precision != HALF.name:
        return []
    t = MMA.require(tiling)
    problems = [replace(parting, scores="random", times=ABOVE_HUGE), replace(parting, times=TINY)]
    if not t.checks_sums:
        return problems
    # Whole tiles, in which one of a lane's rows needs another shift; and each end of a tile of so many keys.
    alone = Problem(t.block_q, 3 * t.tile, heads=parting.heads, scores="growing alone")
    unseen = replace(parting, scores="unseen outside", times=TINY)
    return [
        *problems,
        alone,
        unseen,
        *(Problem(MMA_ROWS * t.row_tiles, end, heads=1) for end in range(1, t.tile)),
    ]


def _hidden_anywhere(block: int, tile: int) -> list[Problem]:
    """Problems for masks and biases: in each problem another of a thread's keys is the first after the last
    key, where no memory follows; then NaN that is hidden from some rows, in each tile.
    """
    after = [Problem(block + 1, tile + n, reverse=True) for n in (2, 3, 10, 11)]
    return [
        *after,
        Problem(block + 1, 2 * tile + 3, nan_from=tile + 1),
        Problem(block, 2 * tile, nan_before=3),
        Problem(block, tile + 3, nan_from=tile + 2),
        Problem(block, tile, nan_from=tile - 1),
    ]


def _hidden(config: AttentionConfig, t: AnyTiling, group: int, every: int) -> list[Problem]:
    """Problems with NaN in keys that a row does not see, from any key of a tile on, or one of `every`."""
    problems = _hidden_anywhere(t.block_q // group, t.tile) if config.features.hides_anywhere else []
    apart = max(t.row_step // group, 1)  # distance in queries of a thread's rows
    block = t.block_q // group
    row = block - apart  # query index of the first of the threads' last rows
    ahead = range(1, t.tile + apart, max(apart - 1, 1) * every)
    if config.causal:
        # For each of a thread's rows, and each key of a tile, the key is the first after the
        # diagonal. Then a first row that sees only whole tiles, and a block of one row that sees
        # NaN.
        by_row = [Problem(block, block + n, heads=group, nan_from=row + n + 1) for n in ahead]
        whole = Problem(block, block + t.tile - 1, heads=group, nan_from=t.tile)
        heads = 1 if group == 1 else 3  # heads; a divisor of 32 + 1 and of 128 + 1 rows
        rows = t.block_q // heads
        alone = Problem(rows + 1, rows + 1 + t.tile // 2, heads=heads, nan_from=rows)
        problems += [*by_row, whole, alone]
    if config.window is not None and not config.causal:
        problems += _hidden_by_window(config, t, group, [(row, n) for n in ahead])
    return problems


def _hidden_by_window(
    config: AttentionConfig, t: AnyTiling, group: int, by_row: list[tuple[int, int]]
) -> list[Problem]:
    """Problems with NaN in keys outside of windows; `by_row` holds pairs of a row and the number of
    keys beyond the queries.
    """
    tile, block = t.tile, t.block_q // group
    small, rows = (5, 2), 2 * block
    # NaN on both sides of windows that end in one tile.
    problems = [
        Problem(rows, rows + n, heads=group, nan_from=row + n + 3, nan_before=row + n - 5, window=small)
        for row, n in by_row
    ]
    # Keys before those that all rows see: windows that begin half a tile later; NaN that some rows
    # see; and NaN that a block of one row sees.
    (cut,) = _largest(config, block)
    more = cut.seq_k - cut.seq_q
    in_front = more - ((config.window or small)[0] or 0)
    problems += [
        replace(cut, seq_k=cut.seq_k + tile // 2),
        replace(cut, nan_before=in_front + tile - 2),
        replace(cut, seq_q=block + 1, seq_k=block + 1 + more, nan_before=in_front + block + 4),
    ]
    # A first row that sees only whole tiles; first rows that see no key, with NaN in the first key;
    # and tiles that the window cuts only on the left, with NaN in the last keys.
    problems += [
        Problem(block, block + 2 * tile - 3, heads=group, nan_from=2 * tile, window=small),
        Problem(block, block // 2, heads=group, nan_before=1, window=small),
        Problem(block, block, heads=group, nan_from=block - 4, window=(5, block)),
    ]
    return problems
