"""The functions of flash-attn 3 and 4: signatures, what docs/migration.md has no row for, and refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from newer_flash_attn import attend

from ptxgen.errors import LaunchError

# Parameters in order, with their defaults: hopper/flash_attn_interface.py, flash_attn/cute/interface.py.
DESCALES = "q_descale=None, k_descale=None, v_descale=None"
SIGNATURES = {
    "hopper.flash_attn_func": (
        f"q, k, v, softmax_scale=None, causal=False, qv=None, {DESCALES}, window_size=(-1, -1), "
        "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, "
        "return_attn_probs=False"
    ),
    "hopper.flash_attn_qkvpacked_func": (
        f"qkv, softmax_scale=None, causal=False, {DESCALES}, window_size=(-1, -1), attention_chunk=0, "
        "softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False"
    ),
    "hopper.flash_attn_varlen_func": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, "
        f"softmax_scale=None, causal=False, qv=None, {DESCALES}, window_size=(-1, -1), attention_chunk=0, "
        "softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
    ),
    "hopper.flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, "
        f"cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, {DESCALES}, softmax_scale=None, "
        "causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
        "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False"
    ),
    "hopper.flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
    "cute.flash_attn_func": (
        "q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, "
        "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, "
        "deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None, "
        "aux_scalars=None, block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False"
    ),
    "cute.flash_attn_varlen_func": (
        "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, "
        "min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, "
        "softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, "
        "num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, "
        "mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, "
        "scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False"
    ),
}


class Given:
    """Tensors that fit each other, and the two modules."""

    def __init__(self, torch: ModuleType) -> None:
        from flash.adapters.flash_attn import cute, hopper

        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Any:
            return torch.randn(shape, generator=generator)

        self.torch, self.hopper, self.cute = torch, hopper, cute
        self.q, self.k, self.v = normal(2, 5, 4, 32), normal(2, 9, 2, 32), normal(2, 9, 2, 32)
        self.q8, self.k8, self.v8 = (x.to(torch.float8_e4m3fn) for x in (self.q, self.k, self.v))
        self.scales = torch.tensor([[0.5, 1.0], [2.0, 1.5]])
        self.int32: Any = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)
        self.table = self.int32([0], [1])
        self.cu_q, self.cu_k = self.int32(0, 5, 10), self.int32(0, 9, 18)

    def cached(self, **how: Any) -> Any:
        return self.hopper.flash_attn_with_kvcache(self.q, self.k, self.v, **how)

    def packed(self, *arrays: Any) -> list[Any]:
        return [x.flatten(0, 1) for x in arrays]


@pytest.fixture
def g(torch: ModuleType) -> Given:
    return Given(torch)


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_are_those_of_flash_attn_in_order_and_with_its_defaults(g: Given, name: str) -> None:
    module, _, function = name.partition(".")
    result = inspect.signature(getattr(getattr(g, module), function)).parameters.values()
    assert {p.kind for p in result} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    said = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in result)
    assert said == SIGNATURES[name]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 16])
@pytest.mark.parametrize("longer", ["keys", "queries"])
def test_a_query_sees_its_chunk_alone(g: Given, longer: str, chunk: int, causal: bool) -> None:
    arrays = (g.q, g.k, g.v) if longer == "keys" else (g.k.repeat(1, 1, 2, 1), *g.q.split(2, 2))
    how: dict[str, Any] = {"causal": causal, "attention_chunk": chunk}
    out, lse = g.hopper.flash_attn_func(*arrays, **how, return_attn_probs=True)
    starts = (g.cu_q, g.cu_k, 5, 9) if longer == "keys" else (g.cu_k, g.cu_q, 9, 5)
    packed = g.hopper.flash_attn_varlen_func(*g.packed(*arrays), *starts, **how)
    for b in range(2):
        wanted, sums = attend(g.torch, *(x[b] for x in arrays), **how)
        g.torch.testing.assert_close(out[b].double(), wanted, atol=1e-5, rtol=1e-5)
        g.torch.testing.assert_close(lse[b].double(), sums, atol=1e-5, rtol=1e-5)
    assert g.torch.equal(packed.view(out.shape), out)


@pytest.mark.parametrize("kind", ["dense", "packed", "qkv", "heads"])
def test_arrays_of_fp8_are_multiplied_by_their_scales(g: Given, kind: str) -> None:
    how = {f"{name}_descale": g.scales for name in "qkv"}
    q, k, v = g.q8, g.k8[:, :5], g.v8[:, :5]
    if kind == "dense":
        out = g.hopper.flash_attn_func(q, k, v, **how)
    elif kind == "packed":
        out = g.hopper.flash_attn_varlen_func(*g.packed(q, k, v), g.cu_q, g.cu_q, 5, 5, **how).view(q.shape)
    elif kind == "heads":
        out = g.hopper.flash_attn_qkvpacked_func(g.torch.cat((q, k, v), 2), num_heads_q=4, **how)
    else:
        q = q[:, :, ::2]
        out = g.hopper.flash_attn_qkvpacked_func(g.torch.stack((q, k, v), 2), **how)
    assert out.dtype == g.torch.bfloat16
    for b in range(2):
        of_b = [x[b].double() * g.scales[b].repeat_interleave(x.shape[2] // 2)[:, None] for x in (q, k, v)]
        wanted, _ = attend(g.torch, *of_b)
        g.torch.testing.assert_close(out[b].double(), wanted, atol=0.1, rtol=0.05)


def test_new_rows_are_divided_by_the_scales_of_a_cache_of_fp8(g: Given) -> None:
    torch = g.torch
    caches = [torch.zeros(2, 8, 2, 32).to(torch.float8_e4m3fn) for _ in range(2)]
    new = [x[:, :5].to(torch.bfloat16) for x in (g.k, g.v)]
    scales = torch.tensor([[0.5, 2.0]]).expand(2, 2)
    out = g.hopper.flash_attn_with_kvcache(
        g.q.to(torch.bfloat16),
        *caches,
        *new,
        cache_seqlens=0,
        causal=True,
        k_descale=scales,
        v_descale=scales,
    )
    for b in range(2):
        keys, values = (cache[b, :5].double() * scales[b][:, None] for cache in caches)
        assert (keys - g.k[b, :5]).abs().max() < 0.2
        wanted, _ = attend(torch, g.q[b].to(torch.bfloat16), keys, values, causal=True)
        torch.testing.assert_close(out[b].double(), wanted, atol=0.02, rtol=0.02)


def test_packed_queries_over_a_cache_without_pages(g: Given) -> None:
    used = g.int32(6, 9)
    (packed,) = g.packed(g.q)
    out, lse = g.hopper.flash_attn_with_kvcache(
        packed, g.k, g.v, cache_seqlens=used, cu_seqlens_q=g.cu_q, causal=True, return_softmax_lse=True
    )
    wanted, sums = g.cached(cache_seqlens=used, causal=True, return_softmax_lse=True)
    g.torch.testing.assert_close(out.view(wanted.shape), wanted)
    g.torch.testing.assert_close(lse.unflatten(1, (2, 5)).movedim(1, 0), sums)


def test_gradients_reach_a_learnable_sink(g: Given) -> None:
    sink = g.torch.ones(4, dtype=g.torch.bfloat16, requires_grad=True)
    out, lse = g.cute.flash_attn_func(g.q, g.k, g.v, learnable_sink=sink)
    assert lse is None
    out.square().sum().backward()
    assert (sink.grad < 0).all()  # more of the weight on no key: smaller results


def test_lse_of_a_batch_of_sequences_has_its_axes(g: Given) -> None:
    used = g.int32(7, 9)
    out, lse = g.cute.flash_attn_varlen_func(
        g.q, g.k, g.v, seqused_q=g.int32(5, 5), seqused_k=used, return_lse=True
    )
    for b in range(2):
        wanted, sums = attend(g.torch, g.q[b], g.k[b, : used[b]], g.v[b, : used[b]])
        g.torch.testing.assert_close(out[b].double(), wanted, atol=1e-5, rtol=1e-5)
        g.torch.testing.assert_close(lse[b].double(), sums, atol=1e-5, rtol=1e-5)


def test_parts_are_combined_in_given_memory(g: Given) -> None:
    parts, lses = g.torch.stack((g.q, g.q + 1)), g.torch.zeros(2, 2, 5, 4)
    into = g.torch.empty(2, 5, 4, 32, dtype=g.torch.float16)
    out, _ = g.hopper.flash_attn_combine(parts, lses, into)
    assert out is into
    g.torch.testing.assert_close(out.float(), g.q + 0.5, atol=1e-2, rtol=1e-2)
    assert g.hopper.flash_attn_combine(parts, lses, out_dtype=g.torch.bfloat16)[0].dtype == g.torch.bfloat16


@pytest.mark.slow
def test_functions_are_compiled_whole(g: Given) -> None:
    def calls(q: Any, k: Any, v: Any, lengths: Any) -> tuple[Any, ...]:
        return (
            g.hopper.flash_attn_func(q, k, v, causal=True, attention_chunk=4),
            g.cute.flash_attn_func(q, k, v, window_size=(3, None))[0],
            g.hopper.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True),
        )

    arguments = g.q, g.k, g.v, g.int32(7, 9)
    result = g.torch.compile(calls, fullgraph=True, backend="aot_eager")(*arguments)
    for one, wanted in zip(result, calls(*arguments), strict=True):
        assert g.torch.equal(one, wanted)


QV = (
    "scores of two products are not added; where values are columns of keys, launch flash.AttentionKernel or "
    "flash.DecodeKernel with AttentionConfig(shared_kv=True, ...), else give q and qv as columns of one "
    "tensor, and keys likewise"
)
FUNCTION = (
    "functions in CuTe DSL are not read; write it as docs/score-functions.md has it, and give it to "
    "flash.adapters.torch.attention"
)
REFUSED: dict[str, tuple[Callable[[Given], Any], str]] = {
    "qv": (
        lambda g: g.hopper.flash_attn_func(g.q, g.k, g.v, qv=g.q),
        f"flash_attn_func: qv must be None, got torch.float32 of shape [2, 5, 4, 32]: {QV}",
    ),
    "chunks": (
        lambda g: g.hopper.flash_attn_func(g.q, g.k, g.v, attention_chunk=-1),
        "flash_attn_func: attention_chunk must be a number of keys from 0 to 1073741568, 0 for no chunks, "
        "got -1",
    ),
    "chunks of a cache": (
        lambda g: g.cached(attention_chunk=4),
        "flash_attn_with_kvcache: attention_chunk must be 0, got 4: chunks of a cache are not hidden; give "
        "flash.adapters.torch.attention_varlen a mask_mod that compares query // chunk with key // chunk, "
        "and the cache as pages",
    ),
    "new rows of other numbers": (
        lambda g: g.cached(cu_seqlens_k_new=g.cu_k),
        "flash_attn_with_kvcache: cu_seqlens_k_new must be None, got torch.int32 of shape [3]: new rows are "
        "as many for each sequence; give k and v of [batch, n, kv_heads, head_dim], or append with "
        "flash.KVCache",
    ),
    "scale without fp8": (
        lambda g: g.hopper.flash_attn_func(g.q, g.k, g.v, k_descale=g.scales),
        "flash_attn_func: k_descale must be None, got torch.float32 of shape [2, 2]: it belongs to keys of "
        "fp8; convert them, or leave it out",
    ),
    "scale of a cache without fp8": (
        lambda g: g.cached(v_descale=g.scales),
        "flash_attn_with_kvcache: v_descale must be None, got torch.float32 of shape [2, 2]: it belongs to "
        "values of fp8; convert them, or leave it out",
    ),
    "scale of another shape": (
        lambda g: g.hopper.flash_attn_func(g.q8, g.k8, g.v8, q_descale=g.scales[0]),
        "flash_attn_func: q_descale must be a tensor torch.float32 [batch=2, kv_heads=2], got torch.float32 "
        "of shape [2]",
    ),
    "scales of sequences": (
        lambda g: g.hopper.flash_attn_with_kvcache(g.q.bfloat16(), g.k8, g.v8, k_descale=g.scales),
        "flash_attn_with_kvcache: k_descale must be the same for each sequence, as k_descale[:1].expand(2, "
        "2) is, because a cache has one scale for each head; got others",
    ),
    "two types of fp8": (
        lambda g: g.hopper.flash_attn_func(g.q8, g.k8, g.v),
        "flash_attn_func: q, k and v must be of one type, got torch.float8_e4m3fn, torch.float8_e4m3fn, "
        "torch.float32; convert them",
    ),
    "margin": (
        lambda g: g.hopper.flash_attn_func(g.q, g.k, g.v, sm_margin=-1),
        "flash_attn_func: sm_margin must be a number of multiprocessors from 0 to 1024, got -1",
    ),
    "packing": (
        lambda g: g.cute.flash_attn_func(g.q, g.k, g.v, pack_gqa=2),
        "flash_attn_func: pack_gqa must be True or False, got 2",
    ),
    "metadata": (
        lambda g: g.cached(scheduler_metadata=3),
        "flash_attn_with_kvcache: scheduler_metadata must be what get_scheduler_metadata returns, or None, "
        "got 3",
    ),
    "packed queries with new rows": (
        lambda g: g.cached(cu_seqlens_q=g.cu_q, k=g.k, v=g.v),
        "flash_attn_with_kvcache: k and v must be None where cu_seqlens_q packs the queries; give q as "
        "[batch, seqlen_q, heads, head_dim], or append and rotate with flash.KVCache before the call",
    ),
    "the name of the table": (
        lambda g: g.cached(page_table=g.table + 1),
        "flash_attn_with_kvcache: page_table[1, 0] must be from 0 to 1, a page of k_cache, got 2",
    ),
    "heads of qkv": (
        lambda g: g.hopper.flash_attn_qkvpacked_func(g.q, num_heads_q=3),
        "flash_attn_qkvpacked_func: num_heads_q must leave as many heads of k as of v among 4, got 3",
    ),
    "parts": (
        lambda g: g.hopper.flash_attn_combine(g.q, g.q[:1, ..., 0]),
        "flash_attn_combine: out_partial and lse_partial must have equally many parts, at least one, got 2 "
        "and 1",
    ),
    "a type by its name": (
        lambda g: g.hopper.flash_attn_combine(g.q, g.q[..., 0], out_dtype="float16"),
        "flash_attn_combine: out_dtype must be a torch.dtype, or None for that of out_partial, got 'float16'",
    ),
    "functions and blocks": (
        lambda g: g.cute.flash_attn_func(
            g.q, g.k, g.v, score_mod=abs, aux_tensors=[1], block_sparse_tensors=(1, 2)
        ),
        f"flash_attn_func: 3 problems\n  score_mod must be None, got a builtin_function_or_method: "
        f"{FUNCTION}\n"
        "  aux_tensors must be None, got [1]: it is read by functions in CuTe DSL alone; give "
        "flash.adapters.torch.attention tensors in aux\n  block_sparse_tensors must be None, got (1, 2): "
        "lists of blocks are not read; give flash.adapters.torch.attention a mask, or a mask_mod, by which "
        "whole blocks are skipped",
    ),
    "gathered keys": (
        lambda g: g.cute.flash_attn_varlen_func(g.q, g.k, g.v, gather_kv_indices=g.table),
        "flash_attn_varlen_func: gather_kv_indices must be None, got torch.int32 of shape [2, 1]: lists of "
        "keys are not read; gather the keys before the call, or give flash.adapters.torch.attention a mask",
    ),
    "sink": (
        lambda g: g.cute.flash_attn_func(g.q, g.k, g.v, learnable_sink=g.scales),
        "flash_attn_func: learnable_sink must be a tensor of one of torch.float32, torch.float16, "
        "torch.bfloat16 [heads=4], got torch.float32 of shape [2, 2]",
    ),
    "keys of a part": (
        lambda g: g.cute.flash_attn_varlen_func(g.q, g.k, g.v, seqlen_k_per_split=-1),
        "flash_attn_varlen_func: seqlen_k_per_split must be a number of rows of a sequence, from 0 to "
        "1073741568, or None, got -1",
    ),
    "starts of keys in pages": (
        lambda g: g.cute.flash_attn_varlen_func(g.q, g.k, g.v, cu_seqlens_k=g.cu_k, page_table=g.table),
        "flash_attn_varlen_func: cu_seqlens_k must be None with page_table; give the keys of each sequence "
        "as seqused_k",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(g: Given, name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(LaunchError) as caught:
        call(g)
    assert str(caught.value) == message
    assert isinstance(caught.value, RuntimeError)
