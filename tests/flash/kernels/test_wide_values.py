"""Values of more columns than a CTA can hold, dealt to several: the kernels' own PTX, run on the
interpreter with the sanitizers on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance import KINDS, arrays_of, bits, judge
from judge import assert_attention_is_accurate
from kernel_runs import Problem, mostly_nightly, nightly, run_forward

import flash
from flash.contract.catalogue import build
from flash.error_bound import arithmetic_of
from flash.families.request import MAX_HEAD_DIM_V
from flash.families.simt import ValueSlices
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.check.prove import prove_global
from ptxgen.contract.expressions import evaluated
from ptxgen.parse import parse

pytestmark = [pytest.mark.grid, pytest.mark.judged]

OF_VALUES = ("simt", "mma tf32", "mma f32_grade", "mma f16", "mma bf16")
EVERY_KIND = pytest.mark.parametrize("kind", OF_VALUES)
# One of each kernel that can be judged by the types of its arrays, which tf32 cannot.
JUDGED = pytest.mark.parametrize("kind", ["simt", "mma f32_grade", "mma f16"])
EVERY_FEATURE: dict[str, Any] = {
    "window": (30, 25),
    "softcap": 2.0,
    "alibi": True,
    "bias": "f32",
    "mask": True,
    "sink": True,
    "dropout": 0.25,
}


def slices_of(config: AttentionConfig) -> ValueSlices:
    return config.kernel().tiling.slices


# ------------------------------------------------------------------------------------------
# semantics


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "head_dim_v"), [*((k, 300) for k in OF_VALUES), ("mma f32_grade", 400)])
def test_each_slice_has_the_bits_of_a_call_with_its_columns(kind: str, head_dim_v: int) -> None:
    how: Any = {"tile": 16, "block_q": 32, "causal": "top_left"}
    config = KINDS[kind].default(20, head_dim_v, **how)
    slices = slices_of(config)
    q, k, v = arrays_of(config, 40, 35, 2, 2, 1)
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    for first in (*range(0, slices.last, slices.width), slices.last):
        columns = slice(first, first + slices.width)
        narrow = KINDS[kind].default(20, slices.width, **how)
        part, part_lse, _ = run_forward(narrow, (q, k, v[..., columns].copy()))
        np.testing.assert_array_equal(bits(out[..., columns].copy()), bits(part))
        np.testing.assert_array_equal(bits(lse), bits(part_lse))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", mostly_nightly(OF_VALUES, ("simt", "mma f32_grade", "mma f16")))
@pytest.mark.parametrize("head_dim_v", [300, 501])
def test_no_two_ctas_write_one_element(head_dim_v: int, kind: str) -> None:
    # Two that write the same number are no race.
    config = KINDS[kind].default(16, head_dim_v, tile=16, block_q=32)
    slices, built = slices_of(config), build(config.kernel())
    arrays = arrays_of(config, 20, 20)
    for number in range(slices.count):
        alone = parse(built.text.replace("%ctaid.x", str(number)))
        assert alone != built.module
        out, lse, _ = run_forward(config, arrays, alone)
        begin, end = number * slices.width, min((number + 1) * slices.width, head_dim_v)
        assert np.isfinite(out[..., begin:end]).all()
        assert np.isnan(out[..., :begin]).all()
        assert np.isnan(out[..., end:]).all()
        assert np.isfinite(lse).all() if number == 0 else np.isnan(lse).all()


@pytest.mark.slow
@pytest.mark.sample(2)
@EVERY_KIND
def test_nan_and_infinity_of_v_reach_the_rows_and_columns_that_are_theirs(kind: str) -> None:
    config = KINDS[kind].default(16, 300, causal=True, tile=16, block_q=32)
    slices = slices_of(config)
    q, k, v = arrays_of(config, 40, 60)
    clean, _, _ = run_forward(config, (q, k, v))
    # On both sides of what two slices have in common, and in it.
    for key, column in enumerate((0, slices.last - 1, slices.last, slices.width - 1, slices.width)):
        v[..., 2 + key, column], v[..., 50 + key, 299 - key] = np.inf, np.nan
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, causal=True)
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])
    np.testing.assert_array_equal(out[~odd], clean[~odd])
    assert odd.any()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "alignment"), [*(("mma f16", n) for n in (2, 4, 8)), ("simt", 4), nightly("mma tf32", 4)]
)
def test_narrow_accesses_give_the_same_bits_as_wide_ones(kind: str, alignment: int) -> None:
    config = KINDS[kind].default(8, 264, tile=16, block_q=32)
    arrays = arrays_of(config, 37, 20)
    wide, _, _ = run_forward(config, arrays)
    of_narrow = KINDS[kind].default(8, 264, tile=16, block_q=32, alignment=alignment)
    narrow, _, _ = run_forward(of_narrow, arrays, sanitize=True)
    np.testing.assert_array_equal(bits(wide), bits(narrow))


@pytest.mark.parametrize("kind", ["simt", "mma f16"])
def test_without_a_key_wide_outputs_are_zero(kind: str) -> None:
    config = KINDS[kind].default(16, 500)
    out, lse, _ = run_forward(config, arrays_of(config, 5, 0), sanitize=True)
    np.testing.assert_array_equal(out, np.zeros_like(out))
    np.testing.assert_array_equal(lse, -np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_backends_take_wide_values(dtype: Any, backend: str) -> None:
    q, k, v = Problem(20, 30, 40, 511, 1, 4, 2).arrays(dtype=dtype)
    out = np.full((1, 4, 20, 511), np.nan, dtype)  # not memory with what was there before
    _, lse = flash.attention(q, k, v, out=out, causal=True, return_lse=True, backend=backend)
    config = KINDS["simt" if dtype is np.float32 else "mma bf16"].default(40, 511, causal=True)
    judge(config, (q, k, v), out, lse)


def test_a_host_can_launch_by_the_contract_alone() -> None:
    built = build(KINDS["mma f16"].default(8, 330, tile=16, block_q=32).kernel())
    contract = built.contract
    assert contract["grid"] == {
        "formula": "(ceil(seq_q / 32) * heads * batch * 2, 1, 1)",
        "x": {"times": [{"ceil_div": ["seq_q", 32]}, "heads", "batch", 2]},
        "y": 1,
        "z": 1,
    }
    q, k, v = Problem(70, 20, 8, 330, 2, 4, 2).arrays(dtype=np.float16)
    out, lse = np.full((2, 4, 70, 330), np.nan, np.float16), np.full((2, 4, 70), np.nan, np.float32)
    arguments: dict[str, Any] = {"Q": q, "K": k, "V": v, "O": out, "LSE": lse}
    sizes = {"seq_q": 70, "seq_k": 20, "heads": 4, "group": 2, "batch": 2}
    arguments |= {**sizes, "softmax_scale": np.float32(8**-0.5)}
    for name in "QKVO":
        for axis, what in enumerate(("batch", "head", "row")):
            arguments[f"{name}_{what}_stride"] = arguments[name].strides[axis] // 2
    interpreter.run(
        built.text,
        contract["entry"],
        grid=evaluated(contract["grid"]["x"], sizes),
        block=contract["block"],
        args=[arguments[p["name"]] for p in contract["parameters"]],
        dynamic_smem=contract["dynamic_shared_bytes"],
        sanitize=True,
    )
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=arithmetic_of("f16"))


# ------------------------------------------------------------------------------------------
# what is chosen, and what it costs


@pytest.mark.parametrize(
    ("kind", "head_dim_v", "slices"),
    [
        *(("simt", 256, (1, 256, 0)), ("simt", 257, (2, 132, 7)), ("simt", 512, (2, 256, 0))),
        *(("mma f16", 256, (1, 256, 0)), ("mma f16", 257, (2, 144, 31)), ("mma f16", 510, (2, 256, 2))),
        *(("mma f16", 511, (2, 256, 1)), ("mma tf32", 257, (2, 160, 63))),
        *(("mma f32_grade", 256, (1, 256, 0)), ("mma f32_grade", 257, (2, 160, 63))),
        ("mma f32_grade", 512, (2, 256, 0)),
    ],
)
def test_slices_are_as_few_as_registers_allow(
    kind: str, head_dim_v: int, slices: tuple[int, int, int]
) -> None:
    assert slices_of(KINDS[kind].default(64, head_dim_v)) == ValueSlices(*slices)


@EVERY_KIND
@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_90"])
def test_all_wide_values_have_tiles_with_every_feature(name: str, kind: str) -> None:
    for head_dim_v in (*range(1, MAX_HEAD_DIM_V, 37), MAX_HEAD_DIM_V):
        for head_dim in (64, 256):
            t = KINDS[kind].default(head_dim, head_dim_v, target=name, **EVERY_FEATURE).kernel().tiling
            assert t.slices.shared < t.slices.width, (head_dim_v, t)
            assert t.slices.last + t.slices.width == head_dim_v


def test_the_proof_sees_the_last_column_of_the_last_slice() -> None:
    built = build(KINDS["mma f16"].default(8, 264, tile=16, block_q=32).kernel())
    promised = built.promised
    threads = built.config.tiling.threads
    for name in "VO":
        arrays = [replace(a, nbytes=a.nbytes - 2) if a.pointer == name else a for a in promised.arrays]
        proof = prove_global(built.module, block=threads, contract=replace(promised, arrays=tuple(arrays)))
        assert {v.allocation for v in proof.violations} == {name}


def test_scores_are_counted_for_each_slice() -> None:
    result = build(KINDS["mma f16"].default(64, 512).kernel()).resources
    assert result.flops(2, 3, 128, 256) == 2 * 2 * 3 * 128 * 256 * 2 * (64 + 256)
    assert result.useful_flops(2, 3, 128, 256) == 2 * 2 * 3 * 128 * 256 * (64 + 512)


def test_explain_says_which_columns_a_cta_takes() -> None:
    config = AttentionConfig(64, 300, dtype="f16", target="sm_80")
    said = AttentionKernel(config).explain(*arrays_of(config, 70, 10, 1, 3, 3), backend="interpreter")
    assert "tiles:    64 queries by 64 keys and 160 of 300 columns of V, 128 threads" in said
    assert "grid:     12 CTAs" in said
