"""flash-attn's functions for sequences of equal and of different lengths, beside an oracle."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import flash_attn_oracle as oracle
import numpy as np
import pytest
from flash_attn_cases import as_numpy, assert_is_attention, bound_of, in_numpy, tensors
from judge import assert_close

# Parameters of flash_attn 2.8 (flash_attn_interface.py), in order, with their defaults.
OPTIONS = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
SPLITS = "num_splits=0"  # of flash-attn 3 (hopper/flash_attn_interface.py), by name only
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {OPTIONS}, {SPLITS}",
    "flash_attn_kvpacked_func": f"q, kv, {OPTIONS}, {SPLITS}",
    "flash_attn_qkvpacked_func": f"qkv, {OPTIONS}, {SPLITS}",
    "flash_attn_varlen_func": (
        f"q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {OPTIONS}, block_table=None"
    ),
    "flash_attn_varlen_kvpacked_func": (
        f"q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {OPTIONS}"
    ),
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {OPTIONS}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_are_those_of_flash_attn_in_order_and_with_its_defaults(
    flash_attn: Any, name: str
) -> None:
    result = inspect.signature(getattr(flash_attn, name)).parameters.values()
    by_name = [p.name for p in result if p.kind is not p.POSITIONAL_OR_KEYWORD]
    assert by_name == (["num_splits"] if SIGNATURES[name].endswith(SPLITS) else [])
    said = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in result)
    assert said == SIGNATURES[name]


def test_every_function_of_flash_attn_is_there(flash_attn: Any) -> None:
    assert {*flash_attn.__all__} == {*SIGNATURES, "using_backend"}


SLOPES = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.01]
# Of each case the type, the sizes seqlen_q, seqlen_k, heads, kv_heads and head_dim, and arguments.
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "plain": ("float16", (5, 9, 4, 4, 64), {}),
    "more_keys": ("float16", (2, 5, 4, 2, 32), {"causal": True}),
    "more_queries": ("bfloat16", (5, 2, 4, 2, 32), {"causal": True}),
    "no_keys": ("float16", (3, 0, 2, 1, 32), {"causal": True}),
    "no_queries": ("float16", (0, 3, 2, 1, 32), {}),
    "left": ("bfloat16", (9, 12, 6, 1, 40), {"window_size": (3, -1)}),
    "right": ("float16", (9, 12, 6, 2, 40), {"window_size": (-1, 2)}),
    "both": ("float32", (12, 9, 6, 3, 59), {"window_size": (2, 1)}),
    "causal_window": ("float16", (9, 12, 2, 2, 111), {"causal": True, "window_size": (3, 0)}),
    "causal_wide_window": ("float16", (9, 12, 2, 2, 16), {"causal": True, "window_size": (3, 5)}),
    "hidden_rows": ("float32", (9, 3, 2, 2, 16), {"window_size": (1, 1)}),
    "softcap": ("bfloat16", (7, 7, 2, 2, 256), {"softcap": 2.0, "causal": True}),
    "negative_softcap": ("float16", (7, 7, 2, 2, 8), {"softcap": -1.0}),
    "scale": ("float16", (7, 7, 2, 2, 72), {"softmax_scale": 0.5}),
    "alibi": ("float16", (7, 11, 6, 2, 24), {"alibi_slopes": SLOPES, "causal": True}),
    "alibi_of_batch": ("float32", (11, 7, 6, 6, 24), {"alibi_slopes": [SLOPES, SLOPES[::-1]]}),
}


def arguments(torch: ModuleType, how: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a case, with tensors for lists."""
    return {n: torch.tensor(x) if isinstance(x, list) else x for n, x in how.items()}


@pytest.mark.judged
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_the_oracle(torch: ModuleType, flash_attn: Any, name: str) -> None:
    dtype, (seqlen_q, seqlen_k, heads, kv_heads, dim), how = CASES[name]
    shape = (2, seqlen_k, kv_heads, dim)
    q, k, v = tensors(torch, dtype, (2, seqlen_q, heads, dim), shape, shape)
    how = arguments(torch, how)
    out, lse, probabilities = flash_attn.flash_attn_func(q, k, v, **how, return_attn_probs=True)
    assert_is_attention(out, lse, q, k, v, how)
    assert lse.shape == (2, heads, seqlen_q)
    assert lse.dtype == torch.float32
    assert out.is_contiguous()
    assert out.dtype == q.dtype
    assert probabilities.shape == (0,)
    assert torch.equal(flash_attn.flash_attn_func(q, k, v, **how), out)


