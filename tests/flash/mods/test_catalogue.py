"""The functions of `tests/flex_catalogue.py`, traced, against the same functions evaluated by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mod_kernel import APART, BATCH_AND_HEAD, LANES, ROWS, inputs_of_kernel, results_of_kernel

import flash
from flash.mods.evaluate import Evaluation
from flash.mods.rounding import rounding
from flash.mods.slopes import derivative
from flash.mods.trace import Trace
from flash.operands.dtypes import BF16
from flash.scores.aux_arrays import with_captured
from ptxgen.errors import TypeMismatchError

torch = pytest.importorskip("torch")
import flex_catalogue as catalogue  # noqa: E402  # needs torch

_RNG = np.random.default_rng(17)
_NAMES = [*catalogue.SCORE_MODS, *catalogue.MASK_MODS]
F32 = 2.0**-24
LARGE = 1e30


def _kind(name: str) -> str:
    return "score_mod" if name in catalogue.SCORE_MODS else "mask_mod"


def _function(name: str) -> Any:
    return {**catalogue.SCORE_MODS, **catalogue.MASK_MODS}[name]


def _traced(name: str) -> tuple[Trace, dict[str, Any]]:
    """The trace of a function, and the arrays that it indexes."""
    arguments = with_captured("attention", {_kind(name): _function(name)})
    trace = arguments[_kind(name)]
    return trace, {array.name: _numpy(arguments["aux"][array.name]) for array in trace.arrays}


def _numpy(tensor: Any) -> Any:
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor.float().numpy().astype(BF16.numpy)


def _by_pytorch(function: Any, kind: str, scores: Any, *indices: Any) -> Any:
    """A function of one score, as flex_attention evaluates it: for each score and its indices."""
    arguments = (scores, *indices) if kind == "score_mod" else indices
    axes = [0] if kind == "score_mod" else []
    for axis in range(3, -1, -1):
        in_dims = (*axes, *(0 if n == axis else None for n in range(4)))
        function = torch.vmap(function, in_dims=in_dims)
    return function(*arguments)


def _grid() -> tuple[list[Any], tuple[int, ...]]:
    """Indices of each kind, and the shape of their scores."""
    queries = torch.arange(0, catalogue.SEQ, 6)
    result = [*map(torch.arange, (catalogue.BATCH, catalogue.HEADS)), queries, torch.arange(catalogue.SEQ)]
    return result, tuple(map(len, result))


def test_93_of_95_functions_are_traced() -> None:
    assert len(_NAMES) == 93
    assert len(catalogue.REFUSED) == 2


@pytest.mark.parametrize("name", _NAMES)
def test_a_function_is_that_of_pytorch_and_so_is_its_derivative(name: str) -> None:
    indices, shape = _grid()
    scores = torch.from_numpy(_RNG.standard_normal(shape)).requires_grad_()
    wanted = _by_pytorch(_function(name), _kind(name), scores, *indices).expand(shape)
    trace, arrays = _traced(name)
    inputs = {"score": scores.detach().numpy()}
    for at, (axis, index) in enumerate(zip(("batch", "head", "query", "key"), indices, strict=True)):
        inputs[axis] = index.numpy().reshape([-1 if n == at else 1 for n in range(4)])
    result = np.broadcast_to(Evaluation(trace, inputs, arrays, np.dtype(np.float64)).result, shape)
    if _kind(name) == "mask_mod":
        np.testing.assert_array_equal(result, wanted.numpy())
        return
    # PyTorch rounds to f32 what depends on indices alone, and has the least number of f64 for that of f32.
    _assert_close(result, wanted.detach().clamp(-LARGE, LARGE).numpy())
    wanted.clamp(-LARGE, LARGE).sum().backward()
    slopes = Evaluation(derivative(trace), inputs, arrays, np.dtype(np.float64)).result
    shown = np.isfinite(result)
    _assert_close(np.broadcast_to(slopes, shape)[shown], scores.grad.numpy()[shown])


def _assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.clip(found, -LARGE, LARGE), wanted, rtol=64 * F32, atol=64 * F32)


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.sample(8)
def test_a_kernel_computes_a_function_within_its_bound(name: str) -> None:
    scores = _RNG.standard_normal((ROWS, 2 * LANES)).astype(np.float32)
    trace, arrays = _traced(name)
    result = results_of_kernel(trace, scores, arrays)
    inputs = inputs_of_kernel(scores)
    exact = np.broadcast_to(Evaluation(trace, inputs, arrays, np.dtype(np.float64)).result, scores.shape)
    if _kind(name) == "mask_mod":
        np.testing.assert_array_equal(result, exact)
        return
    allowed = np.broadcast_to(rounding(trace, inputs, arrays), scores.shape) * F32
    shown = np.isfinite(exact)
    assert (result[~shown] == exact[~shown]).all()
    assert (np.abs(result[shown] - exact[shown]) <= allowed[shown] * (1 + 1e-6)).all()
    assert np.isfinite(allowed[shown]).mean() > 0.9
    queries = APART * torch.arange(ROWS)
    one = torch.tensor([BATCH_AND_HEAD])
    by_pytorch = _by_pytorch(
        _function(name),
        _kind(name),
        torch.from_numpy(scores)[None, None],
        one,
        one,
        queries,
        torch.arange(64),
    ).expand(1, 1, *scores.shape)[0, 0]
    np.testing.assert_allclose(result, by_pytorch.numpy(), rtol=2.0**-16, atol=2.0**-16)


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.sample(1, gate=4)
def test_a_kernel_of_attention_with_a_function_is_proved_and_right(name: str) -> None:
    trace, arrays = _traced(name)
    aux = {array.name: (array.dtype.name, array.rank) for array in trace.arrays}
    config = flash.AttentionConfig(16, **{_kind(name): trace}, aux=aux or None)  # type: ignore[arg-type]
    assert flash.AttentionKernel(config).global_proof.complete
    q, k, v = _RNG.standard_normal((3, catalogue.BATCH, catalogue.HEADS, 40, 16)).astype(np.float32)
    by_kernel, by_numpy = (
        flash.attention(
            q, k, v, **{_kind(name): trace}, aux=arrays or None, backend=backend, softmax_scale=0.25
        )
        for backend in ("interpreter", "cpu")
    )
    np.testing.assert_allclose(by_kernel, by_numpy, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "latent_rotary",
            "an operand must be a single value, got captured_0 with 1 of its 4 axes not indexed",
        ),
        (
            "softcap_by_an_operator_of_its_own",
            "torch.ops.flex_catalogue.tanh.default is no operation of a traced function; the functions are "
            "where, minimum, maximum, clamp, abs, exp, exp2, log, log2, sqrt, rsqrt, tanh, sigmoid, erf, "
            "sin, cos, floor and those made of them (docs/score-functions.md)",
        ),
    ],
)
def test_what_is_not_traced_is_refused(name: str, message: str) -> None:
    with pytest.raises(TypeMismatchError) as error:
        with_captured("attention", {"score_mod": catalogue.REFUSED[name]})
    assert str(error.value) == f"attention: {message}"


@pytest.mark.parametrize(
    "name", ["silu", "gelu", "trig", "decay_by_a_power", "buckets_of_t5", "normalized_by_length"]
)
@pytest.mark.sample(0, gate=1)
def test_gradients_by_a_kernel_are_those_of_numpy(name: str) -> None:
    shape = (catalogue.BATCH, catalogue.HEADS, 20, 16)
    q, k, v, dout = _RNG.standard_normal((4, *shape)).astype(np.float32)
    out, lse = flash.attention(q, k, v, score_mod=_function(name), return_lse=True)
    by_kernel, by_numpy = (
        flash.attention_backward(dout, q, k, v, out, lse, score_mod=_function(name), backend=backend)
        for backend in ("interpreter", "cpu")
    )
    for of in ("dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(by_kernel, of), getattr(by_numpy, of), atol=2e-4)
