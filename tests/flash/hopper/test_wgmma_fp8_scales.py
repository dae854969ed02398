"""The forward kernel for Hopper with Q, K and V of fp8 whose blocks of rows have scales of their own: its own
PTX, run on the interpreter with the sanitizers on, against float64.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from conformance import KINDS, SCALES, arrays_of, bound_of, check, operands_of
from judge import assert_within
from kernel_runs import main_loop_of, nightly, run_forward
from refusals import refusal

import flash
from flash import AttentionKernel
from flash.contract.catalogue import build
from flash.operands.dtypes import FP8_ARRAYS, FP8_DTYPES, FP8_NAMES
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, scaled_numbers
from ptxgen.contract.expressions import evaluated
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]


config_of = KINDS["fp8 in blocks"].config


# ------------------------------------------------------------------------------------------
# semantics


@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize("dtype", FP8_DTYPES)
@pytest.mark.parametrize(("scale_block", "tile"), [(64, 64), (128, 128), (128, 64), (192, 64), (256, 128)])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 200), (130, 400), (200, 257)])
def test_each_block_of_rows_has_its_scales(
    seq_q: int, seq_k: int, scale_block: int, tile: int, dtype: str
) -> None:
    config = config_of(dtype=dtype, scale_block=scale_block, tile=tile)
    check(config, arrays_of(config, seq_q, seq_k))


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@pytest.mark.parametrize(
    ("seq_q", "seq_k", "block_q", "scale_block"),
    [(3, 190, 64, 64), (190, 3, 128, 64), (127, 260, 128, 128), (260, 330, 192, 128), (390, 127, 192, 192)],
)
def test_a_warpgroup_has_the_scale_of_its_queries(
    causal: str, seq_q: int, seq_k: int, block_q: int, scale_block: int
) -> None:
    config = config_of(causal=causal, block_q=block_q, scale_block=scale_block)
    check(config, arrays_of(config, seq_q, seq_k))


@pytest.mark.slow
def test_a_mask_hides_keys_and_tiles() -> None:
    config = config_of(mask=True)
    mask = np.random.default_rng(5).random((1, 1, 60, 400)) < 0.5
    mask[..., 64:192] = False
    check(config, arrays_of(config, 60, 400), {"mask": mask})


def test_nothing_of_a_tile_is_lost_beside_one_whose_scales_are_2_to_the_20_times_those() -> None:
    """The rows of each query have one key with a large score, in one tile or in another."""
    config = config_of(softmax_scale=1.0)
    q, k, v = (np.zeros((1, 1, rows, 64), config.element.numpy) for rows in (64, 192, 192))
    q[0, 0, :, 0] = 1
    k[0, 0, 10, 0] = k[0, 0, 70, 0] = 16  # by their scales 16 and 16
    v[0, 0, 10, :] = 3
    v[0, 0, 70, :] = -2
    scales = {
        "q_scale": np.ones((1, 1, 1), "f4"),
        "k_scale": np.array([[[1, 1, 2.0**-20]]], "f4"),
        "v_scale": np.array([[[2.0**-20, 2.0**-20, 1]]], "f4"),
    }
    out, _, _ = run_forward(config, (q, k, v), operands=scales, sanitize=True)
    wanted = (3 - 2) / (2 + 190 * np.exp(-16.0)) * 2.0**-20
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=2.0**-7)


@pytest.mark.parametrize("dtype", ["e4m3", *map(nightly, [*FP8_DTYPES][1:])])
@pytest.mark.parametrize("kind", ["fp8 in blocks", "fp8 in blocks on sm_100a"])
def test_numbers_that_are_not_finite_have_the_scale_of_their_key(kind: str, dtype: str) -> None:
    config = KINDS[kind].config(dtype=dtype, causal=True)
    q, k, v = arrays_of(config, 70, 150)
    values = (np.nan,) if dtype == "e4m3" else (np.nan, np.inf, -np.inf)
    for n, value in enumerate(values):
        for location, key in enumerate((149, 121 - n, 10)):  # the last rows see all, the first row 80 of them
            v[0, 0, key, 3 + 8 * n + location] = value
    scales = operands_of(config, (q, k, v))
    scales["v_scale"][...] = [2.0, -1.0, 0.5]
    out, _, _ = run_forward(config, (q, k, v), operands=scales, sanitize=True)
    numbers = [scaled_numbers(x, scales[n], 64) for n, x in zip(SCALES, (q, k, v), strict=True)]
    wanted, _ = attention_reference(*numbers, causal=config.causal)
    for is_one in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_one(out.astype(np.float64)), is_one(wanted))


# ------------------------------------------------------------------------------------------
# the kernel


# Two loads, the products of both scales, and moves of registers: 21 for 128 columns, of 369 without scales.
_OF_SCALES: Final = 24


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("head_dim", "tile", "uniform"), [(128, 128, 2), nightly(64, 64, 2), nightly(256, 64, 3)]
)
def test_scales_of_tiles_cost_few_instructions_of_an_iteration(
    head_dim: int, tile: int, uniform: int, assembler: Assembler
) -> None:
    counts = []
    for scale_block in (None, tile):
        config = AttentionConfig(head_dim, dtype="e4m3", scale_block=scale_block)
        assert config.kernel().tiling.tile == tile
        path = main_loop_of(config, assembler).path
        counts.append(len(path))
        # No descriptor is moved: threads read `uniform` registers, which the two scales are in.
        moved = uniform if scale_block else 0
        assert [one.name for one in path].count("R2UR") == moved
    assert counts[1] - counts[0] <= _OF_SCALES


# ------------------------------------------------------------------------------------------
# launches


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("layout", ["bhsd", nightly("bshd")])
def test_a_launch_takes_scales_of_blocks_that_broadcast(backend: Any, layout: Any) -> None:
    config = config_of(causal=True)
    arrays = arrays_of(config, 70, 192, 2, 4, 2)
    scales = {
        "q_scale": np.array([[[1.5]], [[-0.5]]], "f4"),
        "k_scale": np.array([[0.5, 2.0, 1.0]], "f4"),
        "v_scale": np.arange(2, 14, dtype="f4").reshape(2, 2, 3),
    }
    arguments = arrays if layout == "bhsd" else tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays)
    out, lse = AttentionKernel(config).launch(*arguments, backend=backend, layout=layout, **scales)
    shapes = {"q_scale": (2, 4, 2), "k_scale": (2, 2, 3), "v_scale": (2, 2, 3)}
    wide = {name: np.broadcast_to(x, shapes[name]) for name, x in scales.items()}
    result = out if layout == "bhsd" else out.swapaxes(1, 2)
    assert_within(result, lse, bound_of(config, arrays, wide))


def test_scales_of_other_shapes_are_refused() -> None:
    config = config_of()
    scales = {name: np.ones((1, 1, 2), "f4") for name in SCALES}
    with pytest.raises(LaunchError) as raised:
        AttentionKernel(config).launch(*arrays_of(config, 70, 150), backend="cpu", **scales)
    rest = "[batch, kv_heads, k_blocks] = [1, 1, 3], or of a shape that broadcasts to it, got [1, 1, 2]"
    assert str(raised.value) == f"launch: 2 problems\n  k_scale must be {rest}\n  v_scale must be {rest}"


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_scales_on_the_host_that_are_not_finite_are_refused(odd: float) -> None:
    config = config_of()
    scales = {name: np.ones((1, 1, 3), "f4") for name in SCALES} | {"q_scale": np.array(odd, "f4")}
    scales["v_scale"][0, 0, 1:] = odd
    kernel, arrays = AttentionKernel(config), arrays_of(config, 150, 150)
    rest = f"must hold finite numbers, got {odd}"
    for call in (kernel.launch, kernel.explain):
        with pytest.raises(LaunchError) as raised:
            call(*arrays, backend="cpu", **scales)
        wanted = f"launch: 2 problems\n  q_scale {rest}\n  v_scale {rest}"
        assert str(raised.value) == wanted


def test_explain_and_the_contract_say_what_has_a_scale() -> None:
    config = config_of()
    ones = {name: np.ones(1, "f4") for name in SCALES}
    said = AttentionKernel(config).explain(*arrays_of(config, 64, 64), backend="interpreter", **ones)
    assert "scales:   one of Q, K and V for each 64 rows of a head" in said
    kernel = config.kernel()
    sizes = build(kernel).contract["sizes"]
    names = {"seq_q": 65, "seq_k": 64}
    assert [evaluated(sizes[name]["equal"], names) for name in ("q_blocks", "k_blocks")] == [2, 1]


_E4M3 = "AttentionConfig: dtype='e4m3'"
_MULTIPLE = (
    "AttentionConfig: scale_block must be a multiple of 64 rows from 64 to 32768, 'mx' or 'nv' for "
    "scales of elements, or None for a scale of all rows of a head, got {}; repeat the scales of blocks that "
    "are such multiples together"
)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"scale_block": 96}, _MULTIPLE.format(96)),
        ({"scale_block": 32}, _MULTIPLE.format(32)),
        ({"scale_block": 0}, _MULTIPLE.format(0)),
        ({"scale_block": "auto"}, _MULTIPLE.format("'auto'")),
        (
            {"tile": 128},
            "AttentionConfig: tile must be one of 64, 'auto', got 128; the largest tile that fits "
            "head_dim=64, head_dim_v=64 on sm_90a is 64",
        ),
        (
            {"varlen": True},
            f"{_E4M3} has one kernel, which does not do this: scale_block=64 with varlen; or convert Q, "
            "K and V to 'bf16'",
        ),
        (
            {"dtype": "f16"},
            f"AttentionConfig: scale_block is for Q, K and V of {FP8_NAMES}, which have scales; those of "
            "'f16' have none, got 64; leave it out",
        ),
    ],
    ids=str,
)
def test_what_there_is_no_kernel_for_is_refused(how: dict[str, Any], wanted: str) -> None:
    assert (
        refusal(
            AttentionConfig, error=ConfigError, **{"head_dim": 64, "dtype": "e4m3", "scale_block": 64, **how}
        )
        == wanted
    )


# ------------------------------------------------------------------------------------------
# functions


def test_attention_takes_fp8_with_its_scales_and_settings() -> None:
    config = config_of(out_dtype="f16", causal=True)
    arrays = arrays_of(config, 70, 150, 2, 4, 2)
    scales = operands_of(config, arrays)
    out, lse = flash.attention(
        *arrays, **scales, scale_block=64, out_dtype="f16", causal=True, return_lse=True, backend="cpu"
    )
    assert out.dtype == np.float16
    assert_within(out, lse, bound_of(config, arrays, scales))


def test_attention_varlen_takes_fp8_with_scales_of_heads() -> None:
    config = config_of()
    arrays = arrays_of(config, 70, 70)
    packed = [x.swapaxes(1, 2)[0] for x in arrays]
    scales = {name: np.full((1, 1), factor, "f4") for name, factor in zip(SCALES, (2, -0.5, 3), strict=True)}
    ends = np.array([0, 70], "i4")
    out, lse = flash.attention_varlen(*packed, ends, ends, **scales, return_lse=True, backend="cpu")
    wide = {name: scale[:, :, np.newaxis].repeat(2, axis=2) for name, scale in scales.items()}
    assert_within(out.swapaxes(0, 1)[np.newaxis], lse[np.newaxis], bound_of(config, arrays, wide))


def test_functions_say_what_of_fp8_is_wrong() -> None:
    config = config_of()
    q, k, v = arrays_of(config, 70, 150)
    scales = operands_of(config, (q, k, v))
    ends = np.array([0, 70], "i4")

    def said(call: Any, *arguments: Any, **given: Any) -> str:
        with pytest.raises((LaunchError, ConfigError)) as raised:
            call(*arguments, backend="cpu", **given)
        return str(raised.value)

    assert said(flash.attention, q, k, v, v_scale=scales["v_scale"]) == (
        "attention: q_scale must be given; k_scale must be given"
    )
    half = [x.astype("f2") for x in (q, k, v)]
    assert said(flash.attention, *half, q_scale=scales["q_scale"]) == (
        f"attention: q_scale is given, but q is no array of {FP8_ARRAYS}; leave it out"
    )
    assert said(flash.attention, *half, scale_block=64) == (
        f"attention: scale_block is for Q, K and V of {FP8_NAMES}, which have scales; those of 'f16' "
        "have none, got 64; leave it out"
    )
    packed = [x.swapaxes(1, 2)[0] for x in (q, k, v)]
    assert said(flash.attention_varlen, *packed, ends, ends, **scales, scale_block=64) == (
        "attention_varlen: dtype='e4m3' has one kernel, which does not do this: scale_block=64 with varlen; "
        "or convert Q, K and V to 'bf16'"
    )


@pytest.mark.parametrize("name", ["attention", "attention_varlen"])
def test_the_adapter_of_torch_says_which_function_takes_fp8(name: str, torch: ModuleType) -> None:
    from flash.adapters import torch as adapter

    q = torch.zeros((1, 1, 8, 64) if name == "attention" else (8, 1, 64)).to(torch.float8_e4m3fn)
    ends = [] if name == "attention" else [torch.tensor([0, 8], dtype=torch.int32)] * 2
    assert refusal(getattr(adapter, name), q, q, q, *ends, backend="cpu") == (
        f"{name}: q must be one of float32, float16, bfloat16, got torch.float8_e4m3fn; call flash.{name}, "
        "which takes its scales, or convert q, k and v, such as with q.float()"
    )
