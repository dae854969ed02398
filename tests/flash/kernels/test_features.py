"""Window, softcap, ALiBi, bias, mask and sink in both kernels: their own PTX, run on the
interpreter with the sanitizers on.

The same features of the reference, of numpy, of configs and of launches are tested where those are.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, assert_no_spill, mostly_nightly, nightly, random_operands, run_forward

from flash.contract.catalogue import build
from flash.error_bound import arithmetic_of_config
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.check.verify import verify
from ptxgen.interpreter import PCT
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
Operands = dict[str, Array]

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
EVERY_DTYPE = pytest.mark.parametrize("dtype", NUMPY)
# Of f32 on tensor cores, the name of the precision.
ONE_OF_EACH_KERNEL = pytest.mark.parametrize("dtype", ["f32", "f32_grade", "f16"])
EVERY_CAUSAL = pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])

FEATURES: dict[str, dict[str, Any]] = {
    "left": {"window": (20, None)},
    "right": {"window": (None, 4)},
    "both_sides": {"window": (5, 9)},
    "own_position": {"window": (0, 0)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True},
    "bias": {"bias": "f32"},
    "key_bias": {"key_bias": "f32"},
    "mask": {"mask": True},
    "sink": {"sink": True},
    "all": {"window": (30, 25), "softcap": 2.0, "alibi": True, "bias": "f32", "mask": True, "sink": True},
    "all_by_key": {
        "window": (30, 25),
        "softcap": 2.0,
        "alibi": True,
        "key_bias": "f32",
        "mask": True,
        "sink": True,
    },
}
EVERY_FEATURE = pytest.mark.parametrize("name", FEATURES)


def kind(dtype: str) -> dict[str, Any]:
    """What a config says for a kernel of this type or precision."""
    return {"dtype": dtype} if dtype in NUMPY else {"precision": dtype}


def config_of(dtype: str, head_dim: int = 16, **how: Any) -> AttentionConfig:
    """Small tiles, so that small problems have many."""
    tiles = {"tile": 16, "block_q": 16 if dtype == "f32" else 32}
    return AttentionConfig(head_dim, **{"return_lse": True, **kind(dtype), **tiles, **how})


def arrays_of(config: AttentionConfig, problem: Problem) -> Arrays:
    return problem.arrays(dtype=NUMPY[config.dtype])


def reference(config: AttentionConfig, arrays: Arrays, operands: Operands) -> tuple[Array, Array]:
    return attention_reference(
        *arrays, softmax_scale=config.scale, causal=config.causal, **config.score_arguments, **operands
    )


def judge(config: AttentionConfig, arrays: Arrays, operands: Operands, out: Array, lse: Array) -> None:
    assert_attention_is_accurate(
        out,
        lse,
        *arrays,
        softmax_scale=config.scale,
        causal=config.causal,
        arithmetic=arithmetic_of_config(config),
        **config.score_arguments,
        **operands,
    )


def run(config: AttentionConfig, arrays: Arrays, operands: Operands, **how: Any) -> tuple[Array, Array]:
    out, lse, _ = run_forward(config, arrays, operands=operands, **{"sanitize": True, **how})
    return out, lse


def check(config: AttentionConfig, arrays: Arrays, operands: Operands, **how: Any) -> tuple[Array, Array]:
    out, lse = run(config, arrays, operands, **how)
    judge(config, arrays, operands, out, lse)
    return out, lse


def check_random(config: AttentionConfig, problem: Problem, **how: Any) -> tuple[Array, Array]:
    return check(config, arrays_of(config, problem), random_operands(config, problem), **how)


def bits(array: Array) -> Array:
    return array.view(np.uint32 if array.itemsize == 4 else np.uint16)


def assert_same_bits(one: tuple[Array, Array], other: tuple[Array, Array]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


# ------------------------------------------------------------------------------------------
# each feature, and all of them


@pytest.mark.sample(5, gate=13)
@EVERY_DTYPE
@EVERY_CAUSAL
@EVERY_FEATURE
def test_every_feature_is_as_accurate_as_numpy(name: str, causal: Any, dtype: str) -> None:
    config = config_of(dtype, causal=causal, **FEATURES[name])
    for seq_q, seq_k in ((40, 71), (71, 40)):
        check_random(config, Problem(seq_q, seq_k, 16, 16, batch=2, heads=4, kv_heads=2))


@pytest.mark.sample(5, gate=20)
@ONE_OF_EACH_KERNEL
@EVERY_FEATURE
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 50), (50, 1), (17, 0)])
def test_every_feature_is_right_for_the_shortest_sequences(
    name: str, seq_q: int, seq_k: int, dtype: str
) -> None:
    check_random(config_of(dtype, **FEATURES[name]), Problem(seq_q, seq_k, 16, 16, heads=2))


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(3, 5), (40, 72), (128, 64), (256, 256)])
def test_every_feature_at_once_is_right_with_the_default_tiles(
    dtype: str, head_dim: int, head_dim_v: int
) -> None:
    config = AttentionConfig(
        head_dim, head_dim_v, causal=True, return_lse=True, **kind(dtype), **FEATURES["all"]
    )
    check_random(config, Problem(37, 50, head_dim, head_dim_v, heads=2))


@EVERY_DTYPE
def test_a_bias_may_have_the_type_of_the_queries(dtype: str) -> None:
    check_random(config_of(dtype, bias=dtype), Problem(20, 37, 16, 16, heads=2))


# ------------------------------------------------------------------------------------------
# windows


@pytest.mark.sample(2, gate=6)
@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
@pytest.mark.parametrize("window", [(0, None), (7, None), (40, 3), (None, 0), (2, 60)])
def test_a_window_is_right_over_many_tiles(window: Any, causal: Any, dtype: str) -> None:
    config = config_of(dtype, causal=causal, window=window)
    for seq_q, seq_k in ((150, 150), (10, 200), (200, 50)):
        check_random(config, Problem(seq_q, seq_k, 16, 16))


@pytest.mark.sample(2)
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("window", [(0, 0), (33, 7), (None, 20), (70, None)])
def test_a_window_gives_the_same_bits_with_any_number_of_stages(window: Any, stages: int) -> None:
    problem = Problem(150, 170, 16, 16)
    one = config_of("f16", window=window)
    arrays = arrays_of(one, problem)
    several = config_of("f16", window=window, stages=stages)
    assert_same_bits(check(several, arrays, {}), run(one, arrays, {}))


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("seq", [(50, 50), (30, 70), (70, 30)])
def test_a_right_window_of_zero_is_causality(dtype: str, seq: tuple[int, int]) -> None:
    causal, windowed = config_of(dtype, causal=True), config_of(dtype, window=(None, 0))
    arrays = arrays_of(causal, Problem(*seq, 16, 16, heads=2))
    assert_same_bits(run(causal, arrays, {}), run(windowed, arrays, {}))


@pytest.mark.slow
@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
@pytest.mark.parametrize("width", [70, 2**30 - 256])
def test_a_window_wider_than_everything_is_none(dtype: str, causal: Any, width: int) -> None:
    windowed = config_of(dtype, causal=causal, window=(width, width))
    plain = config_of(dtype, causal=causal)
    for seq_q, seq_k in ((50, 70), (70, 50)):
        arrays = arrays_of(plain, Problem(seq_q, seq_k, 16, 16))
        # A right window has a loop of its own in the tensor-core kernel, with the same sums.
        assert_same_bits(run(plain, arrays, {}), run(windowed, arrays, {}))


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
def test_rows_whose_window_holds_no_key_give_zero_and_minus_infinity(dtype: str) -> None:
    # Row i is at the position of key i - 60, and sees from 3 before to 5 behind it.
    config = config_of(dtype, window=(3, 5))
    out, lse = check_random(config, Problem(80, 20, 16, 16))
    np.testing.assert_array_equal(out[:, :, :55], 0)
    np.testing.assert_array_equal(lse[:, :, :55], -np.inf)
    assert np.isfinite(lse[:, :, 55:]).all()
    # The other end: row i is at key i, of 20.
    below = config_of(dtype, window=(3, None), causal="top_left")
    _, lse = check_random(below, Problem(80, 20, 16, 16))
    assert np.isfinite(lse[:, :, :23]).all()
    np.testing.assert_array_equal(lse[:, :, 23:], -np.inf)


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
def test_tiles_outside_the_window_are_not_read(dtype: str) -> None:
    def sectors(**how: Any) -> int:
        config = config_of(dtype, return_lse=False, **how)
        _, _, result = run_forward(config, arrays_of(config, Problem(96, 96, 16, 16)), profile=True)
        found = result.counters.global_sectors_read
        assert found is not None
        return found

    size = config_of(dtype).tile_request.block_q
    assert isinstance(size, int)
    one_tile = 2 * 16 * 16 * config_of(dtype).element.nbytes // 32  # of K, and of V
    skipped = 0
    for first_row in range(0, 96, size):
        seen = range(max(first_row - 10, 0), min(first_row + size + 5, 96))
        skipped += 6 - (-(-seen.stop // 16) - seen.start // 16)
    assert skipped > 0
    assert sectors() - sectors(window=(10, 5)) == skipped * one_tile


# ------------------------------------------------------------------------------------------
# scores: softcap, ALiBi, bias


@EVERY_DTYPE
@pytest.mark.parametrize("cap", [2.0**-20, 0.01, 50.0, 2.0**20])
@pytest.mark.parametrize("scale", [0.25, -3.0, 0.0, 20.0])
def test_any_softcap_is_right_with_any_scale(dtype: str, cap: float, scale: float) -> None:
    config = config_of(dtype, softcap=cap, softmax_scale=scale)
    check_random(config, Problem(20, 37, 16, 16))


@ONE_OF_EACH_KERNEL
def test_a_cap_far_above_the_scores_does_next_to_nothing(dtype: str) -> None:
    config = config_of(dtype, softcap=1e6)
    arrays = arrays_of(config, Problem(20, 37, 16, 16))
    out, lse = run(config, arrays, {})
    judge(config_of(dtype), arrays, {}, out, lse)


@ONE_OF_EACH_KERNEL
def test_a_cap_makes_infinite_scores_finite(dtype: str) -> None:
    config = config_of(dtype, softcap=3.0)
    q, k, v = arrays_of(config, Problem(20, 37, 16, 16))
    k[:, :, 5, 2], k[:, :, 9, 3] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        out, lse = check(config, (q, k, v), {})
    assert np.isfinite(out.astype(np.float32)).all()
    assert np.isfinite(lse).all()


@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("slope", [0.0, 2.0**-8, 3.0, -0.1])
@EVERY_CAUSAL
def test_any_slope_is_right(dtype: str, slope: float, causal: Any) -> None:
    config = config_of(dtype, alibi=True, causal=causal)
    operands = {"alibi_slopes": np.array([slope, 0.5], np.float32)}
    for seq_q, seq_k in ((30, 70), (70, 30)):
        check(config, arrays_of(config, Problem(seq_q, seq_k, 16, 16, heads=2)), operands)


@ONE_OF_EACH_KERNEL
def test_alibi_is_a_bias_of_distances(dtype: str) -> None:
    problem = Problem(30, 50, 16, 16, heads=2)
    alibi, bias = config_of(dtype, alibi=True), config_of(dtype, bias="f32")
    arrays = arrays_of(alibi, problem)
    slopes = np.array([0.25, 0.125], np.float32)
    distance = np.abs(np.arange(30)[:, None] + 20 - np.arange(50)).astype(np.float32)
    out, lse = run(alibi, arrays, {"alibi_slopes": slopes})
    judge(bias, arrays, {"bias": -slopes[:, None, None] * distance}, out, lse)


# ------------------------------------------------------------------------------------------
# what is hidden


@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("by", ["mask", "bias"])
@EVERY_CAUSAL
def test_rows_that_a_plane_hides_all_keys_from_give_zero(dtype: str, by: str, causal: Any) -> None:
    config = config_of(dtype, causal=causal, **FEATURES[by])
    arrays = arrays_of(config, Problem(40, 40, 16, 16, heads=2))
    shown = np.random.default_rng(0).random((2, 40, 40)) < 0.8
    shown[:, [0, 7, 39]] = False
    shown[1] = False
    operands = {by: shown if by == "mask" else np.where(shown, 0, -np.inf).astype(np.float32)}
    out, lse = check(config, arrays, operands)
    for rows in (out[:, :, [0, 7, 39]], out[:, 1]):
        np.testing.assert_array_equal(rows, 0)
    for sums in (lse[:, :, [0, 7, 39]], lse[:, 1]):
        np.testing.assert_array_equal(sums, -np.inf)


@pytest.mark.sample(3, gate=13)
@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
@pytest.mark.parametrize("features", [{"mask": True}, {"bias": "f32"}, {"window": (9, 5)}], ids=str)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_hidden_cannot_reach_a_row(
    dtype: str, causal: Any, features: dict[str, Any], poison: float
) -> None:
    config = config_of(dtype, causal=causal, **features)
    problem = Problem(50, 60, 16, 16)
    q, k, v = arrays_of(config, problem)
    operands = random_operands(config, problem)
    for name, array in operands.items():
        array[..., 20, :] = array[..., 20, :1] if name != "mask" else True
        array[..., :, [3, 33]] = 0 if name == "mask" else -np.inf
        array[..., 41:, 33] = 1
    clean = run(config, (q, k, v), operands)
    k[:, :, [3, 33]], v[:, :, [3, 33]] = poison, poison
    out, lse = run(config, (q, k, v), operands)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted, wanted_lse = reference(config, (q, k, v), operands)
    hidden = np.isfinite(wanted_lse) | np.isneginf(wanted_lse)
    hidden &= np.isfinite(wanted).all(axis=-1)
    assert hidden.any()
    np.testing.assert_array_equal(bits(out[hidden]), bits(clean[0][hidden]))
    np.testing.assert_array_equal(bits(lse[hidden]), bits(clean[1][hidden]))
    assert not np.isfinite(out[~hidden].astype(np.float32)).all(axis=-1).any()


@pytest.mark.sample(2)
@EVERY_DTYPE
@pytest.mark.parametrize("features", [{"mask": True}, {"bias": "f32"}, {"window": (30, 25)}], ids=str)
def test_nan_and_infinity_of_values_reach_the_rows_that_see_them_and_no_others(
    dtype: str, features: dict[str, Any]
) -> None:
    config = config_of(dtype, **features)
    problem = Problem(70, 60, 16, 16, heads=2)
    q, k, v = arrays_of(config, problem)
    operands = random_operands(config, problem)
    clean, _ = run(config, (q, k, v), operands)
    v[..., 40, 3], v[..., 52, 7], v[..., 53, 8], v[..., 2, 8] = np.nan, np.inf, -np.inf, np.inf
    out, _ = run(config, (q, k, v), operands)
    with np.errstate(invalid="ignore"):
        wanted, _ = reference(config, (q, k, v), operands)
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])
    np.testing.assert_array_equal(bits(out[~odd]), bits(clean[~odd]))
    assert odd.any()
    assert not odd[:, :, :, [3, 7, 8]].all()


@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("byte", [1, 2, 0x80, 0xFF])
def test_any_byte_but_zero_shows_a_key(dtype: str, byte: int) -> None:
    config = config_of(dtype, mask=True)
    problem = Problem(20, 37, 16, 16)
    arrays, operands = arrays_of(config, problem), random_operands(config, problem)
    odd = (operands["mask"] * np.uint8(byte)).view(bool)
    assert_same_bits(run(config, arrays, operands), run(config, arrays, {"mask": odd}))


# ------------------------------------------------------------------------------------------ sink


@EVERY_DTYPE
@EVERY_CAUSAL
@pytest.mark.parametrize("logit", [-80.0, 0.0, 30.0, 1e4, -1e30])
def test_a_sink_of_any_size_is_right(dtype: str, causal: Any, logit: float) -> None:
    config = config_of(dtype, sink=True, causal=causal)
    operands = {"sink": np.array([logit, 1.0], np.float32)}
    check(config, arrays_of(config, Problem(40, 30, 16, 16, heads=2)), operands)


@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
def test_a_sink_of_minus_infinity_is_none(dtype: str, causal: Any) -> None:
    with_sink, plain = (config_of(dtype, causal=causal, sink=there) for there in (True, False))
    arrays = arrays_of(plain, Problem(40, 30, 16, 16, heads=2))
    operands = {"sink": np.full(2, -np.inf, np.float32)}
    out, lse = run(with_sink, arrays, operands)
    judge(plain, arrays, {}, out, lse)


@ONE_OF_EACH_KERNEL
def test_a_row_without_a_key_gives_zero_and_the_sink(dtype: str) -> None:
    config = config_of(dtype, sink=True, causal=True)
    operands = {"sink": np.array([1.5, -2.0], np.float32)}
    out, lse = check(config, arrays_of(config, Problem(40, 7, 16, 16, heads=2)), operands)
    np.testing.assert_array_equal(out[:, :, :33], 0)
    np.testing.assert_allclose(lse[0, :, :33], np.repeat([[1.5], [-2.0]], 33, axis=1), rtol=1e-6)
    assert (lse[0, :, 33:] > operands["sink"][:, None]).all()


@ONE_OF_EACH_KERNEL
def test_a_sink_is_a_key_with_a_value_of_zero(dtype: str) -> None:
    config = config_of(dtype, sink=True)
    q, k, v = arrays_of(config, Problem(20, 37, 16, 16))
    q[..., 0] = 1
    k[..., 0] = 0
    out, lse = run(config, (q, k, v), {"sink": np.array([2.0], np.float32)})
    extra = np.zeros((1, 1, 1, 16), k.dtype)
    extra[..., 0] = 2.0 / config.scale
    longer = np.concatenate([k, extra], axis=2), np.concatenate([v, 0 * extra], axis=2)
    judge(config_of(dtype), (q, *longer), {}, out, lse)


# ------------------------------------------------------------------------------------------
# strides, order, repeatability


@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("of", ["bias", "mask"])
@pytest.mark.parametrize(
    "shape", [(2, 4, 30, 45), (1, 4, 30, 45), (4, 1, 45), (30, 1), (45,), (2, 1, 1, 45), (1, 1), ()], ids=str
)
def test_a_plane_of_any_shape_that_broadcasts_is_right(dtype: str, of: str, shape: tuple[int, ...]) -> None:
    config = config_of(dtype, causal=True, **FEATURES[of])
    rng = np.random.default_rng(3)
    array = rng.random(shape) < 0.8 if of == "mask" else rng.standard_normal(shape)
    operands = {of: np.asarray(array, bool if of == "mask" else np.float32)}
    check(config, arrays_of(config, Problem(30, 45, 16, 16, batch=2, heads=4)), operands)


def _views(array: Array) -> dict[str, Array]:
    wide = np.repeat(array, 3, axis=-1)
    return {
        "transposed": np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2),
        "spaced": wide[..., ::3],
        "reversed": np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1],
        "heads last": np.ascontiguousarray(array.transpose(2, 3, 0, 1)).transpose(2, 3, 0, 1),
    }


@EVERY_DTYPE
@pytest.mark.parametrize("how", ["transposed", "spaced", "reversed", "heads last"])
def test_planes_of_any_strides_give_the_same_bits(dtype: str, how: str) -> None:
    config = config_of(dtype, bias=dtype, mask=True)
    problem = Problem(30, 45, 16, 16, batch=2, heads=4)
    arrays, operands = arrays_of(config, problem), random_operands(config, problem)
    odd = {name: _views(array)[how] for name, array in operands.items()}
    for name, array in odd.items():
        assert array.strides != operands[name].strides
        np.testing.assert_array_equal(array, operands[name])
    assert_same_bits(run(config, arrays, operands), run(config, arrays, odd))


@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("of", ["alibi", "sink"])
@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (2, 1), (4,), ()], ids=str)
def test_a_number_of_each_head_may_be_broadcast(dtype: str, of: str, shape: tuple[int, ...]) -> None:
    config = config_of(dtype, **FEATURES[of])
    drawn = np.abs(np.random.default_rng(3).standard_normal(shape)).astype(np.float32)
    operands = {config.features.operands[0].name: np.asarray(drawn)}
    check(config, arrays_of(config, Problem(20, 37, 16, 16, batch=2, heads=4)), operands)
    if shape == (2, 4):
        backwards = {name: a[::-1, ::-1].copy()[::-1, ::-1] for name, a in operands.items()}
        check(config, arrays_of(config, Problem(20, 37, 16, 16, batch=2, heads=4)), backwards)


@pytest.mark.sample(0, gate=3)
@ONE_OF_EACH_KERNEL
@EVERY_FEATURE
def test_repeated_runs_and_other_orders_of_the_warps_give_the_same_bits(name: str, dtype: str) -> None:
    config = config_of(dtype, causal=True, **FEATURES[name])
    problem = Problem(70, 90, 16, 16, heads=2)
    arrays, operands = arrays_of(config, problem), random_operands(config, problem)
    first = run(config, arrays, operands, sanitize=False)
    assert_same_bits(first, run(config, arrays, operands, sanitize=False))
    for seed in range(2):
        assert_same_bits(first, run(config, arrays, operands, schedule=PCT(seed)))


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
def test_narrow_accesses_give_the_same_bits_as_wide_ones(dtype: str) -> None:
    narrow = config_of(dtype, alignment=4, **FEATURES["all"])
    problem = Problem(37, 50, 16, 16)
    arrays, operands = arrays_of(narrow, problem), random_operands(narrow, problem)
    wide = config_of(dtype, **FEATURES["all"])
    assert_same_bits(run(narrow, arrays, operands), run(wide, arrays, operands))


# ------------------------------------------------------------------------------------------
# text, proofs, registers


@EVERY_DTYPE
@EVERY_FEATURE
def test_the_text_verifies_and_reads_back(name: str, dtype: str) -> None:
    module = build(config_of(dtype, causal=True, **FEATURES[name]).kernel()).module
    assert verify(module) == ()
    assert parse(render(module)) == module


@pytest.mark.sample(0, gate=6)
@ONE_OF_EACH_KERNEL
@EVERY_FEATURE
@pytest.mark.parametrize("causal", [False, "bottom_right", nightly("top_left")])
def test_every_access_is_proved(name: str, dtype: str, causal: Any) -> None:
    made = build(AttentionConfig(64, causal=causal, **kind(dtype), **FEATURES[name]).kernel())
    assert made.proof.complete, made.proof.unknown
    found = made.global_proof
    assert not found.violations
    assert not found.unknown, found.unknown


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("target", [nightly("sm_80"), "sm_90"])  # which takes the most registers
@pytest.mark.parametrize("causal", [nightly(False), True])
@ONE_OF_EACH_KERNEL
def test_no_default_kernel_spills(dtype: str, causal: bool, target: str, assembler: Assembler) -> None:
    for head_dim in (64, 128):
        for features in FEATURES.values():
            config = AttentionConfig(
                head_dim, causal=causal, return_lse=True, target=target, **kind(dtype), **features
            )
            assert_no_spill(config, assembler)


GENERATIONS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
# Of 16 bits, whose rows of an odd length, or at any address, are copied element by element.
ODD: list[dict[str, Any]] = [
    {"head_dim": 59},
    {"head_dim": 111},
    {"head_dim": 127},
    {"head_dim": 191},
    {"head_dim": 193},
    {"head_dim": 255},
    {"head_dim": 128, "head_dim_v": 255},
    {"head_dim": 256, "head_dim_v": 191},
    {"head_dim": 256, "head_dim_v": 223},
    {"head_dim": 256, "head_dim_v": 241},
    {"head_dim": 256, "head_dim_v": 255},
    {"head_dim": 64, "head_dim_v": 511},
    {"head_dim": 256, "head_dim_v": 511},
    {"head_dim": 64, "alignment": 2},
    {"head_dim": 128, "alignment": 2},
    {"head_dim": 256, "alignment": 2},
]


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("target", mostly_nightly(GENERATIONS, ["sm_90"]))
@pytest.mark.parametrize("dims", mostly_nightly(ODD, [{"head_dim": 256, "head_dim_v": 255}]))
@pytest.mark.parametrize("dtype", ["f16", nightly("bf16")])
def test_no_default_kernel_spills_whose_rows_are_odd(
    dtype: str, dims: dict[str, Any], target: str, assembler: Assembler
) -> None:
    for features in ({}, {"dropout": 0.1}, *FEATURES.values()):
        for causal in (False, True):
            how = {**dims, **features, "dtype": dtype, "target": target, "return_lse": True}
            assert_no_spill(AttentionConfig(causal=causal, **how), assembler)


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("causal", [nightly(False), "bottom_right", nightly("top_left")])
def test_no_default_kernel_with_alibi_spills_on_the_target_with_the_fewest_registers_left(
    causal: Any, dtype: str, assembler: Assembler
) -> None:
    for window in (None, (20, None), (None, 4)):
        config = AttentionConfig(
            128, dtype=dtype, causal=causal, window=window, alibi=True, return_lse=True, target="sm_100"
        )
        assert_no_spill(config, assembler)


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("target", GENERATIONS)
@pytest.mark.parametrize("head_dim", [16, 32, 40, 64, 80, 96, 111, 128, 160, 192, 256])
@pytest.mark.parametrize("dtype", [*NUMPY, "f32_grade", "tf32"])
def test_no_default_kernel_spills_at_any_head_dim(
    dtype: str, head_dim: int, target: str, assembler: Assembler
) -> None:
    for features in FEATURES.values():
        for causal in (False, True):
            config = AttentionConfig(
                head_dim, causal=causal, return_lse=True, target=target, **kind(dtype), **features
            )
            assert_no_spill(config, assembler)
