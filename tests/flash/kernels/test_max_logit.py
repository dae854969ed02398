"""The largest score of each head, as the kernels' own PTX finds it, run on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, random_operands, run_forward

from flash.contract.catalogue import build
from flash.error_bound import arithmetic_of_config
from flash.problem.config import AttentionConfig

pytestmark = [pytest.mark.grid, pytest.mark.judged]

FAMILIES: dict[str, dict[str, Any]] = {
    "f32": {"head_dim": 24, "tile": 16, "block_q": 32},
    "f32, sm_75": {"head_dim": 24, "tile": 16, "block_q": 32, "target": "sm_75"},
    "f16": {"head_dim": 32, "dtype": "f16", "tile": 32, "block_q": 32},
    "bf16, sums are checked": {"head_dim": 64, "dtype": "bf16"},
    "f32_grade": {"head_dim": 32, "precision": "f32_grade"},
    "tf32": {"head_dim": 32, "precision": "tf32"},
    "wgmma": {"head_dim": 64, "dtype": "f16", "target": "sm_90a"},
    "wgmma f32_grade": {"head_dim": 64, "precision": "f32_grade", "target": "sm_90a"},
    "latent": {"head_dim": 576, "head_dim_v": 512, "dtype": "bf16", "shared_kv": True, "target": "sm_90a"},
}
FEATURES: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "negative scale": {"softmax_scale": -0.4},
    "window": {"window": (11, 3)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True, "causal": True},
    "bias": {"bias": "f32"},
    "mask": {"mask": True},
    "sink": {"sink": True},
    "dropout": {"dropout": 0.5},
    "packed heads": {"pack_gqa": True, "causal": True},
}


def arrays_of(config: AttentionConfig, problem: Problem, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
    """Q, K and V; V is columns of K where they share rows."""
    q, k, v = problem.arrays(seed, config.element.numpy)
    return (q, k, k[..., : config.value_dim]) if config.shared_kv else (q, k, v)


def found(config: AttentionConfig, problem: Problem, arrays: Any, **how: Any) -> np.ndarray[Any, Any]:
    """The largest scores, judged with O."""
    operands = random_operands(config, problem)
    found = np.full((problem.batch, problem.heads), -np.inf, np.float32)
    out, _, _ = run_forward(config, arrays, operands=operands, max_logit=found, sanitize=True, **how)
    features = {**config.score_arguments, **operands, "softmax_scale": config.scale, "causal": config.causal}
    if config.dropout:
        features["dropout_seed"] = 0
    arithmetic = arithmetic_of_config(config)
    assert_attention_is_accurate(out, None, *arrays, arithmetic=arithmetic, max_logit=found, **features)
    return found


@pytest.mark.sample(12)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_largest_score_that_a_query_sees(family: str, feature: str) -> None:
    config = AttentionConfig(return_max_logit=True, **FAMILIES[family], **FEATURES[feature])
    problem = Problem(37, 70, config.head_dim, config.value_dim, batch=2, heads=2)
    found(config, problem, arrays_of(config, problem))


@pytest.mark.parametrize("pack_gqa", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_and_keys_beyond_the_end_do_not_count(family: str, pack_gqa: bool) -> None:
    """All scores are negative, and those of rows that are zeros would not be."""
    config = AttentionConfig(return_max_logit=True, pack_gqa=pack_gqa, **FAMILIES[family])
    problem = Problem(5, 19, config.head_dim, config.value_dim, heads=3)
    q, k, v = arrays_of(config, problem)
    one = np.ones((), q.dtype)
    k[...] = -one
    assert (found(config, problem, (np.abs(q) + one, k, v)) < 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_nan_counts_where_a_query_sees_its_key(family: str) -> None:
    config = AttentionConfig(return_max_logit=True, causal=True, **FAMILIES[family])
    problem = Problem(20, 40, config.head_dim, config.value_dim, batch=3, heads=2)
    q, k, v = arrays_of(config, problem)
    k[0, :, -1, 3] = q[1, 1, 7, 0] = np.nan
    k[2, :, -1] = np.inf * q[2, 0, -1, None, :]  # an infinite score with the last query of head 0
    clean = np.full((3, 2), -np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        run_forward(config, (q, k, v), max_logit=clean)
    assert np.isnan(clean).tolist()[:2] == [[True, True], [False, True]]
    assert clean[2, 0] == np.inf


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_minus_infinity_where_no_query_sees_a_key(family: str) -> None:
    config = AttentionConfig(return_max_logit=True, mask=True, **FAMILIES[family])
    problem = Problem(20, 40, config.head_dim, config.value_dim, batch=2, heads=2)
    operands = {"mask": np.zeros((2, 2, 20, 40), bool)}
    operands["mask"][1, 0, 13, 5] = True
    arrays = arrays_of(config, problem)
    result = np.full((2, 2), -np.inf, np.float32)
    run_forward(config, arrays, operands=operands, max_logit=result)
    assert np.isfinite(result).tolist() == [[False, False], [True, False]]
    score = config.scale * (arrays[0][1, 0, 13].astype(float) @ arrays[1][1, 0, 5].astype(float))
    assert result[1, 0] == pytest.approx(score, rel=1e-2)


@pytest.mark.parametrize("before", [-np.inf, -3.5, -0.0, 0.0, 2.25, np.nan])
@pytest.mark.parametrize("score", [-7.0, -0.0, 0.0, 1.5, np.nan])
def test_it_is_joined_with_what_the_array_holds(before: float, score: float) -> None:
    config = AttentionConfig(8, tile=16, block_q=16, return_max_logit=True, softmax_scale=1.0)
    q, k, v = Problem(1, 1, 8, 8).arrays()
    q[...], k[...] = np.eye(8, dtype=np.float32)[0], 0
    k[..., 0] = score
    result = np.full((1, 1), before, np.float32)
    run_forward(config, (q, k, v), max_logit=result)
    wanted = np.maximum(np.float32(before), np.float32(score))
    np.testing.assert_allclose(result, wanted.reshape(1, 1), rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_accesses_are_proved(family: str) -> None:
    for features in (FEATURES["none"], FEATURES["packed heads"]):
        made = build(AttentionConfig(return_max_logit=True, **FAMILIES[family], **features).kernel())
        assert made.proof.complete, made.proof.report()
        assert made.global_proof.complete, made.global_proof.report()
