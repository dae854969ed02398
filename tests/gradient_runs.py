"""Runs the kernels of gradients on the interpreter, and judges what they write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from judge import assert_close, rounded_normal
from numpy.typing import NDArray

from flash.gradients.kernel import AttentionGradient, Gradients
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import has_one_sweep
from flash.reference import attention_reference
from tools.campaign.gradient_bound import GradientBound, GradientInputs

Array = NDArray[Any]
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
KINDS: dict[str, dict[str, Any]] = {  # settings of the kinds of products
    "f16": {"dtype": "f16"},
    "bf16": {"dtype": "bf16"},
    "tf32": {"dtype": "f32", "precision": "tf32"},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade"},
    "ieee": {"dtype": "f32", "precision": "ieee"},
}


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

    @property
    def kernel(self) -> AttentionGradient:
        """What makes the gradients: in one sweep where there is one, unless `deterministic`."""
        one_sweep = not self.deterministic and has_one_sweep(self.config)
        return AttentionGradient(
            self.config, deterministic=self.deterministic, sweeps=1 if one_sweep else None
        )

    def run(self, *, layout: str = "bhsd", backend: str = "interpreter", **arrays: Any) -> Gradients:
        """The gradients; `arrays` replace some of the call's. Gradients are written to memory that
        was full of NaN, so that what is not written shows.
        """
        out, lse = self.forward() if "lse" not in arrays else (arrays["out"], arrays.pop("lse"))
        named = {"dout": self.dout, "q": self.q, "k": self.k, "v": self.v, "out": out, **arrays}
        if layout == "bshd":
            named = {name: np.ascontiguousarray(a.swapaxes(1, 2)) for name, a in named.items()}
        into = {f"d{name}": np.full_like(named[name], np.nan) for name in "qkv" if f"d{name}" not in named}
        made = self.kernel
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
    assert list(found) == list(within)
    for name, bound in within.items():
        assert_close(name, found[name], *bound)


def bounds(of: Case, out: Array, lse: Array) -> dict[str, GradientBound]:
    """The bounds of the gradients of a case: each errs, in every element, by no more than its roundings
    explain (`tools/campaign/gradient_bound.py`).
    """
    call = GradientInputs(of.config, of.dout, of.q, of.k, of.v, out, lse, of.dlse, of.given, of.bend)
    found = call.bounds(of.wanted)
    return {name: found[name] for name in ("q", "k", "v", *of.wanted)}
