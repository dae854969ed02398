"""Decides whether an attention result is as accurate as its precision allows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flash.reference import Causal, attention_reference

Array = NDArray[Any]


def assert_attention_is_accurate(
    out: Array,
    lse: Array | None,
    q: Array,
    k: Array,
    v: Array,
    *,
    softmax_scale: float | None = None,
    causal: Causal = False,
) -> None:
    """`out` and `lse` err at most twice as much as dense numpy of the same precision does.

    Dense numpy computes in f32 and rounds to the type of `out`, which is f32 or narrower. NaN, and
    an infinity that the float64 reference does not have, always fail.
    """
    how: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal}
    wanted_out, wanted_lse = attention_reference(q, k, v, **how)
    peer_out, peer_lse = attention_reference(q, k, v, dtype=np.float32, **how)
    assert_close("out", out, wanted_out, peer_out.astype(out.dtype))
    if lse is not None:
        assert_close("lse", lse, wanted_lse, peer_lse.astype(lse.dtype), rtol=1e-5)


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
