"""Gradients with Q, K, V and dO of fp8: calls with scales, and their judgement against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from judge import assert_close
from numpy.typing import NDArray

from flash.calls.step import Step
from flash.gradients.checks import WRITTEN, Checks
from flash.gradients.kernel import AttentionGradient, Gradients
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host.caller import Caller
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, scaled_numbers
from ptxgen.arrays.views import view
from ptxgen.target import target
from tools.campaign.gradient_bound import GradientBound, GradientInputs

Array = NDArray[Any]
ON = "sm_90a"


@dataclass
class Fp8Case:
    """A call. `codes` are Q, K, V and dO of fp8, `scales` theirs, by the names of arguments; `arrays` are
    those of scores whose gradients are wanted, `others` further arguments.
    """

    config: AttentionConfig
    codes: dict[str, Array]
    scales: dict[str, Array]
    arrays: dict[str, Array] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    dlse: Array | None = None

    @property
    def numbers(self) -> dict[str, Array]:
        """The numbers that the matrices stand for, in float64."""
        rows = self.config.scale_block
        return {name: scaled_numbers(x, self.scales[f"{name}_scale"], rows) for name, x in self.codes.items()}

    @property
    def reference_arguments(self) -> dict[str, Any]:
        """The arguments of the reference."""
        config = self.config
        how = {"causal": config.causal, "softmax_scale": config.scale, **config.score_arguments}
        return {**how, **self.arrays, **self.others}

    def forward(self) -> tuple[Array, Array]:
        """O in the type in which it is written, and LSE in f32."""
        x = self.numbers
        out, lse = attention_reference(x["q"], x["k"], x["v"], **self.reference_arguments)
        return out.astype(self.config.output.numpy), lse.astype(np.float32)

    def named(self) -> dict[str, Array]:
        """The arrays of a launch, dlse among them if there is one."""
        out, lse = self.forward()
        return {**self.codes, "out": out, "lse": lse} | ({} if self.dlse is None else {"dlse": self.dlse})

    def run(self, backend: str = "interpreter", **arrays: Any) -> Gradients:
        """The gradients, written to memory that was full of NaN; `arrays` replace some of the call's."""
        named = {**self.named(), **arrays}
        written = self.config.output.numpy
        into = {name: np.full(named[of].shape, np.nan, written) for name, of in WRITTEN.items()}
        return AttentionGradient(self.config).launch(
            **named,
            **into,
            **self.scales,
            **self.arrays,
            **self.others,
            wanted=[*self.arrays],
            backend=backend,
        )

    def bounds(self) -> dict[str, GradientBound]:
        """The bounds of the gradients."""
        x, (out, lse) = self.numbers, self.forward()
        call = GradientInputs(
            *(self.config, x["dout"], x["q"], x["k"], x["v"], out, lse, self.dlse, self.reference_arguments),
            written=self.config.output.numpy,
        )
        result = call.bounds([*self.arrays])
        return {name: result[name] for name in ("q", "k", "v", *self.arrays)}

    def steps(self) -> tuple[list[Step], dict[str, Array]]:
        """The launches of the call, and the gradients that they write, full of NaN."""
        arrays = self.named()
        written = {
            name: np.full(arrays[of].shape, np.nan, self.config.output.numpy) for name, of in WRITTEN.items()
        }
        views = {name: view(array, name) for name, array in {**arrays, **written}.items()}
        operands = {name: view(a, name) for name, a in {**self.scales, **self.arrays, **self.others}.items()}
        sizes = Checks(self.config, Caller("test")).check(views, operands, "bhsd", (None, None))
        config = self.config
        call = GradientCall(config, sizes, "bhsd", config.scale, views, operands, config.numbers, {})
        memory = {
            name: view(np.full(of.shape, np.nan, of.dtype.numpy), name)
            for name, of in memory_of(call, target(ON), "test").items()
        }
        return list(steps_of(call, target(ON), memory, "test")), written


def fp8_case(
    seq_q: int = 150,
    seq_k: int = 200,
    head_dim: int = 64,
    head_dim_v: int | None = None,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    dtype: str = "e4m3",
    dout_dtype: str | None = None,
    arrays: Mapping[str, Array] | None = None,
    others: Mapping[str, Any] | None = None,
    with_dlse: bool = False,
    **settings: Any,
) -> Fp8Case:
    """A case with normal numbers, and scales of which some are negative."""
    config = AttentionConfig(head_dim, head_dim_v=head_dim_v, dtype=dtype, **settings)
    rng = np.random.default_rng([seq_q, seq_k, head_dim])
    of_q, of_k, d_v = (batch, heads, seq_q), (batch, kv_heads, seq_k), head_dim_v or head_dim
    shapes = {"q": (*of_q, head_dim), "k": (*of_k, head_dim), "v": (*of_k, d_v), "dout": (*of_q, d_v)}
    codes, scales, rows = {}, {}, config.scale_block
    for name, shape in shapes.items():
        of = FP8_DTYPES[(dout_dtype or dtype) if name == "dout" else dtype]
        codes[name] = (
            (of.largest / 8 * rng.standard_normal(shape)).clip(-of.largest, of.largest).astype(of.numpy)
        )
        of_scales = (*shape[:2], -(-shape[2] // rows)) if rows else (batch, kv_heads)
        size = (1e-6 if name == "dout" else 1.0) * 8 / of.largest
        scales[f"{name}_scale"] = (size * rng.uniform(0.5, 2, of_scales)).astype(np.float32)
    scales["q_scale"].flat[-1] *= -1
    scales["dout_scale"].flat[0] *= -1
    dlse = 1e-6 * rng.standard_normal(of_q).astype(np.float32) if with_dlse else None
    return Fp8Case(config, codes, scales, dict(arrays or {}), dict(others or {}), dlse)


def check(of: Fp8Case, **how: Any) -> Gradients:
    """Run a case, and judge it against the reference in float64."""
    gradients = of.run(**how)
    results = {"q": gradients.dq, "k": gradients.dk, "v": gradients.dv, **gradients.arrays}
    for name, bound in of.bounds().items():
        assert_close(name, results[name], *bound)
    return gradients


def as_bf16(of: Fp8Case) -> tuple[AttentionConfig, dict[str, Array]]:
    """The config and the arrays of the call with the same numbers, rounded to bf16."""
    config = AttentionConfig(of.config.head_dim, dtype="bf16", causal=of.config.causal, target=ON)
    numbers = {name: x.astype(ml_dtypes.bfloat16) for name, x in of.numbers.items()}
    out, lse = attention_reference(numbers["q"], numbers["k"], numbers["v"], **of.reference_arguments)
    return config, {**numbers, "out": out.astype(ml_dtypes.bfloat16), "lse": lse.astype(np.float32)}
