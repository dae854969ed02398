"""The choice of the kernel of a launch: its block of queries, and whether heads are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flash.device.grouped_heads import packing_saves_ctas
from flash.families.choice import AnyTiling, refusals
from flash.families.family import Family
from flash.launch.checks import Geometry
from flash.launch.scheduler_choice import USUAL_DEVICE, Device, scheduled_launch
from flash.launch.tile_lengths import sized
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.problem.limits import max_seq
from flash.problem.outputs import Output, and_lse
from flash.problem.persistence import GRID
from flash.problem.row_bits import by_rows
from ptxgen.target import Target
from ptxgen.target import target as find_target
from ptxgen.tensormap import MOST_STRIDE


def kernel_of(
    config: AttentionConfig,
    geometry: Geometry,
    target: Target | None = None,
    alignment: int | None = None,
    outputs: tuple[Output, ...] | None = None,
    splits: int = 1,
    device: Device = USUAL_DEVICE,
) -> KernelConfig:
    """The kernel of a launch; `target` and `alignment` are as for `AttentionConfig.kernel`, `outputs` are
    those that it writes, by default the config's. If pack_gqa is "auto", heads are packed where that is
    possible and saves CTAs. With pages, packing saves CTAs for every sequence of few queries, whatever the
    longest one has. With several `splits` of the keys, the kernel writes partial O and LSE for each. A
    scheduler that is "auto" is one for `device`, and tiles that are "auto" are those for the lengths
    (`flash/launch/tile_lengths.py`). If the config has a number of splits, all kernels compute a row as the
    config's own does, whatever the lengths, the batch and the device are (`flash/problem/row_bits.py`).
    """
    of = find_target(config.target or DEFAULT_TARGET) if target is None else target
    packs, is_fixed, divided = config.pack_gqa, config.splits != "auto", splits > 1
    fits = geometry.packed_rows <= max_seq(config.features)
    against = _against_maps(config, geometry, divided)

    def tiling_of(config: AttentionConfig) -> AnyTiling:
        """The tiling of a config's kernel; for the launch's arrays only if the splits are fixed."""
        if not is_fixed:
            return config.kernel(of).tiling
        return by_rows(config.kernel(of, alignment, without_wgmma=against).tiling)

    if geometry.pages:
        packs = packs is True or (packs == "auto" and fits and geometry.group > 1)
        rows = geometry.packed_rows if packs else geometry.longest_q
        config = config.for_rows(rows, tiling_of, same_bits=is_fixed)
    config = replace(config, scheduler=GRID) if divided else config  # splits have CTAs of their own
    if not against and not is_fixed:
        config = sized(config, geometry, of, alignment, device.multiprocessors)
    kernel = config.kernel(target, alignment, without_wgmma=against)
    outputs = kernel.outputs if outputs is None else outputs
    if is_fixed:
        kernel = replace(kernel, tiling=by_rows(kernel.tiling))
    if packs == "auto" and not config.varlen and not config.scaled_rows:
        packs = fits and packing_saves_ctas(geometry.seq_q, geometry.group, kernel.tiling.block_q)
    features = replace(kernel.features, splits=divided)
    written = None if divided else kernel.written  # parts are f32, whatever the type of O
    kernel = replace(kernel, packed=packs is True, features=features, written=written)
    kernel = replace(kernel, outputs=and_lse(outputs) if divided else outputs)
    return scheduled_launch(config.scheduler, kernel, geometry, device)


def refusals_of(config: AttentionConfig, geometry: Geometry, kernel: KernelConfig) -> dict[Family[Any], str]:
    """The reasons, by family, why families asked before the kernel's family do not take a launch."""
    request = config.tile_request
    against = _against_maps(config, geometry, kernel.features.splits)
    return refusals(
        replace(request, without_wgmma=against or request.without_wgmma), kernel.target, kernel.alignment
    )


def _against_maps(config: AttentionConfig, geometry: Geometry, divided: bool) -> str:
    """Why no tensor maps describe a launch's arrays; the empty string if they do. If the keys are
    divided, another kernel writes O. Rows of K and V that threads gather need no map.
    """
    if not geometry.seq_k or (config.page_size is not None and not geometry.pages):
        return "there are no keys"
    gathers = config.tile_request.gathers
    for name, strides in zip("QKV" if divided else "QKVO", geometry.strides, strict=False):
        of_keys = name in "KV"
        if of_keys and gathers:
            continue
        heads, rows = (geometry.kv_heads, geometry.seq_k) if of_keys else (geometry.heads, geometry.seq_q)
        outer = geometry.batch if geometry.max_seqlen_q is None else 1  # packed sequences have rows alone
        outer = geometry.pages if of_keys and geometry.pages else outer
        nbytes = config.output.nbytes if name == "O" else geometry.nbytes
        against = against_map(name, (outer, heads, rows), strides, nbytes)
        if against:
            return against
    return ""


def against_map(name: str, extents: Sequence[int], strides: Sequence[int], nbytes: int) -> str:
    """Why no tensor map describes an array with these strides, in elements of `nbytes`, of all dimensions but
    the last; the empty string if one does.
    """
    for extent, stride in zip(extents, strides, strict=True):
        if extent > 1 and not 0 < stride * nbytes < MOST_STRIDE:
            return f"a stride of {name} is {stride} elements"
    return ""
