"""The forward kernel for Hopper: its own PTX, run on the interpreter with the sanitizers on."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, nightly, random_operands, run_forward

from flash.contract.catalogue import build, emit
from flash.error_bound import arithmetic_of_config
from flash.families.choice import offered_tiles
from flash.families.wgmma import WgmmaTiling
from flash.problem.config import AttentionConfig
from flash.problem.tensor_maps import map_name, maps_of
from flash.reference import attention_reference
from ptxgen.check.verify import verify
from ptxgen.interpreter import PCT
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Arrays = tuple[np.ndarray[Any, Any], ...]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
FEATURES: dict[str, dict[str, Any]] = {
    "window": {"window": (30, 25)},
    "left": {"window": (20, None)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True},
    "bias": {"bias": "f32"},
    "key_bias": {"key_bias": "f16"},
    "mask": {"mask": True},
    "sink": {"sink": True},
    "all": {"window": (30, 25), "softcap": 2.0, "alibi": True, "bias": "f32", "mask": True, "sink": True},
}


def config_of(head_dim: int = 16, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    """Small tiles, so that small problems have more of them than stages."""
    small = {"dtype": "f16", "target": "sm_90a", "return_lse": True, "tile": 16, "block_q": 64}
    config = AttentionConfig(head_dim, head_dim_v, **{**small, **how})
    assert isinstance(config.kernel().tiling, WgmmaTiling)
    return config


def arrays_of(config: AttentionConfig, seq_q: int, seq_k: int, **sizes: int) -> Arrays:
    problem = Problem(seq_q, seq_k, config.head_dim, config.value_dim, **sizes)
    return problem.arrays(dtype=NUMPY[str(config.dtype)])


def check(config: AttentionConfig, arrays: Arrays, operands: Any = None, **run: Any) -> None:
    given = operands or {}
    out, lse, _ = run_forward(config, arrays, operands=given, **{"sanitize": True, **run})
    how: Any = {"softmax_scale": config.scale, "causal": config.causal, **config.score_arguments, **given}
    assert_attention_is_accurate(out, lse, *arrays, arithmetic=arithmetic_of_config(config), **how)


# ------------------------------------------------------------------------------------------
# semantics


@pytest.mark.sample(2, gate=3)
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize(
    ("seq_q", "seq_k"), [(1, 1), (1, 100), (64, 96), (100, 1), (65, 113), (130, 16), (20, 33)]
)
def test_every_query_sees_every_key(seq_q: int, seq_k: int, dtype: str) -> None:
    config = config_of(32, dtype=dtype)
    check(config, arrays_of(config, seq_q, seq_k))


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@pytest.mark.parametrize("block_q", [64, 128, 192])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 130), (130, 1), (3, 90), (90, 3), (127, 96), (96, 127)])
def test_a_causal_mask_lets_each_query_see_its_own_keys(
    causal: str, seq_q: int, seq_k: int, block_q: int
) -> None:
    config = config_of(dtype="bf16", causal=causal, block_q=block_q)
    check(config, arrays_of(config, seq_q, seq_k))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"),
    [
        (8, 8),
        (40, 24),
        (64, 64),
        (72, 40),
        (96, 96),
        (128, 128),
        (128, 96),
        (192, 128),
        (192, 192),
        (256, 256),
        (64, 128),
        (40, 136),
        (128, 256),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_every_width_is_right_with_its_default_tiles(head_dim: int, head_dim_v: int, causal: bool) -> None:
    config = config_of(head_dim, head_dim_v, tile="auto", block_q="auto", causal=causal)
    check(config, arrays_of(config, 45, 3 * config.kernel().tiling.tile + 5))


@pytest.mark.nightly
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", NUMPY)
def test_every_tile_offered_is_right(head_dim: int, dtype: str) -> None:
    found = 0
    for tile, block_q in offered_tiles(head_dim, head_dim, target("sm_90a"), dtype):
        how = {"dtype": dtype, "target": "sm_90a", "tile": tile, "block_q": block_q, "causal": True}
        config = AttentionConfig(head_dim, return_lse=True, **how)
        if isinstance(config.kernel().tiling, WgmmaTiling):
            check(config, arrays_of(config, block_q + 5, 3 * tile + 3))
            found += 1
    assert found


@pytest.mark.parametrize("kv_heads", [1])
def test_query_heads_share_key_heads(kv_heads: int) -> None:
    config = config_of(causal=True)
    check(config, arrays_of(config, 20, 33, batch=2, heads=3, kv_heads=kv_heads))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "scale", [0.0, -0.0, -0.7, 3.0, -1e-3, 2e-38, 2.0**20, 1.1 * 2.0**26, -1.1 * 2.0**30]
)
@pytest.mark.parametrize("causal", [False, True])
def test_any_softmax_scale_is_applied(scale: float, causal: bool) -> None:
    config = config_of(softmax_scale=scale, causal=causal)
    check(config, arrays_of(config, 20, 37))


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
def test_every_feature_is_as_accurate_as_numpy(name: str, causal: Any) -> None:
    config = config_of(causal=causal, **FEATURES[name])
    for seq_q, seq_k in ((40, 71), (71, 40)):
        problem = Problem(seq_q, seq_k, 16, 16, heads=2)
        check(config, problem.arrays(dtype=np.float16), random_operands(config, problem))


@pytest.mark.slow
@pytest.mark.parametrize("tile", [nightly(16), nightly(32), 48, nightly(80)])
def test_dropout_is_that_of_the_kernel_with_mma_sync(tile: int) -> None:
    how: Any = {"dropout": 0.3, "causal": True}
    config = config_of(tile=tile, **how)
    arrays = arrays_of(config, 50, 90, heads=2, kv_heads=2)
    out, lse, _ = run_forward(config, arrays, sanitize=True, dropout_seed=7)
    other = AttentionConfig(16, dtype="f16", return_lse=True, target="sm_90", block_q=64, tile=16, **how)
    wanted, wanted_lse, _ = run_forward(other, arrays, dropout_seed=7)
    np.testing.assert_allclose(out.astype(np.float64), wanted.astype(np.float64), atol=4e-3)
    np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", NUMPY)
def test_nan_and_infinity_reach_the_rows_that_see_them_and_no_others(dtype: str) -> None:
    config = config_of(40, dtype=dtype, causal=True)
    q, k, v = arrays_of(config, 70, 90)
    clean, _, _ = run_forward(config, (q, k, v))
    v[..., -20, 3], v[..., -5, 7], v[..., -5, 8], v[..., -2, 8] = np.nan, np.inf, -np.inf, np.inf
    v[..., 4, 5] = -np.inf
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, causal=True)
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])
    np.testing.assert_array_equal(out[~odd], clean[~odd])


def test_infinity_in_the_last_tile_reaches_rows_that_see_all_of_it() -> None:
    # Rows from 64 on see every key: no tile of theirs is cut, but the last one is always masked.
    config = config_of(causal="top_left")
    q, k, v = arrays_of(config, 100, 64)
    v[..., -3, 2] = np.inf
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    assert np.isposinf(out[..., 61:, 2]).all()
    assert np.isfinite(out[..., :61, 2]).all()


def test_scores_far_apart_and_growing_from_tile_to_tile_are_exact() -> None:
    # The walk begins at the last key: the maximum grows at every tile, far beyond the slack.
    config = config_of(softmax_scale=1.0)
    q, k, v = arrays_of(config, 64, 64)
    k *= np.linspace(30, 0, 64, dtype=np.float16)[:, None]
    check(config, (q, k, v))


@pytest.mark.slow
def test_views_of_a_larger_buffer_are_read_in_place() -> None:
    rng = np.random.default_rng(3)
    buffer = rng.standard_normal((2, 40, 3, 2, 24)).astype(np.float16)  # batch, seq, qkv, head, dim
    q, k, v = (buffer[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    check(config_of(24), (q, k, v))


# ------------------------------------------------------------------------------------------
# synchronisation, proofs


@pytest.mark.slow
def test_outputs_wait_for_queries_whose_memory_they_take() -> None:
    # 96 columns have another swizzle than 128, so that the rows of O lie elsewhere in the tile of Q.
    config = config_of(128, 96, block_q=128)
    check(config, arrays_of(config, 128, 40), schedule=PCT(1))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block_q", [64, 128])
def test_every_order_of_the_warps_gives_the_same_bits(seed: int, block_q: int) -> None:
    config = config_of(block_q=block_q, causal=True)
    arrays = arrays_of(config, 70, 90)
    wanted, _, _ = run_forward(config, arrays)
    out, _, _ = run_forward(config, arrays, sanitize=True, schedule=PCT(seed))
    np.testing.assert_array_equal(out.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("block_q", "stages"), [(128, 2), (128, 3), (192, 2)])
def test_twenty_orders_of_the_warps_give_the_same_bits(seed: int, block_q: int, stages: int) -> None:
    config = config_of(64, block_q=block_q, tile=32, stages=stages, causal=True)
    arrays = arrays_of(config, 150, 300)
    wanted, _, _ = run_forward(config, arrays)
    out, _, _ = run_forward(config, arrays, sanitize=True, schedule=PCT(seed))
    np.testing.assert_array_equal(out.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize(
    "how",
    [
        {"head_dim": 16},
        {"head_dim": 128, "tile": "auto", "block_q": "auto", "causal": True},
        {"head_dim": 72, "head_dim_v": 40, "window": (3, 4), "block_q": 128},
        {"head_dim": 64, "bias": "f32", "sink": True, "alibi": True},
        {"head_dim": 64, "head_dim_v": 128, "block_q": 192, "causal": True},
    ],
    ids=str,
)
def test_every_access_and_barrier_is_proved(how: dict[str, Any]) -> None:
    proofs = build(config_of(**how).kernel()).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


def test_the_tiling_says_what_the_kernel_has() -> None:
    for config in (config_of(), config_of(64, block_q=128, causal=True), config_of(96, 64, stages=3)):
        kernel = config.kernel()
        made = emit(kernel)
        (found,) = made.kernels
        assert not verify(made)
        assert found.threads == kernel.tiling.threads
        assert kernel.tiling.shared_bytes - 3072 < found.dynamic_shared_bytes <= kernel.tiling.shared_bytes
        assert [p.name for p in found.params[-4:]] == [map_name(array) for array in maps_of(kernel)]
