"""A checked call, and how it runs on the CPU: by numpy, or by interpreting the kernel's PTX."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.arrays import ArrayView, host_array
from flash.build import Build
from flash.config import AttentionConfig
from flash.cpu import attention_cpu
from flash.launch import Geometry, grid_ctas
from flash.operands import Operands
from ptxgen import interpreter
from ptxgen.runtime.plan import LaunchPlan


class Call(NamedTuple):  # and not a dataclass, which takes four times as long to make
    """One checked call: what to compute, and the arrays it is computed from and into."""

    config: AttentionConfig
    geometry: Geometry
    layout: str
    scale: float
    q: ArrayView
    k: ArrayView
    v: ArrayView
    out: ArrayView
    lse: ArrayView | None
    operands: Operands = MappingProxyType({})
    numbers: Mapping[str, int | float] = MappingProxyType({})  # those of the kernel's features


def make_plan(
    build: Build,
    geometry: Geometry,
    scale: float,
    addresses: tuple[int, ...],
    numbers: Mapping[str, int | float] = MappingProxyType({}),
) -> LaunchPlan:
    """The launch of a kernel; `addresses` are those of Q, K, V, O, LSE if the kernel writes it, and
    its operands. `numbers` are those of its features.
    """
    t, operands = build.config.tiling, build.config.features.operands
    names = ["Q", "K", "V", "O"] + (["LSE"] if build.config.return_lse else [])
    names += [operand.name for operand in operands]
    values: dict[str, int | float] = dict(zip(names, addresses, strict=True))
    for operand, steps in zip(operands, geometry.operand_strides, strict=True):
        for axis, step in zip(operand.axes, steps, strict=True):
            values[operand.stride(axis)] = step
    for name, strides in zip("QKVO", geometry.strides, strict=True):
        for what, stride in zip(("batch", "head", "row"), strides, strict=True):
            values[f"{name}_{what}_stride"] = stride
    values |= {
        "seq_q": geometry.seq_q,
        "seq_k": geometry.seq_k,
        "heads": geometry.heads,
        "group": geometry.group,
    }
    values |= {"softmax_scale": scale, **numbers}
    return LaunchPlan(
        entry=build.kernel.name,
        grid=(grid_ctas(build.config, geometry), 1, 1),
        block=(t.threads, 1, 1),
        dynamic_shared=build.kernel.dynamic_shared_bytes,
        slots=build.slots,
        values=tuple(values[slot.name] for slot in build.slots),
    )


def run_on_cpu(call: Call) -> None:
    """Compute the call with numpy."""
    q, k, v, out = (_bhsd(array, call.layout) for array in (call.q, call.k, call.v, call.out))
    config = call.config
    operands: dict[str, Any] = {name: host_array(array) for name, array in call.operands.items()}
    attention_cpu(
        q, k, v, out,
        None if call.lse is None else host_array(call.lse).reshape(out.shape[:3]),
        softmax_scale=call.scale,
        causal=config.causal,  # type: ignore[arg-type]  # one of the words the config allows
        window=config.window,
        softcap=config.softcap,
        dropout=config.dropout,
        dropout_seed=int(call.numbers.get("dropout_seed", 0)),
        **operands,
    )  # fmt: skip


def run_on_interpreter(call: Call, build: Build) -> None:
    """Run the kernel's PTX on the call's arrays, in place."""
    arrays = [call.q, call.k, call.v, call.out] + ([call.lse] if call.lse is not None else [])
    arrays += call.operands.values()
    addresses = tuple(array.pointer for array in arrays)
    plan = make_plan(build, call.geometry, call.scale, addresses, call.numbers)
    memory = [host_array(array) for array in arrays]
    interpreter.run(
        build.module,
        grid=plan.grid,
        block=plan.block,
        args=[*memory, *plan.values[len(memory) :]],
        dynamic_smem=plan.dynamic_shared,
    )


def _bhsd(array: ArrayView, layout: str) -> NDArray[Any]:
    """The array as [batch, heads, seq, dim]; a 3-D one has batch 1."""
    found = host_array(array)
    if found.ndim == 3:
        return found[np.newaxis]
    return found if layout == "bhsd" else found.transpose(0, 2, 1, 3)
