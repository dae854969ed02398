"""What the functions of flash-attn refuse, with whole messages, and that nothing is changed then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import CacheFullError, ConfigError, LaunchError, PtxGenError


class Given:
    """Tensors that fit each other, for calls of which one argument is then wrong."""

    def __init__(self, torch: ModuleType) -> None:
        def zeros(*shape: int) -> Any:
            return torch.zeros(shape, dtype=torch.float16)

        self.q, self.k, self.v = zeros(2, 3, 4, 16), zeros(2, 5, 2, 16), zeros(2, 5, 2, 16)
        self.packed = zeros(3, 4, 16), zeros(3, 2, 16), zeros(3, 2, 16)
        self.cu = torch.tensor([0, 2, 3], dtype=torch.int32)
        self.caches = zeros(2, 8, 2, 16), zeros(2, 8, 2, 16)
        self.new = zeros(2, 2, 2, 16) + 1, zeros(2, 2, 2, 16) + 1
        self.table = torch.tensor([[0], [1]], dtype=torch.int32)
        self.cos = torch.zeros(8, 8)
        self.zeros, self.torch = zeros, torch
        self.int32 = lambda *numbers: torch.tensor(numbers, dtype=torch.int32)

    def dense(self, f: Any, *more: Any, **how: Any) -> Any:
        return f.flash_attn_func(self.q, self.k, self.v, *more, **how)

    def varlen(self, f: Any, cu_q: Any = None, cu_k: Any = None, most: Any = (2, 2), **how: Any) -> Any:
        cu = (self.cu if cu is None else cu for cu in (cu_q, cu_k))
        return f.flash_attn_varlen_func(*self.packed, *cu, *most, **how)

    def cached(self, f: Any, **how: Any) -> Any:
        return f.flash_attn_with_kvcache(self.q, *self.caches, **how)

    def appended(self, f: Any, *tables: Any, cache_seqlens: Any = 3, **how: Any) -> Any:
        return f.flash_attn_with_kvcache(
            self.q, *self.caches, *self.new, *tables, cache_seqlens=cache_seqlens, **how
        )


Call = Callable[[Any, Given], Any]
WINDOWS = "each a number of keys, or -1 for no limit"
TABLES = (
    "rotary_cos and rotary_sin must be floating-point tensors of one shape [positions, rotary_dim / 2], "
    "with at least 8 positions, the rows of a sequence in the cache, and rotary_dim up to head_dim=16, "
)
PAGES = (
    "pages of more than 256 rows must lie one after another and have a number of rows with a divisor from "
    "2 to 256, "
)
ALL = "; flash.attention and flash.attention_varlen take arrays of any library"

DENSE: dict[str, tuple[Call, str]] = {
    "no_tensor": (
        lambda f, g: f.flash_attn_func(np.zeros((2, 3, 4, 16)), g.k, g.v),
        f"q must be a PyTorch tensor, got numpy.ndarray{ALL}",
    ),
    "none": (
        lambda f, g: f.flash_attn_func(g.q, None, g.v),
        f"k must be a PyTorch tensor, got NoneType{ALL}",
    ),
    "axes": (
        lambda f, g: f.flash_attn_func(g.q[0], g.k, g.v),
        "q must be [batch, seqlen_q, heads, head_dim], got shape [3, 4, 16]",
    ),
    "sizes": (
        lambda f, g: f.flash_attn_func(g.q, g.k[:1], g.v[:1]),
        "2 problems\n  k must be [batch=2, seqlen_k, kv_heads, head_dim=16], got shape [1, 5, 2, 16]\n"
        "  v must be [batch=2, seqlen_k, kv_heads, head_dim_v], got shape [1, 5, 2, 16]",
    ),
    "heads_first": (
        lambda f, g: f.flash_attn_func(*(x.transpose(1, 2) for x in (g.q, g.k, g.v))),
        "heads must be a multiple of kv_heads, got heads=3 and kv_heads=5; q is [batch, seqlen_q, "
        "heads, head_dim]",
    ),
    "float64": (
        lambda f, g: f.flash_attn_func(g.q.double(), g.k.double(), g.v.double()),
        "q must be one of torch.float32, torch.float16, torch.bfloat16, got torch.float64; convert it, such "
        "as with q.to(torch.bfloat16)",
    ),
    "mixed": (
        lambda f, g: f.flash_attn_func(g.q, g.k.bfloat16(), g.v.float()),
        "2 problems\n"
        "  k must be torch.float16 as q is, got torch.bfloat16; convert it with k.to(torch.float16)\n"
        "  v must be torch.float16 as q is, got torch.float32; convert it with v.to(torch.float16)",
    ),
    "dropout": (
        lambda f, g: g.dense(f, 1.0),
        "dropout_p must be a probability from 0 to less than 1, got 1.0",
    ),
    "scale": (
        lambda f, g: g.dense(f, 0.0, "x"),
        "softmax_scale must be a number, or None for 1/sqrt(head_dim), got 'x'",
    ),
    "causal": (lambda f, g: g.dense(f, causal="top_left"), "causal must be True or False, got 'top_left'"),
    "window": (
        lambda f, g: g.dense(f, window_size=3),
        f"window_size must be (left, right), {WINDOWS}, got 3",
    ),
    "window_side": (
        lambda f, g: g.dense(f, window_size=(-2, 0)),
        f"window_size must be (left, right), {WINDOWS}, got (-2, 0)",
    ),
    "softcap": (lambda f, g: g.dense(f, softcap="30"), "softcap must be a number, 0.0 for none, got '30'"),
    "slopes": (
        lambda f, g: g.dense(f, alibi_slopes=[0.5, 0.25]),
        f"alibi_slopes must be a PyTorch tensor, got list{ALL}",
    ),
    "type_of_slopes": (
        lambda f, g: g.dense(f, alibi_slopes=g.zeros(4)),
        "alibi_slopes must be float32, got float16; convert with alibi_slopes.float()",
    ),
    "shape_of_slopes": (
        lambda f, g: g.dense(f, alibi_slopes=g.torch.zeros(3)),
        "alibi_slopes must be [batch, heads] = [2, 4], or of a shape that broadcasts to it, got [3]",
    ),
    "deterministic": (
        lambda f, g: g.dense(f, deterministic=None),
        "deterministic must be True or False, got None",
    ),
    "return_attn_probs": (
        lambda f, g: g.dense(f, return_attn_probs=1),
        "return_attn_probs must be True or False, got 1",
    ),
    "wide": (
        lambda f, g: f.flash_attn_func(*(g.zeros(1, 2, 2, 584) for _ in range(3))),
        "head_dim must be an integer from 1 to 576, got 584; beyond 576 a CTA cannot keep its rows in shared "
        "memory",
    ),
}

VARLEN: dict[str, tuple[Call, str]] = {
    "int64": (
        lambda f, g: g.varlen(f, cu_q=g.cu.long()),
        "cu_seqlens_q must be a tensor torch.int32 [batch + 1], got torch.int64 of shape [3]; convert it "
        "with cu_seqlens_q.to(torch.int32)",
    ),
    "batch": (
        lambda f, g: g.varlen(f, cu_k=g.cu[:2]),
        "cu_seqlens_k must be a tensor torch.int32 [3], got torch.int32 of shape [2]",
    ),
    "list": (
        lambda f, g: g.varlen(f, cu_q=[0, 2, 3]),
        "cu_seqlens_q must be a tensor torch.int32 [batch + 1], got [0, 2, 3]",
    ),
    "beyond": (
        lambda f, g: g.varlen(f, cu_k=g.cu + 3),
        "cu_seqlens_k[1] must be from 3, which is cu_seqlens_k[0], to 3, the rows of k, got 5",
    ),
    "longest": (
        lambda f, g: g.varlen(f, most=(1, 2)),
        "max_seqlen_q must be at least 2, the rows of a sequence, got 1",
    ),
    "no_longest": (
        lambda f, g: g.varlen(f, most=(None, 2)),
        "max_seqlen_q must be the most rows of a sequence, from 0 to 1073741568, got None",
    ),
    "pages": (
        lambda f, g: g.varlen(f, block_table=g.table),
        "2 problems\n  k must be [pages, page_size, kv_heads, head_dim=16], got shape [3, 2, 16]\n"
        "  v must be [pages, page_size, kv_heads, head_dim_v], got shape [3, 2, 16]",
    ),
    "dropout_over_pages": (
        lambda f, g: f.flash_attn_varlen_func(
            g.packed[0], *g.caches, g.cu, g.cu, 2, 2, 0.5, block_table=g.table
        ),
        "dropout_p must be 0.0 with block_table, got 0.5; leave out one of them",
    ),
}

CACHED: dict[str, tuple[Call, str]] = {
    "alone": (lambda f, g: g.cached(f, v=g.new[1]), "v is given without k; give both, or neither"),
    "no_lengths": (
        lambda f, g: g.appended(f, cache_seqlens=None),
        "cache_seqlens must be given where there are new rows k and v: how many rows each sequence has "
        "before them",
    ),
    "beyond": (
        lambda f, g: g.cached(f, cache_seqlens=9),
        "cache_seqlens must be from 0 to 8, the rows of a sequence in the cache, got 9",
    ),
    "negative": (
        lambda f, g: g.appended(f, cache_seqlens=g.int32(-1, 3)),
        "cache_seqlens must be from 0 to 8, the rows of a sequence in the cache, got -1",
    ),
    "int64": (
        lambda f, g: g.appended(f, cache_seqlens=g.int32(1, 3).long()),
        "cache_seqlens must be an integer, or a tensor torch.int32 [2], got torch.int64 of shape [2]; "
        "convert it with cache_seqlens.to(torch.int32)",
    ),
    "index": (
        lambda f, g: g.cached(f, cache_batch_idx=g.int32(0, 5)),
        "cache_batch_idx[1] must be from 0 to 1, got 5",
    ),
    "repeated": (
        lambda f, g: g.appended(f, cache_batch_idx=g.int32(0, 0)),
        "cache_batch_idx must name a sequence once where there are new rows, got [0, 0]",
    ),
    "batch": (
        lambda f, g: f.flash_attn_with_kvcache(g.q, *(x[:1] for x in g.caches)),
        "the cache must have a sequence for each of batch=2, got 1; give cache_batch_idx to say which are "
        "meant",
    ),
    "padding": (
        lambda f, g: g.cached(f, cache_leftpad=g.int32(0, 9)),
        "cache_leftpad[1] must be from 0 to 8, got 9",
    ),
    "no_room": (
        lambda f, g: f.flash_attn_with_kvcache(g.q, *(x[:, :0] for x in g.caches)),
        "k_cache must have room for a row, got shape [2, 0, 2, 16]",
    ),
    "rotary_without_rows": (
        lambda f, g: g.cached(f, rotary_cos=g.cos, rotary_sin=g.cos),
        "rotary_cos and rotary_sin are given without new rows k and v; rotate q before the call, or give k "
        "and v",
    ),
    "one_table": (lambda f, g: g.appended(f, g.cos), f"{TABLES}got torch.float32 of shape [8, 8] and None"),
    "short_tables": (
        lambda f, g: g.appended(f, g.cos[:4], g.cos[:4]),
        f"{TABLES}got torch.float32 of shape [4, 8] and torch.float32 of shape [4, 8]",
    ),
    "interleaved": (
        lambda f, g: g.appended(f, rotary_interleaved=1),
        "rotary_interleaved must be True or False, got 1",
    ),
    "splits": (
        lambda f, g: g.cached(f, num_splits=-1),
        "num_splits must be an integer from 0 to 32768, 0 for a choice by the number of keys, got -1",
    ),
    "strides": (
        lambda f, g: f.flash_attn_with_kvcache(g.q, g.zeros(2, 8, 16, 2).transpose(2, 3), g.caches[1]),
        "k_cache must have a dense last dimension, because it is used in place, got strides [256, 32, 1, 2]; "
        "make it with torch.empty, in this layout",
    ),
    "type_of_table": (
        lambda f, g: g.cached(f, block_table=g.table.long()),
        "block_table must be a tensor torch.int32 [sequences, n_pages], got torch.int64 of shape [2, 1]; "
        "convert it with block_table.to(torch.int32)",
    ),
    "pages": (
        lambda f, g: g.appended(f, block_table=g.table + 1),
        "block_table[1, 0] must be from 0 to 1, a page of k_cache, got 2",
    ),
    "shared_page": (
        lambda f, g: g.appended(f, block_table=g.table * 0),
        "block_table must name a page that new rows are written to once, got page 0 several times",
    ),
    "page_size": (
        lambda f, g: f.flash_attn_with_kvcache(
            g.q, g.zeros(2, 257, 2, 16), g.zeros(2, 257, 2, 16), block_table=g.table
        ),
        f"{PAGES}got 257 rows and strides [8224, 32, 16, 1] and [8224, 32, 16, 1]; use pages of up to 256 "
        "rows",
    ),
    "large_pages_apart": (
        lambda f, g: f.flash_attn_with_kvcache(
            g.q, *g.zeros(2, 2, 512, 2, 16).unbind(1), block_table=g.table
        ),
        f"{PAGES}got 512 rows and strides [32768, 32, 16, 1] and [32768, 32, 16, 1]; use pages of up to 256 "
        "rows",
    ),
    "shared": (
        lambda f, g: f.flash_attn_with_kvcache(g.q, g.caches[0], g.caches[0], *g.new, cache_seqlens=3),
        "k_cache must not share memory with v_cache where there are new rows; pass an array of its own",
    ),
    "gradients": (
        lambda f, g: f.flash_attn_with_kvcache(g.q.clone().requires_grad_(), *g.caches),
        "q requires gradients, which are not computed: they would be lost without a word; call inside "
        "torch.no_grad(), or pass q.detach()",
    ),
    "full": (
        lambda f, g: g.appended(f, cache_seqlens=g.int32(3, 7)),
        "a sequence of 7 rows has no room for 2 new ones in a cache of 8; use a larger cache, or "
        "cache_seqlens without the new rows",
    ),
}

# By the function that is called, and a name of the case.
REFUSED: dict[tuple[str, str], tuple[Call, str]] = {
    **{("flash_attn_func", name): case for name, case in DENSE.items()},
    **{("flash_attn_varlen_func", name): case for name, case in VARLEN.items()},
    **{("flash_attn_with_kvcache", name): case for name, case in CACHED.items()},
    ("flash_attn_qkvpacked_func", "shape"): (
        lambda f, g: f.flash_attn_qkvpacked_func(g.zeros(2, 3, 2, 4, 16)),
        "qkv must be [batch, seqlen, 3, heads, head_dim], got shape [2, 3, 2, 4, 16]",
    ),
    ("flash_attn_kvpacked_func", "shape"): (
        lambda f, g: f.flash_attn_kvpacked_func(g.q, g.zeros(2, 3, 3, 2, 16)),
        "kv must be [batch=2, seqlen_k, 2, kv_heads, head_dim=16], got shape [2, 3, 3, 2, 16]",
    ),
    ("flash_attn_varlen_qkvpacked_func", "cu_seqlens"): (
        lambda f, g: f.flash_attn_varlen_qkvpacked_func(g.zeros(3, 3, 4, 16), g.cu[None], 2),
        "cu_seqlens must be a tensor torch.int32 [batch + 1], got torch.int32 of shape [1, 3]",
    ),
    ("flash_attn_varlen_kvpacked_func", "shape"): (
        lambda f, g: f.flash_attn_varlen_kvpacked_func(g.packed[0], g.packed[1], g.cu, g.cu, 2, 2),
        "kv must be [total_k, 2, kv_heads, head_dim=16], got shape [3, 2, 16]",
    ),
}
# The errors that are no LaunchError, or a kind of it.
KINDS: dict[tuple[str, str], type[PtxGenError]] = {
    ("flash_attn_func", "wide"): ConfigError,
    ("flash_attn_with_kvcache", "full"): CacheFullError,
}


@pytest.mark.parametrize(("function", "name"), REFUSED)
def test_arguments_that_do_not_fit_are_refused(
    torch: ModuleType, flash_attn: Any, function: str, name: str
) -> None:
    """With an error that is of flash-attn's type, too; no cache changes."""
    call, message = REFUSED[function, name]
    arguments = Given(torch)
    with pytest.raises(KINDS.get((function, name), LaunchError)) as caught:
        call(flash_attn, arguments)
    assert str(caught.value) == f"{function}: {message}"
    assert isinstance(caught.value, RuntimeError)
    assert not any(cache.any() for cache in arguments.caches)


