"""What the kernels of gradients have in common: their tiles, products, and how they write.

With S the scores and LSE their log-sum-exp by rows, P = exp(S - LSE); dP = dO Vᵀ; dS = P ∘ (dP - D),
where D is the sum of O ∘ dO over a row. Then dQ = scale dS K, dK = scale dSᵀ Q and dV = Pᵀ dO, where
scores are products times a scale; what else is done to scores multiplies dS by its derivative, and
dropout takes weights out of dV and dP. Products of 16-bit elements are exact and summed in f32; P
and dS are rounded to the 16-bit type, gradients once at the end. For f32, see
`flash/device/tf32_products.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flash.device.column_warps import ColumnWarps, SummedProducts
from flash.device.epilogue import store_outputs
from flash.device.fma_products import FmaProducts
from flash.device.gradient_parts import GradientParameters
from flash.device.mma_products import MmaProducts, Tiles, WarpCoordinates, WarpProducts
from flash.device.tf32_products import Tf32Products
from flash.device.tiles import Matrix
from flash.families.mma import MmaTiling
from flash.families.precision import FMA, HALF
from flash.problem.gradients import GradientConfig, GradientTiling
from flash.scores.feature import LOG2E, NEG_INF
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value
from ptxgen.dsl.source_regions import marked
from ptxgen.dsl.swizzle import SwizzledTile

_INFINITY: Final = float("inf")
_LOW_LSE: Final = -(2.0**126)  # LSE of which any finite score less it has an infinite weight


def begun(config: GradientConfig) -> tuple[KernelBuilder, GradientParameters]:
    """Begin a gradient kernel: its builder, without code yet, and its declared parameters."""
    t = config.tiling
    is_half = t.operands is HALF  # in kernels of f32 the registers of reciprocals would spill others
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=is_half)
    return k, GradientParameters.declare(k, config)


def nothing() -> None:
    """Emit no instruction, where a kernel does not need a step."""


def tiles_of(
    k: KernelBuilder, config: GradientConfig, owned: tuple[str, str], walked: tuple[str, str]
) -> tuple[tuple[SwizzledTile, SwizzledTile], tuple[SwizzledTile, SwizzledTile]]:
    """Declare the tiles of the two matrices whose rows the CTA owns, and of the two it walks over."""
    t, dtype = config.mma, config.dtype.scalar
    widths = t.width(t.of_scores), t.width(t.of_weights)
    a, b = (k.swizzled(f"{n}_tile", (t.block, w), dtype) for n, w in zip(owned, widths, strict=True))
    c, d = (
        k.swizzled(f"{n}_tile", (t.tile, w), dtype, stages=t.stages)
        for n, w in zip(walked, widths, strict=True)
    )
    return (a, b), (c, d)


def products_of(
    k: KernelBuilder,
    t: MmaTiling,
    me: WarpCoordinates,
    tiles: Tiles,
    config: GradientConfig,
    *,
    resident: bool = False,
    column_warps: ColumnWarps | None = None,
    are_second: bool = False,
) -> list[WarpProducts]:
    """The products of a warp with each part of a tile that registers hold at once, by how its elements are
    multiplied. `tiles` are those of the rows that the CTA owns, of the rows that they meet, and of those that
    are weighed. `resident`: the rows that the CTA owns have arrived, and are read here, once. With
    `column_warps` the warp multiplies its columns of the tiles, and scores are those of all columns;
    `are_second`: they come after those of other products with the same tile.
    """
    if column_warps is not None:
        of_warp = products_of(k, t, me, column_warps.parts(tiles), config)
        return [SummedProducts(products, column_warps, awaits_readers=are_second) for products in of_warp]
    if t.operands is HALF:
        products = MmaProducts(k, t, me, tiles, config.dtype.scalar)
        if resident:
            products.keep()
        return [products.below(first) for first in config.mma.parts]
    assert not resident  # no table of tiles has it
    assert len(config.mma.parts) == 1
    if t.operands is FMA:
        return [FmaProducts(k, t, me, tiles)]
    return [Tf32Products(k, t, me, tiles, is_crowded=config.mma.is_crowded, keeps_nan=True)]


def shift_of(k: KernelBuilder, lse: Value) -> Value:
    """The number that is subtracted from the scores of a row, in units of log2: LSE, or infinity for a row
    that sees no key, so that its weights are 0.
    """
    return k.selp(_INFINITY, lse * LOG2E, lse == NEG_INF)


@marked("gradients: odd rows")
def is_nonfinite(k: KernelBuilder, delta: Value) -> Value:
    """Whether D of a row is NaN or infinite, as it is for each row that sees a key and whose Q, dO or O is
    not finite.
    """
    return ~(k.abs(delta) < _INFINITY)


@marked("gradients: tamed rows")
def tamed(k: KernelBuilder, lse: Value, delta: Value) -> tuple[Value, Value]:
    """LSE and D of a row, for kernels in which NaN and infinity in dO have been set to 0. Those of a row
    whose D `is_nonfinite` are such that its weights are infinite, but 0 for keys that it does not see, and so
    are gradients of scores: what is not finite reaches all keys that the row sees and no others.
    """
    nonfinite = is_nonfinite(k, delta)
    return k.selp(_LOW_LSE, lse, nonfinite), k.selp(0.0, delta, nonfinite)


def tame(k: KernelBuilder, lse: Pointer, delta: Pointer) -> None:
    """Replace LSE and D of a row, which are in shared memory, by the results of `tamed`."""
    with k.when(is_nonfinite(k, k.load(delta))):
        k.store(lse, _LOW_LSE)
        k.store(delta, 0.0)


def store(
    k: KernelBuilder,
    t: MmaTiling,
    me: WarpCoordinates,
    products: WarpProducts,
    staging: SwizzledTile,
    matrix: Matrix,
    first_row: Value,
    total: Fragment,
    scale: Value | None,
) -> None:
    """Write a gradient, times `scale`, to memory through the warp's rows of the tile `staging`."""
    if scale is not None:
        for value in total.all():
            k.mul(value, scale, into=value)
    store_outputs(k, t, me, products, staging, (matrix, first_row), total)


def store_part(
    k: KernelBuilder,
    t: GradientTiling,
    mine: Value | None,
    of: MmaTiling,
    me: WarpCoordinates,
    products: WarpProducts,
    staging: SwizzledTile,
    matrix: Matrix,
    first_row: Value,
    total: Fragment,
    scale: Value | None,
) -> None:
    """Write the columns of a gradient that a warp makes, part `mine` of them (u32; None: all), times `scale`,
    through its rows of `staging`.
    """
    if mine is None:
        store(k, of, me, products, staging, matrix, first_row, total, scale)
        return
    width, in_cta = t.slice_width(matrix.columns), t.warps_of_rows
    for number in range(t.column_parts):
        left = matrix.columns - number * width
        if left > 0:
            with k.when(mine == number, uniform=in_cta == 1):
                first = matrix.first + number * width * staging.dtype.nbytes
                owned = replace(matrix, first=first, columns=min(left, width))
                columns = replace(of, head_dim_v=owned.columns)
                through = staging.part(number, in_cta) if in_cta > 1 else staging
                store(k, columns, me, products, through, owned, first_row, total, scale)
