"""A text that says what a call for gradients would do, and why."""

from __future__ import annotations

import math

from flash.contract.forward import CAUSAL
from flash.gradients.resources import GradientResources
from flash.gradients.steps import GradientCall, memory_of
from flash.launch.explain import data_of, rows_of, scores_of
from flash.operands.dtypes import F32_BYTES


def explain(
    call: GradientCall, backend: str, why: str, kernels: tuple[tuple[GradientResources, int], ...]
) -> str:
    """Lines about the backend, the problem, the kernels and their memory. `kernels` are the resources
    of each launch of the call, and its CTAs; none for numpy.
    """
    config, g = call.config, call.checked.geometry
    of_keys = f", max_seqlen_k {call.checked.longest_k}" if config.varlen else ""
    needed = sum(math.prod(one.shape) for one in memory_of(call).values()) * F32_BYTES
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
        ("wanted", ", ".join(["dq, dk, dv", *call.sums])),
        *(("kernel", f"{one}, {ctas} CTAs") for one, ctas in kernels),
    ]
    if backend == "cpu":
        lines.append(("kernel", "none: numpy computes it"))
    else:
        lines.append(("memory", f"{needed} bytes beside the results"))
    return "\n".join(f"{name + ':':<9} {text}" for name, text in lines)