@pytest.mark.judged
@pytest.mark.parametrize(
    "name",
    ["more_queries", *(pytest.param(name, marks=pytest.mark.slow) for name in ("causal_window", "alibi"))],
)
def test_attention_on_the_interpreter_is_that_of_the_oracle(
    torch: ModuleType, flash_attn: Any, name: str
) -> None:
    dtype, (seqlen_q, seqlen_k, heads, kv_heads, dim), how = CASES[name]
    shape = (2, seqlen_k, kv_heads, dim)
    q, k, v = tensors(torch, dtype, (2, seqlen_q, heads, dim), shape, shape)
    how = arguments(torch, how)
    with flash_attn.using_backend("interpreter"):
        out, lse, _ = flash_attn.flash_attn_func(q, k, v, **how, return_attn_probs=True)
    assert_is_attention(out, lse, q, k, v, how)


def test_packed_forms_are_views_of_one_tensor(torch: ModuleType, flash_attn: Any) -> None:
    (qkv,) = tensors(torch, "bfloat16", (2, 7, 3, 4, 40))
    q, k, v = qkv.unbind(2)
    wanted = flash_attn.flash_attn_func(q.clone(), k.clone(), v.clone(), causal=True)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(qkv, causal=True), wanted)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), wanted)
    positional = flash_attn.flash_attn_qkvpacked_func(qkv, 0.0, None, True, (3, 0), 1.5, None, True, True)
    by_name = flash_attn.flash_attn_func(
        q, k, v, causal=True, window_size=(3, 0), softcap=1.5, return_attn_probs=True
    )
    assert len(positional) == 3
    assert all(map(torch.equal, positional, by_name))


def test_tensors_whose_last_dimension_is_not_dense_are_taken(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float16", (2, 16, 4, 7), (2, 16, 4, 9), (2, 16, 4, 9))
    q, k, v = (x.permute(0, 3, 2, 1) for x in (q, k, v))
    result = flash_attn.flash_attn_func(q, k, v)
    assert torch.equal(result, flash_attn.flash_attn_func(*(x.contiguous() for x in (q, k, v))))


def test_values_may_be_wider_than_keys(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float32", (1, 3, 2, 16), (1, 5, 2, 16), (1, 5, 2, 48))
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    assert_is_attention(out, lse, q, k, v, {})


LENGTHS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "different": ((5, 1, 3), (5, 9, 2)),
    "empty": ((0, 4, 2, 0), (3, 0, 2, 0)),
    "one": ((6,), (6,)),
    "none": ((0, 0), (0, 0)),
}


def starts(torch: ModuleType, lengths: tuple[int, ...]) -> Any:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def assert_is_varlen(out: Any, lse: Any, q: Any, k: Any, v: Any, cu: tuple[Any, Any], how: Any) -> None:
    """out and lse of packed sequences are those of the oracle; each sequence has its own bound."""
    of_q, of_k = (x.tolist() for x in cu)
    arrays = [as_numpy(x) for x in (q, k, v)]
    wanted, sums = oracle.attention_varlen(*arrays, of_q, of_k, **in_numpy(how))
    result, found_sums = as_numpy(out), as_numpy(lse)
    assert result.shape == wanted.shape
    for b in range(len(of_q) - 1):
        rows, keys = slice(of_q[b], of_q[b + 1]), slice(of_k[b], of_k[b + 1])
        one = [x[at].swapaxes(0, 1)[None] for x, at in zip(arrays, (rows, keys, keys), strict=True)]
        bound = bound_of(*one, in_numpy(how))
        assert_close("out", result[rows], wanted[rows], bound.out_error[0].swapaxes(0, 1))
        assert_close("lse", found_sums[:, rows], sums[:, rows], bound.lse_error[0])


@pytest.mark.judged
@pytest.mark.parametrize("backend", ["auto", pytest.param("interpreter", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LENGTHS)
def test_packed_sequences_are_those_of_the_oracle(
    torch: ModuleType, flash_attn: Any, name: str, backend: str
) -> None:
    of_q, of_k = LENGTHS[name]
    q, k, v = tensors(torch, "float16", (sum(of_q), 4, 40), (sum(of_k), 2, 40), (sum(of_k), 2, 40))
    cu = starts(torch, of_q), starts(torch, of_k)
    how = {"causal": True, "window_size": (3, 0), "alibi_slopes": torch.tensor(SLOPES[:4])}
    with flash_attn.using_backend(backend):
        out, lse, probabilities = flash_attn.flash_attn_varlen_func(
            q, k, v, *cu, max(of_q), max(of_k), **how, return_attn_probs=True
        )
    assert_is_varlen(out, lse, q, k, v, cu, how)
    assert lse.shape == (4, sum(of_q))
    assert probabilities.shape == (0,)


def test_packed_forms_of_packed_sequences_are_views(torch: ModuleType, flash_attn: Any) -> None:
    (qkv,) = tensors(torch, "float16", (9, 3, 4, 32))
    q, k, v = qkv.unbind(1)
    cu = starts(torch, (4, 5))
    wanted = flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, causal=True)
    assert torch.equal(flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 5, causal=True), wanted)
    kv = qkv[:, 1:]
    assert torch.equal(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, cu, cu, 5, 5, causal=True), wanted)
    longest = torch.tensor(5)  # as `(cu[1:] - cu[:-1]).max()` is
    assert torch.equal(flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, longest, 0.0, None, True), wanted)


