"""Which of the tiles of `flash/problem/gradient_tiles.py` the kernels of gradients of a problem get."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple, cast

from flash.families.mma import FIRST_ASYNCHRONOUS, MMA
from flash.families.precision import F32_GRADE, FMA, HALF, IEEE, TF32, Operands, operands_of
from flash.families.request import MAX_COLUMNS
from flash.families.wgmma import MAP_ALIGN, WGMMA_TARGET, width_of
from flash.families.wgmma_gradient import WgmmaGradientTiling, WgmmaSumsTiling, WgmmaTiles
from flash.mods.elements import element_reads
from flash.mods.trace import SCORE, Trace
from flash.operands.dtypes import DType
from flash.problem.config import AttentionConfig
from flash.problem.gradient_tiles import (
    ADDING_KEYS,
    CLOCKS_OF_ONE_SWEEP,
    GRADIENT_TILES,
    SYNCHRONOUS_GRADIENT_TILES,
    WGMMA_ADDING_TILES,
    WGMMA_CLOCKS_OF_ONE_SWEEP,
    WGMMA_GRADIENT_TILES,
    Clocks,
)
from flash.problem.gradients import (
    DELTAS,
    ELEMENTS,
    KEYS,
    OWNERS,
    QUERIES,
    SCORES,
    SUMS,
    AnyGradientTiling,
    GradientConfig,
    GradientTiling,
)
from ptxgen.errors import ConfigError, shown
from ptxgen.rates import DEVICES
from ptxgen.target import Target

_FAST: Final = 1024  # f16 multiply-adds in a clock, from which on tensor cores count as fast
_REGISTERS: Final = 255  # of a thread, of which these kernels take nearly all
_OTHER_BYTES: Final = 1024  # of shared memory of a CTA besides tiles, at most: LSE and D of rows
_WANTED_WARPS: Final = 8  # of a multiprocessor, two of a scheduler: one issues while the other waits
# Rows of a CTA of deltas or sums, and its warps: enough for a row's pieces of 16 bytes.
_ROWS: Final = 64
_WARPS_OF_ROWS: Final = 4
_TILES_OF_BLOCKS: Final = (64, 32, 16)  # rows of a tile that divide each block of rows with a scale
_UNSPLIT: Final = 128  # the most columns that a warpgroup with `wgmma` sums of its 64 keys
_WITH_DROPOUT: Final = 3  # the `load` of `Tiles` and `WgmmaTiles` with dropout alone
_SCORES_OF_ELEMENTS: Final = 16  # of a thread at once, each with derivatives by elements
# The most columns of which a CTA makes all, by how elements are multiplied.
_UNSLICED: Final = {HALF.name: 128, TF32.name: 128, F32_GRADE.name: 64, FMA.name: 64}


class Sweeps(NamedTuple):
    """The number of sweeps in which the kernels of a call make its gradients, 1 or 2, and the reason."""

    number: int
    why: str
    in_order: bool = False  # whether CTAs of one sweep add to dQ in a fixed order


def has_one_sweep(config: AttentionConfig) -> bool:
    """Whether one sweep over the keys can make the gradients of a config: it needs tiles for that."""
    return _clocks_of_one_sweep(config) is not None


def _clocks_of_one_sweep(config: AttentionConfig) -> Clocks | None:
    operands = None if config.is_fp8 else operands_of(config.element, config.precision)
    by_columns = CLOCKS_OF_ONE_SWEEP.get(operands.name, {}) if operands is not None else {}
    columns = max(config.head_dim, config.value_dim)
    return next((clocks for most, clocks in by_columns.items() if columns <= most), None)


def sweeps_of(config: AttentionConfig, asked: int | None, target: Target, *, deterministic: bool) -> Sweeps:
    """The sweeps for a config, as many as `asked`; with None as many as are faster by the model, one only if
    dq need not be `deterministic`.
    """
    if asked is not None:
        return Sweeps(asked, "as asked", in_order=asked == 1 and deterministic)
    if deterministic:
        return Sweeps(2, "because deterministic is True")
    both = _clocks_of_one_sweep(config)
    if both is None:
        return Sweeps(2, "because the table has no tiles for one")
    if target.name == WGMMA_TARGET and operands_of(config.element, config.precision) is HALF:
        if _adding_tiles(config) is None:
            return Sweeps(2, "because only two sweeps have kernels with wgmma for these columns and features")
        clocks = WGMMA_CLOCKS_OF_ONE_SWEEP[width_of(config.head_dim)]
    else:
        clocks = _clocks_on(both, target)
    why = f"because by the model one takes {clocks:.2f} times the clocks of two on {target}"
    return Sweeps(1 if clocks < 1 else 2, why)


def _clocks_on(clocks: Clocks, target: Target) -> float:
    """The clocks of one sweep on a target, as a fraction of those of two."""
    if target.sm < FIRST_ASYNCHRONOUS and clocks.synchronous is not None:
        return clocks.synchronous
    device = DEVICES.get(target.sm)
    return clocks.fast if device is None or device.macs >= _FAST else clocks.slow


def require_sweeps(config: AttentionConfig, asked: object, *, deterministic: bool, caller: str) -> None:
    """Raise `ConfigError` in the name of `caller`, unless `asked` is None or a number of sweeps that a config
    can have: one only if dq need not be `deterministic`.
    """
    if asked is not None and (type(asked) is not int or asked not in (1, 2)):
        raise ConfigError(f"{caller}: sweeps must be 1, 2 or None, got {shown(asked)}")
    against = against_order(config, config.target or WGMMA_TARGET) if asked == 1 and deterministic else ""
    if against:
        raise ConfigError(
            f"{caller}: sweeps=1 sums dq in an order that differs from call to call, because {against}; give "
            "deterministic=False, or leave sweeps out"
        )
    if asked == 1 and not has_one_sweep(config):
        raise ConfigError(
            f"{caller}: one sweep has no kernels for head_dim={config.head_dim}, "
            f"head_dim_v={config.value_dim}, "
            f"dtype={config.dtype!r} with precision={config.precision!r}; leave sweeps out"
        )


def require_differentiable(config: AttentionConfig, caller: str) -> None:
    """Raise `ConfigError`, which names `caller`, for Q, K and V whose blocks of elements have scales."""
    if config.features.mx is not None:
        raise ConfigError(
            f"{caller}: config must be one without scales of blocks of elements, which have no gradients, "
            f"got scale_block={config.scale_block!r}; convert Q, K and V to 'bf16'"
        )


def gradient_config(
    config: AttentionConfig,
    owner: str,
    target: Target,
    alignment: int,
    *,
    with_dlse: bool = False,
    wanted: tuple[str, ...] = (),
    caller: str = "AttentionGradient",
    one_sweep: bool = False,
    in_order: bool = False,
    without_wgmma: str = "",
    dout_dtype: DType | None = None,
) -> GradientConfig:
    """The kernel of gradients of a problem, whose CTAs own rows of `owner`. In `one_sweep`, for a
    config that `has_one_sweep`, a kernel that owns keys also adds to sums of dQ. Kernels with `wgmma` are
    taken where there are any, unless `without_wgmma` has a reason against them. CTAs add `in_order` where
    nothing is `against_order`. `dout_dtype` is the type of dO with Q, K and V of fp8, by default theirs.

    Raises `ConfigError`, which names `caller`, for what no kernel computes on the target.
    """
    require_differentiable(config, caller)
    operands = operands_of(config.element, config.precision) or FMA
    if config.is_fp8:
        return _of_fp8(
            config, owner, target, alignment, (with_dlse, wanted), caller, without_wgmma, dout_dtype
        )
    _require_indices(config, wanted if owner == ELEMENTS else (), caller)
    against = MMA.lacking(replace(config.tile_request, stages=1), target)
    if operands is not FMA and against:
        raise ConfigError(f"{caller}: {against}")
    by_wgmma = None
    if not (without_wgmma or against_wgmma(config, owner, target, alignment, one_sweep=one_sweep)):
        by_wgmma = _wgmma_tiling(config, owner, one_sweep=one_sweep, in_order=in_order)
    if owner in (DELTAS, SUMS):
        tiling = by_wgmma or GradientTiling(
            config.head_dim, config.value_dim, _ROWS, 0, _WARPS_OF_ROWS, 1, operands=operands
        )
        return _of_rows(tiling, config, owner, target, alignment, with_dlse=with_dlse, wanted=wanted)
    of_problem = str(config.causal or ""), alignment, config.element, config.features, with_dlse, wanted
    if by_wgmma is not None:
        return GradientConfig(owner, target, by_wgmma, *of_problem)
    tiling = _tiling(config, owner, target, operands, caller, adds=owner == KEYS and one_sweep)
    return GradientConfig(owner, target, tiling, *of_problem)


def _tiling(
    config: AttentionConfig, owner: str, target: Target, operands: Operands, caller: str, *, adds: bool
) -> GradientTiling:
    """The tiles of a kernel without `wgmma` that walks over tiles: of those that the table offers, the first
    that fits into shared memory and leaves room for enough warps. `adds`: whether it adds to sums of dQ.
    Raises `ConfigError`, which names `caller`, if none fits.
    """
    columns = max(config.head_dim, config.value_dim)
    of_tiles = ADDING_KEYS if adds else QUERIES if owner in (SCORES, ELEMENTS) else owner
    is_early = target.sm < FIRST_ASYNCHRONOUS
    by_columns = (SYNCHRONOUS_GRADIENT_TILES if is_early else GRADIENT_TILES)[of_tiles, operands.name]
    if owner == ELEMENTS:  # whose warps have all columns of their rows
        by_columns = {
            most: tiles for most, tiles in by_columns.items() if all(t.column_warps == 1 for t in tiles)
        }
    offered = next((tiles for most, tiles in by_columns.items() if columns <= most), ())
    if not offered:
        raise ConfigError(
            f"{caller}: head_dim and head_dim_v must be at most {max(by_columns)} in kernels of gradients on "
            f"{target.name}, got {config.head_dim} and {config.value_dim}; only backend 'cpu' computes "
            "gradients of wider rows"
        )
    load = _load(config, owner)
    slices = 2 if owner == KEYS and columns > _UNSLICED[operands.name] else 1  # of warps that own rows alone
    tilings = [
        GradientTiling(
            *(config.head_dim, config.value_dim, of.block, of.tile, of.warps, of.stages),
            *(
                slices if of.across * of.column_warps == 1 else 1,
                operands,
                adds,
                of.step,
                of.resident,
                of.across,
            ),
            prefetches=of.prefetches,
            column_warps=of.column_warps,
        )
        for of in offered
        if of.load >= load
    ]
    if owner in (SCORES, ELEMENTS):  # which have one tile of each matrix at a time
        tilings = [replace(t, stages=1, step=0, resident=0, prefetches=False) for t in tilings]
    if owner == ELEMENTS:
        tilings = [replace(t, tile=min(t.tile, _SCORES_OF_ELEMENTS * t.threads // t.block)) for t in tilings]
    fitting = [t for t in tilings if t.shared_bytes + _OTHER_BYTES <= target.shared_per_block_optin]
    if not fitting:
        instead = "only backend 'cpu' computes these gradients"
        if operands in (TF32, F32_GRADE):
            instead = f"use precision={IEEE!r}, whose tiles may be smaller, or backend 'cpu'"
        raise ConfigError(
            f"{caller}: head_dim={config.head_dim}, head_dim_v={config.value_dim} needs "
            f"{tilings[-1].shared_bytes + _OTHER_BYTES} bytes of shared memory, but {target.name} allows "
            f"{target.shared_per_block_optin} bytes per block; {instead}"
        )
    together = [
        t
        for t in fitting
        if is_early  # whose order is that of a multiprocessor with as much shared memory
        or t.warps * target.blocks_per_sm_for(t.threads, _REGISTERS, t.shared_bytes + _OTHER_BYTES)
        >= _WANTED_WARPS
    ]
    return (together or fitting)[0]


def _require_indices(config: AttentionConfig, elements: tuple[str, ...], caller: str) -> None:
    """Raise `ConfigError`, which names `caller`, if an index of one of these arrays of aux depends on the
    score.
    """
    for read in element_reads(cast(Trace, config.score_mod)) if elements else ():
        if SCORE in read.inputs and read.array.operand in elements:
            raise ConfigError(
                f"{caller}: the gradient of {read.array.operand} has no kernel, because an index of it "
                "depends on the score; only backend 'cpu' computes it"
            )


def _of_fp8(
    config: AttentionConfig,
    owner: str,
    target: Target,
    alignment: int,
    of_call: tuple[bool, tuple[str, ...]],
    caller: str,
    without_wgmma: str,
    dout_dtype: DType | None,
) -> GradientConfig:
    """The kernel with Q, K, V and dO of fp8. Raises `ConfigError`, which names `caller`, if there is none."""
    against = without_wgmma or against_fp8(config, owner, target, alignment)
    if against:
        instead = "only backend 'cpu' computes these gradients"
        if config.varlen:  # which no backend computes
            instead = "use a batch for each length"
        raise ConfigError(
            f"{caller}: dtype={config.dtype!r} has no kernel of gradients here, because {against}; "
            f"{instead}, or convert Q, K, V and dO to 'bf16'"
        )
    tiling = _wgmma_tiling(config, owner, one_sweep=False, in_order=False)
    assert isinstance(tiling, WgmmaGradientTiling)  # there is no sweep with sums
    rows = config.scaled_rows
    tile = next(n for n in (tiling.tile, *_TILES_OF_BLOCKS) if n <= tiling.tile and rows % n == 0)
    return GradientConfig(
        owner,
        target,
        replace(tiling, tile=tile, narrow=True),
        str(config.causal or ""),
        alignment,
        config.element,
        config.gradient_features,
        *of_call,
        dout_dtype=dout_dtype or config.element,
        written=config.output,
    )


def against_fp8(config: AttentionConfig, owner: str, target: Target, alignment: int) -> str:
    """Why no kernel of fp8 has CTAs that own rows of `owner`; the empty string if one does."""
    if target.name != WGMMA_TARGET:
        return f"wgmma, which multiplies it, is of {WGMMA_TARGET} alone"
    if owner == SCORES:
        return "the gradient of a bias has no kernel of fp8"
    if owner not in OWNERS:
        return f"CTAs that own {owner} have no kernel of fp8"
    if max(config.head_dim, config.value_dim) > _UNSPLIT:
        return f"head_dim and head_dim_v are at most {_UNSPLIT} in kernels of fp8"
    if config.varlen:
        return "kernels of fp8 take no packed sequences"
    if alignment < MAP_ALIGN:
        return f"tensor maps take rows of multiples of {MAP_ALIGN} bytes"
    return ""


def against_order(config: AttentionConfig, target: str) -> str:
    """Why the CTAs of one sweep cannot add to sums of dQ in a fixed order; the empty string if they can."""
    if target != WGMMA_TARGET:
        return f"a fixed order is for kernels with wgmma, which is of {WGMMA_TARGET} alone"
    if operands_of(config.element, config.precision) is not HALF or _adding_tiles(config) is None:
        return "a fixed order is for kernels of one sweep with wgmma, and there is none for this config"
    if any(f.hides for f in config.scores):
        return "a CTA whose keys a mask hides would be missing in a fixed order"
    return ""


def against_wgmma(
    config: AttentionConfig, owner: str, target: Target, alignment: int, *, one_sweep: bool
) -> str:
    """Why no kernel with `wgmma` has CTAs that own rows of `owner`; the empty string if one does."""
    if target.name != WGMMA_TARGET:
        return f"wgmma is of {WGMMA_TARGET} alone"
    if owner not in ((KEYS, SUMS) if one_sweep else OWNERS):
        return f"CTAs that own {owner} have no kernel with wgmma"
    if operands_of(config.element, config.precision) is not HALF:
        return "kernels of gradients with wgmma are for f16 and bf16"
    if max(config.head_dim, config.value_dim) > MAX_COLUMNS:
        return f"kernels of gradients with wgmma have at most {MAX_COLUMNS} columns"
    if alignment < MAP_ALIGN:
        return f"tensor maps take rows of multiples of {MAP_ALIGN} bytes"
    if one_sweep and _adding_tiles(config) is None:
        return "one sweep with wgmma has no tiles for these columns and features"
    return ""


def _adding_tiles(config: AttentionConfig) -> WgmmaTiles | None:
    """The tiles of one sweep by keys with `wgmma`; None if there are none."""
    if max(config.head_dim, config.value_dim) > MAX_COLUMNS:
        return None
    columns, load = {width_of(config.head_dim), width_of(config.value_dim)}, _wgmma_load(config)
    if len(columns) > 1:
        return None
    offered = WGMMA_ADDING_TILES.get(columns.pop(), ())
    return next((of for of in offered if of.load >= load), None)


def _wgmma_load(config: AttentionConfig) -> int:
    """What registers of a kernel with `wgmma` hold in addition to sums, as a `load` of `WgmmaTiles`."""
    changing = sum(f.changes_scores or f.hides for f in config.scores)
    if any(f.changes_weights for f in config.scores):
        return _WITH_DROPOUT + (changing > 0)
    return min(changing + (changing > 0 and config.window is not None), _WITH_DROPOUT - 1)


def _wgmma_tiling(
    config: AttentionConfig, owner: str, *, one_sweep: bool, in_order: bool
) -> WgmmaGradientTiling | WgmmaSumsTiling:
    """The tiling of a gradient kernel with `wgmma` for a problem."""
    dims = config.head_dim, config.value_dim
    if one_sweep:
        tiles = _adding_tiles(config)
        assert tiles is not None  # there is no reason against it
        if owner == SUMS:
            return WgmmaSumsTiling(*dims, tiles.tile)
        how = {"adds_queries": True, "in_order": in_order}
    else:
        load = _wgmma_load(config)
        offered = next(of for most, of in WGMMA_GRADIENT_TILES[owner].items() if max(dims) <= most)
        tiles = next(of for of in offered if of.load >= load)
        how = {"splits_columns": owner == KEYS and max(dims) > _UNSPLIT}
    registers = tiles.producer_registers
    return WgmmaGradientTiling(*dims, tiles.tile, owner != QUERIES, producer_registers=registers, **how)


def _load(config: AttentionConfig, owner: str) -> int:
    """What registers of a kernel hold in addition to sums, as a `load` of `Tiles`."""
    hides = config.varlen or any(f.hides for f in config.scores)
    load = 2 if any(f.changes_scores for f in config.scores) else int(hides)
    if any(f.changes_weights for f in config.scores):
        return _WITH_DROPOUT + (load > 0)
    return max(load, int(owner == KEYS and config.causal == "top_left"))


def _of_rows(
    tiling: AnyGradientTiling,
    config: AttentionConfig,
    owner: str,
    target: Target,
    alignment: int,
    *,
    with_dlse: bool,
    wanted: tuple[str, ...],
) -> GradientConfig:
    """The kernel whose CTAs own rows of D, or of sums of dQ. Of the features, its text depends only on those
    whose gradients follow from D alone.
    """
    is_first = owner == DELTAS
    scores = [f for f in config.scores if is_first and f.gradient_of == "first" and f.argument in wanted]
    features = replace(config.features, scores=tuple(scores))
    of_terms = tuple(feature.argument for feature in scores)
    return GradientConfig(
        owner, target, tiling, "", alignment, config.element, features, is_first and with_dlse, of_terms
    )
