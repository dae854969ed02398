"""A text that says what a launch would do, and why."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from flash.calls.gpu import Launcher
from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import Build, proved_build
from flash.contract.forward import CAUSAL
from flash.contract.launches import listed
from flash.families.choice import AnyTiling, families_of
from flash.families.family import Family
from flash.launch.checks import Geometry, alignment, grid_ctas
from flash.launch.divided import geometry_of_units
from flash.launch.forward import Forward
from flash.launch.kernel_choice import refusals_of
from flash.launch.key_splits import Division, units_of
from flash.launch.scheduler_choice import ctas_at_once
from flash.launch.varlen import LENGTHS
from flash.operands.dtypes import MX_BLOCK
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.problem.persistence import why_grid
from flash.problem.sequences import each_sequence
from flash.silicon.ledger import ledger
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.check.prove.global_verdicts import GlobalProof
from ptxgen.check.prove.verdicts import Proof
from ptxgen.runtime.settings import COMPILED

_NO_KERNEL = {
    "cpu": "none: numpy computes it",
    COMPILED: "none: numpy computes it, with loops that Numba compiles",
}
_SHOWN_DIGITS = 12  # hexadecimal digits of a cache key


def explain(
    forward: Forward, geometry: Geometry, views: Mapping[str, ArrayView], backend: str, why: str
) -> str:
    """Lines about the backend, the problem, the kernel and its cost; `views` are the arrays of the call."""
    config, g, q = forward.config, geometry, views["q"]
    pointers = [views[name].pointer for name in ("q", "k", "v", "out") if name in views]
    ordinal = None
    if backend == "cuda":
        ordinal = q.device[1] if q.device != HOST else forward.gpu.backend.current_device()
    aligned = alignment(config, g, *pointers)
    division = forward.division(geometry, ordinal, aligned)
    choice = functools.partial(forward.kernel, ordinal=ordinal, aligned=aligned, outputs=config.outputs)
    kernel = proved_build(choice(geometry, splits=division.splits))
    multiprocessors = forward.device(ordinal).multiprocessors
    grid = _grid(config, kernel, geometry, division, choice, multiprocessors)
    lines = {
        "backend": f"{backend} ({why})",
        "problem": (
            f"batch {g.batch}, heads {g.heads}, kv_heads {g.kv_heads}, {rows_of(g)}, head_dim "
            f"{config.head_dim}, head_dim_v {config.value_dim}, {config.dtype}"
        ),
        "causal": CAUSAL[config.causal or ""],  # type: ignore[index]  # True became "bottom_right"
        **({"values": f"the first {config.value_dim} columns of k"} if config.shared_kv else {}),
        **scores_of(config),
        **({"results": listed(["out", *[o.name for o in config.outputs]])} if config.outputs else {}),
        "data": data_of(backend, q),
        **(
            {"kernel": _NO_KERNEL[backend]}
            if backend in _NO_KERNEL
            else _kernel(config, kernel, geometry, grid, forward.gpu, backend)
        ),
        "work": _work(config, kernel, geometry, views),
    }
    return "\n".join(f"{name + ':':<9} {text}" for name, text in lines.items())


def scores_of(config: AttentionConfig) -> dict[str, str]:
    """The steps of a kernel on scores beyond scaling them; empty if there are none."""
    words = []
    for feature in config.scores:
        operands = feature.operands(cached=False)
        words += [f"{operand.name} ({operand.dtype.name})" for operand in operands]
        value = getattr(config, feature.setting)
        if not operands:
            shown = f"{value:g}" if isinstance(value, (int, float)) else value
            words.append(f"{feature.setting} {shown}")
    return {"scores": ", ".join(words)} if words else {}


def data_of(backend: str, q: ArrayView) -> str:
    """Text that says where the arrays of a call are (host or GPU), and whether they are copied."""
    if backend == "cuda" and q.device == HOST:
        return f"{q.kind} arrays on the host, copied to the GPU and back"
    return f"{q.kind} arrays on {q.device_name}, used in place"


def _kernel(
    config: AttentionConfig,
    build: Build,
    geometry: Geometry,
    grid: dict[str, str],
    gpu: Launcher,
    backend: str,
) -> dict[str, str]:
    """The lines of `explain` about a kernel, by their names."""
    kernel, t = build.config, build.config.tiling
    lines = {
        "kernel": f"{kernel.name} for {kernel.target}, verified",
        **_products(config, build, geometry),
        "proved": proved_text(build),
        "access": f"{kernel.alignment} bytes at once, as addresses and strides allow",
        "tiles": f"{t.block_q} {_queries(build, geometry)} by {t.tile} keys{_slice(t)}, {t.threads} threads"
        f"{_not_taken(config, build)}",
        **grid,
        "needs": str(build.resources),
        "silicon": silicon_text(build),
    }
    if backend == "cuda":
        key = gpu.cache_key(build)
        lines["cache"] = f"{key.digest[:_SHOWN_DIGITS]} ({key.assembler} {key.version})".replace(" )", ")")
    return lines


def _ctas(kernel: KernelConfig, geometry: Geometry, multiprocessors: int) -> str:
    """Text about the CTAs of a launch without splits, and how work tiles are dealt to them."""
    parts = grid_ctas(kernel, geometry)
    if not kernel.is_persistent:
        return f"{parts} CTAs"
    ctas = ctas_at_once(proved_build(kernel).resources, parts, multiprocessors)
    return f"{ctas} CTAs, to which {parts} blocks of queries are dealt ({kernel.scheduler})"


def _why_grid(config: AttentionConfig, kernel: Build) -> str:
    """Why a call does not have the scheduler that its config names; empty if it has."""
    if config.scheduler in ("auto", kernel.config.scheduler):
        return ""
    why = why_grid(kernel.config.tiling, kernel.config.features, config.scheduler)
    if not why and kernel.config.features.splits:
        why = "splits of the keys have CTAs of their own"
    return f", not {config.scheduler}: {why}"


def _grid(
    config: AttentionConfig,
    kernel: Build,
    geometry: Geometry,
    division: Division,
    choice: Callable[[Geometry], KernelConfig],
    multiprocessors: int,
) -> dict[str, str]:
    """The CTAs of a call, and into how many splits the keys are divided, if they are. `choice` gives the
    kernel without splits.
    """
    if geometry.is_empty:
        return {"grid": "nothing to launch: no query"}
    why, (whole, splits) = _why_grid(config, kernel), division
    if splits == 1:
        return {"grid": _ctas(kernel.config, geometry, multiprocessors) + why}
    undivided = _ctas(choice(geometry), geometry, multiprocessors)
    units = units_of(config, geometry)
    rest = grid_ctas(kernel.config, geometry) // units * (units - whole) * splits
    if not whole:
        return {"grid": f"{rest} CTAs{why}", "splits": f"{splits} of the keys, merged; else {undivided}"}
    before = geometry_of_units(geometry, whole)
    first = _ctas(choice(before), before, multiprocessors)
    of = "items" if geometry.batch > 1 else "heads of K and V"
    what = f"{splits} of the keys for the last {units - whole} of {units} {of}, merged"
    return {"grid": f"{first}, then {rest}", "splits": f"{what}; else {undivided}"}


def _products(config: AttentionConfig, kernel: Build, geometry: Geometry) -> dict[str, str]:
    """Which instruction multiplies on a target that has families of its own, and why those before the
    kernel's do not take the launch; then what has a scale.
    """
    families = _of_target(config, kernel)
    if not families:
        return {}
    products = kernel.config.family.explained(kernel.config.tiling)
    refused = refusals_of(config, geometry, kernel.config)
    if reasons := [refused[family] for family in families if family in refused]:
        products += f": {'; '.join(reasons)}"
    if not kernel.config.features.scaled:
        return {"products": products}
    each = f"each {config.scaled_rows} rows of a head" if config.scaled_rows else "each head of K and V"
    if (mx := kernel.config.features.mx) is not None:
        each = f"each {mx.format.size} elements of a row of Q and K, and each {MX_BLOCK} of a column of V"
    return {"products": products, "scales": f"one of Q, K and V for {each}"}


def _of_target(config: AttentionConfig, kernel: Build) -> list[Family[Any]]:
    """The families that compute a config, and that are for the target of its kernel and few others."""
    return [family for family in families_of(config.tile_request) if family.is_for(kernel.target)]


def _not_taken(config: AttentionConfig, kernel: Build) -> str:
    """A text about sizes that the config asks for and that only kernels for few targets have; empty without
    such sizes.
    """
    t = kernel.config.tiling
    sizes = ("block_q", config.block_q, t.block_q), ("tile", config.tile, t.tile)
    others = [f"{name}={asked}" for name, asked, size in sizes if asked not in ("auto", size)]
    families = _of_target(config, kernel)
    if not others or not families:
        return ""
    are = "is" if len(others) == 1 else "are"
    return f"; {' and '.join(others)} {are} for {families[0].instruction}"


def _slice(t: AnyTiling) -> str:
    """How many columns of V a CTA computes, if V is cut into slices; else empty."""
    if t.value_slices == 1:
        return ""
    return f" and {t.slices.width} of {t.head_dim_v} columns of V"


def _queries(kernel: Build, geometry: Geometry) -> str:
    """The words for the rows of a CTA: queries of one head, or of packed heads."""
    return f"queries of {geometry.group} packed heads" if kernel.config.packed else "queries"


def proved_text(kernel: BuiltKernel) -> str:
    """The words of `explain` that say which accesses and barriers of a kernel are proved."""
    return f"{_proved(kernel.proof)}; {_proved_global(kernel.global_proof)}"


def silicon_text(kernel: BuiltKernel) -> str:
    """The words of `explain` that say on which GPUs a kernel's text has run."""
    return ledger().status(f"{kernel.header.name} for {kernel.target}", lambda: kernel.text)


