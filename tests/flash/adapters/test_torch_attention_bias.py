"""PyTorch's own tests of `torch.nn.attention.bias` (`TestAttnBias` in its test/test_transformers.py), by the
same names of cases and shapes, inside `replace_sdpa`, beside PyTorch's function and a materialised mask.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ptxgen.errors import LaunchError

# batch, heads, queries, keys, head_dim, as in PyTorch's tests
SHAPES = ((16, 16, 128, 128, 16), (16, 16, 128, 256, 32), (16, 16, 256, 128, 32), (1, 1, 23, 56, 15))
SHAPES += ((16, 16, 128, 128, 8), (2, 3, 1, 1, 8), (2, 3, 1, 128, 32), (2, 3, 128, 1, 32))
# Shapes of the same kinds, each of which takes milliseconds.
SMALL = ((2, 2, 16, 16, 16), (2, 2, 16, 24, 8), (2, 2, 24, 16, 8), (1, 1, 23, 56, 15), (1, 2, 1, 1, 8))
VARIANTS = ("upper_left", "lower_right")
TOLERANCES = {"atol": 2e-6, "rtol": 2e-6}
OF_GRADIENTS = {"atol": 2e-5, "rtol": 2e-5}


def bias_of(variant: str, queries: int, keys: int) -> Any:
    from torch.nn.attention import bias

    with warnings.catch_warnings():  # PyTorch warns of rows without keys
        warnings.filterwarnings("ignore", "Lower right causal bias")
        return getattr(bias, f"causal_{variant}")(queries, keys)


def leaves(torch: Any, shape: tuple[int, ...]) -> list[Any]:
    batch, heads, queries, keys, dim = shape
    return [torch.randn(batch, heads, n, dim, requires_grad=True) for n in (queries, keys, keys)]


def run_test(ours: Any, torch: Any, shape: tuple[int, ...], variant: str, sdpa: Any) -> None:
    """Results and gradients of `sdpa` inside `replace_sdpa`, beside those of PyTorch outside."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = leaves(torch, shape)
    bias, mine = bias_of(variant, *shape[2:4]), [x.detach().clone().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias._materialize())
    with ours.replace_sdpa():
        result = sdpa(*mine, attn_mask=bias, dropout_p=0.0, is_causal=False, scale=None)
    weights = torch.randn_like(wanted)
    torch.testing.assert_close(result, wanted, **TOLERANCES)
    of_wanted, of_found = (
        torch.autograd.grad(o, x, weights) for o, x in ((wanted, (q, k, v)), (result, mine))
    )
    for ours_of, theirs in zip(of_found, of_wanted, strict=True):
        torch.testing.assert_close(ours_of, theirs, **OF_GRADIENTS)
    if variant == "upper_left" or shape[2] <= shape[3]:  # else PyTorch's rows without keys are NaN
        own = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        torch.testing.assert_close(result, own, **TOLERANCES)


def called(*args: Any, **how: Any) -> Any:
    """The function under the name that code has at the time of the call."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(*args, **how)


EVERY_SHAPE = pytest.mark.parametrize(
    "shape", [*SMALL, *(pytest.param(shape, marks=pytest.mark.nightly) for shape in SHAPES)], ids=str
)


@pytest.mark.parametrize("variant", VARIANTS)
@EVERY_SHAPE
def test_causal_variants(ours: Any, torch: Any, shape: tuple[int, ...], variant: str) -> None:
    run_test(ours, torch, shape, variant, called)


@pytest.mark.parametrize("variant", [VARIANTS[0], pytest.param(VARIANTS[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "shape", [SMALL[1], *(pytest.param(shape, marks=pytest.mark.nightly) for shape in SHAPES)], ids=str
)
def test_causal_variants_compile(ours: Any, torch: Any, shape: tuple[int, ...], variant: str) -> None:
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter = CompileCounter()
    sdpa = torch.nn.functional.scaled_dot_product_attention  # the bare function, as PyTorch's tests have it
    run_test(ours, torch, shape, variant, torch.compile(sdpa, backend=counter, fullgraph=True))
    assert counter.frame_count == 1


@EVERY_SHAPE
def test_is_causal_equals_upper_left(ours: Any, torch: Any, shape: tuple[int, ...]) -> None:
    q, k, v = leaves(torch, shape)
    bias = bias_of("upper_left", *shape[2:4])
    with ours.replace_sdpa():
        by_bias, by_flag = called(q, k, v, attn_mask=bias), called(q, k, v, is_causal=True)
    assert torch.equal(by_bias, by_flag)
    torch.testing.assert_close(by_flag, called(q, k, v, is_causal=True), **TOLERANCES)


@pytest.mark.parametrize("fallback", [False, True])
def test_is_causal_and_mask_fails(ours: Any, torch: Any, fallback: bool) -> None:
    """By the class of error and the words of PyTorch."""
    x = torch.randn(1, 2, 16, 8)
    for variant in VARIANTS:
        with (
            ours.replace_sdpa(fallback=fallback),
            pytest.raises(ValueError, match="CausalBias should not be used with causal=True") as raised,
        ):
            called(x, x, x, attn_mask=bias_of(variant, 16, 16), is_causal=True, dropout_p=0.0)
        assert isinstance(raised.value, LaunchError) == (not fallback)
        if not fallback:
            assert str(raised.value) == (
                "scaled_dot_product_attention: CausalBias should not be used with causal=True; leave "
                "is_causal out, or attn_mask"
            )
