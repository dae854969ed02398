"""Tensors whose memory is not all that they mean: with tangents of forward-mode differentiation, and of
classes that give operations a meaning of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import flash
from flash.families.request import MAX_HEAD_DIM
from ptxgen.errors import LaunchError

QUERIES, KEYS, DIM = 5, 7, 8
TANGENT = (
    "{0}: {1} has a tangent of forward-mode differentiation, which is not computed: the derivative would "
    "be 0 without a word; use reverse mode, such as torch.func.vjp, or pass "
    "torch.autograd.forward_ad.unpack_dual({2}).primal"
)


pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),  # PyTorch's own calls of it
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs"),
]


@pytest.fixture
def arrays(torch: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return tuple(torch.randn(1, 2, n, DIM) for n in (QUERIES, KEYS, KEYS))


def packed(torch: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """`attention_varlen` of one sequence, with the arguments of `attention`."""
    cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32) for n in (QUERIES, KEYS))

    def called(*qkv: Any) -> Any:
        rows = (x[0].transpose(0, 1) for x in qkv)
        return call(*rows, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=QUERIES, max_seqlen_k=KEYS)

    return called


FORWARD_MODES: dict[str, Callable[..., Any]] = {
    "jvp": lambda t, f, q: t.func.jvp(f, (q,), (q,)),
    "jacfwd": lambda t, f, q: t.func.jacfwd(f)(q),
    "linearize": lambda t, f, q: t.func.linearize(f, q),
    "vmap in jvp": lambda t, f, q: t.func.jvp(lambda x: t.func.vmap(f)(x[None]), (q,), (q,)),
    "jvp in vmap": lambda t, f, q: t.func.vmap(lambda x: t.func.jvp(f, (x,), (x,)))(q[None]),
    "grad of jvp": lambda t, f, q: t.func.grad(lambda x: t.func.jvp(f, (x,), (x,))[1].sum())(q),
}


@pytest.mark.parametrize("mode", FORWARD_MODES)
def test_forward_mode_derivatives_of_kernels_are_refused(
    ours: Any, torch: Any, arrays: Any, mode: str
) -> None:
    q, k, v = arrays
    with pytest.raises(LaunchError) as raised:
        FORWARD_MODES[mode](torch, lambda x: ours.attention(x, k, v, backend="interpreter"), q)
    assert str(raised.value) == TANGENT.format("attention", "q", "q")


@pytest.mark.parametrize("name", ["jvp of grad", "hessian"])
def test_forward_mode_derivatives_of_gradients_are_refused(
    ours: Any, torch: Any, arrays: Any, name: str
) -> None:
    q, k, v = arrays

    def total(x: Any) -> Any:
        return ours.attention(x, k, v).sum()

    call = {
        "hessian": lambda: torch.func.hessian(total)(q),
        "jvp of grad": lambda: torch.func.jvp(torch.func.grad(total), (q,), (q,)),
    }[name]
    with pytest.raises(LaunchError) as raised:
        call()
    assert str(raised.value) == TANGENT.format("attention", "an argument", "it")


@pytest.mark.parametrize(
    "name",
    ["bias", "lse", "varlen", "flash_attn", "cached", "operator", "flash", "kernel", "decode", "merge"],
)
def test_each_function_refuses_tensors_with_tangents(ours: Any, torch: Any, arrays: Any, name: str) -> None:
    from flash.adapters.flash_attn import flash_attn_func

    q, k, v = arrays
    cache = flash.KVCache(layers=1, batch=1, kv_heads=2, head_dim=DIM, capacity=16)
    ops = torch.ops.ptxgen_flash
    none, settings = (None,) * 7, ("bhsd", False, False, "auto", 0, True, 0, None, None, 0.0, "", "", None)
    config, lengths = flash.AttentionConfig(DIM), torch.tensor([KEYS], dtype=torch.int32)
    called, caller, argument = {
        "bias": (lambda x: ours.attention(q, k, v, bias=x[..., :KEYS]), "attention", "bias"),
        "lse": (
            lambda x: ours.attention(q, x[:, :, :1], v[:, :, :1], return_lse=True, backend="interpreter"),
            "attention",
            "k",
        ),
        "varlen": (lambda x: packed(torch, ours.attention_varlen)(x, k, v), "attention_varlen", "q"),
        "flash_attn": (
            lambda x: flash_attn_func(q, q, q, alibi_slopes=x[0, 0, 0, :QUERIES]),
            "flash_attn_func",
            "alibi_slopes",
        ),
        "cached": (
            lambda x: ours.attention_with_kvcache(q, cache, x, x, layer=0),
            "attention_with_kvcache",
            "k",
        ),
        "operator": (lambda x: ops.attention(x, k, v, *none, "", None, None, *settings), "attention", "q"),
        "flash": (lambda x: flash.attention(q, k, v, bias=x[..., :KEYS]), "attention", "bias"),
        "kernel": (lambda x: flash.AttentionKernel(config).launch(x, k, v), "launch", "q"),
        "decode": (
            lambda x: flash.DecodeKernel(config).launch(x, k, v, seqused_k=lengths),
            "DecodeKernel.launch",
            "q",
        ),
        "merge": (lambda x: flash.merge_partials([x], [x[..., 0]]), "merge_partials", "outs[0]"),
    }[name]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(LaunchError) as raised:
            called(dual)
    assert TANGENT.format(caller, argument, argument).removeprefix(f"{caller}: ") in str(raised.value)
    assert str(raised.value).startswith(f"{caller}: ")


@pytest.mark.parametrize("mode", ["make_fx", "FlopCounterMode"])
@pytest.mark.parametrize("name", ["attention", "into out", "backward", "varlen"])
def test_operators_refuse_tangents_also_in_modes_of_pytorch(
    ours: Any, torch: Any, arrays: Any, name: str, mode: str
) -> None:
    """Which a mode takes away before the operator computes."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = arrays
    ops, scores = torch.ops.ptxgen_flash, (None, None, 0.0, "", "", None)
    how = (True, False, "auto", None, True, 0)
    dense = (*(None,) * 7, "", None, None, "bhsd", *how, *scores)
    ends = torch.tensor([0, QUERIES], dtype=torch.int32)
    rows = q[0].transpose(0, 1)
    out, lse = ours.attention(q, k, v, return_lse=True)
    packed = (rows, rows, ends, ends, *(None,) * 9, "", None, None, *how, None, None, "NHD", False, *scores)
    calls: dict[str, tuple[Callable[[Any], Any], str]] = {
        "attention": (lambda x: ops.attention(x, k, v, *dense)[0], "attention: q"),
        "into out": (lambda x: ops.attention_out(out, x, k, v, *dense), "attention: q"),
        "backward": (
            lambda x: ops.attention_backward(x, None, out, lse, [False] * 7, q, k, v, *dense)[0],
            "attention: dout",
        ),
        "varlen": (lambda x: ops.attention_varlen(x[0].transpose(0, 1), *packed)[0], "attention_varlen: q"),
    }
    call, said = calls[name]
    call(q)

    def traced(of: Callable[[Any], Any], x: Any) -> None:
        if mode == "make_fx":
            make_fx(of)(x)
        else:
            with FlopCounterMode(display=False):
                of(x)

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(LaunchError) as raised:
            traced(call, dual)
    caller, argument = said.split(": ")
    assert str(raised.value) == TANGENT.format(caller, argument, argument)


