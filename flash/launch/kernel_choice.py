"""The choice of the kernel of a launch: its block of queries, and whether heads are packed."""

from __future__ import annotations

from dataclasses import replace

from flash.device.grouped_heads import packing_saves_ctas
from flash.launch.checks import Geometry
from flash.problem.config import DEFAULT_TARGET, AttentionConfig, KernelConfig
from flash.problem.limits import max_seq
from ptxgen.target import Target
from ptxgen.target import target as find_target


def kernel_of(
    config: AttentionConfig,
    geometry: Geometry,
    target: Target | None = None,
    alignment: int | None = None,
    return_lse: bool | None = None,
) -> KernelConfig:
    """The kernel of a launch; the last three are as for `AttentionConfig.kernel`. If pack_gqa is
    "auto", heads are packed where that is possible and saves CTAs. With pages, packing saves some
    for every sequence of few queries, whatever the longest one has.
    """
    paged, packs = geometry.pages > 0, config.pack_gqa
    fits = geometry.packed_rows <= max_seq(config.features)
    if paged:
        packs = packs is True or (packs == "auto" and fits and geometry.group > 1)
        rows = geometry.packed_rows if packs else geometry.longest_q
        config = config.for_rows(
            rows, find_target(config.target or DEFAULT_TARGET) if target is None else target
        )
    kernel = config.kernel(target, alignment, return_lse)
    if packs == "auto" and not config.varlen:
        packs = fits and packing_saves_ctas(geometry.seq_q, geometry.group, kernel.tiling.block_q)
    return replace(kernel, packed=packs is True)
