"""The launch that merges parts: which kernel, on what."""

from __future__ import annotations

from typing import NamedTuple

from flash.arrays import ArrayView
from flash.dtypes import OF_ARRAYS
from flash.merge_kernel import WARPS, MergeConfig, merge_build
from flash.step import Step, aligned, launch_step, strides_of
from ptxgen.target import Target


class MergeCall(NamedTuple):
    """Parts [batch, heads, seq_q, splits, head_dim_v] and O without the splits, of any strides but
    for dense columns; their LSE f32 [batch * heads * seq_q, splits], of any strides, and that of
    all, if it is wanted, dense. No dimension is 0.
    """

    parts: ArrayView
    lses: ArrayView
    out: ArrayView
    lse: ArrayView | None


def merging(call: MergeCall, target: Target) -> Step:
    """The launch that merges the parts."""
    element, of_parts = OF_ARRAYS[call.out.dtype], OF_ARRAYS[call.parts.dtype]
    made = merge_build(
        MergeConfig(
            target, call.parts.shape[4], element, of_parts, aligned(call.out, element.nbytes),
            aligned(call.parts, of_parts.nbytes), call.lse is not None,
        )
    )  # fmt: skip
    made.require_proved()
    arrays = {"PARTS": call.parts, "LSES": call.lses, "O": call.out}
    arrays |= {} if call.lse is None else {"LSE": call.lse}
    batch, heads, seq_q, splits, _ = call.parts.shape
    rows = batch * heads * seq_q
    values: dict[str, int | float] = {"rows": rows, "seq_q": seq_q, "heads": heads, "splits": splits}
    for name, array, steps in (
        ("PARTS", call.parts, ("batch", "head", "row", "split")),
        ("O", call.out, ("batch", "head", "row")),
        ("LSES", call.lses, ("row", "split")),
    ):
        strides = zip(steps, strides_of(array), strict=False)
        values |= {f"{name}_{step}_stride": stride for step, stride in strides}
    return launch_step(made, arrays, {}, values, -(-rows // WARPS))
