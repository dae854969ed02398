"""The launches of a call for gradients, and its execution on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from flash.contract.gradients import gradient_build
from flash.cpu.gradients import attention_gradients_cpu
from flash.gradients.checks import Checked, alignment
from flash.launch.operands import Operands
from flash.launch.shapes import PACKED
from flash.launch.step import Step, launch_step, require_grid
from flash.launch.varlen import LENGTHS
from flash.mods.trace import AUX
from flash.problem.config import AttentionConfig
from flash.problem.gradients import KEYS, OWNERS, QUERIES, gradient_config
from flash.problem.sequences import each_sequence
from flash.scores.aux_arrays import gathered
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.target import Target

_POINTERS = {
    "dout": "dO", "q": "Q", "k": "K", "v": "V", "out": "O", "dq": "dQ", "dk": "dK", "dv": "dV",
    "lse": "LSE", "dlse": "dLSE", "delta": "D",
}  # fmt: skip


class GradientCall(NamedTuple):
    """A checked call for gradients. `arrays` are all but the operands, by the names of the caller's
    arguments; `sums` are the arrays for the gradients of arrays of scores. `layout` is the caller's.
    """

    config: AttentionConfig
    checked: Checked
    layout: str
    scale: float
    arrays: Mapping[str, ArrayView]
    operands: Operands
    numbers: Mapping[str, int | float]
    sums: Mapping[str, ArrayView]


def steps_of(call: GradientCall, target: Target, delta: ArrayView, who: str) -> list[Step]:
    """The launches of a call, in order; `delta` is memory for D. Raises `LaunchError` if a grid is
    too large.
    """
    config, (geometry, longest_q, longest_k) = call.config, call.checked
    aligned = alignment(config, call.arrays)
    rows_q, rows_k = config.features.row_counts
    values: dict[str, int | float] = {
        rows_q: geometry.seq_q,
        rows_k: geometry.seq_k,
        "max_seqlen_q": longest_q,
        "max_seqlen_k": longest_k,
        "heads": geometry.heads,
        "group": geometry.group,
        "softmax_scale": call.scale,
        **dict(geometry.operand_sizes),
        **call.numbers,
    }
    layout = PACKED if config.varlen else call.layout
    order = {"bshd": (0, 2, 1, 3), PACKED: (1, 0, 2)}.get(layout)
    views = {_POINTERS[name]: view for name, view in {**call.arrays, "delta": delta}.items()}
    if order is not None:
        for name in _POINTERS.values():
            view = views.get(name)
            if view is not None and len(view.shape) == len(order):
                shape, strides = ([of[n] for n in order] for of in (view.shape, view.strides))
                views[name] = view._replace(shape=tuple(shape), strides=tuple(strides))
    found = []
    for owner in OWNERS:
        rows, heads = (longest_q, geometry.heads) if owner == QUERIES else (longest_k, geometry.kv_heads)
        kernel = gradient_config(config, owner, target, aligned, with_dlse="dlse" in call.arrays)
        t = kernel.tiling
        ctas = -(-rows // t.block) * heads * geometry.batch * (t.slices if owner == KEYS else 1)
        require_grid(who, ctas)
        if ctas:
            made = gradient_build(kernel)
            found.append(launch_step(made, {**views, **call.operands}, values, ctas))
    return found


def run_on_cpu(call: GradientCall) -> None:
    """Compute the call with numpy."""
    config = call.config
    operands: dict[str, Any] = gathered({name: host_array(a) for name, a in call.operands.items()})
    scores: dict[str, Any] = {"causal": config.causal, **config.score_arguments}
    scores["dropout_seed"] = int(call.numbers.get("dropout_seed", 0))
    arrays = {name: host_array(a) for name, a in call.arrays.items()}
    sums = {name: host_array(a) for name, a in call.sums.items()}
    rows = {name: arrays.pop(name, None) for name in ("lse", "dlse")}
    if config.varlen:
        _each_on_cpu(call, arrays, rows, sums, operands, scores)
        return
    in_order = {name: _bhsd(a, call.layout) for name, a in arrays.items()}
    shape = in_order["q"].shape[:3]
    attention_gradients_cpu(
        **in_order,
        lse=rows["lse"].reshape(shape),
        dlse=None if rows["dlse"] is None else rows["dlse"].reshape(shape),
        arrays=sums,
        softmax_scale=call.scale,
        **scores,
        **operands,
    )


def _each_on_cpu(
    call: GradientCall,
    arrays: dict[str, Any],
    rows: dict[str, Any],
    sums: dict[str, Any],
    operands: dict[str, Any],
    scores: dict[str, Any],
) -> None:
    """Compute the gradients of packed sequences one after another with numpy."""
    by_head = {name: a.swapaxes(0, 1)[None] for name, a in arrays.items()}
    lengths = {name: operands.pop(name) for name in tuple(operands) if name in LENGTHS}
    of_heads = call.checked.geometry.batch, call.checked.geometry.heads
    of_all = {AUX: operands.pop(AUX)} if AUX in operands else {}
    wide = {name: np.broadcast_to(array, of_heads) for name, array in operands.items()}
    parts = {name: np.zeros(of_heads, np.float32) for name in sums}
    for b, queries, keys in each_sequence(**lengths):
        part = {name: np.zeros((1, of_heads[1]), np.float32) for name in sums}
        attention_gradients_cpu(
            **{
                name: a[:, :, keys if name in ("k", "v", "dk", "dv") else queries]
                for name, a in by_head.items()
            },
            lse=rows["lse"][None, :, queries],
            dlse=None if rows["dlse"] is None else rows["dlse"][None, :, queries],
            arrays=part,
            softmax_scale=call.scale,
            **scores,
            **{name: array[b : b + 1] for name, array in wide.items()},
            **of_all,
            first_batch=b,
        )
        for name, found in part.items():
            parts[name][b] = found[0]
    for name, found in parts.items():
        into = sums[name]
        ahead = found.reshape((1,) * (into.ndim - 2) + found.shape) if into.ndim > 2 else found
        wide_axes = tuple(
            n for n in range(ahead.ndim) if n < ahead.ndim - into.ndim or into.shape[n - ahead.ndim] == 1
        )
        into[...] = ahead.sum(axis=wide_axes).reshape(into.shape)


def _bhsd(array: Any, layout: str) -> Any:
    """The array as [batch, heads, seq, dim]; a 3-D array gets batch 1."""
    if array.ndim == 3:
        return array[np.newaxis]
    return array if layout == "bhsd" else array.transpose(0, 2, 1, 3)
