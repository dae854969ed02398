"""Runs the kernels of gradients on the interpreter, and judges what they write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from judge import assert_close, rounded_normal
from numpy.typing import NDArray

from flash.gradients.kernel import AttentionGradient, Gradients
from flash.problem.config import AttentionConfig
from flash.reference import (
    attention_reference,
    attention_reference_gradients,
    score_steps,
    visible_keys,
    weight_factors,
)
from flash.scores.feature import summed_to
from flash.scores.features import asked, scored

Array = NDArray[Any]
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
# By type and precision: the relative error of an element that enters a product of Q, K, V or dO, and
# that of a weight or a gradient of a score.
_UNITS = {
    ("f16", None): (0.0, 2.0**-11),
    ("bf16", None): (0.0, 2.0**-8),
    ("f32", "ieee"): (0.0, 0.0),
    ("f32", "tf32"): (2.0**-11, 2.0**-11),
    ("f32", "f32_grade"): (2.0**-21, 2.0**-21),
}
_RESULT = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}
_TINY = {"f16": 2.0**-25, "bf16": 2.0**-126, "f32": 2.0**-126}  # of results and weights below normal ones
_F32 = 32 * 2.0**-24  # roundings of f32 on the way from products to gradients of scores


@dataclass
class Case:
    """A call for gradients. `arrays` are those of the scores; `others` the further arguments."""

    config: AttentionConfig
    dout: Array
    q: Array
    k: Array
    v: Array
    arrays: dict[str, Array] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    dlse: Array | None = None
    bend: float = 1.0  # bound of the derivative of scores by scaled products, and of its derivative
    deterministic: bool = True

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the reference."""
        config = self.config
        how = {"causal": config.causal, "softmax_scale": config.scale, **config.score_arguments}
        return {**how, **self.arrays, **self.others}

    def forward(self) -> tuple[Array, Array]:
        """O in the type of q, and LSE in f32."""
        out, lse = attention_reference(self.q, self.k, self.v, **self.given)
        return out.astype(self.q.dtype), lse.astype(np.float32)

    @property
    def wanted(self) -> list[str]:
        """The arrays that have gradients."""
        return [f.argument for f in self.config.scores if f.gradient_of and f.argument in self.arrays]

    def run(self, *, layout: str = "bhsd", backend: str = "interpreter", **arrays: Any) -> Gradients:
        """The gradients; `arrays` replace some of the call's. Gradients are written to memory that
        was full of NaN, so that what is not written shows.
        """
        out, lse = self.forward() if "lse" not in arrays else (arrays["out"], arrays.pop("lse"))
        named = {"dout": self.dout, "q": self.q, "k": self.k, "v": self.v, "out": out, **arrays}
        if layout == "bshd":
            named = {name: np.ascontiguousarray(a.swapaxes(1, 2)) for name, a in named.items()}
        into = {f"d{name}": np.full_like(named[name], np.nan) for name in "qkv" if f"d{name}" not in named}
        made = AttentionGradient(self.config, deterministic=self.deterministic)
        rows = {"lse": lse, "dlse": self.dlse}
        given = {**named, **into, **rows, **self.arrays, **self.others}
        found = made.launch(**given, wanted=self.wanted, layout=layout, backend=backend)
        if layout == "bshd":
            return Gradients(*(a.swapaxes(1, 2) for a in found[:3]), found.arrays)
        return found


def case(
    seq_q: int = 70,
    seq_k: int = 90,
    head_dim: int = 16,
    head_dim_v: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    kv_heads: int = 1,
    dtype: str = "f16",
    arrays: Mapping[str, Array] | None = None,
    others: Mapping[str, Any] | None = None,
    with_dlse: bool = False,
    bend: float = 1.0,
    deterministic: bool = True,
    **settings: Any,
) -> Case:
    """A case with normal numbers."""
    config = AttentionConfig(head_dim, head_dim_v=head_dim_v, dtype=dtype, **settings)
    rng = np.random.default_rng([seq_q, seq_k, head_dim])
    d_v = head_dim_v or head_dim
    shapes = (
        (heads, seq_q, d_v),
        (heads, seq_q, head_dim),
        (kv_heads, seq_k, head_dim),
        (kv_heads, seq_k, d_v),
    )
    drawn = [rounded_normal(rng, (batch, *shape), TYPES[dtype]) for shape in shapes]
    dlse = rounded_normal(rng, (batch, heads, seq_q)) if with_dlse else None
    seed = {"dropout_seed": 7} if config.dropout else {}
    return Case(config, *drawn, dict(arrays or {}), {**seed, **(others or {})}, dlse, bend, deterministic)


def by_name(found: Gradients) -> dict[str, Array]:
    """The gradients by the names of the arguments."""
    return {"q": found.dq, "k": found.dk, "v": found.dv, **found.arrays}


def assert_same_bits(found: Gradients, wanted: Gradients) -> None:
    """Every gradient has the same bits."""
    for (name, a), b in zip(by_name(found).items(), by_name(wanted).values(), strict=True):
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes(), name


def check(of: Case, **how: Any) -> Gradients:
    """Run a case, and judge it against the reference in float64."""
    found = of.run(**how)
    out, lse = of.forward()
    judge(of, by_name(found), out, lse)
    return found


def judge(of: Case, found: Mapping[str, Array], out: Array, lse: Array) -> None:
    """Each gradient is within its bound in every element."""
    within = bounds(of, out, lse)
    assert found.keys() == within.keys()
    for name, bound in within.items():
        bound.check(found[name])


