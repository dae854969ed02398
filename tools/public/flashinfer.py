"""Kernels of FlashInfer, from a checkout, compiled by nvcc."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tools.public.cuda_text import between, by_nvcc, random
from tools.public.rows import Source
from tools.public.trial import Trial

FLASHINFER: Final = Source("FlashInfer", checkout="flashinfer", version="fb28d72, 2026-08-22", nvcc=True)
_HEADERS: Final = "".join(f'#include "flashinfer/{name}.cuh"\n' for name in ("math", "utils", "vec_dtypes"))


def _launch(
    trial: Trial, text: str, kernel: str, grid: Any, block: Any, args: list[Any], shared: int = 0
) -> None:
    folder = FLASHINFER.folder / "include"
    trial.launch(by_nvcc(text, (folder, folder / "flashinfer"), kernel), grid, block, args, shared=shared)


def _norm_text(first: str, end: str) -> str:
    """Kernels of `norm.cuh`, whose own headers are those of TensorRT-LLM."""
    body = between(FLASHINFER.folder / "include" / "flashinfer" / "norm.cuh", first, end)
    return f"{_HEADERS}namespace flashinfer {{\n{body.rpartition('template')[0]}\n}}\n"


def _normed(x: Any, weights: Any) -> Any:
    exact = x.astype(np.float64)
    return exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6) * weights


@FLASHINFER.row()
def rms_norm(trial: Trial) -> None:
    """`RMSNormKernel` in float16."""
    rows, columns = 3, 1000
    x, weights = random(rows, columns).astype(np.float16), random(columns, seed=2).astype(np.float16)
    out = np.zeros_like(x)
    text = _norm_text("template <uint32_t VEC_SIZE, typename T>", "cudaError_t RMSNorm(")
    args = [x, weights, out, columns, columns, columns, 0.0, 1e-6]
    _launch(trial, text, "flashinfer::RMSNormKernel<8, half>", rows, (32, 4), args, shared=16)
    trial.close("out", out, _normed(x, weights.astype(np.float64)), 1e-3)


@FLASHINFER.row()
def fused_add_rms_norm(trial: Trial) -> None:
    """`FusedAddRMSNormKernel`, which writes over the input and the residual, in float16."""
    rows, columns = 3, 1000
    x, residual = (random(rows, columns, seed=seed).astype(np.float16) for seed in (1, 3))
    weights = random(columns, seed=2).astype(np.float16)
    total = x.astype(np.float64) + residual
    file = FLASHINFER.folder / "include" / "flashinfer" / "norm.cuh"
    body = between(file, "__global__ void FusedAddRMSNormKernel", "cudaError_t FusedAddRMSNorm(")
    head = f"{_HEADERS}namespace flashinfer {{\ntemplate <uint32_t VEC_SIZE, typename T>\n"
    text = f"{head}{body.rpartition('template')[0]}\n}}\n"
    args = [x, residual, weights, columns, columns, columns, 0.0, 1e-6]
    kernel = "flashinfer::FusedAddRMSNormKernel<8, half>"
    _launch(trial, text, kernel, rows, (32, 4), args, shared=4 * (4 + 1024))
    trial.close("sum", residual, total, 1e-3)
    trial.close("out", x, _normed(total, weights.astype(np.float64)), 1e-3)


@FLASHINFER.row()
def silu_and_mul(trial: Trial) -> None:
    """`act_and_mul_kernel`: SwiGLU in float16."""
    tokens, d = 3, 304
    x = random(tokens, 2 * d).astype(np.float16)
    out = np.zeros((tokens, d), np.float16)
    text = (
        '#include "flashinfer/activation.cuh"\n'
        "__device__ __forceinline__ float silu(const float &x) { return x / (1.f + __expf(-x)); }\n"
    )
    kernel = "flashinfer::activation::act_and_mul_kernel<half, silu>"
    _launch(trial, text, kernel, tokens, 32, [out, x, d])
    gate, up = x[:, :d].astype(np.float64), x[:, d:].astype(np.float64)
    trial.close("out", out, gate / (1 + np.exp(-gate)) * up, 1e-3)


@FLASHINFER.row()
def rope(trial: Trial) -> None:
    """`BatchQKApplyRotaryPosIdsKernel` of queries and keys in float16."""
    tokens, heads, kv_heads, d = 5, 3, 2, 64
    q, k = random(tokens, heads, d).astype(np.float16), random(tokens, kv_heads, d, seed=2).astype(np.float16)
    rotated_q, rotated_k = np.zeros_like(q), np.zeros_like(k)
    pos = np.arange(3, 3 + tokens, dtype=np.int32)
    strides = [np.uint64(n) for n in (heads * d, d, kv_heads * d, d) * 2]
    args = [q, k, rotated_q, rotated_k, pos, tokens, heads, kv_heads, d, *strides, 0.0, 0.0, 1.0, 1e-4]
    kernel = "flashinfer::BatchQKApplyRotaryPosIdsKernel<false, 64, 8, 8, half, int32_t>"
    _launch(trial, '#include "flashinfer/pos_enc.cuh"\n', kernel, 1, (8, 16), args)
    angles = pos[:, None] * 1e4 ** (-2.0 * np.arange(d // 2) / d)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    for name, x, got in (("queries", q, rotated_q), ("keys", k, rotated_k)):
        low, high = x[..., : d // 2].astype(np.float64), x[..., d // 2 :].astype(np.float64)
        wanted = np.concatenate([low * cos - high * sin, low * sin + high * cos], -1)
        trial.close(name, got, wanted, 2e-3)


@FLASHINFER.row()
def single_decode(trial: Trial) -> None:
    """`SingleDecodeWithKVCacheKernel`: attention of one query for each head, in float16."""
    heads, kv_heads, keys, d = 4, 1, 50, 64
    vec, bdx, bdy, stages, tile = 8, 8, 4, 2, 1
    bdz = 128 // (bdx * bdy)
    q = random(heads, d).astype(np.float16)
    k, v = (random(keys, kv_heads, d, seed=seed).astype(np.float16) for seed in (2, 3))
    out = np.zeros_like(q)
    scale = np.float32(d) ** np.float32(-0.5)
    word = np.uint32
    sizes = map(word, (keys, heads, kv_heads, heads * d, d, kv_heads * d, d))
    scalars = (np.int32(-1), np.float32(0), scale, np.float32(1), np.float32(1e-4), word(keys))
    params = (q, k, v, out, None, None, *sizes, *scalars)
    text = (
        '#include "flashinfer/attention/decode.cuh"\n'
        '#include "flashinfer/attention/default_decode_params.cuh"\n'
        '#include "flashinfer/attention/variants.cuh"\n'
        "using Params = flashinfer::SingleDecodeParams<half, half, half>;\n"
        "using Variant = flashinfer::DefaultAttention<false, false, false, false>;\n"
    )
    numbers = f"{stages}, {tile}, {vec}, {bdx}, {bdy}, {bdz}"
    kernel = (
        "flashinfer::SingleDecodeWithKVCacheKernel<flashinfer::PosEncodingMode::kNone, "
        f"{numbers}, Variant, Params>"
    )
    shared = 2 * stages * bdy * tile * bdz * d * 2 + 2 * bdy * bdz * 4
    _launch(trial, text, kernel, (1, kv_heads), (bdx, bdy, bdz), [params], shared=shared)
    scores = q.astype(np.float64) @ k[:, 0].astype(np.float64).T * float(scale)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    trial.close("out", out, weights @ v[:, 0].astype(np.float64), 2e-3)
