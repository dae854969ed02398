"""Programs that type checkers refuse at each line that ends in `# wrong`, and nowhere else; `check.py`
runs them. Nothing here is executed.
"""

from __future__ import annotations

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import flash
import ptxgen
from ptxgen import KernelBuilder

Floats = NDArray[np.float32]


def arrays(q: Floats, k: Floats, v: Floats) -> None:
    flash.attention("hello", k, v)  # wrong
    flash.attention(q, 3, v)  # wrong
    flash.attention(q, k, None)  # wrong
    flash.attention(q, k)  # wrong
    flash.attention(q, k, v, out=3.0)  # wrong
    flash.attention(q, k, v, bias="alibi")  # wrong


def words(q: Floats, k: Floats, v: Floats) -> None:
    flash.attention(q, k, v, layout="BSHD")  # wrong
    flash.attention(q, k, v, causal="bottomright")  # wrong
    flash.attention(q, k, v, backend="gpu")  # wrong
    flash.attention(q, k, v, precision="fp32")  # wrong
    flash.attention(q, k, v, is_causal=True)  # wrong
    flash.attention(q, k, v, window=128.0)  # wrong


def results(q: Floats, k: Floats, v: Floats) -> None:
    flash.attention(q, k, v, return_lse=True).shape  # wrong
    out, lse = flash.attention(q, k, v)
    assert_type(flash.attention(q, k, v), tuple[Floats, Floats])  # wrong
    flash.attention(q, k, v).no_such_method()  # wrong
    print(out, lse)


def configs(q: Floats) -> None:
    flash.AttentionConfig(64, dtype="f8")  # wrong
    flash.AttentionConfig(64, causal="left")  # wrong
    flash.AttentionConfig(64, tile="big")  # wrong
    flash.AttentionConfig("64")  # wrong
    flash.AttentionConfig()  # wrong
    flash.AttentionKernel(64)  # wrong
    flash.AttentionKernel(flash.AttentionConfig(64)).launch(q, q, q, layout="sbhd")  # wrong


def packed(q: Floats, ends: NDArray[np.int32]) -> None:
    flash.attention_varlen(q, q, q)  # wrong
    flash.attention_varlen(q, q, q, ends, ends, max_seqlen_q="long")  # wrong


def caches(q: Floats) -> None:
    cache = flash.KVCache(2, 1, 2, 64, 100, dtype="int2")  # wrong
    flash.KVCache(2, 1, 2, 64, 100, backend="gpu")  # wrong
    flash.attention_with_kvcache(q, cache)  # wrong
    flash.attention_with_kvcache(q, q, layer=0)  # wrong
    flash.attention_with_kvcache(q, cache, layer=0, splits="many")  # wrong
    flash.merge_partials(q)  # wrong


def decode(q: Floats) -> None:
    flash.DecodeKernel(flash.AttentionConfig(64)).launch(q, q, q)  # wrong
    flash.DecodeKernel(flash.AttentionConfig(64)).launch(q, q, q, seqused_k=q, backend="tpu")  # wrong


def names() -> None:
    flash.attention_with_cache  # wrong
    ptxgen.kernels_of  # wrong


def instructions(k: KernelBuilder) -> None:
    k.fmaa(1.0, 2.0, 3.0)  # wrong
    k.add(1.0)  # wrong
