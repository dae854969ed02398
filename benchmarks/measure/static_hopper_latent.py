"""Main loops of the forward kernel for Hopper in which V is the first columns of K: what the issue model
says, and what shared memory alone allows.
"""

from __future__ import annotations

import functools
from typing import Final

from benchmarks.measure.static_hopper import DTYPE, Reading, row, settings_of
from benchmarks.measure.static_hopper_f32 import HALF
from flash.commands.measure.record import Found, Goal, Job, measured
from flash.commands.measure.static_quality import Subject
from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from flash.problem.latent_tiling import LATENT_TILES, LatentTiling
from flash.problem.wgmma_choice import WGMMA_TARGET
from flash.problem.wgmma_tiling import WGMMA_ROWS
from ptxgen.errors import BackendError
from ptxgen.report.issue_units import WAVEFRONT_BYTES
from ptxgen.report.rates import DEVICES
from ptxgen.target import target as find_target

DIMS: Final = (576, 512)  # of multi-head latent attention (DeepSeek-V2)
GOAL: Final = 85  # % of the clocks


def latent_jobs(quick: bool) -> list[Job]:
    """A job for every tile, which assembles the kernel and models its main loop; none if `quick`."""
    return [
        Job(f"hopper d={DIMS[0]} latents {DTYPE} full, tile {tile}", functools.partial(latent_quality, tile))
        for tile in (() if quick else LATENT_TILES)
    ]


def latent_quality(tile: int) -> Found:
    """The row of one tile; that of "auto" has goals."""
    config = AttentionConfig(*DIMS, dtype=DTYPE, target=WGMMA_TARGET, shared_kv=True, tile=tile)
    kernel = config.kernel()
    t = kernel.tiling
    assert isinstance(t, LatentTiling)  # no other kernel computes it
    try:
        ours = Reading.of(Subject.of(build(kernel)), t.consumers, f"{t.block_q}x{t.tile}", moved_bytes(t))
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    settings = {**settings_of(DIMS[0]), "tile": tile}
    is_default = tile == LATENT_TILES[0]
    goal, none = (Goal(">=", GOAL) if is_default else None), Goal("<=", 0)
    shares = {"by the issue model": ours.tensor, "by shared memory": shared_share(t)}
    return [
        row(DIMS[0], "ours, latents", ours),
        *(
            measured(f"tensor cores {of}", "%", [share], config=settings, goal=goal, headline=is_default)
            for of, share in shares.items()
        ),
        measured("spilled", "bytes", [ours.made.spilled_bytes], config=settings, goal=none),
    ]


def shared_share(t: LatentTiling) -> float:
    """The most that tensor cores can be busy, in %, if shared memory moves all of its bytes and they wait for
    nothing else: their clocks for a tile of keys, and those of shared memory if these are more. One consumer
    reads Q and the tile for its scores, and each half of the columns of V; elements of K arrive once, and
    weights are written once and read by the other consumer.
    """
    of_scores = t.score_columns * (WGMMA_ROWS + t.tile)
    of_values = t.tile * t.output_columns
    shared = (HALF * (of_scores + of_values) + moved_bytes(t)) / WAVEFRONT_BYTES
    macs = t.block_q * t.tile * (t.score_columns + t.output_columns)
    tensor = macs / DEVICES[find_target(WGMMA_TARGET).sm].macs
    return 100 * tensor / max(tensor, shared)


def moved_bytes(t: LatentTiling) -> int:
    """The bytes of a tile that pass through shared memory beside what products read as K and V: the tile
    arrives once, and weights of the two consumers are written and read.
    """
    return HALF * (t.tile * t.score_columns + 2 * WGMMA_ROWS * t.tile)
