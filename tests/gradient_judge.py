"""Decides whether gradients of attention are as accurate as dense arithmetic in f32 makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from judge import assert_close
from numpy.typing import NDArray

from flash.reference import (
    ReferenceGradients,
    attention_reference,
    attention_reference_gradients,
    score_steps,
    visible_keys,
    weight_factors,
)
from flash.scores.feature import summed_to
from flash.scores.features import asked, scored

Array = NDArray[Any]
_U = 2.0**-24
# Roundings of the terms of a sum that are allowed beside the dense error, which by luck, or for one
# key, may be 0; and as many more as LSE is large, since a weight errs relatively by what LSE does.
_ROUNDINGS = 4


def by_name(found: ReferenceGradients) -> dict[str, Array]:
    """The gradients by the names of the arguments."""
    return {"q": found.dq, "k": found.dk, "v": found.dv, **found.arrays}


def assert_gradients_are_accurate(
    found: Mapping[str, Array],
    out: Array,
    dout: Array,
    dlse: Array,
    q: Array,
    k: Array,
    v: Array,
    arrays: Mapping[str, Array],
    **how: Any,
) -> None:
    """The gradients of q, k, v and the arrays of scores, by name, err by no more than twice the
    largest error of dense gradients in f32 that are rounded to the same types, and a few roundings.

    They are judged as functions of `out`, which may be rounded to 16 bits: a change of O by e
    changes the gradients as a change of `dlse` by -sum(dout * e) does.
    """
    wide, arguments = dout.astype(np.float64), {**arrays, **how}
    exact, lse = attention_reference(q, k, v, **arguments)
    of_lse = dlse - (wide * (out - exact)).sum(axis=3)
    right, dense = (
        by_name(attention_reference_gradients(dout, q, k, v, dlse=of_lse, dtype=dtype, **arguments))
        for dtype in (np.float64, np.float32)
    )
    sizes = _sizes(wide, of_lse, q, k, v, exact, lse, arguments)
    largest_lse = np.abs(lse[np.isfinite(lse)]).max(initial=0)
    right = {name: wanted for name, wanted in right.items() if not name.startswith("aux_")}
    assert found.keys() == right.keys()
    for name, wanted in right.items():
        kind = found[name].dtype
        rounded = wanted.astype(kind)
        third = np.asarray(0.3, kind)
        last_place = np.abs(((rounded + third - third) - rounded).astype(np.float64))
        error = np.abs(dense[name].astype(kind) - wanted)
        allowed = 2 * error.max(initial=0) + 2 * last_place.max(initial=0)
        allowed += (_ROUNDINGS + largest_lse) * _U * sizes[name].max(initial=0)
        assert_close(name, found[name], wanted, np.broadcast_to(allowed, wanted.shape))


def _sizes(
    dout: Array, dlse: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, given: Mapping[str, Any]
) -> dict[str, Array]:
    """For each gradient, the sums of the magnitudes of the terms of which it is the sum."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (np.repeat(x.astype(np.float64), n, axis=1) for x, n in ((q, 1), (k, group), (v, group)))
    scale, causal = given.get("softmax_scale"), given.get("causal", False)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    of = scored((*q.shape[:3], k.shape[2]), causal, np.float64, 0, given)
    score = scale * (q @ k.swapaxes(2, 3))
    for step in score_steps(score, of):
        score = step.after
    rows = np.where(np.isneginf(lse), np.inf, lse)[..., None]
    weight = np.where(visible_keys(of), np.exp(score - rows), 0)
    factor = weight_factors(of)

    q, k, v, dout = (np.abs(x) for x in (q, k, v, dout))
    delta = (dout * np.abs(out)).sum(axis=3) + np.abs(dlse)
    dscore = weight * (factor * (dout @ v.swapaxes(2, 3)) + delta[..., None])
    result = {
        "q": abs(scale) * (dscore @ k),
        "k": abs(scale) * _over_groups(dscore.swapaxes(2, 3) @ q, group),
        "v": _over_groups((factor * weight).swapaxes(2, 3) @ dout, group),
    }
    for feature in asked(given):
        for part in (feature.array_gradient(dscore, of), feature.first_gradient(lse, delta, of)):
            if part is not None:
                result[feature.argument] = summed_to(np.abs(part), np.shape(given[feature.argument]))
    return result


def _over_groups(gradient: Array, group: int) -> Array:
    batch, heads, *sizes = gradient.shape
    return gradient.reshape(batch, heads // group, group, *sizes).sum(axis=2)
