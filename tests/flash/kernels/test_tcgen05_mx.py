"""Q, K and V of MXFP8, and Q and K of NVFP4: the quantizers, calls on every backend, and what only the kernel
for Blackwell with scales of blocks has. What it has in common with other kernels is tested by their table.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance import KINDS, arrays_of, check, operands_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_runs import refusal

import flash
from flash import AttentionConfig, AttentionKernel, quantize_mx, quantize_nvfp4
from flash.problem.features import SCALES
from flash.reference import attention_reference, scaled_numbers
from ptxgen.errors import ConfigError, LaunchError

config_of = KINDS["mxfp8 e4m3 on sm_100a"].config
E8M0 = ml_dtypes.float8_e8m0fnu
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def narrow(*arrays: Any, dtype: Any = "e4m3") -> tuple[list[Any], dict[str, Any]]:
    """Q, K and V of MXFP8, and their scales, by the names of arguments."""
    q, k, v = arrays
    pairs = [quantize_mx(q, dtype), quantize_mx(k, dtype), quantize_mx(v, dtype, axis=-2)]
    return [x for x, _ in pairs], dict(zip(SCALES, (scale for _, scale in pairs), strict=True))


def of_four_bits(*arrays: Any) -> tuple[list[Any], dict[str, Any]]:
    """Q and K of NVFP4, V of MXFP8, and their scales, by the names of arguments."""
    q, k, v = arrays
    pairs = [quantize_nvfp4(q), quantize_nvfp4(k), quantize_mx(v, axis=-2)]
    return [x for x, _ in pairs], dict(zip(SCALES, (scale for _, scale in pairs), strict=True))


def normal(seq_q: int = 70, seq_k: int = 100, columns: int = 64) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 2, n, columns), dtype=np.float32) for n in (seq_q, seq_k, seq_k)]


# ------------------------------------------------------------------------------------------
# numbers


@given(st.sampled_from(["e4m3", "e5m2"]), st.integers(1, 70), st.sampled_from([0, 1, -1]), st.integers(0, 99))
def test_a_scale_is_the_least_power_of_two_with_which_no_element_is_too_large(
    dtype: Any, length: int, axis: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (length, 3) if axis == 0 else (3, length)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-40, 40, shape))).astype(np.float32)
    elements, scales = quantize_mx(x, dtype, axis=axis)
    assert (scales.dtype, elements.shape) == (E8M0, x.shape)
    powers = np.repeat(scales.astype(np.float64), 32, axis=axis)[: shape[0], : shape[1]]
    of_block = np.abs(x).astype(np.float64)
    blocks = np.split(of_block, range(32, length, 32), axis=axis)
    most = np.concatenate([np.broadcast_to(b.max(axis, keepdims=True), b.shape) for b in blocks], axis)
    assert (most <= LARGEST[dtype] * powers).all()
    assert (most > LARGEST[dtype] * powers / 2).all()
    step = np.maximum(np.abs(x), powers * float(ml_dtypes.finfo(elements.dtype).smallest_normal))
    wrong = np.abs(elements.astype(np.float64) * powers - x)
    assert (wrong <= step * float(ml_dtypes.finfo(elements.dtype).eps) / 2).all()


def test_numbers_that_are_not_finite_and_rows_of_zeros_have_scales() -> None:
    x = np.zeros((4, 32), np.float32)
    x[0, :3], x[1, 0], x[2, 0] = (np.nan, np.inf, 3.0), 3e38, 1e-45
    elements, scales = quantize_mx(x)
    assert scales.view(np.uint8)[:, 0].tolist() == [127 - 7, 127 + 120, 0, 127 - 9]
    assert np.isnan(elements[0, 0].astype(np.float32))
    assert elements[:, 1].astype(np.float32).tolist() == [448.0, 0.0, 0.0, 0.0]
    assert elements[0, 2] == 384


@given(st.integers(0, 99), st.sampled_from([-3, -12, 0, 11]))
def test_elements_of_four_bits_are_those_of_ml_dtypes(seed: int, power: int) -> None:
    x = np.random.default_rng(seed).standard_normal((3, 64)).astype(np.float32)
    x[0, :16] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.0, -0.25, -0.75, -1.25, -5.0, -6.0, 0.1, 4.9]
    x *= 2.0**power
    elements, scales = quantize_nvfp4(x)
    blocks = x.reshape(3, 4, 16)
    largest = np.minimum(np.abs(blocks).max(axis=-1) / np.float32(6), np.float32(448))
    np.testing.assert_array_equal(scales, largest.astype(ml_dtypes.float8_e4m3fn))
    wide = scales.astype(np.float32)[..., None]
    scaled = np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide > 0)
    wanted = scaled.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * wide
    numbers = scaled_numbers(elements[None, None], scales[None, None], "nv")
    np.testing.assert_array_equal(numbers[0, 0], wanted.reshape(x.shape))


def test_blocks_with_nan_have_no_scale_and_infinity_becomes_the_largest_number() -> None:
    x = np.zeros((3, 16), np.float32)
    x[0, :2], x[1, :2] = (np.nan, 3.0), (-np.inf, 3.0)
    elements, scales = quantize_nvfp4(x)
    assert np.isnan(scales[0, 0])
    assert (scales[1:, 0].tolist(), elements[1:, 0].tolist()) == ([0.5, 0.0], [0x7F, 0])


def test_blocks_of_packed_sequences_begin_with_each_of_them() -> None:
    x = np.random.default_rng(0).standard_normal((150, 2, 3)).astype(np.float32)
    ends = np.array([2, 2, 35, 36, 100, 147], np.int32)
    elements, scales = quantize_mx(x, axis=0, cu_seqlens=ends)
    assert (elements.shape, scales.shape) == (x.shape, (5 + 5, 2, 3))
    for b, (first, end) in enumerate(itertools.pairwise(ends)):
        alone, powers = quantize_mx(x[first:end], axis=0)
        np.testing.assert_array_equal(elements[first:end], alone)
        np.testing.assert_array_equal(scales[first // 32 + b :][: len(powers)], powers)
    for nothing in (ends[:1], None):
        np.testing.assert_array_equal(
            quantize_mx(x, axis=0, cu_seqlens=nothing)[1], quantize_mx(x, axis=0)[1]
        )


def test_tensors_become_the_same_bytes_as_arrays_of_numpy() -> None:
    torch = pytest.importorskip("torch")
    x = normal()[0].astype(ml_dtypes.bfloat16).swapaxes(2, 3)
    tensor = torch.from_numpy(x.astype(np.float32)).bfloat16()
    columns = x.swapaxes(2, 3), tensor.mT
    pairs = [*((quantize_mx(x, axis=n), quantize_mx(tensor, axis=n)) for n in (-1, 1))]
    pairs.append((quantize_nvfp4(columns[0]), quantize_nvfp4(columns[1])))
    ends = np.array([0, 1, 1, 50], np.int32)
    packed = (
        quantize_mx(x, axis=2, cu_seqlens=ends),
        quantize_mx(tensor, axis=2, cu_seqlens=torch.tensor(ends)),
    )
    pairs.append(packed)
    for ours, of_torch in pairs:
        for one, other in zip(ours, of_torch, strict=True):
            assert str(other.dtype) == f"torch.{one.dtype}"
            np.testing.assert_array_equal(one.view(np.uint8), other.view(torch.uint8).numpy())


# ------------------------------------------------------------------------------------------
# calls


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "block"), [("e4m3", "mx"), ("e5m2", "mx"), ("e4m3", "nv")])
@pytest.mark.parametrize("backend", ["cpu", "compiled", "interpreter"])
def test_every_backend_multiplies_numbers_by_their_scales(
    dtype: str, block: Any, backend: Any, request: pytest.FixtureRequest
) -> None:
    if backend == "compiled":
        request.getfixturevalue("compiled")
    arrays, scales = of_four_bits(*normal()) if block == "nv" else narrow(*normal(), dtype=dtype)
    numbers = [scaled_numbers(x, scales[n], block) for n, x in zip(SCALES, arrays, strict=True)]
    wanted, _ = attention_reference(*numbers, causal=True)
    how: Any = {"causal": True, "scale_block": block, "out_dtype": "f16", **scales}
    most = 2.0**-4 if backend == "interpreter" else 2.0**-11  # of kernels, whose weights are of fp8
    out = flash.attention(*arrays, backend=backend, **how)
    assert np.abs(out - wanted).max() <= most * np.abs(wanted).max()


def test_tensors_and_views_of_scales_are_taken_in_place() -> None:
    torch = pytest.importorskip("torch")
    arrays, scales = narrow(*normal())
    how: Any = {"scale_block": "mx", "backend": "cpu"}
    out = flash.attention(*arrays, **how, **scales)
    rows = {n: s.swapaxes(1, 2).copy().swapaxes(1, 2) for n, s in scales.items()}
    np.testing.assert_array_equal(out, flash.attention(*arrays, **how, **rows))
    tensors = [torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn) for x in arrays]
    of_torch = {n: torch.from_numpy(s.view(np.uint8)).view(torch.float8_e8m0fnu) for n, s in scales.items()}
    result = flash.attention(*tensors, **how, **of_torch)
    np.testing.assert_array_equal(out.view(np.uint16), result.view(torch.uint16).numpy())


@pytest.mark.judged
@pytest.mark.parametrize("splits", [2, 3])
def test_splits_are_as_accurate_as_one(splits: int) -> None:
    config = config_of(splits=splits, block_q=128, return_lse=False, causal=True)
    arrays = arrays_of(config, 70, 300)
    scales = operands_of(config, arrays)
    out: Any = AttentionKernel(config).launch(*arrays, backend="interpreter", **scales)
    numbers = [scaled_numbers(x, scales[n], "mx") for n, x in zip(SCALES, arrays, strict=True)]
    wanted, _ = attention_reference(*numbers, causal=True)
    assert np.abs(out.astype(np.float64) - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.judged
def test_scales_of_any_size_are_exact() -> None:
    config = config_of()
    arrays, rng = arrays_of(config, 40, 90), np.random.default_rng(2)
    far = rng.integers(-30, 30, (1, 1, 40, 2)), rng.integers(-90, 110, (1, 1, 3, 64))
    q_scale, v_scale = (np.exp2(x).astype(E8M0) for x in far)
    scales = {**operands_of(config, arrays), "q_scale": q_scale, "v_scale": v_scale}
    check(config, arrays, scales)


def test_the_default_target_is_of_both_gpus_and_explain_names_the_blocks() -> None:
    arrays, scales = narrow(*normal())
    config = AttentionConfig(64, dtype="e4m3", scale_block="mx")
    assert config.target == "sm_100f"
    text = AttentionKernel(config).explain(*arrays, backend="interpreter", **scales)
    assert (
        "products: tcgen05 of mxfp8, with tiles copied by TMA and sums in tensor memory; no GPU has run it\n"
        "scales:   one of Q, K and V for each 32 elements of a row of Q and K, and each 32 of a column of "
        "V\n" in text
    )


# ------------------------------------------------------------------------------------------
# errors

ONE_KERNEL = (
    "AttentionConfig: scale_block='mx' has one kernel, for sm_100a and sm_103a, which does not take this on "
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"head_dim": 48},
            "AttentionConfig: scale_block='mx' needs a head_dim of multiples of 32, the elements of Q and K "
            "that share a scale, got 48; pad Q and K with zeros",
        ),
        (
            {"dtype": "bf16"},
            "AttentionConfig: scale_block is for Q, K and V of 'e4m3' or 'e5m2', which have scales; those of "
            "'bf16' have none, got 'mx'; leave it out",
        ),
        (
            {"head_dim": 80, "scale_block": "nv"},
            "AttentionConfig: scale_block='nv' needs a head_dim of multiples of 32, two blocks of elements "
            "of Q and K that share a scale, got 80; pad Q and K with zeros",
        ),
        (
            {"target": "sm_90a"},
            f"{ONE_KERNEL}sm_90a: tcgen05 is of sm_100a, sm_103a and their families alone; or convert Q, K "
            "and V to 'bf16'",
        ),
        (
            {"varlen": True, "page_size": 48},
            f"{ONE_KERNEL}sm_100f: page_size=48, which is no multiple of 32; or convert Q, K and V to 'bf16'",
        ),
    ],
    ids=str,
)
def test_problems_without_a_kernel_are_refused(settings: dict[str, Any], message: str) -> None:
    how = {"head_dim": 64, "dtype": "e4m3", "scale_block": "mx", **settings}
    assert refusal(AttentionConfig, error=ConfigError, **how) == message


def test_scales_of_another_type_or_shape_are_refused() -> None:
    arrays, scales = narrow(*normal())
    bytes_of = {n: s.view(np.uint8) for n, s in scales.items()}
    how: Any = {"backend": "cpu", "scale_block": "mx"}
    assert refusal(flash.attention, *arrays, **how, **{**scales, "q_scale": bytes_of["q_scale"]}) == (
        "attention: q_scale must be float8_e8m0fnu, got uint8; convert with "
        "q_scale.view(ml_dtypes.float8_e8m0fnu)"
    )
    assert refusal(flash.attention, *arrays, **how, **{**scales, "k_scale": scales["k_scale"][..., :1]}) == (
        "attention: k_scale must be [batch, kv_heads, seq_k, head_dim / 32] = [2, 2, 100, 2], got "
        "[2, 2, 100, 1]"
    )
    assert refusal(flash.attention, *arrays, **how, **{**scales, "v_scale": scales["v_scale"][:, :, :3]}) == (
        "attention: v_scale must be [batch, kv_heads, k_blocks, head_dim_v] = [2, 2, 4, 64], got "
        "[2, 2, 3, 64]"
    )
    bytes_of["k_scale"][0, 0, 0, 0] = 255
    assert refusal(flash.attention, *arrays, **how, **scales) == (
        "attention: k_scale must hold finite numbers, got nan"
    )
    ones = {n: np.ones((2, 2), np.float32) for n in SCALES}
    ones["q_scale"] = np.ones((2, 2), E8M0)
    assert refusal(flash.attention, *arrays, backend="cpu", **ones) == (
        "attention: q_scale must be float32, got float8_e8m0fnu; convert with q_scale.astype('float32'), or "
        "give scale_block='mx'"
    )


def test_elements_and_scales_that_are_not_of_four_bits_are_refused() -> None:
    (q, k, v), scales = of_four_bits(*normal())
    how: Any = {"backend": "cpu", "scale_block": "nv"}
    assert refusal(flash.attention, normal()[0], k, v, **how, **scales) == (
        "attention: 2 problems\n  q must be uint8, two of e2m1 in each, with scale_block='nv', got float32; "
        "convert with flash.quantize_nvfp4(q)\n  k must be [batch, kv_heads, seq_k, head_dim / 2] = [2, "
        "kv_heads, seq_k, 64], got [2, 2, 100, 32]"
    )
    assert refusal(flash.attention, q, k, normal()[2], error=ConfigError, **how, **scales) == (
        "attention: scale_block='nv' is for V of 'e4m3' or 'e5m2', got 'f32'; convert with "
        "flash.quantize_mx(v, axis=-2)"
    )
    config = AttentionConfig(128, 64, dtype="e4m3", scale_block="nv")
    launch = AttentionKernel(config).launch
    assert refusal(launch, q, k, v, backend="cpu", **scales).startswith(
        "launch: 2 problems\n  q must be [batch, heads, seq_q, head_dim / 2] = [batch, heads, seq_q, 64], "
        "got [2, 2, 70, 32]; use AttentionConfig(head_dim=64, ...)"
    )
    of_other = {**scales, "q_scale": quantize_mx(normal()[0])[1]}
    assert refusal(flash.attention, q, k, v, **how, **of_other).startswith(
        "attention: 2 problems\n  q_scale must be float8_e4m3fn, got float8_e8m0fnu; convert with "
        "q_scale.astype(ml_dtypes.float8_e4m3fn), or give scale_block='mx'\n  q_scale must be [batch, heads, "
        "seq_q, head_dim / 16] = [2, 2, 70, 4], got [2, 2, 70, 2]"
    )
    scales["k_scale"][0, 0, 0, 0] = -1
    assert refusal(flash.attention, q, k, v, **how, **scales) == (
        "attention: k_scale must hold numbers of 0 or more, got -1.0"
    )
    assert refusal(quantize_nvfp4, np.ones(40, np.float32)) == (
        "quantize_nvfp4: x must have a last dimension of multiples of 16, got shape [40]; pad it with zeros"
    )


def test_gradients_are_refused() -> None:
    message = (
        "AttentionGradient: config must be one without scales of blocks of elements, which have no "
        "gradients, got scale_block='mx'; convert Q, K and V to 'bf16'"
    )
    config = AttentionConfig(64, dtype="e4m3", scale_block="mx")
    assert refusal(flash.AttentionGradient, config, error=ConfigError) == message
    (q, k, v), scales = narrow(*normal())
    lse, how = np.zeros((2, 2, 70), np.float32), {"scale_block": "mx", "dout_scale": None, **scales}
    assert refusal(flash.attention_backward, q, q, k, v, q, lse, error=ConfigError, **how) == message


def test_numbers_of_other_types_are_refused() -> None:
    assert refusal(quantize_mx, np.ones(32, np.int32)) == (
        "quantize_mx: x must be one of float32, float16, bfloat16, got int32; convert with "
        "x.astype('float32')"
    )
    long = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (1 << 31, 1), (0, 4))
    assert refusal(quantize_mx, long) == (
        "quantize_mx: x must have at most 2147483647 elements along each axis, got [2147483648, 1]"
    )
    assert refusal(quantize_mx, np.ones(32, np.float32), axis=0, cu_seqlens=np.zeros(2)) == (
        "quantize_mx: cu_seqlens must be int32 [batch + 1] of numpy on cpu, as x is, got float64 [2] of "
        "numpy on cpu"
    )
    assert refusal(quantize_mx, np.ones(32, np.float32), axis=1) == (
        "quantize_mx: axis must be one of the 1 of x, got 1"
    )
    assert refusal(quantize_mx, np.ones(32, np.float32), "e4m", error=ConfigError) == (
        "quantize_mx: dtype must be 'e4m3' or 'e5m2', got 'e4m'; did you mean 'e4m3'?"
    )
    assert refusal(quantize_mx, [1.0], error=LaunchError).startswith("quantize_mx: x must be")
