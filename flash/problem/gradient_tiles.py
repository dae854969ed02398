"""The tiles that kernels of gradients may have, and the clocks of one sweep with them."""

from __future__ import annotations

from typing import Final, NamedTuple

from flash.families.precision import F32_GRADE, FMA, HALF, TF32
from flash.families.wgmma_gradient import WgmmaTiles
from flash.problem.gradients import KEYS, QUERIES


class Tiles(NamedTuple):
    """Tiles that kernels of gradients may have (`GradientTiling`), if registers hold in addition to sums no
    more than `load`: 0, nothing; 1, packed sequences, features that hide keys or, by keys, top-left
    causality; 2, features that change scores; 3, dropout; 4, dropout and packed sequences or these features.
    """

    block: int
    tile: int
    warps: int
    stages: int
    step: int = 0
    resident: int = 0
    load: int = 4
    across: int = 1
    prefetches: bool = False
    column_warps: int = 1


# With more than 256 columns warps share rows and deal out the columns of all matrices, in whole panels of 128
# bytes: up to 384 columns of 16 bits are three parts of 128.
_WIDEST_OF_HALF: Final = {
    384: (Tiles(32, 32, 6, 2, load=3, column_warps=3), Tiles(32, 16, 6, 1, column_warps=3)),
    512: (
        Tiles(32, 32, 8, 2, load=3, column_warps=4),
        Tiles(32, 32, 8, 1, load=3, column_warps=4),
        Tiles(32, 16, 8, 1, column_warps=4),
        Tiles(16, 16, 4, 1, column_warps=4),
    ),
    576: (Tiles(32, 16, 8, 1, column_warps=4), Tiles(16, 16, 4, 1, column_warps=4)),
}
_WIDEST_OF_F32: Final = {576: (Tiles(32, 16, 8, 1, column_warps=4), Tiles(16, 16, 4, 1, column_warps=4))}
_WIDEST_OF_FMA: Final = {576: (*_WIDEST_OF_F32[576], Tiles(16, 8, 4, 1, column_warps=4))}