class Bound(NamedTuple):
    """A gradient in float64, and by how much the sum that is rounded to it may be off."""

    name: str
    wanted: Array
    allowed: Array
    dtype: str

    def check(self, found: Array) -> None:
        """Every element of `found` is within the bound."""
        rounding = _RESULT[self.dtype] * np.abs(self.wanted) + _TINY[self.dtype]
        assert_close(self.name, found, self.wanted, 1.01 * self.allowed + rounding)


def bounds(of: Case, out: Array, lse: Array) -> dict[str, Bound]:
    """What the gradients of a case may be: each errs, in every element, by no more than its roundings
    explain: those of weights and gradients of scores that enter products, of f32 between, and of the
    result.

    Gradients are judged as functions of `out`, which may be rounded to 16 bits: a change of O by e
    changes them as a change of `dlse` by -sum(dout * e) does.
    """
    given = of.given
    dout = of.dout.astype(np.float64)
    exact, _ = attention_reference(of.q, of.k, of.v, **given)
    dlse = -(dout * (out - exact)).sum(axis=3)
    if of.dlse is not None:
        dlse = dlse + of.dlse
    right = attention_reference_gradients(of.dout, of.q, of.k, of.v, dlse=dlse, **given)
    wanted = {"q": right.dq, "k": right.dk, "v": right.dv}
    wanted |= {name: right.arrays[name] for name in of.wanted}
    allowed = _allowed(of, out, lse, dlse, given)
    kinds = {name: _name_of(of.arrays[name].dtype) for name in of.wanted}
    return {
        name: Bound(name, gradient, allowed[name], kinds.get(name, of.config.dtype))
        for name, gradient in wanted.items()
    }


def _name_of(dtype: Any) -> str:
    return next(name for name, kind in TYPES.items() if np.dtype(kind) == dtype)


def _allowed(of: Case, out: Array, lse: Array, dlse: Array, given: Mapping[str, Any]) -> dict[str, Array]:
    """For each gradient, the sums of the errors of the terms of which it is the sum."""
    precision = of.config.precision if of.config.dtype == "f32" else None
    entering, kept = _UNITS[of.config.dtype, precision]
    tiny = _TINY[of.config.dtype]
    group = of.q.shape[1] // max(of.k.shape[1], 1)
    q, k, v = (
        np.repeat(x.astype(np.float64), n, axis=1) for x, n in ((of.q, 1), (of.k, group), (of.v, group))
    )
    dout, scale = of.dout.astype(np.float64), of.config.scale
    at = scored((*q.shape[:3], k.shape[2]), of.config.causal, np.float64, given.get("first_batch", 0), given)
    score = scale * (q @ k.swapaxes(2, 3))
    for step in score_steps(score, at):
        score = step.after
    rows = np.where(np.isneginf(lse), np.inf, lse.astype(np.float64))[..., None]
    visible = visible_keys(at)
    score = np.where(visible, score, -np.inf)
    weight, factor = np.exp(score - rows), weight_factors(at)
    delta = (dout * out).sum(axis=3)[..., None] - (0 if of.dlse is None else of.dlse[..., None])
    gradient = np.abs(weight * (factor * (dout @ v.swapaxes(2, 3)) - delta))

    q, k, v, dout = (np.abs(x) for x in (q, k, v, dout))
    products = abs(scale) * (q @ k.swapaxes(2, 3))
    sizes = np.where(visible, np.abs(score), 0) + np.where(np.isinf(rows), 0, np.abs(rows))
    of_scores = of.bend * (2 * entering + _F32) * products + _F32 * (1 + sizes)
    ends = factor * (dout @ v.swapaxes(2, 3)) * (2 * entering + _F32)
    ends = ends + _F32 * ((dout * np.abs(out)).sum(axis=3) + np.abs(dlse))[..., None]
    of_gradients = gradient * of_scores + weight * np.exp(of_scores) * ends
    of_products = of.bend * (of_gradients + gradient * (2 * of_scores + _F32))
    rounded = of_products + of.bend * gradient * (kept + entering + _F32) + tiny * visible
    of_weights = factor * weight * (of_scores + kept + entering + _F32) + tiny * visible * np.max(
        factor, initial=0
    )
    found = {
        "q": abs(scale) * (rounded @ k),
        "k": abs(scale) * _over_groups(rounded.swapaxes(2, 3) @ q, group),
        "v": _over_groups(of_weights.swapaxes(2, 3) @ dout, group),
    }
    summed = of_gradients + _F32 * gradient
    for feature in asked(given):
        ends_first = _F32 * (1 + sizes.max(axis=3, initial=0)) * np.abs(delta[..., 0]) + ends[..., :1].max(
            axis=3, initial=0
        )
        with np.errstate(invalid="ignore"):  # a sink of -inf, of a row that sees no key
            first = feature.first_gradient(lse, ends_first, at)
        for part in (feature.array_gradient(summed, at), first):
            if part is not None:
                shape = np.shape(given[feature.argument])
                found[feature.argument] = summed_to(np.abs(part), shape)
    return found


def _over_groups(gradient: Array, group: int) -> Array:
    batch, heads, *sizes = gradient.shape
    return gradient.reshape(batch, heads // max(group, 1), max(group, 1), *sizes).sum(axis=2)
