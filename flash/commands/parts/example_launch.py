"""A launch of an attention kernel on one head, on arrays that are equal each time, for reports."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import build
from flash.launch.calls import MATRICES, Call, step_of
from flash.launch.checks import alignment, check
from flash.launch.varlen import TABLE
from flash.operands.declared import Operand
from flash.operands.dtypes import BOOL, F32, I32
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import host_array, view
from ptxgen.runtime.plan import LaunchPlan

Array = NDArray[Any]

_SEED: Final = 0
_SHOWN: Final = 0.75  # the share of keys that a mask shows


def example_launch(config: AttentionConfig, seq: int) -> tuple[BuiltKernel, LaunchPlan, list[Any]]:
    """The kernel of a configuration, its launch on one head of `seq` queries and `seq` keys, normally
    distributed, and the arguments of an interpreted launch, arrays first. Packed sequences are one sequence,
    whose keys are in consecutive pages if the configuration has a page size.
    """
    random = np.random.default_rng(_SEED)
    operands = {o.name: view(_operand(o, config, seq, random), o.name) for o in config.features.operands}
    queries, keys = ((seq, 1) if config.varlen else (1, 1, seq)), _rows_of_keys(config, seq)
    q = _normal(random, (*queries, config.head_dim), config)
    k, v = (_normal(random, (*keys, dim), config) for dim in (config.head_dim, config.value_dim))
    if config.shared_kv:
        v = k[..., : config.value_dim]
    out = np.zeros((*queries, config.value_dim), config.output.numpy)
    arrays = [view(array, name) for name, array in zip(MATRICES, (q, k, v, out), strict=True)]
    geometry = check(config, *arrays, operands=operands, max_seqlen_q=seq)
    named = {**dict(zip(MATRICES, arrays, strict=True)), **operands}
    for output in config.outputs:
        named[output.name] = view(np.zeros(geometry.shape_of(output), F32.numpy), output.name)
    numbers = {**config.numbers, "dropout_seed": _SEED}
    call = Call(config, geometry, "bhsd", config.scale, named, numbers)
    built = build(config.kernel(None, alignment(config, geometry, *(array.pointer for array in arrays))))
    step = step_of(call, built)
    return built, step.plan, step.plan.on_host([host_array(array) for array in step.arrays])


def _rows_of_keys(config: AttentionConfig, seq: int) -> tuple[int, ...]:
    """The shape of K without its columns."""
    if config.page_size is not None:
        return -(-seq // config.page_size), 1, config.page_size
    return (seq, 1) if config.varlen else (1, 1, seq)


def _normal(random: np.random.Generator, shape: tuple[int, ...], config: AttentionConfig) -> Array:
    return random.standard_normal(shape).astype(config.element.numpy)


def _operand(operand: Operand, config: AttentionConfig, seq: int, random: np.random.Generator) -> Array:
    """An array of a feature: lengths and pages of the one sequence, else random numbers."""
    if operand.name.startswith("cu_seqlens"):
        return np.array([0, seq], np.int32)
    if operand.name.startswith("seqused"):
        return np.array([seq], np.int32)
    if operand.name == TABLE:
        return np.arange(_rows_of_keys(config, seq)[0], dtype=np.int32)[None]
    sizes = {"seq_q": seq, "seq_k": seq, "positions": seq}
    sizes |= config.features.counts_of_scales({"seq_q": seq, "seq_k": seq})
    shape = [sizes.get(axis, 1) for axis in operand.axes] + [operand.columns] * bool(operand.columns)
    if operand.dtype is BOOL:
        return random.random(shape) < _SHOWN
    if operand.dtype is I32:
        return np.zeros(shape, np.int32)
    return random.standard_normal(shape).astype(operand.dtype.numpy)
