"""Values without columns: results without elements, and the log-sum-exps and gradients of the scores."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

import flash
from ptxgen.errors import LaunchError

Array = np.ndarray[Any, Any]
BACKENDS = ("cpu", pytest.param("interpreter", marks=pytest.mark.slow))


@pytest.fixture
def three() -> tuple[Array, Array, Array]:
    """q, k, and v without columns."""
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((2, 4, n, 8), dtype=np.float32) for n in (5, 9))
    return q, k[:, :2], k[:, :2, :, :0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_out_has_no_elements_and_lse_is_that_of_the_scores(three: Any, backend: Any, layout: Any) -> None:
    q, k, v = three if layout == "bhsd" else (x.swapaxes(1, 2) for x in three)
    how: dict[str, Any] = {"causal": True, "backend": backend, "layout": layout}
    out, lse = flash.attention(q, k, v, return_lse=True, **how)
    _, wanted = flash.attention(q, k, k, return_lse=True, **how)
    assert (out.shape, out.dtype) == ((*q.shape[:-1], 0), q.dtype)
    np.testing.assert_array_equal(lse, wanted)
    assert flash.attention(q, k, v, **how).shape == out.shape
    arguments = np.empty_like(out)
    assert flash.attention(q, k, v, out=arguments, **how) is arguments


def test_packed_sequences_may_have_values_without_columns(three: Any) -> None:
    q, k, _ = (x[0].swapaxes(0, 1) for x in three)
    ends = np.array([0, 2, 5], np.int32), np.array([0, 4, 9], np.int32)
    out, lse = flash.attention_varlen(q, k, k[..., :0], *ends, return_lse=True, backend="cpu")
    assert out.shape == (5, 4, 0)
    _, wanted = flash.attention_varlen(q, k, k, *ends, return_lse=True, backend="cpu")
    np.testing.assert_array_equal(lse, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_those_for_lse(three: Any, backend: Any) -> None:
    q, k, v = three
    out, lse = flash.attention(q, k, v, return_lse=True, backend="cpu")
    dlse = np.random.default_rng(1).standard_normal(lse.shape, dtype=np.float32)
    result = flash.attention_backward(out, q, k, v, out, lse, dlse=dlse, backend=backend)
    zeros = np.zeros_like(q)
    wanted = flash.attention_backward(zeros, q, k, k, zeros, lse, dlse=dlse, backend=backend)
    np.testing.assert_array_equal(result.dq, wanted.dq)
    np.testing.assert_array_equal(result.dk, wanted.dk)
    assert np.abs(result.dq).max() > 0.01
    assert result.dv.shape == v.shape


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_adapters_take_and_differentiate_them(
    three: Any, library: str, request: pytest.FixtureRequest
) -> None:
    module: Any = request.getfixturevalue(library)
    attention = importlib.import_module(f"flash.adapters.{library}").attention
    out, lse = flash.attention(*three, return_lse=True, backend="cpu")
    ones: Any = {"dlse": np.ones_like(lse), "backend": "cpu"}
    arrays: Any = (out, *three, out, lse)
    wanted = flash.attention_backward(*arrays, **ones)
    if library == "torch":
        q, k, v = (module.from_numpy(x).requires_grad_() for x in three)
        result, found_lse = attention(q, k, v, return_lse=True)
        found_lse.sum().backward()
        dq, result, found_lse = q.grad, result.detach(), found_lse.detach()
        assert v.grad is None or v.grad.shape == v.shape
    else:
        q, k, v = map(module.numpy.asarray, three)
        result, found_lse = attention(q, k, v, return_lse=True)
        dq = module.grad(lambda q: attention(q, k, v, return_lse=True)[1].sum())(q)
    assert result.shape == out.shape
    np.testing.assert_allclose(np.asarray(found_lse), lse, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(dq), wanted.dq, rtol=1e-5, atol=1e-7)


def test_sdpa_gives_what_pytorch_gives(three: Any, torch: Any) -> None:
    from flash.adapters.torch import scaled_dot_product_attention

    q, k, v = map(torch.from_numpy, three)
    out = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert (out.shape, out.dtype) == (wanted.shape, wanted.dtype)


def test_their_rows_are_those_of_keys(three: Any) -> None:
    q, k, v = three
    for call in (
        lambda: flash.attention(q, k, v[:, :, :-1]),
        lambda: flash.attention_backward(q[..., :0], q, k, v[:, :, :-1], q[..., :0], q[..., 0]),
    ):
        with pytest.raises(LaunchError) as caught:
            call()
        assert re.sub(r"^\w+: ", "", str(caught.value)) == (
            "v must be [2, 2, 9, 0] of float32, as many rows as k, got [2, 2, 8, 0] of float32"
        )


def test_what_belongs_to_them_has_no_columns_either(three: Any) -> None:
    q, k, v = three
    with pytest.raises(LaunchError) as caught:
        flash.attention(q, k, v, out=np.empty_like(q))
    assert str(caught.value) == (
        "attention: out must have shape [2, 4, 5, 0], got [2, 4, 5, 8]; leave out=None to have it made"
    )
    with pytest.raises(LaunchError) as caught:
        flash.attention_backward(q, q, k, v, q[..., :0], q[..., 0], dv=k)
    assert str(caught.value).splitlines() == [
        "attention_backward: 2 problems",
        "  dout must be [2, 4, 5, 0], because v has no columns, got [2, 4, 5, 8]",
        "  dv must be [2, 2, 9, 0], as v is, got [2, 2, 9, 8]",
    ]
