"""Decides whether an attention result is as accurate as its precision allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flash.reference import Causal, attention_reference, causal_offset

Array = NDArray[Any]
Peer = Callable[..., tuple[Array, Array]]


def assert_attention_is_accurate(
    out: Array,
    lse: Array | None,
    q: Array,
    k: Array,
    v: Array,
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
    peer: Peer | None = None,
    **features: Any,
) -> None:
    """`out` and `lse` err at most twice as much as numpy of the same precision does. `features` are
    the other arguments of the reference.

    That is dense numpy, unless `peer` is another honest computation. It computes in f32 and rounds
    to the type of `out`, which is f32 or narrower. NaN, and an infinity that the float64 reference
    does not have, always fail.
    """
    how: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, **features}
    wanted_out, wanted_lse = attention_reference(q, k, v, **how)
    peer_out, peer_lse = (peer or dense_f32)(q, k, v, **how)
    assert_close("out", out, wanted_out, peer_out.astype(out.dtype))
    if lse is not None:
        assert_close("lse", lse, wanted_lse, peer_lse.astype(lse.dtype), rtol=1e-5)


def dense_f32(q: Array, k: Array, v: Array, **how: Any) -> tuple[Array, Array]:
    """Attention in f32 by matrix products of the BLAS library, which adds up in its own order."""
    return attention_reference(q, k, v, dtype=np.float32, **how)


def rounding_the_weights(q: Array, k: Array, v: Array, **how: Any) -> tuple[Array, Array]:
    """Attention in f32 with P, whose largest number in a row is 1, rounded to the type of V, as
    tensor-core kernels do. P itself is what attention makes of the unit matrix.
    """
    unit = np.broadcast_to(np.eye(k.shape[2], dtype=np.float32), (*k.shape[:3], k.shape[2]))
    weights, lse = attention_reference(q, k, unit, dtype=np.float32, **how)
    largest = weights.max(axis=3, keepdims=True, initial=0)
    largest = np.where(largest == 0, np.float32(1), largest)
    rounded = (weights / largest).astype(v.dtype).astype(np.float32)
    values = np.repeat(v, q.shape[1] // k.shape[1], axis=1).astype(np.float32)
    return (rounded @ values) * largest, lse


def in_order_f32(
    q: Array, k: Array, v: Array, *, softmax_scale: float, causal: Causal
) -> tuple[Array, Array]:
    """Attention in f32 that adds up one term after another, as a thread of a kernel does.

    In problems of few elements the largest error of `dense_f32` is a matter of luck; this one errs
    where a kernel does.
    """
    scores = _product_in_order(q, k.swapaxes(2, 3)) * np.float32(softmax_scale)
    weights, total, lse = softmax_f32(scores, causal)
    return _product_in_order(weights, v) / total, lse


def softmax_f32(scores: Array, causal: Causal) -> tuple[Array, Array, Array]:
    """The weights of scores before they are divided by their sum, that sum (1 for a row without a
    key) and the log-sum-exp, in f32.
    """
    seq_q, seq_k = scores.shape[2:]
    offset = causal_offset(causal, seq_q, seq_k)
    scores[..., np.arange(seq_k) > np.arange(seq_q)[:, None] + offset] = -np.inf
    largest = scores.max(axis=3, keepdims=True, initial=np.finfo(np.float32).min)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]
    return weights, np.where(total == 0, 1, total), lse


def _product_in_order(a: Array, b: Array) -> Array:
    """a @ b with each product and sum fused and rounded to f32, in order."""
    total = np.zeros((*a.shape[:3], b.shape[3]), np.float32)
    for n in range(a.shape[3]):
        step = a[..., n, None].astype(np.float64) * b[:, :, None, n]
        total = (total + step).astype(np.float32)
    return total


def assert_close(what: str, got: Array, wanted: Array, peer: Array, *, rtol: float = 0) -> None:
    """`|got - wanted| <= 2 max|peer - wanted| + atol + rtol |wanted|` in every element.

    `wanted` is exact, `peer` an honest computation in the type of `got`. atol is twice what adding
    and taking away 0.3 costs in that type, or twice its epsilon at the largest |wanted| if that is
    more: with one key dense numpy is exact by luck, and a few numbers may happen to survive 0.3.
    Equal infinities are close; NaN is close to nothing.
    """
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    finite = np.isfinite(wanted)
    got_wide, peer_wide = got.astype(np.float64), peer.astype(np.float64)
    odd = ~finite & ~(got_wide == wanted)
    assert not odd.any(), f"{what}: {_first(odd, got_wide, wanted)}"
    near, peer_near, exact = got_wide[finite], peer_wide[finite], wanted[finite]
    rounded = exact.astype(got.dtype)
    there_and_back = ((rounded + got.dtype.type(0.3)) - got.dtype.type(0.3)) - rounded
    epsilon = float(ml_dtypes.finfo(got.dtype).eps) * np.abs(exact).max(initial=0)
    atol = 2 * np.abs(there_and_back.astype(np.float64)).max(initial=epsilon)
    allowed = 2 * np.abs(peer_near - exact).max(initial=0) + atol + rtol * np.abs(exact)
    bad = np.zeros(got.shape, bool)
    bad[finite] = ~(np.abs(near - exact) <= allowed)
    assert not bad.any(), (
        f"{what}: {_first(bad, got_wide, wanted)}; allowed {allowed.min():.3g} to "
        f"{allowed.max():.3g}, {bad.sum()} of {bad.size} elements beyond it"
    )


def _first(bad: Array, got: Array, wanted: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{got[at]} at {at}, wanted {wanted[at]}"


def rounded_normal(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32
) -> Array:
    """Standard normal numbers as the kernel sees them: rounded to `dtype`, "bf16" included."""
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else dtype
    return rng.standard_normal(shape).astype(kind)
