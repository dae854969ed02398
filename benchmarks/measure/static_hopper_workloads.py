"""Main loops of the forward kernels for Hopper of problems that a family names: their rates by the issue
model, and the limit by shared memory alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.measure.static_hopper import DTYPE, Reading, row, settings_of
from flash.commands.measure.record import Goal, Job, Rows, measured
from flash.commands.measure.static_quality import Subject
from flash.contract.catalogue import build
from flash.families.choice import WORKLOADS
from flash.families.wgmma import WGMMA_TARGET
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import DEVICES
from ptxgen.report.issue_units import WAVEFRONT_BYTES
from ptxgen.target import target as find_target

GOAL: Final = 85  # % of the clocks
_ON: Final[Mapping[str, Any]] = {"dtype": DTYPE, "target": WGMMA_TARGET}


def workload_jobs(quick: bool) -> list[Job]:
    """A job for every problem and tile, which assembles the kernel and models its loop; none if `quick`."""
    return [
        Job(
            f"hopper d={of['head_dim']} {name} {DTYPE} full, tile {tile}",
            functools.partial(workload_quality, name, tile),
        )
        for name, of in ({} if quick else WORKLOADS).items()
        for tile in AttentionConfig(**of, **_ON).kernel().family.tile_sizes
    ]


def workload_quality(name: str, tile: int) -> Rows:
    """The table row of the problem `name` with one tile; that of the tile of "auto" has goals."""
    config = AttentionConfig(**WORKLOADS[name], **_ON)
    kernel = AttentionConfig(**WORKLOADS[name], **_ON, tile=tile).kernel()
    t = kernel.family.require(kernel.tiling)
    try:
        ours = Reading.of(Subject.of(build(kernel)), t.consumers, f"{t.block_q}x{t.tile}", t.moved_bytes)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    settings = {**settings_of(t.head_dim), "tile": tile}
    is_default = tile == config.kernel().tiling.tile
    goal, none = (Goal(">=", GOAL) if is_default else None), Goal("<=", 0)
    shares = {"by the issue model": ours.tensor, "by shared memory": shared_share(t)}
    return [
        row(t.head_dim, f"ours, {name}", ours),
        *(
            measured(f"tensor cores {of}", "%", [share], config=settings, goal=goal, headline=is_default)
            for of, share in shares.items()
        ),
        measured("spilled", "bytes", [ours.assembly.spilled_bytes], config=settings, goal=none),
    ]


def shared_share(t: Any) -> float:
    """The most that tensor cores can be busy, in %, if shared memory moves all of its bytes and they wait for
    nothing else: their clocks for a tile of keys, and those of shared memory if these are more. `t` is a
    tiling that knows its `read_bytes` and `moved_bytes`.
    """
    shared = (t.read_bytes + t.moved_bytes) / WAVEFRONT_BYTES
    macs = t.block_q * t.tile * (t.score_columns + t.output_columns)
    tensor = macs / DEVICES[find_target(WGMMA_TARGET).sm].macs
    return float(100 * tensor / max(tensor, shared))
