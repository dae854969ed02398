"""Which family and which tiling a problem gets: the first of `FAMILIES` that takes it, with the sizes that
the user gives and documented defaults for others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from flash.families.family import Family
from flash.families.mma import MMA, MmaTiling
from flash.families.request import TileRequest
from flash.families.simt import SIMT, Tiling
from flash.families.tcgen05 import TCGEN05
from flash.families.tcgen05_fp8 import TCGEN05_FP8
from flash.families.tcgen05_latent import TCGEN05_LATENT
from flash.families.tcgen05_mx import TCGEN05_MX, TCGEN05_NV
from flash.families.tcgen05_split import TCGEN05_SPLIT
from flash.families.wgmma import WGMMA, WgmmaTiling
from flash.families.wgmma_fp8 import FP8
from flash.families.wgmma_latent import LATENT
from flash.families.wgmma_split import SPLIT
from flash.operands.dtypes import F32, INPUT_DTYPES
from ptxgen.errors import ConfigError
from ptxgen.target import TARGETS, Target

AnyTiling = Tiling | MmaTiling | WgmmaTiling
# In the order in which a problem asks them.
FAMILIES: Final[tuple[Family[Any], ...]] = (
    TCGEN05_NV,
    TCGEN05_MX,
    TCGEN05_FP8,
    FP8,
    TCGEN05_LATENT,
    LATENT,
    SPLIT,
    WGMMA,
    TCGEN05_SPLIT,
    TCGEN05,
    MMA,
    SIMT,
)
# Problems that one family alone computes, by what they are called: settings of a config.
WORKLOADS: Final = {name: settings for family in FAMILIES for name, settings in family.workloads.items()}
_OF_TILING: Final = {family.tiling: family for family in FAMILIES}
# Sizes left open one after another, until a launch whose family refuses has a kernel of the last family.
_OPENED: Final = ((), ("block_q",), ("tile",), ("tile", "block_q"))


def family_of(tiling: AnyTiling) -> Family[Any]:
    """The kernel family to which a tiling belongs."""
    return _OF_TILING[type(tiling)]


def families_of(request: TileRequest) -> list[Family[Any]]:
    """The families that compute a request on some target, in the order in which they are asked. The last one
    takes what the others refuse, or says what is wrong.
    """
    return [family for family in FAMILIES if family.computes(request)]


def refusals(request: TileRequest, target: Target, alignment: int | None = None) -> dict[Family[Any], str]:
    """The reasons, by family, why each family before the one that takes a request refuses it."""
    result = {}
    for family in families_of(request)[:-1]:
        why = family.why_not(request, target, alignment)
        if not why:
            break
        result[family] = why
    return result


@lru_cache(maxsize=1024)
def choose_tiling(request: TileRequest, target: Target, alignment: int | None = None) -> AnyTiling:
    """The tiling of a kernel on a target: the sizes that are requested, and defaults for those left
    open.

    Raises `ConfigError` with what the last family that computes the request lacks, such as the limit and the
    largest tile that fits; where that is for another target alone, with what the family for this target
    lacks.
    """
    families = families_of(request)
    for family in families:
        if not family.why_not(request, target, alignment):
            tiling: AnyTiling = family.require(family.tiling_for(request, target, alignment))
            return tiling
    offered = partial(tiles_that_fit, target=target)
    *_, last = families
    if last.target is not None:
        last = next((family for family in families if family.is_for(target)), last)
    raise ConfigError(f"AttentionConfig: {last.refusal(request, target, alignment, offered)}")


@lru_cache(maxsize=1024)
def choose_launch_tiling(
    of_config: TileRequest, request: TileRequest, target: Target, alignment: int | None = None
) -> AnyTiling:
    """The tiling of a launch, whose arrays may rule out a family in `request` that its config's request,
    `of_config`, allows. Of the sizes that were then given for that family, those that a kernel of the last
    one does not have are left open: block_q first, then tile.

    Raises `ConfigError` as `choose_tiling` does.
    """
    *_, last = families_of(request)
    takes_others = last.target in (None, target.name)
    if takes_others and len(refusals(request, target, alignment)) > len(refusals(of_config, target)):
        for opened in _OPENED:
            sizes: dict[str, Any] = dict.fromkeys(opened, "auto")
            tiling: AnyTiling | None = last.tiling_for(replace(request, **sizes), target, alignment)
            if tiling is not None:
                return tiling
    return choose_tiling(request, target, alignment)


def possible_tiles(request: TileRequest, target: Target) -> list[int]:
    """The numbers of keys that `request.tile` may ask for on a target."""
    families = _possible(replace(request, tile="auto"), target)
    return sorted({n for family in families for n in family.tiles(request)})


def possible_blocks_q(request: TileRequest, target: Target) -> list[int]:
    """The numbers of query rows that `request.block_q` may ask for on a target."""
    families = _possible(replace(request, block_q="auto"), target)
    return sorted({n for family in families for n in family.blocks_q})


def _possible(request: TileRequest, target: Target) -> list[Family[Any]]:
    """The families that take a request, and the last one that computes it."""
    *others, last = families_of(request)
    return [*(f for f in others if not f.why_not(request, target)), last]


def gathers_rows(request: TileRequest) -> bool:
    """Whether a kernel has threads that copy rows from pages of any size."""
    return any(family.gathers for family in families_of(request))


def only_target(request: TileRequest) -> str | None:
    """The name of the target of kernels for the types and rows of a request if the last family that computes
    it, which takes what the others refuse, is for one alone; else None.
    """
    *_, last = families_of(request)
    return last.target


def offered_tiles(
    head_dim: int, head_dim_v: int, target: Target, dtype: str = F32.name, precision: str | None = None
) -> list[tuple[int, int]]:
    """Every pair (tile, block_q) that a kernel of these head dimensions can have on the target."""
    request = TileRequest(head_dim, head_dim_v, INPUT_DTYPES[dtype], precision=precision)
    return tiles_that_fit(request, target)


def largest_tile(request: TileRequest, target: Target) -> int:
    """The largest tile of keys that fits, whatever `request.tile` is; 0 if none does."""
    return max((tile for tile, _ in tiles_that_fit(request, target)), default=0)


def most_generous() -> Target:
    """The target whose CTAs may have the most shared memory."""
    return max(TARGETS.values(), key=lambda t: t.shared_per_block_optin)


def tiles_that_fit(request: TileRequest, target: Target) -> list[tuple[int, int]]:
    """Every (tile, block_q) that a kernel for a request can have, whatever sizes `request` gives."""
    return sorted(
        {
            (n, m)
            for family in families_of(request)
            for n, m in family.sizes(request)
            if not family.why_not(replace(request, tile=n, block_q=m), target)
        }
    )
