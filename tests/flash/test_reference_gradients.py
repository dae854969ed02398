"""The float64 reference's gradients against PyTorch's autograd and against differences."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gradient_judge import by_name
from gradient_oracles import broadcasts, difference, torch_gradients

from flash.reference import (
    attention_reference,
    attention_reference_gradients,
    attention_varlen_reference,
    attention_varlen_reference_gradients,
)
from ptxgen.errors import ConfigError

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]

CAUSAL = [False, "bottom_right", "top_left"]
SHAPES = [  # batch, heads, kv_heads, seq_q, seq_k, d, d_v
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 7, 8, 8),
    (1, 5, 1, 7, 5, 3, 6),
    (2, 6, 2, 9, 12, 4, 5),
]
ARRAYS = ["alibi_slopes", "bias", "key_bias", "sink"]
NUMBERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "scale": {"softmax_scale": -0.7},
    "left": {"window": (3, None)},
    "right": {"window": (None, 1)},
    "both_sides": {"window": (2, 2)},
    "softcap": {"softcap": 0.8},
    "dropout": {"dropout": 0.3, "dropout_seed": 5},
}
FEATURES = [*NUMBERS, *ARRAYS, "mask", "all"]
OF_FLOAT64 = 1e-12  # a thousand roundings of the largest number of a gradient


def problem(shape: tuple[int, ...], *, dlse: bool = True) -> tuple[Array, Array | None, dict[str, Array]]:
    """dout, dlse, and q, k, v by name."""
    batch, heads, kv_heads, seq_q, seq_k, d, d_v = shape
    rng = np.random.default_rng(shape)
    q, k = rng.normal(size=(batch, heads, seq_q, d)), rng.normal(size=(batch, kv_heads, seq_k, d))
    v, dout = rng.normal(size=(batch, kv_heads, seq_k, d_v)), rng.normal(size=(batch, heads, seq_q, d_v))
    of_lse = rng.normal(size=(batch, heads, seq_q))
    return dout, of_lse if dlse else None, {"q": q, "k": k, "v": v}


def features_for(name: str, shape: tuple[int, ...]) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays with gradients, and the other arguments, of the feature of this name, or of all."""
    batch, heads, _, seq_q, seq_k, _, _ = shape
    rng = np.random.default_rng(len(name))
    hidden = rng.random((batch, heads, seq_q, seq_k)) < 0.2
    every = {
        "alibi_slopes": rng.random(heads),
        "bias": np.where(hidden, -np.inf, rng.normal(size=hidden.shape)),
        "key_bias": rng.normal(size=(batch, 1, seq_k)),
        "sink": rng.normal(size=(batch, heads)),
    }
    mask = rng.random(hidden.shape) < 0.7
    if name == "all":
        numbers = {"window": (4, 3), "softcap": 1.5, "dropout": 0.2, "dropout_seed": 9}
        return every, {**numbers, "mask": mask}
    if name == "mask":
        return {}, {"mask": mask}
    return ({name: every[name]}, {}) if name in every else ({}, NUMBERS[name])


def assert_same(got: dict[str, Array], wanted: dict[str, Array], relative: float = OF_FLOAT64) -> None:
    assert got.keys() == wanted.keys()
    for name, exact in wanted.items():
        assert got[name].shape == exact.shape, name
        few = relative * max(1, np.abs(exact).max(initial=0))
        np.testing.assert_allclose(got[name], exact, rtol=0, atol=few, err_msg=name)


@pytest.mark.parametrize("dlse", [False, True])
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_feature_agrees_with_autograd(torch: ModuleType, shape, name, causal, dlse):
    dout, of_lse, qkv = problem(shape, dlse=dlse)
    arrays, how = features_for(name, shape)
    how["causal"] = causal
    result = attention_reference_gradients(dout, **qkv, dlse=of_lse, **arrays, **how)
    assert_same(by_name(result), torch_gradients(torch, dout, of_lse, {**qkv, **arrays}, how))


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_pytorchs_own_attention(torch: ModuleType, shape):
    dout, _, qkv = problem(shape, dlse=False)
    bias = np.random.default_rng(0).normal(size=(shape[1], *shape[3:5]))
    arguments = {n: torch.tensor(x, requires_grad=True) for n, x in {**qkv, "bias": bias}.items()}
    out = torch.nn.functional.scaled_dot_product_attention(
        arguments["q"],
        arguments["k"],
        arguments["v"],
        attn_mask=arguments["bias"],
        enable_gqa=shape[1] != shape[2],
    )
    out.backward(torch.tensor(dout))
    result = attention_reference_gradients(dout, **qkv, bias=bias)
    assert_same(by_name(result), {name: x.grad.numpy() for name, x in arguments.items()})


