"""Kernels of llm.c, from a checkout; each is one version of those that its `dev/cuda` compares."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from ptxgen.frontends.program import Program
from tools.public.cuda_text import between, changed, compiled, random
from tools.public.rows import REPORTED, Source
from tools.public.trial import Trial

LLM_C: Final = Source("llm.c", checkout="llm.c", version="f1e2ace, 2025-05-10")
_GROUPS: Final = "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n"
_GELU_SCALE: Final = np.sqrt(2 / np.pi)


def _text(file: str, first: str = "// GPU kernels") -> str:
    """The kernels of a file of `dev/cuda` from a line on, and what they use of `common.h`."""
    folder = LLM_C.folder / "dev" / "cuda"
    common = folder / "common.h"
    shared = [
        between(common, "#define WARP_SIZE", "extern cudaDeviceProp"),
        between(common, "template<class T>", "// checking utils"),
        between(common, "// to make sure that 2 blocks fit", "// random utils"),
    ]
    file_of = folder / f"{file}.cu"
    return "".join([_GROUPS, *shared, between(file_of, first, "// kernel launcher")])


def _program(file: str, *kernels: str) -> Program:
    return compiled(_text(file), kernels=kernels)


def _softmax(x: Any) -> Any:
    weights = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


_N, _C = 5, 200  # rows and columns: no multiple of a warp


def _layer_norm_of(trial: Trial, kernel: str, grid: Any, block: Any, columns: int, shared: int = 0) -> None:
    x, w, b = random(_N, columns), random(columns, seed=2), random(columns, seed=3)
    out, mean, rstd = np.empty_like(x), np.empty(_N, np.float32), np.empty(_N, np.float32)
    program = _program("layernorm_forward")
    trial.launch(program[kernel], grid, block, [out, mean, rstd, x, w, b, _N, columns], shared=shared)
    exact = x.astype(np.float64)
    m, scale = exact.mean(1, keepdims=True), 1 / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    trial.close("out", out, (exact - m) * scale * w + b, 1e-5)
    trial.close("mean", mean, m[:, 0], 1e-4)
    trial.close("rstd", rstd, scale[:, 0], 1e-5)


@LLM_C.row()
def layernorm_forward_kernel3(trial: Trial) -> None:
    """LayerNorm, a warp for each row, with cooperative groups."""
    _layer_norm_of(trial, "layernorm_forward_kernel3", 3, 64, _C)


@LLM_C.row()
def layernorm_forward_kernel5(trial: Trial) -> None:
    """LayerNorm, a block for each row."""
    _layer_norm_of(trial, "layernorm_forward_kernel5", _N, 128, _C)


@LLM_C.row()
def layernorm_forward_kernel6(trial: Trial) -> None:
    """LayerNorm, rows and weights in shared memory, 16 bytes at a time."""
    _layer_norm_of(trial, "layernorm_forward_kernel6", 3, (32, 2), _C, shared=4 * 4 * _C)


def _softmax_of(
    trial: Trial, kernel: str, grid: int, block: int, *, columns: int = _C, shared: int = 0, text: str = ""
) -> None:
    x = random(_N, columns)
    out = np.empty_like(x)
    program = compiled(text or _text("softmax_forward"))
    trial.launch(program[kernel], grid, block, [out, x, _N, columns], shared=shared)
    trial.close("out", out, _softmax(x), 1e-5)


@LLM_C.row(
    REPORTED,
    "a real race: warp 0 overwrites the maximum in shared memory, which other warps may not have read yet",
    says="race: shared",
)
def softmax_forward_kernel4(trial: Trial) -> None:
    """Softmax, a block for each row."""
    _softmax_of(trial, "softmax_forward_kernel4", _N, 64, shared=8)


@LLM_C.row()
def softmax_forward_kernel7(trial: Trial) -> None:
    """Softmax, a block for each row, eight elements in registers."""
    _softmax_of(trial, "softmax_forward_kernel7", _N, 64, columns=512, shared=16)


@LLM_C.row(
    REPORTED,
    "a real race without consequences: threads beyond the end read the last element, which its thread "
    "overwrites, and drop it",
    says="race: global",
)
def softmax_forward_kernel7_with_a_tail(trial: Trial) -> None:
    """`softmax_forward_kernel7` of 200 columns, no multiple of what the block reads at once."""
    _softmax_of(trial, "softmax_forward_kernel7", _N, 64, shared=16)


@LLM_C.row()
def softmax_forward_online_kernel8(trial: Trial) -> None:
    """Softmax with one pass for maximum and sum, a warp for each row."""
    _softmax_of(trial, "softmax_forward_online_kernel8", 3, 64)


@LLM_C.row(
    REPORTED,
    "without the barrier between writing the sums of the warps and reading them",
    says="race: shared",
    twin=True,
)
def softmax_forward_kernel7_without_barrier(trial: Trial) -> None:
    """`softmax_forward_kernel7` with a missing `__syncthreads()`."""
    write = "if (laneId == 0) sumvals[warpId] = sumval;\n    __syncthreads();"
    text = changed(_text("softmax_forward"), write, write.split("\n")[0])
    _softmax_of(trial, "softmax_forward_kernel7", _N, 64, columns=512, shared=16, text=text)


@LLM_C.row(
    REPORTED, "lanes that hold no column leave before the shuffles of the full warp", says="shfl", twin=True
)
def softmax_forward_online_kernel8_narrow(trial: Trial) -> None:
    """`softmax_forward_online_kernel8` of 20 columns, fewer than a warp has lanes."""
    _softmax_of(trial, "softmax_forward_online_kernel8", _N, 32, columns=20)


@LLM_C.row()
def attention_forward_kernel2(trial: Trial) -> None:
    """FlashAttention 1, causal, in float32."""
    batch, heads, n, d, tile = 1, 2, 40, 16, 32
    q, k, v = (random(batch, heads, n, d, seed=seed) for seed in (1, 2, 3))
    out, total = np.zeros_like(q), np.zeros((batch, heads, n), np.float32)
    highest = np.full_like(total, -np.inf)
    tiles = -(-n // tile)
    scale = float(np.float32(d) ** -0.5)
    padded = [np.concatenate([a.ravel(), np.zeros(tile * d, np.float32)]) for a in (q, k, v)]
    kernel = _program("attention_forward")["attention_forward_kernel2"]
    args = [*padded, n, d, tiles, tiles, tile, tile, scale, total, highest, out]
    shared = 4 * (3 * tile * d + tile * tile)
    trial.launch(kernel, (batch, heads), tile, args, shared=shared)
    scores = np.einsum("bhid,bhjd->bhij", q, k, dtype=np.float64) * scale
    scores[..., np.triu_indices(n, 1)[0], np.triu_indices(n, 1)[1]] = -np.inf
    trial.close("out", out, _softmax(scores) @ v, 1e-5)


@LLM_C.row()
def softmax_forward_kernel5(trial: Trial) -> None:
    """The causal softmax of attention, a warp for each row."""
    n, t = 2, 44
    x, out = random(n, t, t), np.zeros((n, t, t), np.float32)
    kernel = _program("attention_forward")["softmax_forward_kernel5"]
    trial.launch(kernel, n * t // 4, 128, [out, 0.5, x, n, t])
    masked = np.where(np.tri(t, dtype=bool), x * 0.5, -np.inf)
    trial.close("out", out, _softmax(masked), 1e-5)


@LLM_C.row()
def gelu_forward_kernel2(trial: Trial) -> None:
    """GELU, 16 bytes at a time."""
    x = random(1000)
    out = np.empty_like(x)
    text = f"#define GELU_SCALING_FACTOR {_GELU_SCALE:.10f}f\n" + _text("gelu_forward")
    trial.launch(compiled(text)["gelu_forward_kernel2"], 2, 128, [out, x, x.size])
    exact = x.astype(np.float64)
    wanted = exact / 2 * (1 + np.tanh(_GELU_SCALE * (exact + 0.044715 * exact**3)))
    trial.close("out", out, wanted, 1e-5)


@LLM_C.row()
def matmul_forward_kernel4(trial: Trial) -> None:
    """A product in float32 with tiles of 128 x 128 in shared memory."""
    rows, inner, columns = 128, 64, 128
    x, w, bias = random(rows, inner), random(columns, inner, seed=2), random(columns, seed=3)
    out = np.empty((rows, columns), np.float32)
    kernel = _program("matmul_forward")["matmul_forward_kernel4"]
    trial.launch(kernel, (1, 1), (16, 16), [out, x, w, bias, inner, columns])
    trial.close("out", out, x.astype(np.float64) @ w.T + bias, 1e-5)


@LLM_C.row(REPORTED, "without the barrier before a tile is overwritten", says="race: shared", twin=True)
def matmul_forward_kernel4_without_barrier(trial: Trial) -> None:
    """`matmul_forward_kernel4` with a missing `__syncthreads()`."""
    rows, inner, columns = 128, 64, 128
    x, w = random(rows, inner), random(columns, inner, seed=2)
    out = np.empty((rows, columns), np.float32)
    loop = "for (int so = 0; so < C; so += 32) {\n        __syncthreads();"
    text = changed(_text("matmul_forward"), loop, loop.split("\n")[0])
    program = compiled(text)
    trial.launch(program["matmul_forward_kernel4"], (1, 1), (16, 16), [out, x, w, None, inner, columns])
    trial.close("out", out, x.astype(np.float64) @ w.T, 1e-5)


@LLM_C.row()
def crossentropy_forward_kernel1(trial: Trial) -> None:
    """Cross entropy of probabilities."""
    b, t, v = 2, 33, 50
    probs = _softmax(random(b, t, v)).astype(np.float32)
    targets = np.random.default_rng(4).integers(0, v, (b, t), np.int32)
    losses = np.empty((b, t), np.float32)
    kernel = _program("crossentropy_forward")["crossentropy_forward_kernel1"]
    trial.launch(kernel, 2, 64, [losses, probs, targets, b, t, v])
    trial.close("losses", losses, -np.log(np.take_along_axis(probs, targets[..., None], -1)[..., 0]), 1e-5)


@LLM_C.row()
def adamw_kernel2(trial: Trial) -> None:
    """A step of AdamW."""
    n = 300
    p, g, m, v = random(n), random(n, seed=2), random(n, seed=3), np.abs(random(n, seed=4))
    rate, b1, b2, eps, decay = 1e-2, 0.9, 0.99, 1e-8, 0.1
    c1, c2 = 1 - b1, 1 - b2
    wanted_m = b1 * m.astype(np.float64) + (1 - b1) * g
    wanted_v = b2 * v.astype(np.float64) + (1 - b2) * g.astype(np.float64) ** 2
    step = wanted_m / c1 / (np.sqrt(wanted_v / c2) + eps) + decay * p.astype(np.float64)
    wanted_p = p - rate * step
    args = [p, g, m, v, n, rate, b1, b2, c1, c2, eps, decay]
    trial.launch(_program("adamw")["adamw_kernel2"], 3, 128, args)
    for name, got, wanted in (("m", m, wanted_m), ("v", v, wanted_v), ("parameters", p, wanted_p)):
        trial.close(name, got, wanted, 1e-5)


@LLM_C.row()
def layernorm_backward_kernel2(trial: Trial) -> None:
    """The gradients of LayerNorm, sums of columns by atomics."""
    n, c = 6, 96
    x, w, dout = random(n, c), random(c, seed=2), random(n, c, seed=3)
    exact = x.astype(np.float64)
    m, scale = exact.mean(1, keepdims=True), 1 / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    normed, upstream = (exact - m) * scale, dout * w.astype(np.float64)
    inner = upstream - upstream.mean(1, keepdims=True)
    wanted = (inner - normed * (upstream * normed).mean(1, keepdims=True)) * scale
    dx = np.zeros_like(x)
    dw, db, sums_w, sums_b = (np.zeros(c, np.float32) for _ in range(4))
    name = "layernorm_backward_kernel2<float, float, float, float>"
    kernel = _program("layernorm_backward", name)[name]
    mean, rstd = m[:, 0].astype(np.float32), scale[:, 0].astype(np.float32)
    args = [dx, dw, db, dout, x, w, mean, rstd, 2, 3, c, sums_w, sums_b]
    trial.launch(kernel, 3, 64, args, shared=8 * c)
    trial.close("dx", dx, wanted, 1e-5)
    trial.close("dw", sums_w, (dout * normed).sum(0), 1e-5)
    trial.close("db", sums_b, dout.sum(0, dtype=np.float64), 1e-5)


@LLM_C.row()
def matmul_backward_bias_kernel9(trial: Trial) -> None:
    """The gradient of a bias: sums over rows, by shuffles and shared memory, in bfloat16."""
    rows, columns = 40, 64
    dout = random(rows, columns).astype(ml_dtypes.bfloat16)
    sums = np.zeros((1, columns), np.float32)
    name = "matmul_backward_bias_kernel9<float, true>"
    program = compiled(_text("matmul_backward_bias"), kernels=[name], defines={"ENABLE_BF16": 1})
    trial.launch(program[name], (1, 1), (4, 8, 4), [sums, dout, 1, rows, columns, (np.uint8(1),)])
    trial.close("sums", sums[0], dout.astype(np.float64).sum(0), 1e-5)


@LLM_C.row()
def fused_classifier_kernel3(trial: Trial) -> None:
    """Softmax, cross entropy and its gradient in one kernel."""
    b, t, v, p = 2, 3, 150, 160
    x = random(b * t, p)
    targets = np.random.default_rng(4).integers(0, v, b * t, np.int32)
    losses, probs, gradient = np.empty(b * t, np.float32), np.zeros_like(x), np.zeros_like(x)
    kernel = compiled(_text("classifier_fused", "__device__ float warpReduceMax"))["fused_classifier_kernel3"]
    trial.launch(kernel, b * t, 128, [gradient, losses, probs, x, None, targets, b, t, v, p])
    wanted = _softmax(x[:, :v])
    hot = np.eye(v)[targets]
    trial.close("probabilities", probs[:, :v], wanted, 1e-5)
    trial.close("losses", losses, -np.log(wanted[np.arange(b * t), targets]), 1e-5)
    trial.close("gradient", gradient[:, :v], (wanted - hot) / (b * t), 1e-5)


@LLM_C.row(
    REPORTED,
    "a real race: no barrier is between warp 0's zeros in shared memory, or the reads of the query before, "
    "and the sums of the warps",
    says="race: shared",
)
def softmax_autoregressive_backward_kernel8(trial: Trial) -> None:
    """The gradient of a causal softmax, four queries for each block."""
    heads, t, columns = 2, 70, 64
    name = "softmax_autoregressive_backward_kernel8<64>"
    x, gradient, out = random(heads, t, t), random(heads, t, t, seed=2), np.zeros((heads, t, t), np.float32)
    weights = np.where(np.tri(t, dtype=bool), _softmax(np.where(np.tri(t, dtype=bool), x, -np.inf)), 0.0)
    program = compiled(_text("attention_backward", "softmax_autoregressive_backward_kernel1"), kernels=[name])
    arrays = [out, gradient, weights.astype(np.float32)]
    trial.launch(program[name], (-(-t // 4), heads), 64, [*arrays, 1, t, columns, np.float32(0.5)])
    sums = (weights * gradient).sum(-1, keepdims=True)
    trial.close("gradient", out, 0.5 * weights * (gradient - sums), 1e-4)
