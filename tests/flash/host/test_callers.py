"""Messages say which function was called, and speak of a config only where the caller made one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import flash
from flash.problem.limits import MAX_SEQ
from ptxgen.errors import ConfigError, LaunchError, PtxGenError

Q = np.zeros((1, 2, 3, 8), np.float32)
K = np.zeros((1, 1, 4, 8), np.float32)
PACKED = np.zeros((6, 1, 8), np.float32)
ENDS = np.array([0, 2, 6], np.int32)


def attention(**how: Any) -> Any:
    return flash.attention(**{"q": Q, "k": K, "v": K, "backend": "cpu", **how})


def attention_varlen(**how: Any) -> Any:
    arrays = {"q": PACKED, "k": PACKED, "v": PACKED, "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}
    return flash.attention_varlen(**{**arrays, "backend": "cpu", **how})


def attention_with_kvcache(**how: Any) -> Any:
    cache = flash.KVCache(1, 2, 1, 8, 16)
    q, k = np.zeros((2, 2, 1, 8), np.float32), np.zeros((2, 1, 1, 8), np.float32)
    return flash.attention_with_kvcache(**{"q": q, "cache": cache, "k": k, "v": k, "layer": 0, **how})


def decode_step(**how: Any) -> Any:
    cache = flash.KVCache(1, 2, 1, 8, 16)
    return flash.DecodeStep(**{"q": np.zeros((2, 2, 1, 8), np.float32), "cache": cache, "layer": 0, **how})


FUNCTIONS = {
    "attention": attention,
    "attention_varlen": attention_varlen,
    "attention_with_kvcache": attention_with_kvcache,
    "DecodeStep": decode_step,
}
SCALE = (
    "softmax_scale must be a number of at most 1.70141e+38 either way, or None for "
    "1/sqrt(head_dim), got 'two'"
)
WINDOW = (
    "window must be (left, right), each a number of keys from 0 to 1073741568, or None or -1 for "
    "no limit, got 3"
)


def said_by(call: Callable[..., Any], **how: Any) -> str:
    with pytest.raises(PtxGenError) as caught:
        call(**how)
    assert isinstance(caught.value, ConfigError | LaunchError)
    return str(caught.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_choice_is_that_of_the_function_that_was_called(name: str) -> None:
    call = FUNCTIONS[name]
    assert said_by(call, window=3) == f"{name}: {WINDOW}"
    assert said_by(call, softmax_scale="two") == f"{name}: {SCALE}"
    assert said_by(call, return_lse="yes") == f"{name}: return_lse must be True or False, got 'yes'"
    assert said_by(call, backend="gpu") == (
        f"{name}: backend must be one of auto, cuda, interpreter, cpu, compiled, "
        "got 'gpu'; did you mean 'cuda'?"
    )
    assert said_by(call, backend=np.array(["cpu", "gpu"])) == (
        f"{name}: backend must be one of auto, cuda, interpreter, cpu, compiled, "
        "got array(['cpu', 'gpu'], dtype='<U3')"
    )
    assert said_by(call, stream=7) == (
        f"{name}: stream is for a GPU, but the backend is 'cpu'; leave out the stream"
    )


CAUSAL = "causal must be one of False, True, 'bottom_right', 'top_left', got"
SEED = "dropout_seed must be an integer from 0 to 2**64 - 1, because dropout=0.5, got None"
MANY = as_strided(K, (2**40, 1, 4, 8), (0, 0, 32, 4))
ENDLESS = as_strided(np.zeros(8, np.float32), (2**55, 3, 8), (0, 0, 4))
PART = np.zeros((3, 8), np.float32)
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (
        attention,
        {"k": K.astype(np.float16)},
        "k must be float32, as q is, got float16; convert with k.astype('float32')",
    ),
    (
        attention,
        {"k": np.zeros((1, 1, 4, 6), np.float32)},
        "k must be [batch, kv_heads, seq_k, head_dim] = [1, kv_heads, seq_k, 8], got [1, 1, 4, 6]",
    ),
    (attention, {"layout": "BSHD"}, "layout must be one of bhsd, bshd, got 'BSHD'; did you mean 'bshd'?"),
    (
        attention,
        {"layout": np.array(["bhsd"])},
        "layout must be one of bhsd, bshd, got array(['bhsd'], dtype='<U4')",
    ),
    (attention, {"dropout_seed": 1}, "dropout_seed is given, but dropout is 0; use dropout=0.1"),
    (attention, {"dropout": 0.5}, SEED),
    (attention, {"causal": "topleft"}, f"{CAUSAL} 'topleft'; did you mean 'top_left'?"),
    (
        attention,
        {"q": MANY, "k": MANY, "v": MANY},
        "batch times heads must be at most 2147483647, got 1099511627776 * 1; split the batch",
    ),
    (attention_varlen, {"cu_seqlens_q": None}, "cu_seqlens_q must be given"),
    (
        attention_varlen,
        {"max_seqlen_q": "two"},
        "max_seqlen_q must be an integer from 0 to 1073741568, got 'two'",
    ),
    (
        attention_varlen,
        {"max_seqlen_q": 1},
        "max_seqlen_q must be at least 4, the queries of sequence 1, got 1; leave it out to have it found",
    ),
    (
        flash.merge_partials,
        {"outs": ENDLESS, "lses": ENDLESS[..., 0]},
        "parts must be 1 to 32768 on the backend 'cpu', got 36028797018963968",
    ),
    (
        flash.merge_partials,
        {"outs": [PART], "lses": [PART[:, 0]], "out": ()},
        "out must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), got tuple; "
        "convert with numpy.asarray(out, numpy.float32)",
    ),
    *[
        (make, {"config": flash.AttentionConfig(8), name: value}, message)
        for make in (flash.AttentionKernel, flash.DecodeKernel)
        for name, value, message in (
            ("cuda", "cuda", "cuda must be a CudaBackend, got 'cuda'; leave it out for that of the process"),
            ("cache", {}, "cache must be a ModuleCache, got {}; leave it out for that of the process"),
        )
    ],
]


@pytest.mark.parametrize(("call", "how", "message"), REFUSED)
def test_messages_of_functions_do_not_speak_of_a_config(
    call: Callable[..., Any], how: dict[str, Any], message: str
) -> None:
    assert said_by(call, **how) == f"{call.__name__}: {message}"


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("rows", [MAX_SEQ + 1, 2**31, 2**55])
def test_more_rows_than_are_numbered_are_refused_on_every_backend(backend: str, rows: int) -> None:
    endless = as_strided(K, (1, 1, rows, 8), (0, 0, 0, 4))
    assert said_by(attention, k=endless, v=endless, backend=backend) == (
        f"attention: seq_k must be at most 2147483392, got {rows}; split it and merge by LSE"
    )
    assert said_by(attention, q=endless, backend=backend) == (
        f"attention: seq_q must be at most 2147483392, got {rows}; split it and merge by LSE"
    )


def test_rows_that_are_one_row_again_and_again_are_a_legal_view() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 1, 8), np.float32) for _ in range(3))
    wide = [as_strided(a, (1, 1, 4096, 8), (0, 0, 0, 4)) for a in (k, v)]
    out, lse = flash.attention(q, *wide, return_lse=True, backend="cpu")
    score = float((q * k).sum()) / np.sqrt(8)
    np.testing.assert_allclose(out, v, rtol=1e-5)
    np.testing.assert_allclose(lse.item(), score + np.log(4096), rtol=1e-6)


def test_scales_beyond_every_float_are_refused() -> None:
    cache = flash.KVCache(1, 2, 1, 8, 16, dtype="e4m3")
    assert said_by(cache.set_scales, k_scale=10**400, v_scale=1.0) == (
        "KVCache.set_scales: k_scale must be numbers of a shape that broadcasts to [layers, "
        f"kv_heads] = [1, 1], got {10**400}"
    )
