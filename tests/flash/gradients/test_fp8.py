"""Gradients with Q, K, V and dO of fp8: accuracy, NaN, sanitizers, proofs, machine code and refusals."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDevice, FakeDriver
from fp8_gradient_runs import ON, Fp8Case, as_bf16, check, fp8_case
from gradient_runs import assert_same_bits, features_of
from kernel_runs import main_loop_of, mostly_nightly, nightly

import flash
from flash import AttentionConfig, AttentionGradient, gradient_kernels
from flash.commands.emit import main as emit
from flash.contract.gradients import auxiliary_build, emit_gradient, gradient_build
from flash.kernels.widened_rows import WideConfig
from flash.operands.dtypes import E4M3, E5M2
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, QUERIES
from flash.reference import attention_reference_gradients
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target
from ptxgen.text import render

_FEATURES = [
    name
    for name, how in features_of().items()
    if not how.get("dropout") and "bias" not in how.get("arrays", {})
]
_BF16 = ml_dtypes.bfloat16


def _with(feature: str, **how: Any) -> Fp8Case:
    """A case with a feature."""
    arguments = dict(features_of(150, 200, 2)[feature])
    arguments.pop("bend", None)
    return fp8_case(150, 200, **{**arguments, **how})


# ---------------------------------------------------------------------------------------- accuracy


@pytest.mark.judged
@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize("feature", mostly_nightly([f for f in _FEATURES if f != "score_mod"], ["window"]))
def test_gradients_err_by_no_more_than_their_roundings(feature: str) -> None:
    check(_with(feature, with_dlse=True))


@pytest.mark.judged
@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "head_dim": 128},
        {"causal": True, "scale_block": 64, "kv_heads": 2},
        {"causal": "top_left", "dtype": "e4m3", "dout_dtype": "e5m2", "out_dtype": "f16"},
        nightly({"head_dim": 128, "scale_block": 128}),
        nightly({"dtype": "e5m2", "causal": True, "batch": 2}),
        nightly({"dtype": "e5m2", "dout_dtype": "e4m3", "scale_block": 192}),
        nightly({"head_dim": 80, "head_dim_v": 96, "causal": True}),
        nightly({"head_dim": 16, "head_dim_v": 128, "scale_block": 64}),
    ],
    ids=str,
)
def test_types_widths_and_scales_err_by_no_more_than_their_roundings(how: dict[str, Any]) -> None:
    check(fp8_case(150, 300, **how))


@pytest.mark.judged
@pytest.mark.parametrize("how", [{"causal": True}, {"scale_block": 64, "dout_dtype": "e5m2"}], ids=str)
def test_the_host_errs_by_no_more_than_its_roundings(how: dict[str, Any]) -> None:
    check(fp8_case(70, 90, **how), backend="cpu")


def _error(result: Any, exact: Any) -> float:
    """The root of the mean square of the errors, relative to that of the exact numbers."""
    difference = np.asarray(result, np.float64) - exact
    return float(np.sqrt((difference**2).mean() / (exact**2).mean()))


@pytest.mark.judged
@pytest.mark.usefixtures("unproved")
def test_gradients_err_no_more_than_those_of_the_same_numbers_in_bf16() -> None:
    of = fp8_case(256, 256, heads=1, causal=True)
    x = of.numbers
    exact = attention_reference_gradients(x["dout"], x["q"], x["k"], x["v"], **of.reference_arguments)
    config, arrays = as_bf16(of)
    rounded = AttentionGradient(config).launch(**arrays, backend="interpreter")
    gradients = of.run()
    for name in ("dq", "dk", "dv"):
        right = getattr(exact, name)
        assert _error(getattr(gradients, name), right) < _error(getattr(rounded, name), right) < 0.01


def test_functions_find_types_in_arrays() -> None:
    of = fp8_case(40, 50, causal=True, dout_dtype="e5m2", out_dtype="f16", scale_block=64)
    arrays = of.named()
    gradients = flash.attention_backward(
        **arrays, **of.scales, causal=True, scale_block=64, backend="interpreter"
    )
    assert gradients.dq.dtype == gradients.dk.dtype == gradients.dv.dtype == np.float16
    assert_same_bits(gradients, of.run())


def test_values_without_columns_give_dq_and_dk_of_lse_alone() -> None:
    of = fp8_case(20, 30, with_dlse=True)
    named = of.named()
    empty = {name: named[name][..., :0] for name in ("v", "dout", "out")}
    gradients = flash.attention_backward(**{**named, **empty}, **of.scales, backend="cpu")
    zeros = {name: np.zeros_like(named[name]) for name in ("dout", "out")}
    wanted = of.run("cpu", **zeros)
    assert gradients.dv.shape == (*named["v"].shape[:3], 0)
    assert gradients.dv.dtype == _BF16
    assert gradients.dq.tobytes() == wanted.dq.tobytes()
    assert gradients.dk.tobytes() == wanted.dk.tobytes()


# --------------------------------------------------------------------------------- NaN and infinity


@pytest.mark.usefixtures("unproved")
@pytest.mark.parametrize("dtype", ["e4m3", nightly("e5m2")])
@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_a_bad_number_reaches_the_rows_and_keys_that_see_each_other(name: str, dtype: str) -> None:
    """Row 70 and key 70 of a square under a causal mask: keys up to 70 see NaN of a row, rows from 70 on NaN
    of a key. Infinity in Q or K may give a key the weight 0, so that it need not reach all of these.
    """
    at, rows = 70, 140
    of = fp8_case(rows, rows, heads=1, causal=True, dtype=dtype)
    clean = of.run()
    of.codes[name][0, 0, at, 3] = np.inf if dtype == "e5m2" and name in ("v", "dout") else np.nan
    gradients = of.run()
    seen = np.arange(rows)
    is_row = name in ("q", "dout")
    bad = {"dq": seen == at, "dk": seen <= at} if is_row else {"dq": seen >= at, "dk": seen >= 0}
    for gradient, hit in bad.items():
        result = getattr(gradients, gradient)[0, 0]
        assert np.array_equal(~np.isfinite(result.astype(np.float32)).all(axis=1), hit), gradient
        assert result[~hit].tobytes() == getattr(clean, gradient)[0, 0][~hit].tobytes()
    unseen = gradients.dv[0, 0][seen > at]
    if is_row:
        assert unseen.tobytes() == clean.dv[0, 0][seen > at].tobytes()


# ------------------------------------------------------------------------------ sanitizers, proofs


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"causal": True},
        nightly({"head_dim": 128}),
        nightly({"head_dim": 128, "causal": True, "scale_block": 128}),
    ],
    ids=str,
)
def test_every_order_of_the_warps_gives_the_same_bits(how: dict[str, Any]) -> None:
    of = fp8_case(150, 260, **{"heads": 1, **how})
    results = []
    for seed in (None, 1, 2):
        launches, written = of.steps()
        schedule = {} if seed is None else {"schedule": PCT(seed, apart=seed == 2)}
        for step in launches:
            step.interpret(sanitize="all,determinism", **schedule)
        results.append({name: array.tobytes() for name, array in written.items()})
    assert results[1:] == results[:1] * 2


_BUILT = [
    (64, {}),
    (128, {"causal": True}),
    (128, {"scale_block": 64}),
    *((d, {"causal": True, "window": (20, 7), "softcap": 2.0}) for d in (64, 96, 128)),
    *((d, {"sink": True, "alibi": True, "key_bias": "f32", "scale_block": 128}) for d in (64, 96, 128)),
]


@pytest.mark.parametrize(
    ("head_dim", "how"), [one if n < 3 else nightly(*one) for n, one in enumerate(_BUILT)]
)
@pytest.mark.parametrize("owner", [QUERIES, KEYS])
def test_kernels_are_proved_and_do_not_spill(
    owner: str, head_dim: int, how: dict[str, Any], assembler: Assembler
) -> None:
    config = AttentionConfig(head_dim, dtype="e4m3", **how)
    wanted = tuple(f.argument for f in config.scores if f.gradient_of)
    kernel = gradient_config(config, owner, target(ON), 16, with_dlse=True, wanted=wanted)
    built = gradient_build(kernel)
    assert built.proof.complete, built.proof.unknown
    assert not built.global_proof.unknown, built.global_proof.unknown
    assert built.header.dynamic_shared_bytes <= kernel.tiling.shared_bytes
    assembly = assembler.assemble(render(emit_gradient(kernel)), ON)
    usage = assembly.kernel(kernel.name)
    assert (usage.spill_store_bytes, usage.stack_bytes, assembly.advisories) == (0, 0, ())


@pytest.mark.parametrize("scale_block", [0, 192])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_rows_are_widened_by_a_proved_kernel(dtype: Any, scale_block: int) -> None:
    for columns in (16, 80, 128):
        built = auxiliary_build(WideConfig(target(ON), dtype, columns, scale_block))
        assert built.proof.complete
        assert not built.global_proof.unknown


@pytest.mark.ptxas
@pytest.mark.slow
@pytest.mark.parametrize(("owner", "scores", "sums"), [(KEYS, 8, 8), (QUERIES, 8, 8)])
def test_scores_are_products_of_fp8_and_gradients_of_bf16(
    owner: str, scores: int, sums: int, assembler: Assembler
) -> None:
    config = AttentionConfig(128, dtype="e4m3")
    path = main_loop_of(gradient_build(gradient_config(config, owner, target(ON), 16)), assembler).path
    names = [one.name for one in path]
    assert (names.count("QGMMA"), names.count("HGMMA")) == (scores, sums)


# --------------------------------------------------------------------------------------------- GPUs


@pytest.mark.usefixtures("unproved")
def test_a_gpu_gets_five_launches_that_give_the_bits_of_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_assembler(monkeypatch)
    driver = interpreting(FakeDriver(FakeDevice(sm=90)))
    of = fp8_case(40, 50, causal=True, dout_dtype="e5m2", scale_block=64)
    kernel = AttentionGradient(of.config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    assert_same_bits(kernel.launch(**of.named(), **of.scales, backend="cuda"), of.run())
    assert [launch.entry.split("_m128")[0] for launch in driver.launches] == [
        "widened_rows_e4m3_d64_scales64",
        "widened_rows_e4m3_d64_scales64",
        "widened_rows_e5m2_d64_scales64",
        "attention_gradient_queries_wgmma_e4m3_d64",
        "attention_gradient_keys_wgmma_e4m3_d64",
    ]


# ----------------------------------------------------------------------------------------- refusals


def _call(**changed: Any) -> Any:
    of = fp8_case(20, 30, heads=1)
    return flash.attention_backward(**{**of.named(), **of.scales, "backend": "interpreter", **changed})


_NO_KERNEL = (
    "attention_backward: dtype='e4m3' has no kernel of gradients here, because {}; only backend 'cpu' "
    "computes these gradients, or convert Q, K, V and dO to 'bf16'"
)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"dout_scale": None}, LaunchError, "attention_backward: dout_scale must be given"),
        (
            {"dout": np.zeros((1, 1, 20, 64), _BF16)},
            LaunchError,
            "attention_backward: dout must be one of float8_e4m3fn, float8_e5m2, got bfloat16; convert with "
            "dout.astype(ml_dtypes.float8_e4m3fn)",
        ),
        (
            {"out": np.zeros((1, 1, 20, 64), np.float32)},
            LaunchError,
            "attention_backward: out must be one of bfloat16, float16, as attention of fp8 returns it, got "
            "float32; convert with out.astype(ml_dtypes.bfloat16)",
        ),
        (
            {"dq": np.zeros((1, 1, 20, 64), np.float16)},
            LaunchError,
            "attention_backward: dq must be bfloat16, as out is, got float16; convert with "
            "dq.astype(ml_dtypes.bfloat16)",
        ),
        (
            {"dout_scale": np.full((1, 1), np.nan, np.float32)},
            LaunchError,
            "attention_backward: dout_scale must hold finite numbers, got nan",
        ),
        (
            {"dout_scale": np.ones((2, 3), np.float32)},
            LaunchError,
            "attention_backward: dout_scale must be [batch, kv_heads] = [1, 1], or of a shape that "
            "broadcasts to it, got [2, 3]",
        ),
        (
            {"bias": np.zeros((20, 30), np.float32), "wanted": ["bias"]},
            ConfigError,
            _NO_KERNEL.format("the gradient of a bias has no kernel of fp8"),
        ),
        (
            {"q": np.zeros((1, 1, 20, 65), ml_dtypes.float8_e4m3fn)[..., 1:]},
            ConfigError,
            _NO_KERNEL.format("tensor maps take rows of multiples of 16 bytes"),
        ),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_calls_are_refused_by_name(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as stopped:
        _call(**changed)
    assert str(stopped.value) == text


def test_scales_are_refused_with_other_types() -> None:
    q = np.zeros((1, 1, 8, 64), np.float16)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(LaunchError) as stopped:
        flash.attention_backward(q, q, q, q, q, np.zeros((1, 1, 8), np.float32), dout_scale=one)
    assert str(stopped.value) == (
        "attention_backward: dout_scale is given, but q is no array of float8_e4m3fn or float8_e5m2; leave "
        "it out"
    )


@pytest.mark.parametrize(
    ("head_dim", "on", "why"),
    [
        (192, ON, "head_dim and head_dim_v are at most 128 in kernels of fp8"),
        (64, "sm_90", "wgmma, which multiplies it, is of sm_90a alone"),
    ],
)
def test_sizes_and_targets_are_refused_by_name(head_dim: int, on: str, why: str) -> None:
    with pytest.raises(ConfigError) as stopped:
        gradient_config(
            AttentionConfig(head_dim, dtype="e4m3"), KEYS, target(on), 16, caller="attention_backward"
        )
    assert str(stopped.value) == _NO_KERNEL.format(why)


def test_packed_sequences_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as stopped:
        AttentionGradient(AttentionConfig(64, dtype="e4m3", varlen=True))
    assert str(stopped.value) == (
        "AttentionGradient: config must be one of batches, because packed sequences of fp8 have no gradients,"
        " got dtype='e4m3' with varlen=True; use a batch for each length, or convert Q, K and V to 'bf16'"
    )


def test_kernels_for_other_hosts_refuse_packed_sequences_by_name() -> None:
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.backward(AttentionConfig(64, dtype="e4m3", varlen=True), "keys")
    assert str(stopped.value) == (
        "backward: dtype='e4m3' has no kernel of gradients here, because kernels of fp8 take no packed "
        "sequences; use a batch for each length, or convert Q, K, V and dO to 'bf16'"
    )


def test_one_sweep_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as stopped:
        AttentionGradient(AttentionConfig(64, dtype="e4m3"), deterministic=False, sweeps=1)
    assert str(stopped.value) == (
        "AttentionGradient: one sweep has no kernels for head_dim=64, head_dim_v=64, dtype='e4m3' with "
        "precision=None; leave sweeps out"
    )


# ---------------------------------------------------------------------------- texts of other hosts


def test_explain_names_the_launches_and_their_memory() -> None:
    of = fp8_case(20, 30, heads=1)
    text = AttentionGradient(of.config).explain(**of.named(), **of.scales, backend="interpreter")
    kernels = [line.split()[1] for line in text.splitlines() if line.startswith("kernel:")]
    assert kernels == [
        *["widened_rows_e4m3_d64"] * 3,
        "attention_gradient_queries_wgmma_e4m3_d64_m128_n128_s2",
        "attention_gradient_keys_wgmma_e4m3_d64_m128_n96_s2",
    ]
    assert "verified, writes numbers of fp8 in bf16, 1 CTAs" in text
    assert "9040 bytes beside them (D 80 bytes, Q_wide 2.5 KiB, K_wide 3.8 KiB, dO_wide 2.5 KiB)" in text


def test_kernels_are_emitted_for_other_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    config = AttentionConfig(128, head_dim_v=64, dtype="e4m3", out_dtype="f16", scale_block=128)
    names = [
        gradient_kernels.widened_rows(config, "dO", dout_dtype="e5m2").header.name,
        gradient_kernels.backward(config, "keys", dout_dtype="e5m2").header.name,
    ]
    assert names == [
        "widened_rows_e5m2_d64_scales128",
        "attention_gradient_keys_wgmma_e4m3_d128v64_m128_n64_s2_scales128_dout_e5m2_to_f16",
    ]
    shape = ["--head-dim", "128", "--head-dim-v", "64", "--dtype", "e4m3", "--scale-block", "128"]
    how = [*shape, "--dout-dtype", "e5m2", "--target", ON, "--json"]
    assert emit(["widen", "--matrix", "dO", *how]) == 0
    assert json.loads(capsys.readouterr().out)["entry"] == names[0]
    assert emit(["backward", "--owner", "keys", "--out-dtype", "f16", *how]) == 0
    contract = json.loads(capsys.readouterr().out)
    assert contract["entry"] == names[1]
    assert (
        "Q_wide and dO_wide are what launches of the kernel of widened rows, that have ended, wrote as W"
        in contract["constraints"]
    )


@pytest.mark.parametrize(
    ("dtype", "matrix", "how", "text"),
    [
        (
            *("bf16", "Q", {}),
            "widened_rows: config must be one with Q, K and V of fp8, got dtype='bf16'; kernels of gradients "
            "of this type read its rows as they are",
        ),
        ("e4m3", "V", {}, "widened_rows: matrix must be one of 'Q', 'K', 'dO', got 'V'"),
        (
            *("e4m3", "dO", {"dout_dtype": "bf16"}),
            "widened_rows: dout_dtype must be 'e4m3' or 'e5m2', got 'bf16'",
        ),
    ],
)
def test_widened_rows_are_refused_by_name(dtype: str, matrix: str, how: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.widened_rows(AttentionConfig(64, dtype=dtype), matrix, **how)
    assert str(stopped.value) == text


def test_dout_dtype_is_refused_with_other_types() -> None:
    with pytest.raises(ConfigError) as stopped:
        gradient_kernels.backward(AttentionConfig(64, dtype="bf16"), "keys", dout_dtype="e5m2")
    assert str(stopped.value) == (
        "backward: dout_dtype is for Q, K and V of fp8, else dO is of the type of O, got 'e5m2' with "
        "dtype='bf16'; leave it out"
    )
