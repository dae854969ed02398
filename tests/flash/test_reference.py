"""The float64 reference against closed forms and against other people's attention."""

from __future__ import annotations

from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from flash_oracles import onnx_attention, torch_attention
from judge import assert_agrees_in_float64, assert_attention_is_accurate, assert_close, rounded_normal

from flash.error_bound import F32_ARITHMETIC
from flash.reference import attention_reference
from flash.scores.window import causal_offset
from ptxgen.errors import ConfigError

pytestmark = pytest.mark.judged

SHAPES = [  # batch, heads, kv_heads, seq_q, seq_k, d, d_v
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 7, 8, 8),
    (1, 5, 1, 7, 5, 3, 6),
    (2, 12, 2, 33, 17, 16, 8),
    (1, 7, 1, 17, 33, 40, 59),
]


def inputs(shape, dtype=np.float64):
    batch, heads, kv_heads, seq_q, seq_k, d, d_v = shape
    rng = np.random.default_rng(sum(shape))
    return (
        rounded_normal(rng, (batch, heads, seq_q, d), dtype),
        rounded_normal(rng, (batch, kv_heads, seq_k, d), dtype),
        rounded_normal(rng, (batch, kv_heads, seq_k, d_v), dtype),
    )


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", ["", "top_left", "bottom_right"])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_pytorch(torch: ModuleType, shape, causal, scale):
    q, k, v = inputs(shape)
    how = {"causal": causal or False, "softmax_scale": scale}
    theirs = torch_attention(torch, q, k, v, causal=causal, scale=scale)
    # PyTorch gives other things to rows without a key.
    seen = np.isfinite(attention_reference(q, k, v, **how)[1])
    assert_agrees_in_float64(theirs, q, k, v, seen, **how)


@pytest.mark.parametrize("scale", [None, 0.25])  # as an attribute and its root are f32
@pytest.mark.parametrize("causal", ["", "top_left", "bottom_right"])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_onnx_operator(onnx: ModuleType, shape, causal, scale):
    q, k, v = inputs(shape)
    theirs = onnx_attention(onnx, q, k, v, causal=causal, scale=scale)
    assert_agrees_in_float64(theirs, q, k, v, causal=causal or False, softmax_scale=scale)


def planes(shape):
    """A bias and a mask for each score; no row is hidden altogether."""
    batch, heads, _, seq_q, seq_k, _, _ = shape
    rng = np.random.default_rng(sum(shape))
    mask = rng.random((batch, heads, seq_q, seq_k)) < 0.7
    mask[..., 0] = True
    return {"bias": rng.normal(size=mask.shape), "mask": mask}


@pytest.mark.parametrize("given", [("bias",), ("mask",), ("bias", "mask")], ids="_".join)
@pytest.mark.parametrize("causal", ["", "top_left", "bottom_right"])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_agrees_with_pytorch_on_planes(torch: ModuleType, shape, causal, given):
    q, k, v = inputs(shape)
    operands = {name: array for name, array in planes(shape).items() if name in given}
    _, lse = attention_reference(q, k, v, causal=causal or False, **operands)
    theirs = torch_attention(torch, q, k, v, causal=causal, **operands)
    seen = np.isfinite(lse)
    assert_agrees_in_float64(theirs, q, k, v, seen, causal=causal or False, **operands)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_alibi_and_a_sink_agree_with_pytorch(torch: ModuleType, shape):
    q, k, v = inputs(shape)
    (_, heads, _, seq_q, seq_k, _, _), rng = shape, np.random.default_rng(1)
    slopes, sink = rng.random(heads), rng.normal(size=heads)
    positions = np.arange(seq_q)[:, None] + seq_k - seq_q
    distances = np.abs(positions - np.arange(seq_k))
    bias = np.broadcast_to(-slopes[:, None, None] * distances, (q.shape[0], heads, seq_q, seq_k))
    theirs = torch_attention(torch, q, k, v, bias=bias)
    assert_agrees_in_float64(theirs, q, k, v, alibi_slopes=slopes)
    # A sink is one more key, whose score is the sink and whose value is 0.
    longer = [np.concatenate([x, np.zeros_like(x[:, :, :1])], axis=2) for x in (k, v)]
    column = np.broadcast_to(sink[:, None, None], (q.shape[0], heads, seq_q, 1))
    bias = np.concatenate([np.zeros((q.shape[0], heads, seq_q, seq_k)), column], axis=3)
    theirs = torch_attention(torch, q, *longer, bias=bias)
    assert_agrees_in_float64(theirs, q, k, v, sink=sink)