def test_an_unknown_backend_is_refused(flash_attn: Any) -> None:
    with pytest.raises(ConfigError) as caught, flash_attn.using_backend("gpu"):
        pass
    assert str(caught.value) == (
        "using_backend: backend must be one of auto, cuda, interpreter, cpu, compiled, "
        "got 'gpu'; did you mean 'cuda'?"
    )


@pytest.mark.parametrize("name", ["dense", "varlen", "cached"])
def test_the_backend_is_that_of_the_innermost_context(
    torch: ModuleType, flash_attn: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from flash.adapters.flash_attn import calls

    def record(*_: Any, backend: str, **how: Any) -> tuple[None, None]:
        seen.append(backend)
        return None, None

    arguments, seen = Given(torch), list[str]()
    monkeypatch.setattr(calls.operators, "attention", record)
    monkeypatch.setattr(calls.operators, "attention_varlen", record)
    monkeypatch.setattr(calls.flash.DecodeKernel, "launch", record)
    call = getattr(arguments, name)
    call(flash_attn)
    with flash_attn.using_backend("cuda"):
        call(flash_attn)
        with flash_attn.using_backend("cpu"):
            call(flash_attn)
        call(flash_attn)
    call(flash_attn)
    assert seen == ["auto", "cuda", "cpu", "cuda", "auto"]


def test_another_thread_has_a_backend_of_its_own(
    torch: ModuleType, flash_attn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flash.adapters.flash_attn import calls

    arguments, seen = Given(torch), list[str]()
    monkeypatch.setattr(calls.operators, "attention", lambda *_, backend, **__: seen.append(backend))
    with flash_attn.using_backend("interpreter"):
        other = threading.Thread(target=arguments.dense, args=(flash_attn,))
        other.start()
        other.join()
        arguments.dense(flash_attn)
    assert seen == ["auto", "interpreter"]
