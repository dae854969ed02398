"""Gradients and torch.func transforms of the PyTorch adapter, beside PyTorch and the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flash.reference import attention_reference_gradients, attention_varlen_reference_gradients
from ptxgen.errors import LaunchError

SAMPLES = 3


def slopes_mod(score: Any, batch: Any, head: Any, query: Any, key: Any, slopes: Any) -> Any:
    return score - slopes[head] * (query - key)


def host(tensor: Any) -> Any:
    return tensor.detach().numpy()


def leaves(torch: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


# ------------------------------------------------------------------------------ right gradients


def test_a_model_with_attention_learns(ours: Any, torch: Any) -> None:
    """Linear, attention, Linear: every parameter has the gradient that PyTorch's attention gives."""
    first, last = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
    x = torch.randn(2, 6, 16)

    def gradients(attend: Callable[..., Any]) -> list[Any]:
        q, k, v = first(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        loss = last(attend(q, k, v).transpose(1, 2).flatten(2)).square().sum()
        return list(torch.autograd.grad(loss, [*first.parameters(), *last.parameters()]))

    wanted = gradients(torch.nn.functional.scaled_dot_product_attention)
    for a, b in zip(gradients(ours.attention), wanted, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("bias", ["bias", "key_bias"])
def test_gradients_of_all_arguments(ours: Any, torch: Any, layout: str, bias: str) -> None:
    q, k, v, sink, slopes = leaves(torch, (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 16), (4,), (2, 1))
    (extra,) = leaves(torch, (1, 5, 6) if bias == "bias" else (2, 1, 6))
    mask, table = torch.rand(5, 6) > 0.2, torch.rand(4)
    dout, dlse = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 5)
    how = {"causal": True, "softcap": 4.0, "window": (4, None), "dropout": 0.25, "dropout_seed": 5}
    rotation = [x.transpose(1, 2) if layout == "bshd" else x for x in (q, k, v)]
    out, lse = ours.attention(
        *rotation,
        **{bias: extra},
        sink=sink,
        alibi_slopes=slopes,
        mask=mask,
        score_mod=slopes_mod,
        aux={"slopes": table},
        layout=layout,
        return_lse=True,
        **how,
    )
    out = out.transpose(1, 2) if layout == "bshd" else out
    result = torch.autograd.grad((out, lse), (q, k, v, extra, sink, slopes), (dout, dlse))
    wanted = attention_reference_gradients(
        *map(host, (dout, q, k, v)),
        dlse=host(dlse),
        **{bias: host(extra)},
        sink=host(sink),
        alibi_slopes=host(slopes),
        mask=host(mask),
        score_mod=slopes_mod,
        aux={"slopes": host(table)},
        **how,
    )
    named = wanted.arrays
    for a, b in zip(
        result,
        (wanted.dq, wanted.dk, wanted.dv, named[bias], named["sink"], named["alibi_slopes"]),
        strict=True,
    ):
        np.testing.assert_allclose(host(a), b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "backend"),
    [
        ("float16", 8, "auto"),
        ("bfloat16", 8, "auto"),
        pytest.param("float16", 512, "interpreter", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_16_bits(ours: Any, torch: Any, dtype: str, head_dim: int, backend: str) -> None:
    of = getattr(torch, dtype)
    arrays = [torch.randn(2, 4, 6, head_dim, dtype=of, requires_grad=True) for _ in range(3)]
    wide = [x.detach().float().requires_grad_() for x in arrays]
    weights = torch.randn(2, 4, 6, head_dim, dtype=of)
    result = torch.autograd.grad(ours.attention(*arrays, backend=backend), arrays, weights)
    wanted = torch.autograd.grad(ours.attention(*wide), wide, weights.float())
    for a, b in zip(result, wanted, strict=True):
        assert a.dtype == of
        torch.testing.assert_close(a.float(), b, atol=16 * torch.finfo(of).eps, rtol=0)


def test_gradients_of_packed_sequences(ours: Any, torch: Any) -> None:
    q, k, v, sink, slopes = leaves(torch, (8, 4, 8), (10, 2, 8), (10, 2, 16), (3, 4), (1,))
    ends = [torch.tensor(e, dtype=torch.int32) for e in ([0, 2, 2, 7], [0, 3, 5, 9])]
    used = torch.tensor([3, 1, 3], dtype=torch.int32)
    dout, dlse = torch.randn(8, 4, 16), torch.randn(4, 8)
    how = {"causal": True, "dropout": 0.25, "dropout_seed": 5}
    both = ours.attention_varlen(
        q, k, v, *ends, seqused_k=used, sink=sink, alibi_slopes=slopes, return_lse=True, **how
    )
    result = torch.autograd.grad(both, (q, k, v, sink, slopes), (dout, dlse))
    wanted = attention_varlen_reference_gradients(
        *map(host, (dout, q, k, v, *ends)),
        dlse=host(dlse),
        seqused_k=host(used),
        sink=host(sink),
        alibi_slopes=host(slopes),
        **how,
    )
    for a, b in zip(
        result,
        (wanted.dq, wanted.dk, wanted.dv, wanted.arrays["sink"], wanted.arrays["alibi_slopes"]),
        strict=True,
    ):
        np.testing.assert_allclose(host(a), b, atol=2e-5, rtol=2e-5)
    assert not result[0][7].any()


@pytest.mark.slow
def test_gradcheck(ours: Any, torch: Any) -> None:
    """Finite differences in float32: steps of 1/64 of numbers of size 1."""
    arrays = leaves(torch, (1, 2, 3, 4), (1, 1, 4, 4), (1, 1, 4, 4), (3, 4))
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(
            lambda q, k, v, b: ours.attention(q, k, v, bias=b, causal=True, return_lse=True),
            arrays,
            eps=1 / 64,
            atol=5e-3,
            rtol=5e-3,
        )


# --------------------------------------------------------------------------- what is not there


def lost(what: str, why: str, name: str) -> str:
    return (
        f"{what}: {name} requires gradients, but {why}; call inside torch.no_grad(), or pass {name}.detach()"
    )


def test_what_has_no_gradient_is_refused(ours: Any, torch: Any) -> None:
    import flash

    q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
    table = torch.rand(4).requires_grad_()
    with pytest.raises(LaunchError) as caught:
        torch.func.grad(lambda q: ours.attention(q, k, v, score_mod=slopes_mod, aux={"slopes": table}).sum())(
            q
        )
    why = "transforms of torch.func and tangents do not reach the arrays that functions of scores index"
    assert str(caught.value) == lost("attention", why, "aux['slopes']")
    with pytest.raises(LaunchError) as caught:
        ours.attention(q.requires_grad_(), k, v, out=torch.empty(2, 4, 5, 8))
    assert str(caught.value) == lost("attention", "calls with out=... are not differentiated", "q")
    with pytest.raises(LaunchError) as caught:
        ours.attention_with_kvcache(q, flash.KVCache(1, 2, 4, 8, 16), layer=0)
    why = "there is no backward pass of attention over a KV cache"
    assert str(caught.value) == lost("attention_with_kvcache", why, "q")
    with torch.no_grad():
        ours.attention(q, k, v, out=torch.empty(2, 4, 5, 8))


def test_second_derivatives_are_refused(ours: Any, torch: Any) -> None:
    (q,) = leaves(torch, (1, 2, 3, 4))
    (first,) = torch.autograd.grad(ours.attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(LaunchError) as caught:
        first.sum().backward()
    assert str(caught.value) == (
        "attention: second derivatives are not computed: the backward pass has no backward pass of its own; "
        "differentiate once, or use torch.nn.functional.scaled_dot_product_attention with "
        "torch.nn.attention.SDPBackend.MATH"
    )


def test_gradients_on_a_gpu_are_made_there(ours: Any, torch: Any) -> None:
    """There is no GPU: compilers are told where gradients will be, and of which shapes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from flash.adapters.torch.sdpa import _problem

    with FakeTensorMode(allow_non_fake_inputs=True):
        q, v = torch.empty(1, 2, 3, 4, device="cuda"), torch.empty(1, 2, 3, 6, device="cuda")
        out, lse = ours.attention(q, q, v, return_lse=True)
        settings = ("", None, None, "bhsd", True, False, "auto", None, True, 0, None, None, 0.0, "", "", None)
        wanted = [True] * 3 + [False, False, False, True]
        rest = (None, None, None, None, torch.empty(2, device="cuda"), None, None, *settings)
        result = torch.ops.ptxgen_flash.attention_backward(out, lse, out, lse, wanted, q, q, v, *rest)
    *gradients, of_aux = result
    assert of_aux == []
    assert {tensor.device.type for tensor in gradients} == {"cuda"}
    assert [tuple(tensor.shape) for tensor in gradients] == [
        q.shape,
        q.shape,
        v.shape,
        (0,),
        (0,),
        (0,),
        (2,),
    ]
    tracked = q.requires_grad_()
    assert _problem(tracked, tracked, v, None, 0.0, causal="top_left", enable_gqa=False) == ""


# ------------------------------------------------------------------------- torch.func transforms


def each(torch: Any, function: Callable[..., Any], dims: tuple[int | None, ...], *arrays: Any) -> Any:
    """The function of each sample, stacked."""
    result = []
    for n in range(SAMPLES):
        own = [
            x if dim is None else x.select(dim, n).contiguous() for x, dim in zip(arrays, dims, strict=True)
        ]
        result.append(function(*own))
    return [torch.stack(results) for results in zip(*result, strict=True)]


def agree(torch: Any, function: Callable[..., Any], dims: tuple[int | None, ...], *arrays: Any) -> None:
    result = torch.func.vmap(function, in_dims=dims)(*arrays)
    for a, b in zip(result, each(torch, function, dims, *arrays), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


DENSE = {
    "four dimensions": ("bhsd", (SAMPLES, 2, 4, 5, 8), (SAMPLES, 2, 2, 6, 8), (2, 2, 6, 8), (0, 0, None)),
    "last axis": ("bhsd", (2, 4, 5, 8, SAMPLES), (2, SAMPLES, 2, 6, 8), (2, 2, 6, 8), (4, 1, None)),
    "three dimensions": ("bhsd", (4, SAMPLES, 5, 8), (SAMPLES, 2, 6, 8), (2, 6, 8), (1, 0, None)),
    "heads last": ("bshd", (SAMPLES, 2, 5, 4, 8), (SAMPLES, 2, 6, 2, 8), (2, 6, 2, 8), (0, 0, None)),
}


@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
@pytest.mark.parametrize("mapped", [True, False])
def test_vmap_of_results_and_gradients(ours: Any, torch: Any, case: Any, mapped: bool) -> None:
    layout, *shapes, dims = case
    arrays = [torch.randn(shape) for shape in shapes]
    ahead = (SAMPLES,) if mapped else ()
    arrays += [torch.randn(*ahead, 1, 5, 6), torch.randn(*ahead, 4), torch.rand(*ahead, 1, 4)]
    dims = (*dims, *[0 if mapped else None] * 3)

    def attend(q: Any, k: Any, v: Any, bias: Any, sink: Any, slopes: Any) -> Any:
        return ours.attention(
            q, k, v, bias=bias, sink=sink, alibi_slopes=slopes, layout=layout, causal=True, return_lse=True
        )

    def loss(*given: Any) -> Any:
        out, lse = attend(*given)
        return out.square().sum() + lse.sin().sum()

    agree(torch, attend, dims, *arrays)
    agree(torch, torch.func.grad(loss, argnums=tuple(range(6))), dims, *arrays)


@pytest.mark.parametrize(
    "slopes", [((SAMPLES, 4), 0), ((1, SAMPLES), 1), ((3, 4), None), ((1,), None)], ids=str
)
def test_vmap_of_packed_sequences(ours: Any, torch: Any, slopes: Any) -> None:
    shape, dim = slopes
    ends = [torch.tensor(e, dtype=torch.int32) for e in ([0, 2, 2, 7], [0, 3, 5, 9])]
    arrays = [torch.randn(7, SAMPLES, 4, 8), torch.randn(SAMPLES, 9, 2, 8), torch.randn(9, 2, 16)]
    arrays.append(torch.rand(shape))
    dims = (1, 0, None, dim)

    def attend(q: Any, k: Any, v: Any, slopes: Any) -> Any:
        return ours.attention_varlen(q, k, v, *ends, alibi_slopes=slopes, causal=True, return_lse=True)

    def loss(*given: Any) -> Any:
        out, lse = attend(*given)
        return out.square().sum() + lse.sin().sum()

    agree(torch, attend, dims, *arrays)
    agree(torch, torch.func.grad(loss, argnums=(0, 1, 2, 3)), dims, *arrays)


def test_backward_of_a_mapped_function(ours: Any, torch: Any) -> None:
    (weight,) = leaves(torch, (8, 8))
    q = torch.randn(SAMPLES, 2, 4, 5, 8)
    torch.func.vmap(lambda q: ours.attention(q @ weight, q, q))(q).square().sum().backward()
    result, weight.grad = weight.grad, None
    ours.attention(q.flatten(0, 1) @ weight, q.flatten(0, 1), q.flatten(0, 1)).square().sum().backward()
    torch.testing.assert_close(result, weight.grad, atol=1e-5, rtol=1e-5)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad of vmap": lambda f, loss, func, x: func.grad(lambda x: loss(func.vmap(f)(x)))(x),
    "vmap of grad of vmap": lambda f, loss, func, x: func.vmap(func.grad(lambda x: loss(func.vmap(f)(x))))(
        x[None]
    ),
    "grad of vmap of vmap": lambda f, loss, func, x: func.grad(
        lambda x: loss(func.vmap(func.vmap(f))(x[None]))
    )(x),
    "vjp": lambda f, loss, func, x: func.vjp(func.vmap(f), x)[1](x),
    "jacrev": lambda f, loss, func, x: func.jacrev(func.vmap(f))(x[:, :1, :1]),
    "jacrev below vmap": lambda f, loss, func, x: func.vmap(func.jacrev(f))(x[:, :1, :1]),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_derivatives_of_mapped_functions_are_those_of_pytorch(
    ours: Any, torch: Any, transform: Callable[..., Any]
) -> None:
    x = torch.randn(SAMPLES, 1, 2, 3, 4)

    def of_torch(x: Any) -> Any:
        bias = torch.ones(3, 3).tril().log()  # PyTorch has batching rules for the plain formula
        return (x @ x.mT / 2 + bias).softmax(-1) @ x

    def loss(out: Any) -> Any:
        return out.sin().sum()

    wanted = transform(of_torch, loss, torch.func, x)
    result = transform(lambda x: ours.attention(x, x, x, causal=True), loss, torch.func, x)
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=1e-5)


def test_packed_sequences_are_differentiated_above_a_mapping(ours: Any, torch: Any) -> None:
    ends, x = torch.tensor([0, 2, 2, 7], dtype=torch.int32), torch.randn(SAMPLES, 7, 2, 8)

    def loss(x: Any) -> Any:
        return ours.attention_varlen(x, x, x, ends, ends, causal=True).square().sum()

    result = torch.func.grad(lambda x: torch.func.vmap(loss)(x).sum())(x)
    wanted = torch.stack([torch.func.grad(loss)(sample) for sample in x])
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("outside", [False, True], ids=["vmap of grad", "grad of vmap"])
def test_an_ensemble_of_models_has_the_gradients_of_its_models(ours: Any, torch: Any, outside: bool) -> None:
    """Weights of several models, stacked, as in PyTorch's guide of model ensembles."""
    func, x = torch.func, torch.randn(2, 5, 8)
    models = [torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(SAMPLES)]

    def loss(weights: Any, x: Any) -> Any:
        return func.functional_call(models[0], weights, (x, x, x, None, False))[0].square().sum()

    weights, _ = func.stack_module_state(models)
    of_all = func.vmap(loss, in_dims=(0, None))
    with ours.replace_sdpa():
        if outside:
            result = func.grad(lambda weights: of_all(weights, x).sum())(weights)
        else:
            result = func.vmap(func.grad(loss), in_dims=(0, None))(weights, x)
    wanted = [func.grad(loss)(dict(model.named_parameters()), x) for model in models]
    for name, gradient in result.items():
        torch.testing.assert_close(gradient, torch.stack([w[name] for w in wanted]), atol=1e-5, rtol=1e-5)


def test_what_cannot_be_mapped_is_refused(ours: Any, torch: Any) -> None:
    import flash

    q = torch.randn(SAMPLES, 2, 4, 5, 8)
    rows = torch.randn(SAMPLES, 7, 4, 8)
    ends = torch.tensor([[0, 7]] * SAMPLES, dtype=torch.int32)
    table = torch.rand(SAMPLES, 4)
    cache = flash.KVCache(1, 2, 4, 8, 16)
    vmap = torch.func.vmap
    own, cannot = "attention", "torch.func.vmap cannot map"
    cure = "call it for each sample, or give the samples as one batch"
    for call, message in (
        (
            lambda: vmap(lambda q: ours.attention(q, q, q, score_mod=lambda s, b, h, i, j: s + b))(q),
            f"{own}: {cannot} over a score_mod that reads the index of the batch; {cure}",
        ),
        (
            lambda: vmap(lambda q, t: ours.attention(q, q, q, score_mod=slopes_mod, aux={"slopes": t}))(
                q, table
            ),
            f"{own}: {cannot} over tensors in aux, which all samples must share; {cure}",
        ),
        (
            lambda: vmap(lambda q, e: ours.attention_varlen(q, q, q, e, e, max_seqlen_q=7))(rows, ends),
            "attention_varlen: torch.func.vmap cannot map over cu_seqlens_q, which all samples must share; "
            f"{cure}",
        ),
        (
            lambda: vmap(lambda q: ours.attention(q, q, q, dropout=0.5), randomness="same")(q),
            f"{own}: {cannot} with randomness='same' over dropout, whose weights differ "
            f"between samples; {cure}",
        ),
        (
            lambda: vmap(lambda q: ours.attention_with_kvcache(q, cache, layer=0))(q),
            "attention_with_kvcache: torch.func.vmap cannot map over calls that write to one KV cache; give "
            "the sequences as the batch of one call",
        ),
    ):
        with pytest.raises(LaunchError) as caught:
            call()
        assert str(caught.value) == message
    assert vmap(lambda q: ours.attention(q, q, q, dropout=0.5), randomness="different")(q).shape == q.shape
