"""The tensor maps of kernels of gradients with `wgmma`: which matrices have one, and its boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flash.problem.gradient_arrays import gradient_matrices
from flash.problem.gradients import QUERIES, WIDE, GradientConfig
from ptxgen.dsl.hopper import Layout
from ptxgen.tensormap import Boxes

_SLABS: Final = {"128B": 128, "64B": 64, "32B": 32}  # bytes of a row of a slab, by swizzle


def gradient_layout(config: GradientConfig, array: str) -> Layout:
    """The layout of the tile of a matrix in shared memory, of which each warpgroup has whole slabs."""
    t, dtype = config.mapped, config.type_of(array)
    row_bytes = t.least_columns(array) * dtype.nbytes
    swizzle = next(name for name, slab in _SLABS.items() if row_bytes % slab == 0)
    return Layout.of(array, t.tile_of(array), dtype.scalar, swizzle)


def gradient_rank(config: GradientConfig) -> int:
    """The dimensions of a tensor map: [batch, heads, rows, columns], of packed sequences without the
    first.
    """
    return len(config.features.steps) + 1


def gradient_maps(config: GradientConfig) -> Mapping[str, Boxes]:
    """The boxes that the kernel copies of each matrix with a tensor map, by its name."""
    if not config.has_wgmma:
        return {}
    rank = gradient_rank(config)
    # Read once, by threads that sum D.
    by_threads = ("O", f"dO{WIDE}") if config.owner == QUERIES else ("O",)
    return {
        array.name: replace(
            gradient_layout(config, array.name).boxes(rank),
            loads=not array.is_written,
            stores=array.is_written,
        )
        for array in gradient_matrices(config)
        if array.name not in by_threads
    }