def test_the_seed_of_torch_decides_which_weights_are_dropped(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float32", (1, 64, 2, 16), (1, 96, 2, 16), (1, 96, 2, 16))
    torch.manual_seed(11)
    first, second = (flash_attn.flash_attn_func(q, k, v, 0.25) for _ in range(2))
    torch.manual_seed(11)
    again = flash_attn.flash_attn_func(q, k, v, 0.25)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_no_number_is_drawn_without_dropout(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float32", (1, 4, 2, 16), (1, 4, 2, 16), (1, 4, 2, 16))
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    flash_attn.flash_attn_func(q, k, v)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("packed", [False, True])
def test_probabilities_say_what_dropout_does_to_the_output(
    torch: ModuleType, flash_attn: Any, packed: bool
) -> None:
    """Dropped weights are negative; the others, divided by the probability to be kept, give O."""
    p, lengths = 0.25, (40, 64)
    q, k = tensors(torch, "float32", (2, 64, 4, 16), (2, 64, 2, 16))
    v = torch.eye(64)[None, :, None].expand(2, 64, 2, 64)  # O is the dropped matrix of weights
    how = {"causal": True, "softcap": 3.0, "alibi_slopes": torch.tensor([SLOPES[:4], SLOPES[1:5]])}
    if packed:
        cu = starts(torch, lengths)
        rows = [x.flatten(0, 1)[: sum(lengths)] for x in (q, k)]
        values = torch.cat([torch.eye(64)[:n] for n in lengths])[:, None].expand(-1, 2, 64)
        result = flash_attn.flash_attn_varlen_func(
            *rows, values, cu, cu, 64, 64, p, **how, return_attn_probs=True
        )
        out = torch.zeros(2, 4, 64, 64)
        for b, (begin, n) in enumerate(zip(cu, lengths, strict=False)):
            out[b, :, :n] = result[0][begin : begin + n].transpose(0, 1)
    else:
        result = flash_attn.flash_attn_func(q, k, v, p, **how, return_attn_probs=True)
        out = result[0].transpose(1, 2)
    probabilities = result[2]
    assert probabilities.shape == (2, 4, 64, 64)
    torch.testing.assert_close(out, probabilities.clamp(min=0) / (1 - p), atol=1e-6, rtol=1e-5)
    seen = probabilities[probabilities != 0]
    deviation = (p * (1 - p) / len(seen)) ** 0.5
    assert abs(float((seen < 0).float().mean()) - p) < 5 * deviation
    if not packed:  # without its signs it is the softmax
        torch.testing.assert_close(probabilities.abs().sum(-1), torch.ones(2, 4, 64))


def test_probabilities_of_an_empty_batch_are_empty(torch: ModuleType, flash_attn: Any) -> None:
    dense, packed = torch.zeros(0, 3, 2, 16), torch.zeros(0, 2, 16)
    cu = torch.zeros(1, dtype=torch.int32)
    result = flash_attn.flash_attn_func(dense, dense, dense, 0.5, return_attn_probs=True)
    assert [list(x.shape) for x in result] == [[0, 3, 2, 16], [0, 2, 3], [0, 2, 3, 3]]
    result = flash_attn.flash_attn_varlen_func(
        packed, packed, packed, cu, cu, 0, 0, 0.5, return_attn_probs=True
    )
    assert [list(x.shape) for x in result] == [[0, 2, 16], [2, 0], [0, 2, 0, 0]]


@pytest.mark.parametrize("window", [None, (None, None), (2**31 - 1, 2**40), [-1, -1]])
def test_a_window_without_limits_is_no_window(torch: ModuleType, flash_attn: Any, window: Any) -> None:
    q, k, v = tensors(torch, "float16", (1, 3, 2, 16), (1, 5, 2, 16), (1, 5, 2, 16))
    wanted = flash_attn.flash_attn_func(q, k, v)
    assert torch.equal(flash_attn.flash_attn_func(q, k, v, window_size=window, softcap=None), wanted)


def test_dropout_keeps_the_mean(torch: ModuleType, flash_attn: Any) -> None:
    """The mean of the results of many seeds is the result without dropout, within 5 deviations."""
    q, k, v = tensors(torch, "float32", (1, 8, 2, 16), (1, 32, 2, 16), (1, 32, 2, 16))
    wanted = flash_attn.flash_attn_func(q, k, v)
    torch.manual_seed(5)
    result = torch.stack([flash_attn.flash_attn_func(q, k, v, 0.5) for _ in range(200)])
    deviation = result.std(0) / 200**0.5
    assert bool(((result.mean(0) - wanted).abs() < 5 * deviation).all())


@pytest.mark.parametrize(
    ("backend", "page_size"),
    [
        ("auto", 4),
        ("auto", 512),
        pytest.param("interpreter", 4, marks=pytest.mark.slow),
        pytest.param("interpreter", 512, marks=pytest.mark.nightly),
    ],
)
def test_packed_sequences_over_pages_are_those_of_the_oracle(
    torch: ModuleType, flash_attn: Any, backend: str, page_size: int
) -> None:
    of_q, of_k = (2, 5), (page_size + 3, 2 * page_size)
    pages = (6, page_size, 2, 40)
    q, k, v = tensors(torch, "float16", (sum(of_q), 4, 40), pages, pages)
    table = torch.tensor([[4, 1, 3], [0, 5, 2]], dtype=torch.int32)
    cu = starts(torch, of_q), starts(torch, of_k)
    how = {"causal": True, "window_size": (3, 0), "alibi_slopes": torch.tensor(SLOPES[:4])}
    with flash_attn.using_backend(backend):
        out, lse, probabilities = flash_attn.flash_attn_varlen_func(
            q, k, v, *cu, max(of_q), max(of_k), **how, return_attn_probs=True, block_table=table
        )
    rows = [
        torch.cat([x[own.long()].flatten(0, 1)[:n] for own, n in zip(table, of_k, strict=True)])
        for x in (k, v)
    ]
    assert_is_varlen(out, lse, q, *rows, cu, how)
    assert probabilities.shape == (0,)


# The arguments of each function for q, k and v [2, 7, heads, 16] of two sequences of 7 rows.
FORMS: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, ...]]] = {
    "flash_attn_func": lambda torch, q, k, v: (q, k, v),
    "flash_attn_kvpacked_func": lambda torch, q, k, v: (q, torch.stack((k, v), 2)),
    "flash_attn_qkvpacked_func": lambda torch, q, k, v: (torch.stack((q, k, v), 2),),
    "flash_attn_varlen_func": lambda torch, q, k, v: (
        *(x.flatten(0, 1) for x in (q, k, v)),
        *[starts(torch, (7, 7))] * 2,
        7,
        7,
    ),
    "flash_attn_varlen_kvpacked_func": lambda torch, q, k, v: (
        q.flatten(0, 1),
        torch.stack((k, v), 2).flatten(0, 1),
        *[starts(torch, (7, 7))] * 2,
        7,
        7,
    ),
    "flash_attn_varlen_qkvpacked_func": lambda torch, q, k, v: (
        torch.stack((q, k, v), 2).flatten(0, 1),
        starts(torch, (7, 7)),
        7,
    ),
}