def test_compiled_forward_mode_is_refused(ours: Any, torch: Any, arrays: Any) -> None:
    q, k, v = arrays

    def tangent(x: Any) -> Any:
        return torch.func.jvp(lambda y: ours.attention(y, k, v), (x,), (x,))[1]

    torch.compiler.reset()
    with pytest.raises(Exception, match="the derivative would be 0"):
        torch.compile(tangent, backend="eager", fullgraph=True)(q)


def test_other_arguments_may_have_tangents(ours: Any, torch: Any, arrays: Any) -> None:
    scale, primal = torch.tensor(2.0), ours.attention(*arrays)
    result = torch.func.jvp(lambda x: x * ours.attention(*arrays), (scale,), (scale,))
    torch.testing.assert_close(result, (2 * primal, 2 * primal))


@pytest.mark.grid
@pytest.mark.parametrize("queries", [QUERIES, KEYS, KEYS + 2], ids=["fewer", "equal", "more"])
@pytest.mark.parametrize("side", ["upper_left", "lower_right"])
@pytest.mark.parametrize("name", ["sdpa", "mask", "bias", "replaced", "fallback", "other thread", "compiled"])
def test_causal_biases_of_pytorch_are_the_causality_that_they_mean(
    ours: Any, torch: Any, name: str, side: str, queries: int
) -> None:
    from torch.nn.attention import bias as biases

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, DIM) for n in (queries, KEYS, KEYS))
    bias = getattr(biases, f"causal_{side}")(queries, KEYS)
    mask = bias._materialize()
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    wanted = wanted.nan_to_num(0)  # a row without keys
    if name == "sdpa":
        result = ours.scaled_dot_product_attention(q, k, v, bias)
    elif name == "compiled":
        torch.compiler.reset()
        result = torch.compile(
            lambda *x: ours.scaled_dot_product_attention(*x, bias), backend="eager", fullgraph=True
        )(q, k, v)
    elif name in ("mask", "bias"):
        result = ours.attention(q, k, v, **{name: bias})
    elif name == "other thread":  # PyTorch's own function, whose name leads to this project's meanwhile
        results = list[Any]()
        with ours.replace_sdpa():
            called = torch.nn.functional.scaled_dot_product_attention
            thread = threading.Thread(target=lambda: results.append(called(q, k, v, attn_mask=bias)))
            thread.start()
            thread.join()
        result = results[0].nan_to_num(0)
    else:
        with ours.replace_sdpa(fallback=name == "fallback"):
            result = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
    torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("side", ["upper_left", "lower_right"])
