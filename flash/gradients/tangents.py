"""Tangents of the results of attention, for adapters whose frameworks have forward-mode derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flash.cpu.tangents import attention_tangents_cpu
from flash.gradients.steps import bhsd
from flash.mods.trace import AUX
from flash.operands.dtype_names import Causal
from ptxgen.arrays.views import host_array, view

_MATRICES: Final = ("q", "k", "v")


def attention_tangents(
    arrays: Mapping[str, Any],
    tangents: Mapping[str, Any],
    scores: Mapping[str, Any],
    *,
    causal: Causal,
    softmax_scale: float | None,
    layout: str,
) -> tuple[Any, Any]:
    """The tangents of out and lse for `tangents` of q, k and v, by name, as numpy arrays of float32 in the
    shapes of out and lse; those that are missing are 0. `arrays` are q, k, v, out and lse on the host, which
    `attention` has checked and computed; `scores` are its arguments about scores.
    """
    on_host = {name: host_array(view(x, name)) for name, x in arrays.items()}
    q, k, v, out = (bhsd(on_host[name], layout) for name in (*_MATRICES, "out"))
    of = {name: bhsd(host_array(view(x, name)), layout) for name, x in tangents.items()}
    of_rows, of_lse = attention_tangents_cpu(
        q,
        k,
        v,
        out,
        on_host["lse"].reshape(q.shape[:3]),
        (of.get("q"), of.get("k"), of.get("v")),
        softmax_scale=softmax_scale,
        causal=causal,
        **{name: _on_host(name, value) for name, value in scores.items()},
    )
    of_out = of_rows if layout == "bhsd" or on_host["out"].ndim < of_rows.ndim else of_rows.swapaxes(1, 2)
    return of_out.reshape(on_host["out"].shape), of_lse.reshape(on_host["lse"].shape)


def _on_host(name: str, value: Any) -> Any:
    """A score feature's argument with its arrays copied to the host as numpy arrays."""
    if name == AUX:
        return {of: host_array(view(array, of)) for of, array in value.items()}
    return host_array(view(value, name)) if hasattr(value, "shape") else value
