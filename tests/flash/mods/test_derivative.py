"""The derivative of a function of scores follows from its trace."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from flash.mods import (
    clamp,
    cos,
    elu,
    exp,
    exp2,
    floor,
    gelu,
    leaky_relu,
    log,
    log2,
    logsigmoid,
    maximum,
    minimum,
    relu,
    round,
    rsqrt,
    sigmoid,
    silu,
    sin,
    softplus,
    sqrt,
    tanh,
    where,
)
from flash.mods.evaluate import Evaluation
from flash.mods.record import traced
from flash.mods.slopes import derivative
from flash.mods.trace import AuxArray
from flash.operands.dtypes import F32

SLOPES = np.linspace(0.2, 0.7, 3).astype(np.float32)

FUNCTIONS: list[Callable[..., Any]] = [
    lambda s, b, h, q, k: s,
    lambda s, b, h, q, k: q - k,
    lambda s, b, h, q, k, slopes: s - slopes[h] * abs(q - k),
    lambda s, b, h, q, k: 20 * tanh(s / 20),
    lambda s, b, h, q, k: s * s * 0.5 - s / (2 + s * s),
    lambda s, b, h, q, k: where(q >= k, exp(-s), log(s * s + 1)),
    lambda s, b, h, q, k: sqrt(s * s + 0.25) * -1.5 + abs(s - 0.125),
    lambda s, b, h, q, k: minimum(s, 0.25) * maximum(0.125, s * 2) - minimum(s * s, s),
    lambda s, b, h, q, k: where(s > 0.375, s * 3, 1.25 - s),
    lambda s, b, h, q, k: 1 / (1 + exp(-s)),
    lambda s, b, h, q, k: exp2(s * 2) + log2(s * s + 1) * rsqrt(s * s + 0.5) + 2.0**s + abs(s) ** 1.5,
    lambda s, b, h, q, k: s**3 + (s * s + 1) ** 0.5 - (s + 9) ** -2 + (s * s + 1) ** -0.5 + (s * s + 1) ** s,
    lambda s, b, h, q, k: sin(s * 3) * cos(s - k) - sigmoid(s * 9) * sigmoid(-s),
    lambda s, b, h, q, k: silu(s) + softplus(s) + elu(s) - leaky_relu(s, 0.25) * relu(s) + logsigmoid(s),
    lambda s, b, h, q, k: clamp(s, -0.5, 0.75) * (s > 0.25) + floor(s * 3) + s * round(s * 4) + s % 0.5,
    lambda s, b, h, q, k: sigmoid(s * 1000) + where(s > 0, sqrt(s * s), floor(s / 0.25)),
]


def evaluated(trace: Any, scores: Any) -> Any:
    """A function of scores [heads, queries, keys] in float64."""
    heads, queries, keys = scores.shape
    inputs = {
        "score": scores,
        "batch": np.array(0),
        "head": np.arange(heads)[:, None, None],
        "query": np.arange(queries)[:, None],
        "key": np.arange(keys),
    }
    result = Evaluation(trace, inputs, {"slopes": SLOPES}, np.dtype(np.float64)).result
    return np.broadcast_to(result, scores.shape)


def trace_of(function: Callable[..., Any]) -> Any:
    return traced("score_mod", function, [AuxArray("slopes", F32, 1)])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_agrees_with_automatic_differentiation(function: Callable[..., Any], torch: Any) -> None:
    scores = np.random.default_rng(0).standard_normal((3, 5, 7))
    arguments = torch.tensor(scores, requires_grad=True)
    names = {n: getattr(torch, n, getattr(torch.nn.functional, n, None)) for n in function.__code__.co_names}
    names |= {name: _of_numbers(torch, getattr(torch, name)) for name in ("minimum", "maximum")}
    in_torch = FunctionType(function.__code__, {**function.__globals__, **names})
    query, key = torch.arange(5)[:, None], torch.arange(7)
    head = torch.arange(3)[:, None, None]
    more = (torch.tensor(SLOPES),) if "slopes" in function.__code__.co_varnames else ()
    out = in_torch(arguments, 0, head, query, key, *more)
    if out.requires_grad:
        out.expand(arguments.shape).sum().backward()
    wanted = np.zeros_like(scores) if arguments.grad is None else arguments.grad.numpy()
    np.testing.assert_allclose(
        evaluated(derivative(trace_of(function)), scores), wanted, rtol=1e-7, atol=1e-9
    )


def _of_numbers(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two tensors of which one may be a number."""

    def called(x: Any, y: Any) -> Any:
        like = x if isinstance(x, torch.Tensor) else y
        return function(*(torch.as_tensor(one, dtype=like.dtype) for one in (x, y)))

    return called


def test_that_of_gelu_is_pytorchs_but_for_its_constants_which_are_f32(torch: Any) -> None:
    scores = np.linspace(-4, 4, 105).reshape(3, 5, 7)
    for approximate in ("none", "tanh"):
        arguments = torch.tensor(scores, requires_grad=True)
        torch.nn.functional.gelu(arguments, approximate=approximate).sum().backward()
        trace = trace_of(lambda s, b, h, q, k, approximate=approximate: gelu(s, approximate))
        np.testing.assert_allclose(evaluated(derivative(trace), scores), arguments.grad, atol=2.0**-22)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_agrees_with_finite_differences(function: Callable[..., Any]) -> None:
    scores, step = np.random.default_rng(1).standard_normal((3, 5, 7)), 1e-6
    trace = trace_of(function)
    ahead, behind = (evaluated(trace, scores + sign * step) for sign in (1, -1))
    slope = evaluated(derivative(trace), scores)
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)


def test_what_does_not_depend_on_the_score_has_no_derivative() -> None:
    result = derivative(trace_of(lambda s, b, h, q, k: q * 2.0))
    assert [str(step) for step in result.steps] == ["const.f32 0x0.0p+0"]


def test_abs_has_no_slope_at_zero() -> None:
    zero = np.zeros((1, 1, 1))
    assert evaluated(derivative(trace_of(lambda s, b, h, q, k: abs(s))), zero) == 0