SHARED = (2, 4, 2, 3, 5, 2, 3)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        *(("bias", shape) for shape in broadcasts(2, 4, 3, 5)),
        *(("key_bias", shape) for shape in broadcasts(2, 4, 5)),
        *(("alibi_slopes", shape) for shape in broadcasts(2, 4)),
        *(("sink", shape) for shape in broadcasts(2, 4)),
    ],
    ids=str,
)
def test_an_array_of_any_shape_that_broadcasts_has_a_gradient_of_that_shape(torch: ModuleType, name, of):
    dout, dlse, qkv = problem(SHARED)
    array = {name: np.random.default_rng(len(of)).normal(size=of)}
    how = {"causal": True, "softcap": 2.0}
    result = attention_reference_gradients(dout, **qkv, dlse=dlse, **array, **how)
    assert_same(by_name(result), torch_gradients(torch, dout, dlse, {**qkv, **array}, how))


@pytest.mark.parametrize("name", FEATURES)
def test_agrees_with_differences(name):
    shape = (1, 2, 1, 3, 4, 2, 2)
    dout, dlse, qkv = problem(shape)
    arrays, how = features_for(name, shape)
    operands = {**qkv, **{n: np.where(np.isneginf(x), 0, x) for n, x in arrays.items()}}
    how["causal"] = "top_left"
    result = by_name(attention_reference_gradients(dout, dlse=dlse, **operands, **how))
    attention = functools.partial(attention_reference, **how)
    assert_same(result, {n: difference(attention, dout, dlse, operands, n) for n in operands}, 1e-8)


@pytest.mark.parametrize("first_batch", [0, 3])
def test_dropout_is_that_of_the_forward_pass(first_batch):
    dout, dlse, qkv = problem((2, 2, 1, 3, 40, 1, 1))
    how = {"dropout": 0.5, "dropout_seed": 11, "first_batch": first_batch}
    result = by_name(attention_reference_gradients(dout, dlse=dlse, **qkv, **how))
    attention = functools.partial(attention_reference, **how)
    assert_same(result, {n: difference(attention, dout, dlse, qkv, n) for n in qkv}, 1e-8)


# Keys that no query sees.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("hidden_by", ["causal", "window", "mask", "bias", "key_bias"])
def test_what_no_query_sees_cannot_matter(hidden_by, bad):
    dout, dlse, qkv = problem((1, 4, 2, 4, 9, 3, 3))
    shown = np.arange(9) < 4
    how: dict[str, Any] = {
        "causal": {"causal": "top_left"},
        "window": {"causal": "top_left", "window": (2, 0)},
        "mask": {"mask": shown},
        "bias": {"bias": np.where(shown, 0.5, -np.inf)},
        "key_bias": {"key_bias": np.where(shown, 0.5, -np.inf)},
    }[hidden_by]
    how["softcap"] = 2.0
    clean = by_name(attention_reference_gradients(dout, **qkv, dlse=dlse, **how))
    qkv["k"][:, :, 4:] = qkv["v"][:, :, 4:] = bad
    dirty = by_name(attention_reference_gradients(dout, **qkv, dlse=dlse, **how))
    for name, gradient in clean.items():
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(dirty[name], gradient, err_msg=name)
    assert (dirty["k"][:, :, 4:] == 0).all()
    assert (dirty["v"][:, :, 4:] == 0).all()