def in_torch(torch: ModuleType, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    """Causal attention with a window of 4 keys, a softcap of 2 and slopes, and LSE."""
    far = torch.arange(7)[:, None] - torch.arange(7)
    group = q.shape[2] // k.shape[2]
    of_q, of_k, of_v = (x.transpose(1, 2) for x in (q, *(x.repeat_interleave(group, 2) for x in (k, v))))
    scores = 2 * torch.tanh(of_q @ of_k.mT / 16**0.5 / 2) - slopes[:, None, None] * far.abs()
    scores = scores.masked_fill((far < 0) | (far > 3), -torch.inf)
    return (scores.softmax(-1) @ of_v).transpose(1, 2), scores.logsumexp(-1)


@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_those_of_pytorch(torch: ModuleType, flash_attn: Any, name: str) -> None:
    """The gradients of q, k, v and the slopes, from the gradients of out and of LSE."""
    kv_heads = 4 if "qkv" in name else 2
    arrays = tensors(torch, "float32", (2, 7, 4, 16), (2, 7, kv_heads, 16), (2, 7, kv_heads, 16))
    arrays = [x.requires_grad_() for x in (*arrays, torch.tensor(SLOPES[:4]))]
    q, k, v, slopes = arrays
    how = {"causal": True, "window_size": (3, 0), "softcap": 2.0, "deterministic": "packed" in name}
    out, lse, _ = getattr(flash_attn, name)(
        *FORMS[name](torch, q, k, v), **how, alibi_slopes=slopes, return_attn_probs=True
    )
    if "varlen" in name:
        out, lse = out.unflatten(0, (2, 7)), lse.unflatten(1, (2, 7)).transpose(0, 1)
    weights = torch.linspace(-1, 1, 16)
    result, wanted = (
        torch.autograd.grad((out * weights).sum() + lse.sin().sum(), arrays)
        for out, lse in ((out, lse), in_torch(torch, *arrays))
    )
    for ours, theirs in zip(result, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [16, 320])
def test_gradients_of_the_kernels(torch: ModuleType, flash_attn: Any, head_dim: int) -> None:
    (qkv,) = tensors(torch, "float16", (1, 7, 3, 2, head_dim))
    qkv *= (16 / head_dim) ** 0.5  # products of rows are as large as those of 16 columns
    result, wanted = (qkv.clone().requires_grad_() for _ in range(2))
    for leaf, backend in ((result, "interpreter"), (wanted, "cpu")):
        with flash_attn.using_backend(backend):
            out = flash_attn.flash_attn_qkvpacked_func(leaf, causal=True)
        out.square().sum().backward()  # by the backend of the call, outside of the context
    assert not torch.equal(result.grad, wanted.grad)
    torch.testing.assert_close(result.grad, wanted.grad, atol=4e-3, rtol=4e-3)


def test_a_compiled_call_is_one_graph(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float32", (1, 5, 4, 16), (1, 9, 2, 16), (1, 9, 2, 16))

    def call(q: Any, k: Any, v: Any) -> Any:
        return flash_attn.flash_attn_func(q, k, v, causal=True, window_size=(3, 0), softcap=5.0)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), call(q, k, v))


