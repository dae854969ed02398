"""Measures gradients by the backends "cpu" and "compiled" against PyTorch's autograd on the CPU."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from flash.commands.measure.cpu import (
    AGREEMENT_OF_16_BITS,
    BATCH,
    HEAD_DIM,
    HEADS,
    Array,
    array_of,
    normal,
    our_contestants,
    raced,
    tensor_of,
)
from flash.commands.measure.record import Job, Rows
from flash.cpu.attention import attention_cpu
from flash.cpu.engine_choice import engine_of
from flash.cpu.gradients import attention_gradients_cpu
from flash.operands.dtype_names import DTypeName
from flash.problem.config import AttentionConfig
from ptxgen.runtime.settings import COMPILED

_Arrays = tuple[Array, Array, Array, Array]  # dout, q, k, v
GOALS: Final = {"ours": 1.2, COMPILED: 1.0}
# Gradients of keys are sums over all queries; in 16 bits PyTorch also rounds weights and gradients of scores.
AGREEMENT: Final = {"f32": 1e-4, "bf16": 8 * AGREEMENT_OF_16_BITS}


class Shape(NamedTuple):
    """The lengths and heads of a call, and the element type of its arrays."""

    dtype: DTypeName
    seq: int
    causal: bool
    heads: int = HEADS
    kv_heads: int = HEADS
    head_dim: int = HEAD_DIM


def gradient_jobs(quick: bool) -> list[Job]:
    """Jobs for f32 and bf16, full and causal, short and long; and for heads that share keys."""
    rounds, batch = (3, 2) if quick else (7, 4)
    dtypes: tuple[DTypeName, ...] = ("f32", "bf16")
    shapes = [
        Shape(dtype, n, causal) for dtype in dtypes for n in (256, 1024, 2048) for causal in (False, True)
    ]
    shapes += [Shape(dtype, 1024, True, kv_heads=2) for dtype in dtypes]
    return [
        Job(
            f"cpu gradients {shape.dtype} N={shape.seq} {'causal' if shape.causal else 'full'}",
            functools.partial(compare_gradients, shape, rounds, batch if shape.seq < 2048 else 2),
        )
        for shape in (shapes[:1] if quick else shapes)
    ]


def compare_gradients(shape: Shape, rounds: int, batch: int) -> Rows:
    """Times of the gradients of one shape, and the ratios of our times to PyTorch's in the same round."""
    kind = AttentionConfig(shape.head_dim, dtype=shape.dtype).element.numpy
    of_q, of_k = ((BATCH, heads, shape.seq, shape.head_dim) for heads in (shape.heads, shape.kv_heads))
    dout, q, k, v = (x.astype(kind) for x in normal(of_q, of_q, of_k, of_k))
    arrays = dout, q, k, v
    contestants, remarks = our_contestants(lambda backend: _our_gradients(backend, arrays, shape.causal))
    try:
        contestants["torch"] = _torch_gradients(arrays, shape.causal)
    except ImportError as error:
        remarks.append(f"no comparison with PyTorch: {error}; pip install torch")
    settings = {"gradients": shape.dtype, "N": shape.seq, "kv": shape.kv_heads, "causal": shape.causal}
    return [*remarks, *raced(contestants, settings, rounds, batch, GOALS, AGREEMENT[shape.dtype])]


def _our_gradients(backend: str, arrays: _Arrays, causal: bool) -> Callable[[], Array]:
    """The gradients of q, k and v by a backend, of which the function returns that of k."""
    dout, q, k, v = arrays
    out, lse, engine = np.empty_like(q), np.empty(q.shape[:3], np.float32), engine_of(backend)
    attention_cpu(q, k, v, out, lse, softmax_scale=None, causal=causal)
    dq, dk, dv = (np.empty_like(x) for x in (q, k, v))

    def run() -> Array:
        attention_gradients_cpu(
            dout, q, k, v, out, lse, dq, dk, dv, {}, softmax_scale=None, causal=causal, engine=engine
        )
        return dk

    return run


def _torch_gradients(arrays: _Arrays, causal: bool) -> Callable[[], Array]:
    """PyTorch's gradients of q, k and v, of which the function returns that of k: its backward pass alone."""
    torch: Any = importlib.import_module("torch")
    _, q, k, _ = arrays
    of_out, *leaves = (tensor_of(torch, x) for x in arrays)
    for leaf in leaves:
        leaf.requires_grad_()
    attend, grouped = torch.nn.functional.scaled_dot_product_attention, q.shape[1] != k.shape[1]
    out = attend(*leaves, is_causal=causal, enable_gqa=grouped)

    def run() -> Array:
        return array_of(torch.autograd.grad(out, leaves, of_out, retain_graph=True)[1], k)

    return run