@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
def test_nan_reaches_only_what_its_row_or_its_key_has_to_do_with(where):
    dout, _, qkv = problem((1, 1, 1, 6, 6, 2, 2), dlse=False)
    {**qkv, "dout": dout}[where][0, 0, 3] = np.nan
    result = attention_reference_gradients(dout, **qkv, causal=True)
    rows = [3] if where in ("q", "dout") else [3, 4, 5]  # which see key 3
    keys = max(rows) + 1  # rows up to this one see these keys
    assert np.isnan(result.dq).all(axis=-1)[0, 0].tolist() == [row in rows for row in range(6)]
    assert np.isnan(result.dk).all(axis=-1)[0, 0].tolist() == [key < keys for key in range(6)]
    of_values = {"q": keys, "dout": keys, "k": keys, "v": 0}[where]  # dV does not depend on V
    assert np.isnan(result.dv).all(axis=-1)[0, 0].tolist() == [key < of_values for key in range(6)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_sees_no_key_adds_nothing(bad):
    dout, dlse, qkv = problem((1, 2, 1, 7, 4, 3, 3))
    blind = {name: x.copy() for name, x in qkv.items()}
    arrays = {"alibi_slopes": np.array([0.1, 0.2]), "bias": np.ones((7, 4)), "key_bias": np.ones(4)}
    result = by_name(attention_reference_gradients(dout, **qkv, dlse=dlse, causal=True, **arrays))
    assert (result["q"][:, :, :3] == 0).all()
    assert (result["bias"][:3] == 0).all()
    for x in (blind["q"], dout, dlse):
        x[:, :, :3] = bad
    again = by_name(attention_reference_gradients(dout, **blind, dlse=dlse, causal=True, **arrays))
    for name, gradient in result.items():
        np.testing.assert_array_equal(again[name], gradient, err_msg=name)


def test_scores_that_are_all_minus_infinity_are_like_no_keys():
    dout, dlse, qkv = problem((1, 2, 1, 3, 4, 2, 2))
    qkv["q"], qkv["k"] = np.abs(qkv["q"]), np.full_like(qkv["k"], -np.inf)
    result = attention_reference_gradients(dout, **qkv, dlse=dlse, sink=np.full(2, -np.inf))
    for gradient in by_name(result).values():
        assert (gradient == 0).all()


def test_a_row_with_a_sink_and_no_key_gives_the_sink_the_gradient_of_its_lse():
    dout, dlse, qkv = problem((1, 2, 1, 3, 0, 2, 2))
    result = attention_reference_gradients(dout, **qkv, dlse=dlse, sink=np.array([0.5, -0.5]))
    np.testing.assert_allclose(result.arrays["sink"], dlse.sum(axis=(0, 2)), rtol=1e-14)
    assert (result.dq == 0).all()


@pytest.mark.parametrize(
    "shape", [(0, 2, 1, 3, 4, 8, 8), (2, 2, 1, 0, 4, 8, 8), (1, 2, 1, 3, 0, 8, 8), (1, 0, 1, 3, 4, 8, 8)]
)
def test_nothing_to_sum_gives_zeros_of_the_right_shapes(shape):
    dout, dlse, qkv = problem(shape)
    result = by_name(attention_reference_gradients(dout, **qkv, dlse=dlse, bias=np.ones((1, 1))))
    assert {name: x.shape for name, x in result.items()} == {
        **{name: x.shape for name, x in qkv.items()},
        "bias": (1, 1),
    }
    assert all((gradient == 0).all() for gradient in result.values())


def test_lower_precision_computes_in_that_precision():
    dout, dlse, qkv = problem((2, 4, 2, 16, 32, 8, 8))
    arrays, how = features_for("all", (2, 4, 2, 16, 32, 8, 8))
    exact = by_name(attention_reference_gradients(dout, **qkv, dlse=dlse, **arrays, **how))
    narrow = by_name(attention_reference_gradients(dout, **qkv, dlse=dlse, dtype=np.float32, **arrays, **how))
    for name, gradient in narrow.items():
        assert gradient.dtype == np.float32
        assert (gradient != exact[name]).any()
    assert_same(narrow, exact, 1e-5)


# Packed sequences.

LENGTHS_Q, LENGTHS_K = (0, 2, 3, 1), (2, 3, 1, 0)
CU_Q, CU_K = (np.cumsum([1, *lengths]).astype(np.int32) for lengths in (LENGTHS_Q, LENGTHS_K))
USED = {"seqused_q": np.array([0, 1, 3, 1]), "seqused_k": np.array([2, 2, 1, 0])}


def packed() -> tuple[Array, Array, dict[str, Array]]:
    rng = np.random.default_rng(0)
    rows, keys = int(CU_Q[-1]) + 2, int(CU_K[-1]) + 1
    q, k, v = (rng.normal(size=s) for s in ((rows, 2, 2), (keys, 1, 2), (keys, 1, 3)))
    return rng.normal(size=(rows, 2, 3)), rng.normal(size=(2, rows)), {"q": q, "k": k, "v": v}


@pytest.mark.slow
@pytest.mark.parametrize("used", [{}, USED], ids=["whole", "used"])
@pytest.mark.parametrize("causal", CAUSAL)
def test_packed_sequences_agree_with_differences(causal, used):
    dout, dlse, qkv = packed()
    rng = np.random.default_rng(1)
    operands = {**qkv, "alibi_slopes": rng.random(2), "sink": rng.normal(size=(4, 2))}
    how = {"causal": causal, "window": (3, None), "dropout": 0.3, "dropout_seed": 2, **used}
    lengths = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}
    result = by_name(attention_varlen_reference_gradients(dout, dlse=dlse, **lengths, **operands, **how))
    attention = functools.partial(attention_varlen_reference, **lengths, **how)
    assert_same(result, {n: difference(attention, dout, dlse, operands, n) for n in operands}, 1e-8)