@pytest.mark.parametrize(
    "features",
    [
        *({"softcap": 0.5}, {"window": (3, 2)}, {"window": (4, None)}, {"window": (None, 1)}),
        *({"bias": True}, {"mask": True}, {"softcap": 2.0, "window": (6, 5), "bias": True, "mask": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", ["", "top_left", "bottom_right"])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]])
def test_features_agree_with_the_onnx_operator(onnx: ModuleType, shape, causal, features):
    q, k, v = inputs(shape)
    how = {name: planes(shape).get(name, value) for name, value in features.items()}
    theirs = onnx_attention(onnx, q, k, v, causal=causal, **how)
    assert_agrees_in_float64(theirs, q, k, v, causal=causal or False, **how)


def test_lse_is_the_natural_log_of_the_sum():
    q, k, v = inputs((2, 4, 2, 6, 9, 8, 8))
    _, lse = attention_reference(q, k, v, softmax_scale=0.7)
    scores = 0.7 * np.einsum("bhid,bhjd->bhij", q, k.repeat(2, axis=1))
    few = 16 * np.finfo(float).eps * np.abs(scores).max()  # 8 products; lse is near 0 somewhere
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-13, atol=few)


@pytest.mark.parametrize(
    ("causal", "seen"),
    [
        (False, [3, 3, 3, 3, 3]),
        (True, [0, 0, 1, 2, 3]),
        ("bottom_right", [0, 0, 1, 2, 3]),
        ("top_left", [1, 2, 3, 3, 3]),
    ],
)
def test_each_query_sees_as_many_keys_as_its_mask_says(causal, seen):
    q, k, v = np.zeros((1, 1, 5, 2)), np.ones((1, 1, 3, 2)), np.array([[[[1.0], [2], [4]]]])
    out, lse = attention_reference(q, k, v, causal=causal)
    means = [0, 1, 1.5, 7 / 3]
    np.testing.assert_allclose(out[0, 0, :, 0], [means[n] for n in seen])
    logs = [-np.inf, 0, np.log(2), np.log(3)]
    np.testing.assert_allclose(lse[0, 0], [logs[n] for n in seen])


def test_true_means_bottom_right():
    assert causal_offset(True, 2, 5) == causal_offset("bottom_right", 2, 5) == 3


def test_heads_share_key_heads_in_consecutive_groups():
    q = np.zeros((1, 6, 1, 1))
    k = np.zeros((1, 2, 1, 1))
    out, _ = attention_reference(q, k, np.array([10.0, 20.0]).reshape(1, 2, 1, 1))
    assert out.ravel().tolist() == [10, 10, 10, 20, 20, 20]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_no_query_sees_cannot_matter(bad):
    q, k, v = inputs((1, 2, 2, 4, 9, 8, 8))
    clean = attention_reference(q, k, v, causal="top_left")
    k[:, :, 4:] = bad
    v[:, :, 4:] = bad
    dirty = attention_reference(q, k, v, causal="top_left")
    for one, other in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nan_in_a_value_reaches_only_the_queries_that_see_it():
    q, k, v = inputs((1, 1, 1, 6, 6, 8, 8))
    v[0, 0, 3] = np.nan
    out, lse = attention_reference(q, k, v, causal=True)
    assert np.isnan(out).all(axis=-1)[0, 0].tolist() == [False] * 3 + [True] * 3
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("shape", [(0, 2, 1, 3, 4, 8, 8), (2, 2, 1, 0, 4, 8, 8)])
def test_no_batch_or_no_query_gives_an_empty_result(shape):
    out, lse = attention_reference(*inputs(shape))
    assert (out.shape, lse.shape) == ((shape[0], 2, shape[3], 8), (shape[0], 2, shape[3]))


@pytest.mark.parametrize("causal", [False, True, "top_left"])
def test_no_key_gives_zero_and_minus_infinity(causal):
    out, lse = attention_reference(*inputs((1, 2, 1, 3, 0, 8, 8)), causal=causal)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_a_row_whose_scores_are_all_minus_infinity_is_like_one_without_keys():
    q, k, v = inputs((1, 1, 1, 3, 4, 8, 8))
    out, lse = attention_reference(np.abs(q), np.full_like(k, -np.inf), v)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_scores_beyond_the_range_of_exp_are_exact():
    q, k = np.array([[[[1000.0], [-1000.0]]]]), np.array([[[[2.0], [3.0]]]])
    out, lse = attention_reference(q, k, np.array([[[[5.0], [7.0]]]]), softmax_scale=1.0)
    assert out.ravel().tolist() == [7, 5]
    assert lse.ravel().tolist() == [3000, -2000]


def test_lower_precision_computes_in_that_precision():
    q, k, v = inputs((1, 2, 1, 16, 32, 64, 64), np.float32)
    out, lse = attention_reference(q, k, v, dtype=np.float32)
    exact, exact_lse = attention_reference(q, k, v)
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)
    assert (out != exact).any()
    assert (lse != exact_lse).any()
    assert_attention_is_accurate(out, lse, q, k, v)


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
@pytest.mark.parametrize("wide", [np.float64, np.float32])
def test_narrow_inputs_are_widened_before_anything_is_computed(dtype, wide):
    narrow = inputs((2, 4, 2, 9, 12, 16, 8), dtype)
    result = attention_reference(*narrow, causal=True, dtype=wide)
    wanted = attention_reference(*(x.astype(wide) for x in narrow), causal=True, dtype=wide)
    for one, other in zip(result, wanted, strict=True):
        assert one.dtype == wide
        np.testing.assert_array_equal(one, other)


def test_an_unknown_causal_word_is_refused():
    with pytest.raises(ConfigError) as error:
        attention_reference(*inputs(SHAPES[0]), causal="left")
    assert str(error.value) == (
        "attention: causal must be False, True, 'bottom_right' or 'top_left', got 'left'"
    )


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)),
        ((1, 2, 4, 8), (1, 0, 4, 8), (1, 0, 4, 8)),
        ((1, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8)),
        ((1, 2, 4, 8), (1, 2, 4, 7), (1, 2, 4, 8)),
        ((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 5, 8)),
        ((2, 4, 8), (2, 4, 8), (2, 4, 8)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(q, k, v):
    with pytest.raises(ConfigError) as error:
        attention_reference(np.zeros(q), np.zeros(k), np.zeros(v))
    assert str(error.value) == (
        "attention_reference: wanted q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d] "
        "and v [batch, kv_heads, seq_k, d_v] with heads a multiple of kv_heads, "
        f"got q {list(q)}, k {list(k)}, v {list(v)}"
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1.0011])
def test_the_judge_fails_what_is_wrong_and_passes_what_is_right(wrong):
    exact, allowed = np.array([1.0, -np.inf, 3.0]), np.array([1e-3, 0, 1e-3])
    right = np.float32(exact)
    right[0] += np.float32(0.9e-3)
    assert_close("x", right, exact, allowed)
    for at in range(3):
        got = right.copy()
        got[at] = wrong
        with pytest.raises(AssertionError):
            assert_close("x", got, exact, allowed)


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
def test_the_judge_allows_narrow_results_their_rounding_and_no_more(dtype):
    q, k, v = inputs((1, 2, 1, 9, 12, 16, 8), dtype)
    exact, lse = attention_reference(q, k, v)
    out, lse = exact.astype(q.dtype), lse.astype(np.float32)
    how = {"arithmetic": F32_ARITHMETIC}  # P is not rounded
    assert_attention_is_accurate(out, lse, q, k, v, **how)
    off = out.copy()
    off[0, 1, 4, 2] += 2 * float(ml_dtypes.finfo(q.dtype).eps) * np.abs(exact[0, 1, 4, 2])
    with pytest.raises(AssertionError, match=r"^out: .* at \(0, 1, 4, 2\), wanted "):
        assert_attention_is_accurate(off, lse, q, k, v, **how)
    with pytest.raises(AssertionError, match=r"^lse: "):  # which has to be as exact as f32 is
        assert_attention_is_accurate(out, lse.astype(q.dtype).astype(np.float32), q, k, v, **how)
