"""Gradients of attention on the host, and arrays for them, for the tests of `flash.cpu`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gradient_judge import assert_gradients_are_accurate
from judge import rounded_normal

from flash.cpu.attention import attention_cpu
from flash.cpu.engine import NUMPY
from flash.cpu.gradients import attention_gradients_cpu

NUMBERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "scale": {"softmax_scale": -0.7},
    "left": {"window": (20, None)},
    "right": {"window": (None, 4)},
    "both_sides": {"window": (30, 9)},
    "softcap": {"softcap": 1.5},
    "dropout": {"dropout": 0.3, "dropout_seed": 5},
}


def problem(seq_q, seq_k, d=16, *, d_v=None, heads=2, kv_heads=1, batch=1, dtype=np.float32):
    """dout, dlse, q, k, v."""
    rng = np.random.default_rng([seq_q, seq_k, d])
    shapes = [(heads, seq_q, d_v or d), (heads, seq_q, d), (kv_heads, seq_k, d), (kv_heads, seq_k, d_v or d)]
    dout, q, k, v = (rounded_normal(rng, (batch, *shape), dtype) for shape in shapes)
    return dout, rounded_normal(rng, q.shape[:3]), q, k, v


def features_for(name, shape):
    """The arrays with gradients, and the other arguments, of the feature of this name, or of all."""
    rng = np.random.default_rng(0)
    hidden = rng.random(shape) < 0.2
    every = {
        "alibi_slopes": 0.1 * rng.random(shape[1], dtype=np.float32),
        "bias": np.where(hidden, np.float32(-np.inf), rng.standard_normal(shape, np.float32)),
        "key_bias": rng.standard_normal((shape[0], 1, shape[3]), np.float32),
        "sink": rng.standard_normal(shape[:2], np.float32),
    }
    mask = rng.random(shape) < 0.7
    if name == "all":
        numbers = {"window": (30, 25), "softcap": 2.0, "dropout": 0.2, "dropout_seed": 9}
        return every, {**numbers, "mask": mask}
    if name == "mask":
        return {}, {"mask": mask}
    return ({name: every[name]}, {}) if name in every else ({}, dict(NUMBERS[name]))


def run(dout, dlse, q, k, v, arrays=None, *, threads=None, engine=NUMPY, **how):
    """Gradients by name, in memory that was full of NaN, so that what is not written shows; and the
    O and LSE of which they are.
    """
    arrays = arrays or {}
    how = {"softmax_scale": None, "causal": False, **how}
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    lse = np.empty(q.shape[:3], np.float64 if q.dtype == np.float64 else np.float32)
    attention_cpu(q, k, v, out, lse, threads=threads, **arrays, **how)
    inputs = {"q": q, "k": k, "v": v, **arrays}
    result = {name: np.full(x.shape, np.nan, x.dtype) for name, x in inputs.items()}
    attention_gradients_cpu(
        dout,
        q,
        k,
        v,
        out,
        lse,
        *(result[name] for name in "qkv"),
        {name: result[name] for name in arrays},
        dlse=dlse,
        threads=threads,
        engine=engine,
        **arrays,
        **how,
    )
    return result, out, lse


def check(dout, dlse, q, k, v, arrays=None, *, threads=None, engine=NUMPY, **how):
    """The gradients are as accurate as those of dense arithmetic."""
    result, out, _ = run(dout, dlse, q, k, v, arrays, threads=threads, engine=engine, **how)
    assert_gradients_are_accurate(result, out, dout, dlse, q, k, v, arrays or {}, **how)
