"""Forward-mode derivatives of attention of tensors on the host, against those of PyTorch's formula."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flash.cpu.tangents import attention_tangents_cpu
from flash.reference import attention_reference
from ptxgen.errors import LaunchError

pytestmark = [  # PyTorch's own calls
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
]

SCALE = 8**-0.5
ONCE = (
    "attention: tangents of forward-mode differentiation are computed, but not differentiated again; take "
    "one derivative, or use torch.nn.functional.scaled_dot_product_attention with "
    "torch.nn.attention.SDPBackend.MATH"
)
SCORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": "top_left", "window": (9, 3)},
    "softcap": {"softcap": 1.5},
    "slopes": {"alibi_slopes": np.linspace(0.1, 0.9, 8).reshape(2, 4)},
    "bias": {"bias": np.where(np.arange(300) % 7 == 0, -np.inf, 0.1 * np.arange(300))[None, None, None]},
    "dropout": {"dropout": 0.3, "dropout_seed": 3},
    "sink": {"sink": np.array([0.5, -1.0, 2.0, 0.0])},
    "score_mod": {"score_mod": lambda score, b, h, i, j: score * score * 0.1},
}


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_tangents_are_differences_of_the_reference(scores: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    shapes = (2, 4, 70, 8), (2, 2, 300, 8), (2, 2, 300, 6)
    arrays, tangents = ([rng.standard_normal(shape) for shape in shapes] for _ in range(2))

    def results(step: float) -> Any:
        q, k, v = (x + step * d for x, d in zip(arrays, tangents, strict=True))
        return attention_reference(q, k, v, **scores)

    q, k, v = arrays
    how: dict[str, Any] = {"softmax_scale": None, "causal": False, **scores}
    of_q, of_k, of_v = tangents
    out, lse = results(0)
    result = attention_tangents_cpu(q, k, v, out, lse, (of_q, of_k, of_v), **how)
    with np.errstate(invalid="ignore"):  # infinity less infinity, of a row without a key
        differences = [(a - b) / 2e-5 for a, b in zip(results(1e-5), results(-1e-5), strict=True)]
    for got, want in zip(result, differences, strict=True):
        np.testing.assert_allclose(got, np.where(np.isnan(want), 0, want), rtol=0, atol=1e-8)


@pytest.fixture
def arrays(torch: Any) -> tuple[Any, ...]:
    """q, k and v of two heads for each head of k, and the tangents of q."""
    torch.manual_seed(0)
    return tuple(torch.randn(1, heads, n, 8) for heads, n in ((4, 5), (2, 7), (2, 7), (4, 5)))


def formula(torch: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """out and lse by operations of PyTorch."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * SCALE
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


Mode = Callable[[Any, Callable[[Any], Any], Any, Any], Any]
MODES: dict[str, Mode] = {
    "jvp": lambda t, f, q, d: t.func.jvp(f, (q,), (d,)),
    "jacfwd": lambda t, f, q, _: t.func.jacfwd(f)(q),
    "linearize": lambda t, f, q, d: t.func.linearize(f, q)[1](d),
    "vmap in jvp": lambda t, f, q, d: t.func.jvp(lambda x: t.func.vmap(f)(x[None]), (q,), (d,)),
    "jvp in vmap": lambda t, f, q, d: t.func.vmap(lambda x: t.func.jvp(f, (x,), (d,)))(q[None]),
    "make_fx": lambda t, f, q, d: t.fx.experimental.proxy_tensor.make_fx(lambda x: t.func.jvp(f, (x,), (d,)))(
        0 * q
    )(q),
}


@pytest.mark.parametrize("mode", MODES)
def test_transforms_of_forward_mode_give_the_derivatives(torch: Any, arrays: Any, mode: str) -> None:
    importlib.import_module("torch.fx.experimental.proxy_tensor")  # of make_fx
    from flash.adapters.torch import attention

    q, k, v, of_q = arrays
    result = MODES[mode](torch, lambda x: attention(x, k, v, return_lse=True), q, of_q)
    wanted = MODES[mode](torch, lambda x: formula(torch, x, k, v), q, of_q)
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def test_all_three_matrices_may_have_tangents_in_any_layout(torch: Any, arrays: Any) -> None:
    from flash.adapters.torch import attention

    matrices = arrays[:3]
    tangents = tuple(torch.randn_like(x) for x in matrices)
    wanted = torch.func.jvp(lambda *x: formula(torch, *x)[0], matrices, tangents)

    def rotation(*given: Any) -> Any:
        return attention(*(x.transpose(1, 2) for x in given), layout="bshd").transpose(1, 2)

    def without_batch(*given: Any) -> Any:
        return attention(*(x[0] for x in given))[None]

    for call in (attention, rotation, without_batch):
        torch.testing.assert_close(torch.func.jvp(call, matrices, tangents), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tangents_are_of_the_type_of_the_results(torch: Any, arrays: Any, dtype: str) -> None:
    from flash.adapters.torch import attention

    q, k, v, of_q = (x.to(getattr(torch, dtype)) for x in arrays)
    out, tangent = torch.func.jvp(lambda x: attention(x, k, v), (q,), (of_q,))
    wide = [x.float() for x in (q, k, v)]
    _, wanted = torch.func.jvp(lambda x: formula(torch, x, *wide[1:])[0], (wide[0],), (of_q.float(),))
    assert tangent.dtype == out.dtype == q.dtype
    torch.testing.assert_close(tangent.float(), wanted, rtol=0, atol=2e-2)


def test_dual_tensors_have_tangents_in_sdpa_and_flash_attn(torch: Any, arrays: Any) -> None:
    from flash.adapters.flash_attn import flash_attn_func
    from flash.adapters.torch import scaled_dot_product_attention

    q, k, v, of_q = arrays
    _, wanted = torch.func.jvp(lambda x: formula(torch, x, k, v)[0], (q,), (of_q,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, of_q)
        rows = (x.transpose(1, 2) for x in (dual, k, v))
        for out in (
            scaled_dot_product_attention(dual, k, v, enable_gqa=True),
            flash_attn_func(*rows).transpose(1, 2),
        ):
            tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
            torch.testing.assert_close(tangent, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["grad of jvp", "jvp of jvp"])
def test_tangents_are_not_differentiated_again(torch: ModuleType, arrays: Any, mode: str) -> None:
    from flash.adapters.torch import attention

    q, k, v, _ = arrays
    library: Any = torch

    def tangent(x: Any) -> Any:
        return library.func.jvp(lambda y: attention(y, k, v), (x,), (x,))[1]

    again: Any = {
        "grad of jvp": lambda: library.func.grad(lambda x: tangent(x).sum())(q),
        "jvp of jvp": lambda: library.func.jvp(tangent, (q,), (q,)),
    }[mode]
    with pytest.raises(LaunchError) as raised:
        again()
    assert str(raised.value) == ONCE
