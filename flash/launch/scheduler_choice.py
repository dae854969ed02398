"""Which launches have persistent CTAs where the config leaves it to them, and how many CTAs these are.

A CTA that takes several parts prepares its barriers once, and copies the first tiles of a part while the
part before is finished. Without causality all parts cost the same, and every order is as good as the
GPU's own. With causality they do not: dealt in turn they end later than in a grid, whose next CTA begins
when one has ended. `tools/cta_order.py --schedulers` has the model, docs/tuning.md its figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flash.contract.resources import KernelResources
from flash.launch.checks import Geometry, grid_ctas
from flash.problem.config import KernelConfig
from flash.problem.persistence import STATIC, scheduled

# Multiprocessors of an H100 SXM (NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU"), used if no device
# gives its own.
USUAL_MULTIPROCESSORS: Final = 132


def scheduled_launch(
    asked: str, kernel: KernelConfig, geometry: Geometry, multiprocessors: int
) -> KernelConfig:
    """The kernel of a launch whose config asks for a scheduler: for "auto" the static one, where parts cost
    the same and there are more of them than multiprocessors.
    """
    features = kernel.features
    alike = not (kernel.hides_keys or features.varlen or features.splits)
    if asked != "auto" or not alike or grid_ctas(kernel, geometry) <= multiprocessors:
        return kernel
    scheduler, tiling = scheduled(STATIC, kernel.tiling, features.cached, kernel.target)
    return replace(kernel, scheduler=scheduler, tiling=tiling)


def ctas_at_once(resources: KernelResources, parts: int, multiprocessors: int) -> int:
    """The CTAs of a persistent launch: as many as run at once, in whole clusters, and no more than parts."""
    ctas, cluster = multiprocessors * max(resources.ctas_per_sm, 1), resources.config.cluster
    return min(max(ctas // cluster, 1) * cluster, parts)
