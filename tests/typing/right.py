"""Programs that type checkers accept; `check.py` runs them. Nothing here is executed."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import flash
import ptxgen
from ptxgen import KernelBuilder, Pointer, f32, u32

Floats = NDArray[np.float32]
Lengths = NDArray[np.int32]


def results_are_of_the_callers_kind(q: Floats, k: Floats, v: Floats, asked: bool) -> None:
    assert_type(flash.attention(q, k, v), Floats)
    assert_type(flash.attention(q, k, v, return_lse=False), Floats)
    assert_type(flash.attention(q, k, v, return_lse=True), tuple[Floats, Floats])
    assert_type(flash.attention(q, k, v, return_lse=asked), Floats | tuple[Floats, ...])
    assert_type(flash.attention(q, k, v, return_max_logit=True), Floats | tuple[Floats, ...])
    out, lse = flash.attention(q, k, v, causal=True, window=(128, 0), softcap=30.0, return_lse=True)
    print(out.shape, lse.shape)


def words_are_known(q: Floats, k: Floats, v: Floats, bias: Floats) -> None:
    flash.attention(q, k, v, layout="bshd", causal="top_left", backend="interpreter")
    flash.attention(q, k, v, bias=bias, precision="f32_grade", softmax_scale=0.5, out=q, stream=0)


def packed(q: Floats, k: Floats, v: Floats, ends: Lengths) -> None:
    out = flash.attention_varlen(q, k, v, ends, ends, seqused_k=ends, max_seqlen_q=7, causal=True)
    assert_type(out, Floats)
    assert_type(flash.attention_varlen(q, k, v, ends, block_table=ends, seqused_k=ends), Floats)


def kernels(q: Floats, k: Floats, v: Floats) -> None:
    kernel = flash.AttentionKernel(flash.AttentionConfig(head_dim=64, causal=True, return_lse=True))
    assert_type(kernel.launch(q, k, v, return_lse=True), tuple[Floats, Floats])
    assert_type(kernel.launch(q, k, v, return_lse=False), Floats)
    out, lse = kernel.launch(q, k, v)  # by the config
    print(kernel.explain(q, k, v, backend="cpu"), out, lse)
    decode = flash.DecodeKernel(flash.AttentionConfig(64, causal=True))
    assert_type(decode.launch(q, k, v, seqused_k=k, splits=2, return_lse=True), tuple[Floats, Floats])


def element_types_in_any_spelling() -> None:
    for config in (
        flash.AttentionConfig(64, dtype="f16"),
        flash.AttentionConfig(64, dtype="float16"),
        flash.AttentionConfig(64, dtype="torch.bfloat16"),
        flash.AttentionConfig(64, dtype=np.float16),
        flash.AttentionConfig(64, dtype=np.dtype("float32")),
        flash.AttentionConfig(64, dtype=torch.bfloat16),
        flash.AttentionConfig(64, tile=32, block_q="auto", precision="tf32", pack_gqa=True),
    ):
        print(config.head_dim)


def caches(q: Floats, k: Floats, v: Floats) -> None:
    cache = flash.KVCache(2, 1, 2, 64, 100, dtype="e4m3", page_size=16, backend="interpreter")
    assert_type(flash.attention_with_kvcache(q, cache, k, v, layer=0, causal=True, splits="auto"), Floats)
    both = flash.attention_with_kvcache(q, cache, layer=0, return_lse=True, leftpad=[3])
    assert_type(both, tuple[Floats, Floats])
    assert_type(flash.merge_partials([q, q], [k, k]), tuple[Floats, Floats])
    step = flash.DecodeStep(q, cache, k, v, layer=1, backend="auto")
    print(step(), flash.__version__, ptxgen.__version__)


@ptxgen.kernel(threads=128)
def doubled(k: KernelBuilder, X: Pointer[f32], n: u32) -> None:
    at = k.block_id() * k.threads + k.thread_id()
    with k.when(at < n):
        X[at] = X[at] * 2.0
    k.bar_sync(0)


@ptxgen.autotune(block=(64, 128), file="tuned.json")
@ptxgen.kernel(threads=lambda *, block: block)
def halved(k: KernelBuilder, X: Pointer[f32], *, block: int) -> None:
    at = k.block_id() * block + k.thread_id()
    X[at] = X[at] * 0.5


def own(x: Any) -> None:
    halved[lambda *, block: 8 // block](x)
    assert_type(halved.tune(8, x, expected={"X": x}).best.configuration, str)
    doubled[8](x, 1000)