def _proved(proof: Proof) -> str:
    """How many accesses to shared memory, barriers, instructions of warps and uses of tensor memory are
    proved,
    and why the others are not.
    """
    accesses, barriers, warps = len(proof.accesses), len(proof.barriers), len(proof.convergence)
    cells = len(proof.tensor_memory)
    if proof.complete:
        return (
            f"all {accesses} shared-memory accesses in bounds, all {barriers} barriers uniform, all {warps} "
            "warp instructions converged"
            + (f", all {cells} uses of tensor memory in bounds" if cells else "")
        )
    total = accesses + barriers + warps + cells
    return f"all but {len(proof.unknown)} of {total} accesses, barriers and warp instructions ({_why(proof)})"


def _proved_global(proof: GlobalProof) -> str:
    """How many accesses to global memory are proved in bounds, and why the others are not."""
    if proof.complete:
        return f"all {len(proof.accesses)} global accesses in bounds"
    return f"all but {len(proof.unknown)} of {len(proof.accesses)} global accesses ({_why(proof)})"


def _why(proof: Proof | GlobalProof) -> str:
    return "; ".join(dict.fromkeys(v.reason for v in proof.unknown))


def rows_of(g: Geometry) -> str:
    """The numbers of rows of Q and K as text for `explain`."""
    if g.max_seqlen_q is None:
        return f"seq_q {g.seq_q}, seq_k {g.seq_k}"
    keys = f"total_k {g.seq_k}"
    if g.pages:
        keys = f"{g.pages} pages, block_table of {g.seq_k} rows"
    return f"total_q {g.seq_q}, {keys}, max_seqlen_q {g.max_seqlen_q}"


def _work(config: AttentionConfig, kernel: Build, g: Geometry, views: Mapping[str, ArrayView]) -> str:
    resources = kernel.resources
    if g.max_seqlen_q is None:
        lengths = [(g.seq_q, g.seq_k)] * min(g.batch, 1)
        sizes = (g.batch, g.heads, g.seq_q, g.seq_k)
        times, memory = g.batch, resources.memory(*sizes, kv_heads=g.kv_heads)
    else:
        arrays = {name: views[name] for name in LENGTHS if name in views}
        if any(array.device != HOST for array in arrays.values()):
            return "as much as the lengths say, which are on a GPU and not read"
        of_host = {name: host_array(array) for name, array in arrays.items()}
        lengths = [sequence.lengths for sequence in each_sequence(**of_host)]
        times, memory = 1, resources.packed_memory(g.heads, g.kv_heads, lengths)
    needed, done = (
        times * sum(count(1, g.heads, *rows, config.window) for rows in lengths)
        for count in (resources.useful_flops, functools.partial(resources.flops, kv_heads=g.kv_heads))
    )
    return f"{needed / 1e9:.3g} GFLOP needed, {done / 1e9:.3g} by the kernel's whole tiles; memory {memory}"