def test_a_causal_bias_of_a_call_that_falls_back_is_pytorchs(ours: Any, torch: Any, side: str) -> None:
    from torch.nn.attention import bias as biases

    wide = MAX_HEAD_DIM + 8
    q, k, v = (torch.randn(1, 2, n, wide) for n in (QUERIES, KEYS, KEYS))
    bias = getattr(biases, f"causal_{side}")(QUERIES, KEYS)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias._materialize())
    with ours.replace_sdpa(fallback=True):
        result = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
    torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)


def test_a_causal_bias_of_other_sizes_is_refused(ours: Any, torch: Any) -> None:
    from torch.nn.attention.bias import causal_upper_left

    q, k, v = (torch.randn(1, 2, n, DIM) for n in (QUERIES + 1, KEYS, KEYS))
    with pytest.raises(LaunchError) as raised:
        ours.scaled_dot_product_attention(q, k, v, causal_upper_left(QUERIES, KEYS))
    assert str(raised.value) == (
        "scaled_dot_product_attention: attn_mask is a CausalBias of 5 queries and 7 keys, which is taken as "
        "a mask of so many queries and keys, and without another causality; make one of the sizes of query "
        "and key, and leave the other causality out"
    )


def test_subclasses_with_a_meaning_of_their_own_are_refused(ours: Any, torch: Any, arrays: Any) -> None:
    class Named(torch.Tensor):  # type: ignore[misc]  # torch is not analysed
        """What a subclass without operations of its own is: its elements."""

    class Meaning(torch.Tensor):  # type: ignore[misc]  # torch is not analysed
        @classmethod
        def __torch_function__(cls, *args: Any, **how: Any) -> Any:
            return super().__torch_function__(*args, **how)

    q, k, v = arrays
    wanted = ours.attention(q, k, v)
    for of in (ours, flash):
        torch.testing.assert_close(of.attention(q.as_subclass(Named), k, v), wanted)
        with pytest.raises(LaunchError) as raised:
            of.attention(q.as_subclass(Meaning), k, v)
        assert str(raised.value) == (
            "attention: q must be a plain tensor, got a Meaning, which gives the operations of tensors a "
            "meaning of its own, so that its memory may hold other values; if it does not, pass "
            "q.as_subclass(torch.Tensor)"
        )
    with pytest.raises(LaunchError, match="query must be a plain tensor, got a MaskedTensor, which gives"):
        ours.scaled_dot_product_attention(torch.masked.masked_tensor(q, q > 0), k, v)


# ----------------------------------------------------------------------- tensors without elements

ENDS = [0, 2, 5]


