"""The tensor maps of kernels for Hopper: which arrays have one, and its boxes, which the kernel fixes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flash.families.wgmma import WGMMA_ROWS, WgmmaTiling
from flash.operands.dtypes import DType
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl.hopper import Layout
from ptxgen.tensormap import Boxes

_OF_KEYS: Final = "KV"


def mapped(config: KernelConfig) -> str:
    """The arrays that tensor copies move: with packed heads K and V alone, because the rows of a tile of
    Q or O then alternate between heads, of which a launch says how many there are. Parts of O that are to
    be merged are stored from registers. Where V is columns of K, its tile is that of K. Rows of K and V that
    threads gather have none.
    """
    without = "QO" if config.packed else "O" if config.features.splits else ""
    without += _OF_KEYS if config.gathers else ""
    return "".join(name for name in config.family.mapped if name not in without)


def rank_of(config: KernelConfig, array: str) -> int:
    """The dimensions of a tensor map: [batch, heads, rows, columns], of packed sequences without the
    first.
    """
    return len(config.features.steps_of(array)) + 1


def map_name(array: str) -> str:
    """The name of the parameter with the tensor map of an array."""
    return f"{array}_map"


def layout_of(t: WgmmaTiling, dtype: DType, array: str) -> Layout:
    """The layout of the tiles of Q, K, V or O in shared memory. O may leave through the tile of Q."""
    layout = Layout.of(array, t.tile_of(array), dtype.scalar)
    if array != "O" or not t.output_is_over_queries:
        return layout
    of_Q = layout_of(t, dtype, "Q")
    return layout if layout.align <= of_Q.align else replace(layout, swizzle=of_Q.swizzle)


def stores_by_warpgroup(config: KernelConfig) -> bool:
    """Whether each consumer warpgroup stores its rows of O by itself, from a tile of its rows, and goes on
    with the next block of queries: where O has its own memory, and a tensor copy stores every block whole.
    """
    t = config.family.require(config.tiling)
    return t.separate_output and "O" in mapped(config) and not config.features.varlen


def box_of(config: KernelConfig, array: str, tile: Layout) -> Layout:
    """The layout of what one copy moves of a tile: all, the rows of it that are in one page, or the rows of
    O that a warpgroup has.
    """
    size = config.features.page_size
    if array == "O" and stores_by_warpgroup(config):
        return replace(tile, shape=(WGMMA_ROWS, tile.columns))
    if array not in _OF_KEYS or not size:
        return tile
    return replace(tile, shape=(math.gcd(size, tile.rows), tile.columns))


def maps_of(config: KernelConfig) -> Mapping[str, Boxes]:
    """The boxes that the kernel copies of each array with a tensor map, by array."""
    t = config.family.require(config.tiling)
    boxes = {
        n: box_of(config, n, layout_of(t, config.element_of(n), n)).boxes(rank_of(config, n))
        for n in mapped(config)
    }
    return {n: replace(of, loads=n != "O", stores=n == "O") for n, of in boxes.items()}
