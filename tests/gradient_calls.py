"""Calls for gradients: their arrays, and what the reference says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from judge import rounded_normal

import flash
from flash.calls.step import Step
from flash.operands.dtypes import F16, DType
from flash.reference import (
    ReferenceGradients,
    attention_reference_gradients,
    attention_varlen_reference_gradients,
)

Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]


def call_of(
    config: flash.AttentionConfig,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    seq_q: int = 20,
    seq_k: int = 24,
    **more: Any,
) -> Arrays:
    """The first arguments of `AttentionGradient.launch`, by name, of a call in layout bhsd."""
    rng = np.random.default_rng(5)
    d, d_v, kind = config.head_dim, config.value_dim, config.element.numpy
    q = rounded_normal(rng, (batch, heads, seq_q, d), kind)
    k = rounded_normal(rng, (batch, kv_heads, seq_k, d), kind)
    v = rounded_normal(rng, (batch, kv_heads, seq_k, d_v), kind)
    dout = rounded_normal(rng, (batch, heads, seq_q, d_v), kind)
    out, lse = flash.AttentionKernel(config).launch(q, k, v, return_lse=True, backend="cpu", **more)
    return {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}


def packed_call(
    config: flash.AttentionConfig, rows_q: int, rows_k: int, lengths: Arrays
) -> tuple[Arrays, ReferenceGradients]:
    """The arrays of a call of packed sequences with a sink, and what the reference says of it. Rows after the
    last end are of no sequence.
    """
    rng, d = np.random.default_rng(3), config.head_dim
    q, dout = (rounded_normal(rng, (rows_q, 2, d), np.float16) for _ in range(2))
    k, v = (rounded_normal(rng, (rows_k, 1, d), np.float16) for _ in range(2))
    out, sink = np.zeros_like(q), rounded_normal(rng, (2,))
    how: Arrays = {"out": out, "return_lse": True, "backend": "cpu", "sink": sink, **lengths}
    _, lse = flash.AttentionKernel(config).launch(q, k, v, **how)
    arrays = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse, "sink": sink}
    exact = attention_varlen_reference_gradients(dout, q, k, v, **lengths, causal=True, sink=sink)
    return arrays, exact


def reference(arrays: Arrays, **how: Any) -> ReferenceGradients:
    """The gradients in float64."""
    return attention_reference_gradients(*(arrays[n] for n in ("dout", "q", "k", "v")), **how)


def interpreted_owners(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the interpreter adds the owner of each kernel of gradients that it runs."""
    owners, run = list[str](), Step.interpret

    def interpret(step: Step, *given: Any, **how: Any) -> Any:
        result = re.match("attention_gradient_([a-z]+)_", step.plan.entry)
        if result:
            owners.append(result[1])
        return run(step, *given, **how)

    monkeypatch.setattr(Step, "interpret", interpret)
    return owners


def three(found: Any) -> list[Array]:
    """dq, dk and dv."""
    return [found.dq, found.dk, found.dv]


def allowed(dtype: DType) -> float:
    """The error of gradients of a few dozen terms of about 1, relative to the largest of them: some
    roundings to the type of the arrays, in which weights and gradients of scores are products' factors.
    """
    return 4 * 2.0 ** -(11 if dtype is F16 else 8 if dtype.name == "bf16" else 20)


def assert_near(found: Any, exact: ReferenceGradients, dtype: DType) -> None:
    """All gradients of `found` are those of the reference, and none is missing."""
    for got, wanted in zip(three(found), three(exact), strict=True):
        _near(np.asarray(got), wanted, dtype)
    for name, array in found.arrays.items():
        _near(np.asarray(array), exact.arrays[name], dtype)


def _near(got: Array, wanted: Array, dtype: DType) -> None:
    assert got.shape == wanted.shape
    error = np.abs(got.astype(np.float64) - wanted).max(initial=0)
    assert error <= allowed(dtype) * max(1, np.abs(wanted).max(initial=0))