def test_a_compiled_call_of_packed_sequences_is_one_graph(torch: ModuleType, flash_attn: Any) -> None:
    call = flash_attn.flash_attn_varlen_func
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    for kv_heads, dim_v, keys in ((4, 16, 12), (2, 8, 9)):  # the second has sizes that the graph does not fix
        q, k, v = tensors(torch, "float32", (9, 4, 16), (keys, kv_heads, 16), (keys, kv_heads, dim_v))
        inputs = (q, k, v, starts(torch, (5, 4)), starts(torch, (7, keys - 7)), 5, 7)
        assert torch.equal(compiled(*inputs, causal=True), call(*inputs, causal=True))


def test_a_compiled_call_over_pages_is_one_graph(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float32", (7, 4, 16), (6, 4, 2, 16), (6, 4, 2, 16))
    table = torch.tensor([[4, 1, 3], [0, 5, 2]], dtype=torch.int32)
    inputs = (q, k, v, starts(torch, (2, 5)), starts(torch, (7, 8)), 5, 8)
    compiled = torch.compile(flash_attn.flash_attn_varlen_func, backend="eager", fullgraph=True)
    wanted = flash_attn.flash_attn_varlen_func(*inputs, causal=True, block_table=table)
    assert torch.equal(compiled(*inputs, causal=True, block_table=table), wanted)


def test_a_compiled_call_with_dropout_is_one_graph(torch: ModuleType, flash_attn: Any) -> None:
    q, k, v = tensors(torch, "float32", (1, 5, 4, 16), (1, 9, 2, 16), (1, 9, 2, 16))
    compiled = torch.compile(flash_attn.flash_attn_func, backend="eager", fullgraph=True)
    torch.manual_seed(3)
    wanted = flash_attn.flash_attn_func(q, k, v, 0.5)
    torch.manual_seed(3)
    assert torch.equal(compiled(q, k, v, 0.5), wanted)
