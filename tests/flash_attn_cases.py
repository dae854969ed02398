"""Tensors for tests of the functions of flash-attn, and a judge of their results."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import flash_attn_oracle as oracle
import ml_dtypes
import numpy as np
from judge import assert_close
from numpy.typing import NDArray

from flash.error_bound import Bound, arithmetic_of, attention_bound

Array = NDArray[Any]
_KINDS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def as_numpy(x: Any) -> Array:
    """A tensor on the CPU as a numpy array of the same type."""
    if str(x.dtype) == "torch.bfloat16":
        return np.asarray(x.float().numpy().astype(ml_dtypes.bfloat16))
    return np.asarray(x.numpy())


def in_numpy(how: dict[str, Any]) -> dict[str, Any]:
    """Arguments with numpy arrays for tensors."""
    return {name: as_numpy(x) if hasattr(x, "numpy") else x for name, x in how.items()}


def tensors(torch: ModuleType, dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    """Normal numbers, always the same."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes]


def bound_of(q: Array, k: Array, v: Array, how: dict[str, Any]) -> Bound:
    """What results of q, k and v [batch, heads, seqlen, dim] may err by; `how` are arguments of the
    oracle.
    """
    left, right = how.get("window_size", (-1, -1))
    return attention_bound(
        q,
        k,
        v,
        q.dtype,
        arithmetic_of(_KINDS[q.dtype.name]),
        causal=how.get("causal", False),
        softmax_scale=how.get("softmax_scale"),
        softcap=max(how.get("softcap", 0.0), 0.0) or None,
        window=(None if left < 0 else left, None if right < 0 else right),
        alibi_slopes=how.get("alibi_slopes"),
    )


def assert_is_attention(out: Any, lse: Any, q: Any, k: Any, v: Any, how: dict[str, Any]) -> None:
    """out and lse of the tensors q, k and v are those of the oracle, within the error that kernels
    of their type may have.
    """
    arrays, how = [as_numpy(x) for x in (q, k, v)], in_numpy(how)
    wanted, sums = oracle.attention(*arrays, **how)
    bound = bound_of(*(x.swapaxes(1, 2) for x in arrays), how)
    assert out.dtype == q.dtype
    assert_close("out", as_numpy(out), wanted, bound.out_error.swapaxes(1, 2))
    assert_close("lse", as_numpy(lse), sums, bound.lse_error)
