"""The tensor maps of kernels of gradients with `wgmma`: which matrices have one, and its boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flash.problem.gradients import GradientConfig, gradient_matrices
from ptxgen.dsl.hopper import Layout
from ptxgen.tensormap import Boxes

_SLABS: Final = {"128B": 64, "64B": 32, "32B": 16}  # columns of 16 bits in a slab, by swizzle
_BY_THREADS: Final = "O"  # read once, by threads that sum D


def gradient_layout(config: GradientConfig, array: str) -> Layout:
    """The layout of the tile of a matrix in shared memory, of which each warpgroup has whole slabs."""
    t = config.mapped
    swizzle = next(name for name, slab in _SLABS.items() if t.least_columns(array) % slab == 0)
    return Layout.of(array, t.tile_of(array), config.dtype.scalar, swizzle)


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
    return {
        array.name: replace(
            gradient_layout(config, array.name).boxes(rank),
            loads=not array.is_written,
            stores=array.is_written,
        )
        for array in gradient_matrices(config)
        if array.name != _BY_THREADS
    }
