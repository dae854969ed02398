"""Main loops of the forward kernels for Hopper of f32 in products of f16: their rates by the issue model, and
the limit by shared memory alone.
"""

from __future__ import annotations

import functools
from typing import Final

from benchmarks.measure.static_hopper import Reading, row, settings_of
from flash.commands.measure.record import Goal, Job, Rows, measured
from flash.commands.measure.static_quality import Subject
from flash.contract.catalogue import build
from flash.families.wgmma import WGMMA_ROWS, WGMMA_TARGET
from flash.families.wgmma_split import SPLIT, SplitWgmmaTiling
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import DEVICES
from ptxgen.report.issue_units import WAVEFRONT_BYTES
from ptxgen.target import target as find_target

PRECISE: Final = "f32_grade"
PRECISE_DIMS: Final = (64, 128)
GOAL: Final = 150  # TFLOP/s
_DEPTH: Final = 16  # of a product of f16
HALF: Final = 2  # bytes
_WORD: Final = 4
_PRODUCTS: Final = 3  # of f16 for one of f32


def precise_jobs(quick: bool) -> list[Job]:
    """A job for every head_dim, which assembles the kernel and models its main loop; none if `quick`."""
    return [
        Job(f"hopper d={d} {PRECISE} full", functools.partial(precise_quality, d))
        for d in (() if quick else PRECISE_DIMS)
    ]


def precise_quality(head_dim: int) -> Rows:
    """The row of one head_dim, with its goals."""
    kernel = AttentionConfig(head_dim, precision=PRECISE, target=WGMMA_TARGET).kernel()
    t = SPLIT.require(kernel.tiling)
    try:
        ours = Reading.of(Subject.of(build(kernel)), t.consumers, f"{t.block_q}x{t.tile}", t.moved_bytes)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    results: Rows = [row(head_dim, f"ours, {PRECISE}", ours)]
    config = settings_of(head_dim, PRECISE)
    clocks = {"issue model": tensor_clocks(t) / (ours.tensor / 100), "shared memory": shared_clocks(t)}
    for name, of_tile in clocks.items():
        rate = tflops(t, of_tile)
        goal = Goal(">=", GOAL)
        results.append(measured(f"by the {name}", "TFLOP/s", [rate], config=config, goal=goal, headline=True))
    spilled = [ours.assembly.spilled_bytes]
    return [*results, measured("spilled", "bytes", spilled, config=config, goal=Goal("<=", 0))]


def tensor_clocks(t: SplitWgmmaTiling) -> float:
    """The clocks of tensor cores for the block of queries of a CTA and a tile of keys."""
    macs = _PRODUCTS * t.block_q * t.tile * (t.score_columns + t.output_columns)
    return macs / DEVICES[find_target(WGMMA_TARGET).sm].macs


def shared_clocks(t: SplitWgmmaTiling) -> float:
    """The clocks of shared memory for the block of queries of a CTA and a tile of keys: each consumer reads
    the operands of its products, Q and K or V; and elements of K and V arrive, are read, and are written as
    pairs.
    """
    of_keys = t.score_columns // _DEPTH * (WGMMA_ROWS + t.tile)
    of_values = t.tile // _DEPTH * t.output_columns
    read = t.consumers * _PRODUCTS * (of_keys + of_values) * _DEPTH * HALF
    return (read + t.moved_bytes) / WAVEFRONT_BYTES


def tflops(t: SplitWgmmaTiling, clocks: float) -> float:
    """Useful TFLOP/s of the device of the target, if a CTA takes `clocks` clocks for a tile."""
    device = DEVICES[find_target(WGMMA_TARGET).sm]
    operations = 2 * t.block_q * t.tile * (t.head_dim + t.head_dim_v)
    return operations * device.multiprocessors * device.mhz * 1e6 / clocks / 1e12
