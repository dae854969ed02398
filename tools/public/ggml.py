"""Kernels of ggml, the library of llama.cpp, from a checkout, compiled by nvcc."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from tools.public.cuda_text import between, by_nvcc, changed, random
from tools.public.rows import REPORTED, Source
from tools.public.trial import Trial

GGML: Final = Source("ggml (llama.cpp)", checkout="ggml", version="d99724f, 2026-08-21", nvcc=True)


def _file(name: str) -> Path:
    return GGML.folder / "src" / "ggml-cuda" / name


def _launch(
    trial: Trial, text: str, kernel: str, grid: Any, block: Any, args: list[Any], shared: int = 0
) -> None:
    """Run a kernel of a text that ends before the host code."""
    root = GGML.folder
    include = (root / "include", root / "src", root / "src" / "ggml-cuda")
    trial.launch(by_nvcc(text, include, kernel), grid, block, args, shared=shared)


def _long(*values: int) -> list[Any]:
    return [np.int64(value) for value in values]


def _divisor(n: int) -> tuple[Any, ...]:
    """The values by which ggml's kernels divide by `n`: a factor, a shift and the divisor (its
    `init_fastdiv_values`).
    """
    shift = (n - 1).bit_length()
    factor = ((1 << 32) * ((1 << shift) - n) // n + 1) & 0xFFFFFFFF
    return tuple(np.uint32(value) for value in (factor, shift, n))


_NO_DIVISOR: Final = (np.uint32(0), np.uint32(0), np.uint32(0))


def _softmax(x: Any) -> Any:
    weights = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@GGML.row()
def rms_norm_f32(trial: Trial) -> None:
    """RMSNorm, times weights."""
    n, columns = 4, 300
    x, weights = random(n, columns), random(columns, seed=2)
    out = np.empty_like(x)
    unused = [_NO_DIVISOR] * 4
    strides = _long(columns, 0, 0)
    weighing = [weights, *_long(0, 0, 0), *map(_divisor, (columns, 1, 1, 1))]
    args = [x, out, columns, *strides, 1e-5, *weighing, None, *_long(0, 0, 0), *unused]
    text = between(_file("norm.cu"), "#include", "static void norm_f32_cuda")
    _launch(trial, text, "rms_norm_f32<256, true, false>", n, 256, args, shared=128)
    exact = x.astype(np.float64)
    wanted = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5) * weights
    trial.close("out", out, wanted, 1e-5)


def _softmax_args(x: Any, mask: Any, out: Any) -> list[Any]:
    n, columns = x.shape
    sizes = _long(columns, n, n, columns, n, 1, 1)
    strides = _long(2 * columns, 0, 0, 1, 1)
    params = (np.int64(1), np.uint32(1), *sizes, *strides, *map(np.float32, (0.5, 0.0, 1.0, 1.0)))
    return [x, mask, None, out, params]


@GGML.row()
def soft_max_f32(trial: Trial) -> None:
    """Softmax of rows with a mask in float16."""
    n, columns = 3, 200
    x, mask = random(n, columns), random(n, columns, seed=2).astype(np.float16)
    out = np.empty_like(x)
    text = between(_file("softmax.cu"), "#include", "template<int... Ns")
    args = _softmax_args(x, mask, out)
    _launch(trial, text, "soft_max_f32<true, 0, 0, half>", n, 256, args, shared=4 * (224 + 32))
    trial.close("out", out, _softmax(x * np.float64(0.5) + mask), 1e-5)


@GGML.row(
    REPORTED,
    "without the barrier between the maximum and the sum of the block",
    says="race: shared",
    twin=True,
)
def soft_max_f32_without_barrier(trial: Trial) -> None:
    """`soft_max_f32` as it was before a race was mended in it."""
    n, columns = 3, 200
    x, mask = random(n, columns), random(n, columns, seed=2).astype(np.float16)
    out = np.empty_like(x)
    guard = "if (block_size > WARP_SIZE) {"
    text = between(_file("softmax.cu"), "#include", "template<int... Ns")
    args = _softmax_args(x, mask, out)
    _launch(
        trial,
        changed(text, guard, "if (false) {"),
        "soft_max_f32<true, 0, 0, half>",
        n,
        256,
        args,
        shared=4 * (224 + 32),
    )
    trial.close("out", out, _softmax(x * np.float64(0.5) + mask), 1e-5)


@GGML.row()
def rope_neox(trial: Trial) -> None:
    """Rotary embedding of pairs that are half a head apart."""
    tokens, heads, d = 5, 3, 64
    x = random(tokens, heads, d)
    out = np.zeros_like(x)
    pos = np.arange(7, 7 + tokens, dtype=np.int32)
    base = 10000.0
    scale = base ** (-2.0 / d)
    strides = [d, heads * d, tokens * heads * d]
    limits = (np.float32(0), np.float32(0))
    args = [x, out, d, heads, tokens, *strides, *strides, d, 0, pos, 1.0, 0.0, 1.0, limits, scale]
    args += [None, None, 0, False]
    text = between(_file("rope.cu"), "#include", "static void rope_norm_cuda").rpartition("template")[0]
    _launch(trial, text, "rope_neox<true, false, float, float>", (tokens * heads, 1), (1, 256), args)
    angles = pos[:, None] * base ** (-2.0 * np.arange(d // 2) / d)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = x[..., : d // 2].astype(np.float64), x[..., d // 2 :].astype(np.float64)
    trial.close("out", out, np.concatenate([low * cos - high * sin, low * sin + high * cos], -1), 1e-5)


def _quantised(x: Any) -> tuple[Any, Any]:
    """Blocks of 32 as 8-bit integers, and their scales."""
    blocks = x.reshape(-1, 32).astype(np.float32)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    return np.rint(blocks / scale), scale


_Q8_1: Final = np.dtype([("ds", np.float16, 2), ("qs", np.int8, 32)])
_Q4_0: Final = np.dtype([("d", np.float16), ("qs", np.uint8, 16)])


@GGML.row()
def quantize_q8_1(trial: Trial) -> None:
    """Blocks of 32 numbers as 8-bit integers with a scale and a sum."""
    n, columns = 3, 128
    x = random(n, columns)
    out = np.zeros((n, columns // 32), _Q8_1)
    args = [x, out.view(np.uint8), *_long(columns, columns, n * columns, n * columns, columns)]
    args += [np.uint32(n), _divisor(1)]
    text = between(_file("quantize.cu"), "#include", "__device__ __forceinline__ uint8_t compute_e8m0_scale")
    _launch(trial, text, "quantize_q8_1", (1, n, 1), 256, args)
    numbers, scale = _quantised(x)
    blocks = x.reshape(-1, 32)
    trial.close("integers", out["qs"].reshape(-1, 32), numbers, 1e-9)
    trial.close("scales", out["ds"].reshape(-1, 2)[:, :1], scale, 1e-3)
    trial.close("sums", out["ds"].reshape(-1, 2)[:, 1], blocks.sum(1, dtype=np.float64), 1e-3)


def _vector(columns: int) -> tuple[Any, Any]:
    """A vector in blocks of 8-bit integers, and the numbers that these mean."""
    x = random(columns, seed=3)
    numbers, scale = _quantised(x)
    out = np.zeros(columns // 32, _Q8_1)
    out["qs"], out["ds"][:, 0] = numbers, scale[:, 0]
    meant = numbers * out["ds"][:, :1].astype(np.float64)
    out["ds"][:, 1] = meant.sum(1)
    return out, meant.ravel()


def _matrix(rows: int, columns: int) -> tuple[Any, Any]:
    """A matrix in blocks of 4-bit integers, and the numbers that these mean."""
    chance = np.random.default_rng(5)
    out = np.zeros((rows, columns // 32), _Q4_0)
    out["d"] = chance.standard_normal(out.shape)
    out["qs"] = chance.integers(0, 256, out["qs"].shape)
    halves = np.concatenate([out["qs"] & 15, out["qs"] >> 4], -1).astype(np.float64) - 8
    return out, (halves * out["d"][..., None].astype(np.float64)).reshape(rows, columns)


@GGML.row()
def mul_mat_vec_q(trial: Trial) -> None:
    """A matrix of 4-bit integers (q4_0) times a vector of 8-bit integers (q8_1)."""
    rows, columns = 6, 512
    matrix, exact = _matrix(rows, columns)
    vector, numbers = _vector(columns)
    out = np.zeros(rows, np.float32)
    blocks = columns // 32
    nothing = (None, None, None, None, None, np.int32(0))
    word = np.uint32
    args = [matrix.view(np.uint8), vector.view(np.uint8), None, nothing, out, word(columns), _divisor(1)]
    args += [
        word(blocks),
        word(blocks),
        word(rows),
        _divisor(1),
        word(rows * blocks),
        word(blocks),
        word(rows),
    ]
    args += [_divisor(1), word(rows * blocks), word(blocks), word(rows), word(0)]
    text = between(_file("mmvq.cu"), "#include", "static std::pair<dim3, dim3> calc_launch_params")
    _launch(
        trial, text.rpartition("template")[0], "mul_mat_vec_q<GGML_TYPE_Q4_0, 1, false>", rows, (32, 4), args
    )
    trial.close("out", out, exact @ numbers, 1e-3)


@GGML.row()
def flash_attn_ext_vec(trial: Trial) -> None:
    """Attention of a query for each head, keys and values in float16."""
    heads, kv_heads, keys, d = 2, 1, 128, 64
    q = random(heads, 1, d)
    k, v = (random(kv_heads, keys, d, seed=seed).astype(np.float16) for seed in (2, 3))
    mask = np.zeros((1, keys), np.float16)
    mask[0, 100:] = -np.inf
    out, meta = np.zeros((heads, d), np.float32), np.zeros((heads, 2), np.float32)
    scale = float(np.float32(d) ** -0.5)
    size = d * 2
    of_keys = [size, keys * size, np.int64(kv_heads * keys * size)]
    args: list[Any] = [q, k, v, mask, None, None, out, meta, scale, 0.0, 1.0, 1.0, np.uint32(heads), 0.0]
    args += [d, _divisor(1), heads, 1, d * 4, d * 4, heads * d * 4, d, keys, kv_heads, 1, *of_keys, *of_keys]
    args += [1, 1, 1, keys * 2, keys * 2, np.int64(keys * 2)]
    text = between(_file("fattn-vec.cuh"), "#include", "void ggml_cuda_flash_attn_ext_vec_case_impl")
    kernel = "flash_attn_ext_vec<64, 1, GGML_TYPE_F16, GGML_TYPE_F16, false>"
    _launch(trial, text.rpartition("template")[0], kernel, (1, 1, heads), (32, 4), args)
    scores = (
        np.einsum("hid,hjd->hij", q.astype(np.float64), np.repeat(k, heads, 0).astype(np.float64)) * scale
    )
    wanted = _softmax(scores + mask.astype(np.float64)) @ v.astype(np.float64)
    trial.close("out", out, wanted[:, 0], 2e-3)


@GGML.row()
def k_argsort_f32_i32(trial: Trial) -> None:
    """Indices that sort rows, by a bitonic network."""
    n, columns = 3, 100
    x, out = random(n, columns), np.zeros((n, columns), np.int32)
    text = between(_file("argsort.cu"), "template<typename T>", "static int next_power_of_2")
    text = '#include "common.cuh"\n#include "ggml.h"\n' + text
    kernel = "k_argsort_f32_i32<GGML_SORT_ORDER_ASC>"
    _launch(trial, text, kernel, n, 128, [x, out, columns, 128], shared=512)
    trial.close("indices", out, x.argsort(1), 1e-9)


@GGML.row()
def argmax_f32(trial: Trial) -> None:
    """The index of the largest number of each row."""
    n, columns = 4, 300
    x, out = random(n, columns), np.zeros(n, np.int32)
    text = between(_file("argmax.cu"), "#include", "void ggml_cuda_argmax")
    _launch(trial, text, "argmax_f32", n, 128, [x, out, np.int64(columns)])
    trial.close("indices", out, x.argmax(1), 1e-9)


@GGML.row()
def cumsum_kernel(trial: Trial) -> None:
    """Running sums of rows."""
    n, columns = 2, 700
    x = random(n, columns)
    out = np.empty_like(x)
    strides = _long(1, columns, n * columns, n * columns)
    args = [x, out, *_long(columns, n, 1, 1), *strides, *strides]
    text = between(_file("cumsum.cu"), "template<typename T>", "#ifdef GGML_CUDA_USE_CUB")
    text = '#include "convert.cuh"\n#include "common.cuh"\n' + text
    _launch(trial, text, "cumsum_kernel<float>", n, 128, args, shared=4 * (128 + 4 + 2))
    trial.close("out", out, x.cumsum(1, dtype=np.float64), 1e-5)


@GGML.row()
def cross_entropy_loss_f32(trial: Trial) -> None:
    """Cross entropy of logits and probabilities."""
    n, classes = 3, 70
    x, labels = random(n, classes), _softmax(random(n, classes, seed=2)).astype(np.float32)
    out = np.zeros(n, np.float32)
    text = between(_file("cross-entropy-loss.cu"), "#include", "void ggml_cuda_cross_entropy_loss")
    args = [x, labels, out, classes, n]
    _launch(trial, text, "cross_entropy_loss_f32<true>", n, 32, args, shared=4 * classes)
    trial.close("losses", out, -(np.log(_softmax(x)) * labels).sum(1) / n, 1e-5)
