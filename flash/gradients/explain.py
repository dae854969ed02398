"""A text that says what a call for gradients would do, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from flash.contract.built_kernel import BuiltKernel
from flash.contract.forward import CAUSAL
from flash.contract.gradients import GradientBuild
from flash.contract.resources import size_text
from flash.families.mma import FIRST_WITH_DEEP_MMA, MMA
from flash.families.precision import FMA
from flash.gradients.checks import WRITTEN
from flash.gradients.resources import GradientResources
from flash.gradients.steps import GradientCall, memory_of, why_without_wgmma
from flash.kernels.rounded_elements import ElementsConfig
from flash.kernels.widened_rows import WideConfig
from flash.launch.explain import data_of, proved_text, rows_of, scores_of, silicon_text
from flash.launch.varlen import LENGTHS
from flash.operands.dtypes import F32_BYTES
from flash.problem.gradient_choice import Sweeps
from flash.problem.gradients import KEYS, GradientConfig
from flash.problem.sequences import each_sequence
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.views import HOST, host_array
from ptxgen.runtime.settings import WITHOUT_KERNELS
from ptxgen.target import Target

_OWNED = {
    "queries": "dQ and D", "keys": "dK and dV", "scores": "the gradient of the bias", "deltas": "D",
    "sums": "dQ from its sums", "elements": "sums of the gradients of arrays of aux",
}  # fmt: skip


def explain(
    call: GradientCall,
    backend: str,
    why: str,
    kernels: Sequence[tuple[BuiltKernel, int]],
    sweeps: Sweeps,
    target: Target,
) -> str:
    """Lines about the backend, the problem, the kernels, their cost and memory. `kernels` are those of
    each launch of the call, and its CTAs; none for numpy.
    """
    config, g = call.config, call.checked.geometry
    of_keys = f", max_seqlen_k {call.checked.longest_k}" if config.varlen else ""
    lines = [
        ("backend", f"{backend} ({why})"),
        (
            "problem",
            f"batch {g.batch}, heads {g.heads}, kv_heads {g.kv_heads}, {rows_of(g)}{of_keys}, head_dim "
            f"{config.head_dim}, head_dim_v {config.value_dim}, {config.dtype}",
        ),
        ("causal", CAUSAL[config.causal or ""]),  # type: ignore[index]  # True became "bottom_right"
        *scores_of(config).items(),
        ("data", data_of(backend, call.arrays["q"])),
        ("wanted", ", ".join([*call.written, *call.sums])),
    ]
    if backend in WITHOUT_KERNELS:
        lines.append(("kernel", "none: numpy computes it"))
    else:
        lines.append(("sweeps", _sweeps(sweeps, call)))
        for kernel, ctas in kernels:
            lines += _kernel(kernel, ctas, call, target)
        lines.append(("work", _work(call, kernels)))
        lines.append(("memory", _memory(call, target)))
    return "\n".join(f"{name + ':':<9} {text}" for name, text in lines)


def _sweeps(sweeps: Sweeps, call: GradientCall) -> str:
    """A text with the number of sweeps that make dQ, dK and dV, and why."""
    if not call.written:
        return "none, because no gradient of a matrix is needed"
    if len(call.written) < len(WRITTEN):
        matrices = "dq is" if call.written == ("dq",) else "dk and dv are"
        return (
            f"one, because only {matrices} needed: {_products_of(call)} products for each tile, and the same "
            "call gives the same bits"
        )
    if sweeps.in_order:
        return (
            f"one, {sweeps.why}: five products for each tile, of which dQ is added to f32 sums in a fixed "
            "order; the same call gives the same bits"
        )
    if sweeps.number == 1:
        return (
            f"one, {sweeps.why}: five products for each tile, of which dQ is added to f32 sums by atomics; "
            "the last bits of dq may differ from call to call"
        )
    return f"two, {sweeps.why}: seven products for each tile, and the same call gives the same bits"


def _products_of(call: GradientCall) -> str:
    """The number, in words, of matrix products for each tile that the gradients which a call writes need."""
    return ("two", "three", "four", "five")[len(call.written)]


def _kernel(kernel: BuiltKernel, ctas: int, call: GradientCall, target: Target) -> Iterator[tuple[str, str]]:
    """The lines about a launch: kernel and CTAs, tiles, products, proofs, resources and runs on GPUs."""
    roles = {WideConfig: "writes numbers of fp8 in bf16", ElementsConfig: "rounds exact sums"}
    role = roles.get(type(kernel.config), "sums terms")
    if isinstance(kernel, GradientBuild):
        role = f"writes {_OWNED[kernel.config.owner]}"
    yield "kernel", f"{kernel.header.name} for {kernel.target}, verified, {role}, {ctas} CTAs"
    if isinstance(kernel, GradientBuild):
        yield "tiles", _tiles(kernel.config)
        if kernel.config.tiling.tile:
            yield "products", _products(kernel.config, call, target)
    yield "proved", proved_text(kernel)
    yield "needs", str(GradientResources.of(kernel))
    yield "silicon", silicon_text(kernel)


def _tiles(config: GradientConfig) -> str:
    """A text with the rows of a CTA and of its tiles, the stages, slices, threads and alignment."""
    t, aligned = config.tiling, f"{config.alignment} bytes at once"
    owned, walked = ("keys", "queries") if config.owner == KEYS else ("queries", "keys")
    if not t.tile:
        return f"{t.block} rows, {t.threads} threads, {aligned}"
    stages = f", {t.stages} stages" if t.stages > 1 else ""
    if not config.has_wgmma and config.mma.prefetches:
        stages = ", the next in registers"
    slices = f", in {t.slices} slices of the columns" if t.slices > 1 else ""
    return f"{t.block} {owned} by {t.tile} {walked}{stages}{slices}, {t.threads} threads, {aligned}"


def _products(config: GradientConfig, call: GradientCall, target: Target) -> str:
    """A text with the instructions that multiply matrices, and why these are not `wgmma`."""
    if config.has_wgmma:
        return "by wgmma, of tiles that TMA copies"
    instruction = "fma"
    if config.tiling.operands is not FMA:
        instruction = MMA.products if target.sm >= FIRST_WITH_DEEP_MMA else f"{MMA.products} of m16n8k8"
    return f"by {instruction}, because {why_without_wgmma(call, config.owner, target)}"


def _lengths(call: GradientCall) -> list[tuple[int, int]] | None:
    """The numbers of queries and keys of each batch item, or packed sequence; None if they are on a GPU."""
    g = call.checked.geometry
    if g.max_seqlen_q is None:
        return [(g.seq_q, g.seq_k)] * g.batch
    arrays = {name: call.operands[name] for name in LENGTHS if name in call.operands}
    if any(array.device != HOST for array in arrays.values()):
        return None
    of_host = {name: host_array(array) for name, array in arrays.items()}
    return [sequence.lengths for sequence in each_sequence(**of_host)]


def _work(call: GradientCall, kernels: Sequence[tuple[BuiltKernel, int]]) -> str:
    """A text with the floating-point operations that the gradients need, and those of the kernels."""
    lengths = _lengths(call)
    if lengths is None:
        return "as much as the lengths say, which are on a GPU and not read"
    heads, window = call.checked.geometry.heads, call.config.window
    costs = [GradientResources.of(kernel) for kernel, _ in kernels]
    written = call.written
    needed = max(
        (sum(c.useful_flops(1, heads, *rows, window, written) for rows in lengths) for c in costs), default=0
    )
    done = sum(c.flops(1, heads, *rows, window) for c in costs for rows in lengths)
    products = f"{_products_of(call)} products"
    return f"{needed / 1e9:.3g} GFLOP needed by {products}, {done / 1e9:.3g} by the kernels' whole tiles"


def _memory(call: GradientCall, target: Target) -> str:
    """A text with the bytes of the arrays, of the kernels' memory, and of an array of all scores."""
    of_call = {**call.arrays, **call.operands, **{f"d{n}": a for n, a in call.sums.items()}}
    arrays = sum(a.size * numpy_type(a.dtype).itemsize for a in of_call.values())
    of_kernels = {
        name: math.prod(memory.shape) * memory.dtype.nbytes
        for name, memory in memory_of(call, target, "AttentionGradient").items()
    }
    lengths, heads = _lengths(call), call.checked.geometry.heads
    sizes = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in of_kernels.items())
    scores = ""
    if lengths is not None:
        nbytes = 2 * heads * sum(rows * keys for rows, keys in lengths) * F32_BYTES
        scores = f"; P and dS of all scores would be {size_text(nbytes)}"
    total = sum(of_kernels.values())
    return f"{size_text(arrays)} of arrays and results, {total} bytes beside them ({sizes}){scores}"
