"""Dropout: which weights are kept, and that every backend and tiling keeps the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, run_forward
from refusals import refusal

from flash import AttentionKernel
from flash.error_bound import arithmetic_of_config
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from flash.scores.philox import keep_mask, philox, threshold
from ptxgen.errors import ConfigError

pytestmark = [pytest.mark.grid, pytest.mark.judged]

SEED = 0x1234_5678_9ABC_DEF0


def test_the_generator_gives_the_known_answers() -> None:
    # Random123, `kat_vectors`, "philox4x32 7".
    ones = 0xFFFF_FFFF
    vectors = {
        ((0, 0, 0, 0), 0): (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48),
        ((ones,) * 4, (1 << 64) - 1): (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662),
    }
    for (counter, seed), wanted in vectors.items():
        assert tuple(int(word) for word in philox(counter, seed)) == wanted


@pytest.mark.parametrize("dropout", [2**-16, 0.1, 0.5, 0.999])
def test_weights_are_kept_at_the_rate_asked_for(dropout: float) -> None:
    keep = keep_mask(dropout, SEED, np.arange(4), np.arange(512), np.arange(512))
    probability = threshold(dropout) / 65536
    assert abs(probability - (1 - dropout)) <= 2**-17
    deviation = math.sqrt(probability * (1 - probability) / keep.size)
    assert abs(keep.mean() - probability) < 5 * deviation


def test_rows_keys_and_heads_are_independent() -> None:
    keep = keep_mask(0.5, SEED, np.arange(3), np.arange(256), np.arange(256)).astype(float) - 0.5
    most = 0.25 * 5 / math.sqrt(keep.size)
    for shift, axis in ((1, 0), (1, 1), (1, 2), (8, 2)):
        assert abs((keep * np.roll(keep, shift, axis)).mean()) < most
    other = keep_mask(0.5, SEED + 1, np.arange(3), np.arange(256), np.arange(256)).astype(float) - 0.5
    assert abs((keep * other).mean()) < most


TILES = [("f32", 16, 16), ("f32", 32, 64), ("f32", 128, 32), ("f16", 16, 32), ("f16", 64, 64)]


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(("dtype", "tile", "block_q"), TILES)
def test_every_tiling_drops_the_weights_of_the_reference(dtype: str, tile: int, block_q: int) -> None:
    config = AttentionConfig(
        16, dtype=dtype, tile=tile, block_q=block_q, dropout=0.3, return_lse=True, target="sm_90"
    )
    arrays = Problem(40, 150, 16, 16, 2, 2).arrays(dtype=config.element.numpy)
    out, lse, _ = run_forward(config, arrays, sanitize=True, dropout_seed=SEED)
    assert_attention_is_accurate(
        out,
        lse,
        *arrays,
        softmax_scale=config.scale,
        dropout=0.3,
        dropout_seed=SEED,
        arithmetic=arithmetic_of_config(config),
    )


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_backends_drop_the_same_weights_with_everything_else_on(dtype: str) -> None:
    rng = np.random.default_rng(3)
    config = AttentionConfig(
        24, dtype=dtype, causal=True, window=(30, None), softcap=4.0, mask=True, sink=True, dropout=0.25
    )
    q, k, v = Problem(33, 50, 24, 24, 2, 4, 2).arrays(dtype=config.element.numpy)
    how: Any = {
        "mask": rng.random((2, 1, 33, 50)) < 0.8,
        "sink": rng.standard_normal(4).astype(np.float32),
        "dropout_seed": SEED,
        "return_lse": True,
    }
    kernel = AttentionKernel(config)
    for backend in ("cpu", "interpreter"):
        out, lse = kernel.launch(q, k, v, backend=backend, **how)
        assert_attention_is_accurate(
            out,
            lse,
            q,
            k,
            v,
            causal=True,
            window=(30, None),
            softcap=4.0,
            mask=how["mask"],
            sink=how["sink"],
            dropout=0.25,
            dropout_seed=SEED,
            arithmetic=arithmetic_of_config(config),
        )


def test_the_same_seed_gives_the_same_bits_and_another_gives_others() -> None:
    config = AttentionConfig(16, dropout=0.5, tile=16, block_q=16)
    arrays = Problem(20, 40, 16, 16).arrays()
    one, again, other = (run_forward(config, arrays, dropout_seed=seed)[0] for seed in (5, 5, 5 + (1 << 32)))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_the_mean_over_seeds_is_the_result_without_dropout() -> None:
    q, k, v = Problem(4, 64, 8, 8).arrays()
    runs = [attention_reference(q, k, v, dropout=0.5, dropout_seed=n)[0] for n in range(400)]
    exact = attention_reference(q, k, v)[0]
    error = np.std(runs, axis=0) / math.sqrt(len(runs))
    assert (np.abs(np.mean(runs, axis=0) - exact) < 5 * error).all()


@pytest.mark.parametrize("wrong", [1, 1.0, -0.1, "0.1", True, math.nan])
def test_a_probability_that_is_none_is_refused(wrong: Any) -> None:
    assert refusal(AttentionConfig, 64, error=ConfigError, dropout=wrong) == (
        "AttentionConfig: dropout must be a probability from 0 to less than 1, got " + repr(wrong)
    )


@pytest.mark.parametrize("wrong", [None, -1, 1 << 64, 0.5, True])
def test_a_launch_with_dropout_needs_a_seed(wrong: Any) -> None:
    q, k, v = Problem(4, 4, 8, 8).arrays()
    assert refusal(AttentionKernel(AttentionConfig(8, dropout=0.5)).launch, q, k, v, dropout_seed=wrong) == (
        "launch: dropout_seed must be an integer from 0 to 2**64 - 1, because the config has "
        f"dropout=0.5, got {wrong!r}"
    )


def test_a_seed_without_dropout_is_refused() -> None:
    q, k, v = Problem(4, 4, 8, 8).arrays()
    assert refusal(AttentionKernel(AttentionConfig(8)).launch, q, k, v, dropout_seed=1) == (
        "launch: dropout_seed is given, but the config has no dropout; use AttentionConfig(dropout=0.1, ...)"
    )
