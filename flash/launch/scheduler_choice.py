"""Which launches have persistent CTAs where the config leaves it to them, and how many CTAs these are.

A CTA that takes several parts prepares its barriers once, and copies the first tiles of a part while the
part before is finished. Without causality all parts cost the same, and every order is as good as the
GPU's own. With causality they do not: dealt in turn they end later than in a grid, whose next CTA begins
when one has ended. Mirrored rounds even that out where the parts of all heads are sorted, the longest
first, which is where the K and V of all heads have room in the cache. `tools/cta_order.py --schedulers`
has the model, docs/tuning.md its figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from flash.contract.resources import KernelResources
from flash.device.cta_order import USUAL_CACHE_BYTES
from flash.launch.checks import Geometry, grid_ctas, section
from flash.problem.kernel_config import KernelConfig
from flash.problem.persistence import GRID, MIRRORED, STATIC, scheduled
from flash.scores.window import Window

# Multiprocessors of an H100 SXM (NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU"), used if no device
# gives its own.
USUAL_MULTIPROCESSORS: Final = 132


class Device(NamedTuple):
    """What of a device the choice depends on; an H100 with the cache of an A100 if there is none."""

    multiprocessors: int = USUAL_MULTIPROCESSORS
    cache_bytes: int = USUAL_CACHE_BYTES


USUAL_DEVICE: Final = Device()


def scheduled_launch(asked: str, kernel: KernelConfig, geometry: Geometry, device: Device) -> KernelConfig:
    """The kernel of a launch whose config asks for a scheduler. For "auto" it is that of `_best`."""
    if asked != "auto" or grid_ctas(kernel, geometry) <= device.multiprocessors:
        return kernel
    scheduler = _best(kernel, geometry, device.cache_bytes)
    scheduler, tiling = scheduled(scheduler, kernel.tiling, kernel.features.cached, kernel.target)
    return replace(kernel, scheduler=scheduler, tiling=tiling)


def _best(kernel: KernelConfig, geometry: Geometry, cache_bytes: int) -> str:
    """The scheduler of a launch with more parts than multiprocessors."""
    features = kernel.features
    if features.varlen or features.splits or features.hides_anywhere or features.has(Window):
        return GRID  # parts cost what only the arrays tell, or are in no order
    if not kernel.hides_keys:
        return STATIC
    packed = kernel.packed
    heads = (geometry.kv_heads if packed else geometry.heads) * geometry.batch
    return MIRRORED if section(kernel, geometry, cache_bytes) >= heads else GRID


def ctas_at_once(resources: KernelResources, parts: int, multiprocessors: int) -> int:
    """The CTAs of a persistent launch: as many as run at once, and no more than parts."""
    return min(multiprocessors * max(resources.ctas_per_sm, 1), parts)
