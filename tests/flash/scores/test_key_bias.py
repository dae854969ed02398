"""A bias of keys is a bias whose rows are all the same, without the array of all scores."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest
from kernel_runs import Problem
from refusals import refusal

import flash
from flash.commands import emit
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.errors import ConfigError

Array = np.ndarray[Any, Any]

EVERY_KERNEL = pytest.mark.parametrize(
    "how", [{}, {"precision": "tf32"}, {"precision": "f32_grade"}, {"dtype": "f16"}], ids=str
)
EVERY_BACKEND = pytest.mark.parametrize("backend", ["cpu", "interpreter"])


def problem(
    heads: int = 4, kv_heads: int = 2, seq_q: int = 37, seq_k: int = 53
) -> tuple[Array, Array, Array, Array]:
    """q, k, v of two batch items, and a bias that hides some keys; NaN in V of a hidden key."""
    q, k, v = Problem(seq_q, seq_k, 16, 16, batch=2, heads=heads, kv_heads=kv_heads).arrays()
    bias = np.random.default_rng(5).standard_normal((2, heads, seq_k)).astype(np.float32)
    bias[0, :, -9:] = -np.inf
    bias[1, :, :3] = -np.inf
    v[0, :, -4] = np.nan
    return q, k, v, bias


@pytest.mark.slow
@pytest.mark.grid
@EVERY_BACKEND
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
@pytest.mark.parametrize("window", [None, (20, 3)])
@EVERY_KERNEL
def test_it_has_the_bits_of_a_bias_with_equal_rows(
    how: dict[str, Any], window: Any, causal: Any, backend: str
) -> None:
    q, k, v, bias = problem()
    dtype = np.float16 if "dtype" in how else np.float32
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    call = {
        "causal": causal,
        "window": window,
        "backend": backend,
        "return_lse": True,
        "precision": how.get("precision"),
    }
    result = flash.attention(q, k, v, key_bias=bias, **call)
    of_scores = np.broadcast_to(bias[:, :, None], (2, 4, 37, 53))
    expected = flash.attention(q, k, v, bias=of_scores, **call)
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(result[0].astype(np.float32)).all()


@pytest.mark.parametrize("causal", [False, "bottom_right"])
def test_the_reference_agrees_with_a_bias_with_equal_rows(causal: Any) -> None:
    q, k, v, bias = problem()
    result = attention_reference(q, k, v, causal=causal, key_bias=bias)
    expected = attention_reference(q, k, v, causal=causal, bias=bias[:, :, None])
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@EVERY_BACKEND
@pytest.mark.parametrize("shape", [(53,), (4, 53), (2, 1, 53), (1, 4, 53), (2, 4, 53)])
def test_it_broadcasts_over_batch_and_heads_with_any_strides(shape: tuple[int, ...], backend: str) -> None:
    q, k, v, bias = problem()
    v = np.nan_to_num(v)
    small = np.ascontiguousarray(bias[tuple([0] * (3 - len(shape)))][..., ::-1])[..., ::-1]
    small = small[tuple(slice(n) for n in shape)]
    assert small.shape == shape
    out, lse = flash.attention(q, k, v, key_bias=small, backend=backend, return_lse=True)
    exact, sums = attention_reference(q, k, v, key_bias=np.broadcast_to(small, (2, 4, 53)))
    np.testing.assert_allclose(out, exact, rtol=0, atol=4e-6)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=4e-6)


def test_a_key_that_is_hidden_from_all_queries_is_as_if_it_were_not_there() -> None:
    q, k, v, _ = problem()
    bias = np.zeros(53, np.float32)
    bias[40:] = -np.inf
    for backend in ("cpu", "interpreter"):
        result = flash.attention(q, k, v, key_bias=bias, backend=backend)
        shorter, _ = attention_reference(q, k[:, :, :40], v[:, :, :40])
        np.testing.assert_allclose(result, shorter, rtol=0, atol=4e-6)
    none = flash.attention(q, k, v, key_bias=np.full(53, -np.inf, np.float32), backend="cpu")
    np.testing.assert_array_equal(none, 0)


def test_the_command_line_emits_it_and_its_contract_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert emit.main(["--head-dim", "64", "--key-bias", "f32", "--json"]) == 0
    contract = json.loads(capsys.readouterr().out)
    names = [parameter["name"] for parameter in contract["parameters"]]
    assert "key_bias" in names
    assert "key_bias_key_stride" in names
    assert "key_bias_query_stride" not in names


def test_what_it_does_not_go_with_is_refused() -> None:
    assert refusal(AttentionConfig, 64, error=ConfigError, key_bias="f32", varlen=True) == (
        "AttentionConfig: varlen cannot be combined with key_bias, which has a number for each key "
        "of [batch, heads, seq_k], and sequences of their own lengths have no such array; use "
        "window, causal or alibi, or a batch for each length"
    )
    assert refusal(AttentionConfig, 64, error=ConfigError, dtype="f16", key_bias="bf16") == (
        "AttentionConfig: key_bias must be one of 'f32', 'f16', None, got 'bf16'; did you mean 'f16'?"
    )
    assert refusal(AttentionConfig, 64, error=ConfigError, bias="f32", key_bias="f32") == (
        "AttentionConfig: key_bias cannot be combined with bias; add its elements to those of bias"
    )
    with pytest.raises(ConfigError) as error:
        flash.DecodeKernel(AttentionConfig(64, key_bias="f32"))
    assert "key_bias" in str(error.value)
    q, k, v, bias = problem()
    assert refusal(flash.attention, q, k, v, key_bias=bias[..., :-1], backend="cpu") == (
        "attention: key_bias must be [batch, heads, seq_k] = [2, 4, 53], or of a shape that "
        "broadcasts to it, got [2, 4, 52]"
    )
    assert refusal(flash.attention, q, k, v, error=TypeError, keybias=bias) == (
        "attention() got an unexpected keyword argument 'keybias'; did you mean 'key_bias'?"
    )


def test_an_unknown_name_is_refused_by_the_function_that_was_called() -> None:
    q, k, v, _ = problem()
    kernel = flash.AttentionKernel(AttentionConfig(16))
    for call, caller, name, meant in (
        (flash.attention, "attention", "softmaxscale", "softmax_scale"),
        (flash.attention_varlen, "attention_varlen", "window_", "window"),
        (kernel.launch, "AttentionKernel.launch", "return_les", "return_lse"),
        (kernel.explain, "AttentionKernel.explain", "key_bia", "key_bias"),
        (attention_reference, "attention_reference", "soft_cap", "softcap"),
    ):
        lengths = (np.array([0, 4]),) * 2 if call is flash.attention_varlen else ()
        assert refusal(call, q, k, v, *lengths, error=TypeError, **{name: 1}) == (
            f"{caller}() got an unexpected keyword argument {name!r}; did you mean {meant!r}?"
        )


def test_help_names_each_argument_of_each_feature() -> None:
    shown = inspect.signature(flash.attention).parameters
    assert {"window", "softcap", "key_bias", "dropout", "dropout_seed"} <= set(shown)
    assert shown["dropout"].default == 0.0
    assert "bias" not in inspect.signature(flash.attention_varlen).parameters
    assert "dropout_seed" not in inspect.signature(flash.AttentionKernel.explain).parameters


@pytest.mark.parametrize("wrong", [{"softcap": True}, {"dropout": False}], ids=str)
def test_a_setting_is_checked_though_an_equal_one_was_right(wrong: dict[str, Any]) -> None:
    q, k, v, _ = problem()
    for name, value in wrong.items():
        seed = {"dropout_seed": 1} if name == "dropout" else {}
        flash.attention(q, k, v, backend="cpu", **{name: float(value)}, **(seed if value else {}))
        with pytest.raises(ConfigError):
            flash.attention(q, k, v, backend="cpu", **wrong)
