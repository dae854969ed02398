"""The tensor maps of kernels for Hopper: which arrays have one, and what the kernel fixes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flash.operands.dtypes import DType
from flash.problem.config import KernelConfig
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.dsl.hopper import Layout
from ptxgen.tensormap import Boxes

MAPPED: Final = "QKVO"
RANK: Final = 4  # [batch, heads, rows, columns]


def map_name(array: str) -> str:
    """The name of the parameter with the tensor map of an array."""
    return f"{array}_map"


def layout_of(t: WgmmaTiling, dtype: DType, array: str) -> Layout:
    """The layout of the tiles of Q, K, V or O in shared memory. O leaves through the tile of Q."""
    found = Layout.of(array, t.tile_of(array), dtype.scalar)
    if array != "O":
        return found
    of_Q = layout_of(t, dtype, "Q")
    return found if found.align <= of_Q.align else replace(found, swizzle=of_Q.swizzle)


def maps_of(config: KernelConfig) -> Mapping[str, Boxes]:
    """What the kernel fixes of the tensor map of each array that has one, by array."""
    t = config.tiling
    if not isinstance(t, WgmmaTiling):
        return {}
    boxes = {n: layout_of(t, config.dtype, n).boxes(RANK) for n in MAPPED}
    return {n: replace(of, loads=n != "O", stores=n == "O") for n, of in boxes.items()}
