"""The kernel for Hopper with three warpgroups, which weighs scores before it knows the largest."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dsl.kernels import computed
from judge import assert_attention_is_accurate
from kernel_runs import Problem, nightly, random_operands, run_forward

from flash.contract.catalogue import build
from flash.device.polynomial_exp2 import polynomial_exp2
from flash.error_bound import arithmetic_of_config
from flash.families.wgmma import WgmmaTiling
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.interpreter import PCT

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Arrays = tuple[np.ndarray[Any, Any], ...]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def config_of(head_dim: int = 16, **how: Any) -> AttentionConfig:
    """Small tiles, so that small problems have more of them than stages."""
    small = {"dtype": "f16", "target": "sm_90a", "return_lse": True, "tile": 16, "block_q": 192}
    config = AttentionConfig(head_dim, **{**small, **how})
    tiling = config.kernel().tiling
    assert isinstance(tiling, WgmmaTiling)
    assert tiling.checks_sums
    return config


def arrays_of(config: AttentionConfig, seq_q: int, seq_k: int) -> Arrays:
    problem = Problem(seq_q, seq_k, config.head_dim, config.value_dim)
    return problem.arrays(dtype=NUMPY[str(config.dtype)])


def check(config: AttentionConfig, arrays: Arrays, operands: Any = None, **run: Any) -> None:
    given = operands or {}
    out, lse, _ = run_forward(config, arrays, operands=given, **{"sanitize": True, **run})
    how: Any = {"softmax_scale": config.scale, "causal": config.causal, **config.score_arguments, **given}
    assert_attention_is_accurate(out, lse, *arrays, arithmetic=arithmetic_of_config(config), **how)


@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("head_dim", [64, 96, 40])
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (30, 25)}], ids=str)
def test_outputs_are_as_accurate_as_numpy(dtype: str, head_dim: int, how: dict[str, Any]) -> None:
    config = config_of(head_dim, dtype=dtype, **how)
    check(config, arrays_of(config, 150, 113))


@pytest.mark.slow
@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "feature",
    [
        {"softcap": 1.5},
        {"alibi": True},
        {"bias": "f32", "sink": True},
        {"mask": True},
        {"key_bias": "f16"},
        {"dropout": 0.2},
    ],
    ids=str,
)
def test_features_are_as_accurate_as_numpy(feature: dict[str, Any], causal: bool) -> None:
    config = config_of(causal=causal, **feature)
    problem = Problem(100, 90, 16, 16, heads=2)
    arrays = problem.arrays(dtype=np.float16)
    if config.dropout:
        wanted = run_forward(config_of_two(config), arrays, dropout_seed=3)
        found = run_forward(config, arrays, dropout_seed=3, sanitize=True)
        np.testing.assert_allclose(found[0].astype(np.float64), wanted[0].astype(np.float64), atol=4e-3)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
        return
    check(config, arrays, random_operands(config, problem))


def config_of_two(config: AttentionConfig) -> AttentionConfig:
    """The same problem for two warpgroups, which take maxima."""
    how: Any = {"dropout": config.dropout, "causal": config.causal}
    return AttentionConfig(16, dtype="f16", return_lse=True, target="sm_90a", tile=16, block_q=128, **how)


@pytest.mark.parametrize("dtype", NUMPY)
def test_scores_that_grow_from_tile_to_tile_are_weighed_again(dtype: str) -> None:
    # The walk begins at the last key. Weights overflow under the shift of the tile before.
    config = config_of(dtype=dtype, softmax_scale=1.0)
    q, k, v = arrays_of(config, 192, 64)
    k *= np.linspace(30, 0, 64).astype(k.dtype)[:, None]
    check(config, (q, k, v))


def test_sums_above_the_slack_of_weights_below_it_are_right() -> None:
    # Each tile's scores are larger by 6 in units of log2: no weight is above 2^8 before its sum is.
    config = config_of(softmax_scale=math.log(2))
    q, k, v = arrays_of(config, 192, 80)
    q[:], k[:] = 0, 0
    q[..., 0], k[..., 0] = 1, 6.0 * np.arange(80)[::-1] // 16
    check(config, (q, k, v))


@pytest.mark.parametrize("scale", [-0.7, 2.0**20, nightly(-1.1 * 2.0**30), nightly(0.0)])
def test_shifts_that_are_rounded_have_their_rest(scale: float) -> None:
    config = config_of(softmax_scale=scale, causal=True)
    check(config, arrays_of(config, 70, 37))


def test_maxima_are_taken_of_the_first_tile_only_unless_scores_grow() -> None:
    config = config_of()
    shuffles = []
    for seq_k, growth in ((32, 0), (96, 0), (96, 9)):
        q, k, v = (np.zeros_like(x) for x in arrays_of(config, 192, seq_k))
        q[..., 0], k[..., 0] = 1, 4 * growth * (np.arange(seq_k)[::-1] // 16)
        counters = run_forward(config, (q, k, v), profile=True)[2].counters
        shuffles.append(sum(n for name, n in counters.by_opcode.items() if name.startswith("shfl")))
    assert shuffles[0] == shuffles[1] < shuffles[2]


def test_nan_and_infinity_reach_the_rows_that_see_them_and_no_others() -> None:
    config = config_of(40, causal=True)
    q, k, v = arrays_of(config, 100, 90)
    q[..., 7, 0], q[..., 20, 1], k[..., -30, 3], k[..., -60, 2] = np.nan, np.inf, np.nan, -np.inf
    v[..., -20, 3], v[..., -5, 7], v[..., 4, 5] = np.nan, np.inf, -np.inf
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, causal=True)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])


@pytest.mark.slow
@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_the_warps_gives_the_same_bits(seed: int) -> None:
    config = config_of(64, causal=True)
    arrays = arrays_of(config, 200, 120)
    wanted, _, _ = run_forward(config, arrays)
    out, _, _ = run_forward(config, arrays, sanitize=True, schedule=PCT(seed))
    np.testing.assert_array_equal(out.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.slow
def test_every_access_and_barrier_is_proved() -> None:
    config = AttentionConfig(64, dtype="bf16", target="sm_90a", causal=True)
    assert config.kernel().tiling.block_q == 192
    proofs = build(config.kernel()).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


def test_the_polynomial_is_as_accurate_as_the_instruction() -> None:
    values = np.random.default_rng(1).uniform(-126, 127.5, 1024).astype(np.float32)
    values[500:] = np.random.default_rng(2).uniform(-1, 1, 524)
    odd = [-np.inf, -3e38, -1000, -127, -126, -0.5, -0.0, 0, 1e-40, 0.5, 127, 128, 300, np.inf, np.nan]
    values[: len(odd)] = odd
    found = computed(polynomial_exp2, values, threads=len(values))
    wanted = np.exp2(np.clip(values.astype(np.float64), -1000, 1000))
    np.testing.assert_array_equal(found[values < -126.5], 0)
    np.testing.assert_array_equal(found[values >= 128], np.inf)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    ordinary = (values >= -126) & (values < 128)
    error = np.abs(found[ordinary] / wanted[ordinary] - 1)
    assert 2.0**-24 < error.max() <= 2.0**-22.4
