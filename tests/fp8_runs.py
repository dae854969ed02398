"""Problems with Q, K and V of fp8 and scales of heads: kernels run on the interpreter, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import assert_within
from kernel_runs import run_forward

from flash.error_bound import Bound, arithmetic_of_config, attention_bound
from flash.families.wgmma_fp8 import Fp8Tiling
from flash.problem.config import AttentionConfig
from ptxgen import interpreter

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array, Array]
SCALES = ("q_scale", "k_scale", "v_scale")
EVERY_CHECK = ["all", "mbarrier_init"]  # of the sanitizers


class Kernels:
    """What launches on the interpreter run: the names of kernels; and how they are run."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.how: dict[str, Any] = {"sanitize": EVERY_CHECK}


def watched(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The kernels that launches on the interpreter run from now on."""
    run, found = interpreter.run, Kernels()

    def watching(module: Any, *given: Any, **how: Any) -> Any:
        found.names.append(module.kernels[0].name)
        return run(module, *given, **{**how, **found.how})

    monkeypatch.setattr(interpreter, "run", watching)
    return found


def config_of(head_dim: int = 64, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    """Small tiles, so that small problems have more of them than stages."""
    small = {"dtype": "e4m3", "target": "sm_90a", "return_lse": True, "tile": 64, "block_q": 64}
    config = AttentionConfig(head_dim, head_dim_v, **{**small, **how})
    assert isinstance(config.kernel().tiling, Fp8Tiling)
    return config


def arrays_of(
    config: AttentionConfig, seq_q: int, seq_k: int, batch: int = 1, heads: int = 1, kv_heads: int = 1
) -> Arrays:
    rng = np.random.default_rng(seq_q + 1000 * seq_k)
    shapes = (
        (heads, seq_q, config.head_dim),
        (kv_heads, seq_k, config.head_dim),
        (kv_heads, seq_k, config.value_dim),
    )
    q, k, v = (rng.standard_normal((batch, *shape)).astype(config.element.numpy) for shape in shapes)
    return q, k, v


def scales_of(batch: int = 1, kv_heads: int = 1) -> dict[str, Array]:
    """Scales that differ in all sequences and heads; one of Q is negative."""
    rng = np.random.default_rng(batch + kv_heads)
    found = {name: rng.uniform(0.5, 2, (batch, kv_heads)).astype(np.float32) for name in SCALES}
    found["q_scale"][-1, -1] *= -1
    return found


def scaled(arrays: Arrays, scales: dict[str, Array]) -> Arrays:
    """Q, K and V as the numbers that they stand for, in float64."""
    kv_heads = arrays[1].shape[1]
    q, k, v = (
        x.astype(np.float64)
        * np.repeat(scales[name].astype(np.float64), x.shape[1] // kv_heads, axis=1)[..., None, None]
        for x, name in zip(arrays, SCALES, strict=True)
    )
    return q, k, v


def bound_of(
    config: AttentionConfig, arrays: Arrays, scales: dict[str, Array], parts: float = 0.0, **given: Any
) -> Bound:
    """What results may be; `parts` is as in `flash.error_bound.Arithmetic`."""
    how = {"softmax_scale": config.scale, "causal": config.causal, **config.score_arguments, **given}
    arithmetic = arithmetic_of_config(config, parts)
    return attention_bound(*scaled(arrays, scales), config.output.numpy, arithmetic, **how)


def check(config: AttentionConfig, arrays: Arrays, operands: Any = None, **run: Any) -> None:
    scales = scales_of(arrays[1].shape[0], arrays[1].shape[1])
    given = operands or {}
    out, lse, _ = run_forward(config, arrays, operands={**given, **scales}, **{"sanitize": True, **run})
    assert_within(out, lse, bound_of(config, arrays, scales, **given))
