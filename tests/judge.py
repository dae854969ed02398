"""Decides whether an attention result is as accurate as its precision allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flash.error_bound import Arithmetic, Bound, arithmetic_of, attention_bound, max_logit_bound

Array = NDArray[Any]
_KINDS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_OF_HEADS = ("alibi_slopes", "sink")
_OF_FLOAT64 = 2.0 ** (24 - 53)  # times the bound of f32, whose errors are in units of 2^-24


def assert_attention_is_accurate(
    out: Array,
    lse: Array | None,
    q: Array,
    k: Array,
    v: Array,
    *,
    arithmetic: Arithmetic | None = None,
    max_logit: Array | None = None,
    **features: Any,
) -> None:
    """`out` and `lse` err no more than an implementation of this arithmetic may
    (`flash/error_bound.py`), by default that of kernels for sm_80 and the type of `out`. `features`
    are the other arguments of the reference; `max_logit` are the largest scores of heads, if they are wanted.

    NaN, and an infinity that the float64 reference does not have, always fail.
    """
    if arithmetic is None:
        arithmetic = arithmetic_of(_KINDS[out.dtype.name])
    bound = attention_bound(q, k, v, out.dtype, arithmetic, **features)
    assert_within(out, lse, bound)
    if max_logit is not None:
        assert_close("max_logit", max_logit, *max_logit_bound(q, k, arithmetic, **features))


def assert_items_are_accurate(
    out: Array,
    lse: Array | None,
    q: Array,
    rows: Iterable[tuple[Array, Array]],
    *,
    masks: Sequence[Array] | None = None,
    **features: Any,
) -> None:
    """`assert_attention_is_accurate` for each item of a batch, which has its own K and V in `rows`, [1,
    kv_heads, keys, dim], and its own mask. `alibi_slopes` and `sink` broadcast to [batch, heads].
    """
    wide = {n: np.broadcast_to(features.pop(n), q.shape[:2]) for n in _OF_HEADS if n in features}
    for b, (k, v) in enumerate(rows):
        one = slice(b, b + 1)
        of_item = {name: array[one] for name, array in wide.items()}
        of_item |= {} if masks is None else {"mask": masks[b]}
        of_rows = None if lse is None else lse[one]
        assert_attention_is_accurate(out[one], of_rows, q[one], k, v, **features, **of_item)


def assert_within(out: Array, lse: Array | None, bound: Bound) -> None:
    """O and, if there is one, LSE are within their bound."""
    assert_close("out", out, bound.out, bound.out_error)
    if lse is not None:
        assert_close("lse", lse, bound.lse, bound.lse_error)


def assert_agrees_in_float64(
    found: Array, q: Array, k: Array, v: Array, rows: Any = ..., **features: Any
) -> None:
    """Somebody's O in float64 is that of the reference, within what either may err by; in `rows`
    [batch, heads, seq_q] that are True.
    """
    bound = attention_bound(q, k, v, np.float64, **features)
    allowed = 2 * _OF_FLOAT64 * bound.out_error
    assert_close("out", found[rows], bound.out[rows], allowed[rows])


def assert_close(what: str, got: Array, wanted: Array, allowed: Array) -> None:
    """`|got - wanted| <= allowed` in every element. Equal infinities are close; NaN is close to
    nothing.
    """
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    wide = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~((wide == wanted) | (np.isfinite(wanted) & (np.abs(wide - wanted) <= allowed)))
    if not bad.any():
        return
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    raise AssertionError(
        f"{what}: {wide[at]} at {at}, wanted {wanted[at]}; allowed {allowed[at]:.3g} there, "
        f"{bad.sum()} of {bad.size} elements beyond what is allowed"
    )


def rounded_normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Standard normal numbers as the kernel sees them: rounded to `dtype`, "bf16" included."""
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else dtype
    return rng.standard_normal(shape).astype(kind)