def calls_without_elements(ours: Any, torch: Any) -> dict[str, Callable[[Any], Any]]:
    """Calls with rows of a tensor [2, 4, 5, 8]."""
    from flash.adapters.flash_attn import flash_attn_func

    def packed(q: Any) -> Any:
        ends = torch.tensor(ENDS, dtype=torch.int32, device=q.device)
        return ours.attention_varlen(*[q[0].transpose(0, 1)] * 3, ends, ends, max_seqlen_q=3)

    def in_place_of_torch(q: Any) -> Any:
        with ours.replace_sdpa():
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    return {
        "attention": lambda q: ours.attention(q, q, q, causal=True, return_lse=True)[1],
        "dropout": lambda q: ours.attention(q, q, q, dropout=0.5),
        "packed": packed,
        "sdpa": lambda q: ours.scaled_dot_product_attention(q.mT.contiguous().mT, q, q),
        "in place of torch": in_place_of_torch,
        "out": lambda q: ours.attention(q, q, q, out=torch.empty_like(q)),
        "gradients": lambda q: torch.func.grad(lambda q: ours.attention(q, q, q).sum())(q),
        "flash_attn": lambda q: flash_attn_func(q, q, q),
        "kvcache": lambda q: ours.attention_with_kvcache(q, flash.KVCache(1, 2, 4, 8, 6), q, q, layer=0),
    }


CALLS = ("attention", "dropout", "packed", "sdpa", "in place of torch", "out", "gradients", "flash_attn")
CALLS += ("kvcache",)


@pytest.mark.parametrize("name", CALLS)
def test_tensors_on_the_meta_device_have_results_there(ours: Any, torch: Any, name: str) -> None:
    call, q = calls_without_elements(ours, torch)[name], torch.randn(2, 4, 5, 8)
    wanted, result = call(q), call(q.to("meta"))
    assert (result.device.type, result.dtype) == ("meta", wanted.dtype)
    assert (result.shape, result.stride()) == (wanted.shape, wanted.stride())


@pytest.mark.parametrize("name", CALLS)
def test_the_default_device_changes_no_result(ours: Any, torch: Any, name: str) -> None:
    """Such as the meta device in which large models are made."""
    call, q = calls_without_elements(ours, torch)[name], torch.randn(2, 4, 5, 8)
    torch.manual_seed(3)
    wanted = call(q)
    torch.manual_seed(3)
    with torch.device("meta"):
        assert torch.equal(call(q), wanted)


def test_numbers_of_a_call_are_on_the_host(ours: Any, torch: Any) -> None:
    """Also with another default device."""
    q, cache = torch.randn(2, 4, 1, 8), flash.KVCache(1, 3, 4, 8, 6)
    how: dict[str, Any] = {"layer": 0, "cache_batch_idx": [2, 0], "leftpad": [0, 1]}
    with torch.device("meta"):
        for _ in range(2):
            result = ours.attention_with_kvcache(q, cache, q, q, **how)
        seeded = ours.attention(q, q, q, dropout=0.5, dropout_seed=7)
    assert cache.lengths.tolist() == [[2, 0, 2]]
    assert torch.equal(result, ours.attention_with_kvcache(q, cache, **how))
    assert torch.equal(seeded, ours.attention(q, q, q, dropout=0.5, dropout_seed=7))


def test_tensors_with_and_without_elements_are_not_mixed(ours: Any, torch: Any) -> None:
    q, m = torch.randn(2, 4, 5, 8, requires_grad=True), torch.empty(2, 4, 5, 8, device="meta")
    cache, own = flash.KVCache(1, 2, 4, 8, 6), q.detach()
    for caller, name, call in (
        ("attention", "k", lambda: ours.attention(q, m, q)),
        ("attention", "bias", lambda: ours.attention(q, q, q, bias=m[0, 0, :, :5])),
        ("attention", "out", lambda: ours.attention(own, own, own, out=m)),
        ("attention_with_kvcache", "v", lambda: ours.attention_with_kvcache(own, cache, own, m, layer=0)),
    ):
        with pytest.raises(LaunchError) as caught:
            call()
        assert str(caught.value) == (
            f"{caller}: {name} is on the meta device and has no elements, but q is on cpu; give all of them "
            "with elements, or all without"
        )
    assert not cache.lengths.any()
