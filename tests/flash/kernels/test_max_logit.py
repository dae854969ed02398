"""The largest score of each head, as the kernels' own PTX finds it, run on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import FEATURES, KINDS, SEED, Array, Arrays, arrays_of, operands_of
from judge import assert_attention_is_accurate
from kernel_runs import Problem, assert_no_spill, run_forward

from flash.error_bound import arithmetic_of_config
from flash.problem.config import AttentionConfig
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]

EVERY_KIND = pytest.mark.parametrize(
    "kind", ["checked sums", *(kind for kind in KINDS if not kind.startswith(("fp8", "mxfp8", "nvfp4")))]
)
SETTINGS = {**FEATURES, "negative scale": {"softmax_scale": -0.4}, "causal": {"causal": True}}


def config_of(kind: str, **settings: Any) -> AttentionConfig:
    if kind == "checked sums":
        return AttentionConfig(64, dtype="bf16", return_max_logit=True, **settings)
    return KINDS[kind].config(return_max_logit=True, **settings)


def largest(config: AttentionConfig, arrays: Arrays) -> Array:
    """The largest scores, judged with O."""
    operands = operands_of(config, arrays)
    result = np.full(arrays[0].shape[:2], -np.inf, np.float32)
    seed = {"dropout_seed": SEED} if config.dropout else {}
    out, _, _ = run_forward(config, arrays, operands=operands, max_logit=result, sanitize=True, **seed)
    features = {**config.score_arguments, **operands, **seed}
    features |= {"softmax_scale": config.scale, "causal": config.causal}
    arithmetic = arithmetic_of_config(config)
    assert_attention_is_accurate(out, None, *arrays, arithmetic=arithmetic, max_logit=result, **features)
    return result


@pytest.mark.slow
@pytest.mark.sample(6, gate=14)
@pytest.mark.parametrize("feature", SETTINGS)
@EVERY_KIND
def test_it_is_the_largest_score_that_a_query_sees(kind: str, feature: str) -> None:
    config = config_of(kind, **SETTINGS[feature])
    largest(config, arrays_of(config, 37, 70, batch=2, heads=2))


@pytest.mark.sample(4, gate=14)
@pytest.mark.parametrize("pack_gqa", [False, True])
@EVERY_KIND
def test_rows_and_keys_beyond_the_end_do_not_count(kind: str, pack_gqa: bool) -> None:
    """All scores are negative, and those of rows that are zeros would not be."""
    config = config_of(kind, pack_gqa=pack_gqa)
    q, k, v = arrays_of(config, 5, 19, heads=3)
    one = np.ones((), q.dtype)
    k[...] = -one
    assert (largest(config, (np.abs(q) + one, k, v)) < 0).all()


@pytest.mark.slow
@pytest.mark.sample(4, gate=12)
@EVERY_KIND
def test_a_nan_counts_where_a_query_sees_its_key(kind: str) -> None:
    config = config_of(kind, causal=True)
    q, k, v = arrays_of(config, 20, 40, batch=3, heads=2)
    k[0, :, -1, 3] = q[1, 1, 7, 0] = np.nan
    k[2, :, -1] = np.inf * q[2, 0, -1, None, :]  # an infinite score with the last query of head 0
    result = np.full((3, 2), -np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        run_forward(config, (q, k, v), max_logit=result)
    assert np.isnan(result).tolist()[:2] == [[True, True], [False, True]]
    assert result[2, 0] == np.inf


@pytest.mark.slow
@pytest.mark.sample(4, gate=12)
@EVERY_KIND
def test_it_is_minus_infinity_where_no_query_sees_a_key(kind: str) -> None:
    config = config_of(kind, mask=True)
    operands = {"mask": np.zeros((2, 2, 20, 40), bool)}
    operands["mask"][1, 0, 13, 5] = True
    arrays = arrays_of(config, 20, 40, batch=2, heads=2)
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


# Kernels whose registers the largest scores fill.
_FULL = [
    ("mma bf16", (128, 128)),
    ("mma bf16", (64, 128)),
    ("fp8 e4m3", (256, 256)),
    ("fp8 e4m3", (128, 256)),
    ("fp8 e5m2", (256, 256)),
]


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize(("kind", "dims"), _FULL)
@pytest.mark.parametrize("causal", [False, True])
def test_no_default_kernel_spills(
    kind: str, dims: tuple[int, int], causal: bool, assembler: Assembler
) -> None:
    assert_no_spill(KINDS[kind].default(*dims, causal=causal, return_max_logit=True), assembler)