ADDING_KEYS: Final = "keys, adding to dQ"
# Tiles by owner, by how elements are multiplied, and by the columns of Q or V, whichever are more
# (at most the key), among those that were seen not to spill; those of 16 bits and two sweeps in the order
# of the modelled share of tensor cores (`ptxgen bench --only static`). Rows of two blocks of 16 for each
# warp halve the reads of shared memory, which limit these kernels; what the registers without the sums do
# not hold is left to smaller tiles. Where a warp's registers do not hold the sums of its rows, warps
# across share rows and deal out columns, and pass weights on.
GRADIENT_TILES: Final[dict[tuple[str, str], dict[int, tuple[Tiles, ...]]]] = {
    (QUERIES, HALF.name): {
        64: (
            Tiles(128, 128, 4, 2, step=32, resident=1, load=0),
            Tiles(128, 64, 4, 2, step=32, resident=1, load=0),
            Tiles(128, 64, 4, 1, step=32, resident=1, load=0),
            Tiles(128, 32, 4, 2, resident=1, load=3),
            Tiles(64, 64, 4, 2, step=32),
        ),
        96: (Tiles(128, 32, 4, 2, load=3), Tiles(64, 32, 4, 2)),
        128: (
            Tiles(128, 32, 4, 2, load=0),
            Tiles(128, 32, 4, 1, load=0),
            Tiles(64, 64, 4, 1, step=32, resident=1, load=3),
            Tiles(64, 32, 4, 2),
            Tiles(64, 32, 4, 1),
        ),
        256: (Tiles(64, 32, 4, 1),),
        **_WIDEST_OF_HALF,
    },
    (KEYS, HALF.name): {
        64: (Tiles(128, 32, 4, 2, load=0), Tiles(64, 64, 4, 2, step=32, resident=2)),
        96: (Tiles(64, 64, 4, 2, step=32, load=2), Tiles(64, 32, 4, 2)),
        128: (Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 1, load=3), Tiles(64, 16, 4, 2)),
        256: (Tiles(64, 64, 8, 2, across=4), Tiles(64, 64, 8, 1, across=4), Tiles(32, 32, 4, 1, across=2)),
        **_WIDEST_OF_HALF,
    },
    (QUERIES, TF32.name): {
        64: (Tiles(64, 32, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
        **_WIDEST_OF_F32,
    },
    (KEYS, TF32.name): {
        64: (Tiles(64, 32, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
        **_WIDEST_OF_F32,
    },
    (QUERIES, F32_GRADE.name): {
        64: (Tiles(64, 16, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
        **_WIDEST_OF_F32,
    },
    (KEYS, F32_GRADE.name): {
        64: (Tiles(64, 16, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
        **_WIDEST_OF_F32,
    },
    (QUERIES, FMA.name): {
        64: (Tiles(128, 16, 4, 1),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1, load=3), Tiles(32, 8, 2, 1)),
        **_WIDEST_OF_FMA,
    },
    (KEYS, FMA.name): {
        64: (Tiles(128, 16, 4, 1, load=1), Tiles(64, 32, 4, 1)),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
        **_WIDEST_OF_FMA,
    },
    (ADDING_KEYS, HALF.name): {
        64: (Tiles(64, 64, 4, 2, load=1), Tiles(64, 32, 4, 2)),
        128: (Tiles(64, 32, 4, 2, load=1), Tiles(64, 16, 4, 2)),
        256: (Tiles(64, 32, 4, 1, load=1), Tiles(64, 16, 4, 1)),
    },
    (ADDING_KEYS, TF32.name): {
        64: (Tiles(64, 32, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        192: (Tiles(32, 16, 2, 1),),
    },
    (ADDING_KEYS, F32_GRADE.name): {64: (Tiles(64, 16, 4, 2),), 128: (Tiles(64, 16, 4, 1),)},
}


# The tiles, by owner, arithmetic and columns, of kernels for targets without asynchronous copies.
SYNCHRONOUS_GRADIENT_TILES: Final[dict[tuple[str, str], dict[int, tuple[Tiles, ...]]]] = {
    (QUERIES, HALF.name): {
        64: (Tiles(64, 16, 2, 1, resident=1, prefetches=True),),
        128: (Tiles(32, 16, 2, 1, resident=1, prefetches=True),),
        256: (Tiles(32, 16, 2, 1),),
    },
    (KEYS, HALF.name): {
        64: (Tiles(64, 16, 2, 1, load=0, prefetches=True), Tiles(64, 32, 4, 1, resident=2, prefetches=True)),
        128: (Tiles(64, 32, 4, 1, load=1), Tiles(64, 16, 4, 1)),
        256: (Tiles(32, 16, 2, 1),),
    },
    (ADDING_KEYS, HALF.name): {
        64: (Tiles(64, 32, 4, 1),),
        128: (Tiles(64, 32, 4, 1, load=1), Tiles(64, 16, 4, 1)),
        256: (Tiles(32, 16, 2, 1),),
    },
    (QUERIES, FMA.name): {
        64: (Tiles(64, 16, 4, 1, prefetches=True),),
        128: (Tiles(32, 16, 2, 1), Tiles(32, 8, 2, 1)),
        256: (Tiles(32, 8, 2, 1),),
    },
    (KEYS, FMA.name): {
        64: (Tiles(64, 16, 4, 1, prefetches=True),),
        128: (Tiles(32, 16, 2, 1), Tiles(32, 8, 2, 1)),
        256: (Tiles(32, 8, 2, 1),),
    },
}


# Tiles of kernels with `wgmma` by owner and by the columns of Q or V, whichever are more (at most the key):
# the widest that were seen not to spill. By keys the producer also works on tiles, for which it has 40
# registers where the consumers need no more than the others.
WGMMA_GRADIENT_TILES: Final[dict[str, dict[int, tuple[WgmmaTiles, ...]]]] = {
    QUERIES: {
        64: (WgmmaTiles(128, 1), WgmmaTiles(96, 3), WgmmaTiles(48)),
        96: (WgmmaTiles(128, 0), WgmmaTiles(96, 1), WgmmaTiles(80, 3), WgmmaTiles(48)),
        128: (WgmmaTiles(128, 0), WgmmaTiles(96, 1), WgmmaTiles(80, 3), WgmmaTiles(32)),
        192: (WgmmaTiles(80, 0), WgmmaTiles(64, 1), WgmmaTiles(48, 3), WgmmaTiles(32)),
        256: (WgmmaTiles(48, 2), WgmmaTiles(32, 3), WgmmaTiles(16)),
    },
    KEYS: {
        64: (WgmmaTiles(96, 0, 40), WgmmaTiles(64, 1, 40), WgmmaTiles(48, 2, 40), WgmmaTiles(32, 4, 40)),
        96: (WgmmaTiles(64, 0, 40), WgmmaTiles(48, 1, 40), WgmmaTiles(32, 3, 40), WgmmaTiles(16, 4, 40)),
        128: (WgmmaTiles(64, 0), WgmmaTiles(32, 2, 40), WgmmaTiles(32, 3), WgmmaTiles(16)),
        192: (WgmmaTiles(64, 0, 40), WgmmaTiles(48, 1, 40), WgmmaTiles(32, 3, 40), WgmmaTiles(16, 4, 40)),
        256: (WgmmaTiles(48, 0, 40), WgmmaTiles(32, 2, 40), WgmmaTiles(16, 4, 40)),
    },
}


# Tiles of kernels of one sweep by keys with `wgmma`, which have the 64 queries of a product of dQ.
WGMMA_ADDING_TILES: Final[dict[int, tuple[WgmmaTiles, ...]]] = {
    64: (WgmmaTiles(64, 1, 40),),
    128: (WgmmaTiles(64, 0),),
}


class Clocks(NamedTuple):
    """The clocks of one sweep as a fraction of the clocks of two sweeps, by the model in
    `benchmarks/gradient_sweeps.py`, as in `benchmarks/results/gradient-sweeps.txt`: with fast tensor cores,
    as of sm_80 and sm_90, which wait for shared memory, with slow ones, as of sm_86, sm_89 and sm_120, and on
    targets without asynchronous copies, None if these have no kernels.
    """

    fast: float
    slow: float
    synchronous: float | None = None


# By how elements are multiplied, and the columns as in GRADIENT_TILES. Warps of one sweep own 16 keys, those
# of two 32 where registers hold the sums, or share the products of scores: they read less of shared memory.
CLOCKS_OF_ONE_SWEEP: Final[dict[str, dict[int, Clocks]]] = {
    HALF.name: {64: Clocks(1.16, 0.75, 1.01), 128: Clocks(0.88, 0.74, 0.67), 256: Clocks(1.13, 1.03, 0.77)},
    TF32.name: {64: Clocks(0.73, 0.73), 128: Clocks(0.69, 0.69), 192: Clocks(0.76, 0.76)},
    F32_GRADE.name: {64: Clocks(0.67, 0.72), 128: Clocks(0.76, 0.78)},
}
# The clocks of one sweep as a fraction of those of two, for kernels with `wgmma`, by their columns.
WGMMA_CLOCKS_OF_ONE_SWEEP: Final[dict[int, float]] = {64: 0.96, 128: 0.95}