def test_packed_sequences_are_each_by_itself():
    dout, _, qkv = packed()
    result = attention_varlen_reference_gradients(
        dout, **qkv, cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, bias=np.full((2, 1, 1), 0.5)
    )
    total = np.zeros((2, 1, 1))
    used_q, used_k = np.zeros(len(qkv["q"]), bool), np.zeros(len(qkv["k"]), bool)
    for b in range(4):
        rows, keys = slice(CU_Q[b], CU_Q[b + 1]), slice(CU_K[b], CU_K[b + 1])
        own = (x.swapaxes(0, 1)[None] for x in (dout[rows], qkv["q"][rows], qkv["k"][keys], qkv["v"][keys]))
        each = attention_reference_gradients(*own, bias=np.full((2, 1, 1), 0.5))
        np.testing.assert_array_equal(result.dq[rows], each.dq[0].swapaxes(0, 1))
        np.testing.assert_array_equal(result.dk[keys], each.dk[0].swapaxes(0, 1))
        np.testing.assert_array_equal(result.dv[keys], each.dv[0].swapaxes(0, 1))
        used_q[rows] = used_k[keys] = True
        total += each.arrays["bias"]
    np.testing.assert_array_equal(result.arrays["bias"], total)
    assert (result.dq[~used_q] == 0).all()
    assert (result.dk[~used_k] == 0).all()
    assert (result.dv[~used_k] == 0).all()


# Arguments that are refused.


ROWS = np.zeros((1, 2, 4, 8))
GRADIENTS, PACKED_GRADIENTS = attention_reference_gradients, attention_varlen_reference_gradients


def of_packed(*, dout: slice = slice(None), **how: Any) -> object:
    of_out, _, qkv = packed()
    return PACKED_GRADIENTS(of_out[dout], **qkv, cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, **how)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: GRADIENTS(ROWS, ROWS, ROWS, np.zeros((1, 2, 5, 8))),
            "attention_reference_gradients: wanted q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d] "
            "and v [batch, kv_heads, seq_k, d_v] with heads a multiple of kv_heads, got q [1, 2, 4, 8], "
            "k [1, 2, 4, 8], v [1, 2, 5, 8]",
        ),
        (
            lambda: GRADIENTS(np.zeros((2, 4, 8)), ROWS, ROWS, ROWS),
            "attention_reference_gradients: wanted dout [batch, heads, seq_q, d_v], here [1, 2, 4, 8], got "
            "[2, 4, 8]",
        ),
        (
            lambda: GRADIENTS(ROWS, ROWS, ROWS, ROWS, dlse=np.zeros((1, 4, 2))),
            "attention_reference_gradients: wanted dlse [batch, heads, seq_q], here [1, 2, 4], got [1, 4, 2]",
        ),
        (
            lambda: of_packed(dout=slice(1, None)),
            "attention_varlen_reference_gradients: wanted dout [total_q, heads, d_v], here [9, 2, 3], got "
            "[8, 2, 3]",
        ),
        (
            lambda: of_packed(dlse=packed()[1].T),
            "attention_varlen_reference_gradients: wanted dlse [heads, total_q], here [2, 9], got [9, 2]",
        ),
        (
            lambda: GRADIENTS(ROWS, ROWS, ROWS, ROWS, causal="left"),
            "attention: causal must be False, True, 'bottom_right' or 'top_left', got 'left'",
        ),
        (
            lambda: GRADIENTS(ROWS, ROWS, ROWS, ROWS, sinks=1),
            "attention_reference_gradients() got an unexpected keyword argument 'sinks'; did you mean "
            "'sink'?",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises((ConfigError, TypeError)) as error:
        call()
    assert str(error.value) == message
