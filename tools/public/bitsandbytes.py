"""CUDA kernels of bitsandbytes, from a checkout, compiled by nvcc."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tools.public.cuda_text import between, by_nvcc, random
from tools.public.rows import REPORTED, Source
from tools.public.trial import Trial

BITSANDBYTES: Final = Source(
    "bitsandbytes", checkout="bitsandbytes", version="95f9af3, 2026-08-19", nvcc=True
)
# The values of NF4, by Dettmers et al. 2023 (QLoRA), appendix E.
NF4: Final = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


def _launch(trial: Trial, kernel: str, grid: int, block: int, args: list[Any]) -> None:
    folder = BITSANDBYTES.folder / "csrc"
    text = between(folder / "kernels.cu", "#include", "TEMPLATE DEFINITIONS").rpartition("//===")[0]
    trial.launch(by_nvcc(text, (folder,), kernel), grid, block, args)


def _nf4(values: Any) -> Any:
    """The indices of the nearest values of NF4."""
    return np.abs(values[..., None] - NF4).argmin(-1)


def _packed(indices: Any) -> Any:
    return (indices[..., ::2] << 4 | indices[..., 1::2]).astype(np.uint8)


@BITSANDBYTES.row()
def quantize_blockwise(trial: Trial) -> None:
    """`kQuantizeBlockwise`: blocks of 128 numbers as 4-bit values (NF4) and a scale; a tail."""
    n, block = 300, 128
    x = random(n)
    blocks = -(-n // block)
    scales, out = np.zeros(blocks, np.float32), np.zeros(n // 2, np.uint8)
    kernel = "kQuantizeBlockwise<float, 128, 2, 0, NF4>"
    _launch(trial, kernel, blocks, block // 2, [None, x, scales, out, None, 0, n])
    padded = np.zeros(blocks * block, np.float32)
    padded[:n] = x
    largest = np.abs(padded.reshape(blocks, block)).max(1)
    trial.close("scales", scales, largest, 1e-6)
    wanted = _packed(_nf4(x / largest.repeat(block)[:n]))
    trial.close("4-bit values", out, wanted, 1e-9)


@BITSANDBYTES.row()
def dequantize_blockwise(trial: Trial) -> None:
    """`kDequantizeBlockwise`: numbers from 4-bit values (NF4) and scales; a tail."""
    n, block = 1500, 64
    indices = np.random.default_rng(1).integers(0, 16, n)
    scales = np.abs(random(-(-n // block) + 8))  # threads beyond the end read a scale, too
    out = np.zeros(n, np.float32)
    kernel = "kDequantizeBlockwise<float, 512, 64, 8, NF4>"
    _launch(trial, kernel, 2, 64, [None, _packed(indices), scales, out, block // 2, n])
    trial.close("out", out, NF4[indices] * scales.repeat(block)[:n], 1e-6)


def _gemv(trial: Trial, rows: int) -> None:
    inner, block = 2048, 64
    indices = np.random.default_rng(1).integers(0, 16, (rows, inner))
    scales, x = np.abs(random(rows, inner // block)), random(inner, seed=2)
    out = np.zeros(rows, np.float32)
    kernel = "kgemm_4bit_inference_naive<float, 128, 32>"
    args = [rows, 1, inner, x, _packed(indices), scales, NF4, out, rows, (inner + 1) // 2, rows, block]
    _launch(trial, kernel, -(-rows // 4), 128, args)
    exact = NF4[indices].astype(np.float64) * scales.repeat(block, 1)
    trial.close("out", out, exact @ x, 1e-5)


@BITSANDBYTES.row()
def gemv_4bit(trial: Trial) -> None:
    """`kgemm_4bit_inference_naive`: a matrix of 4-bit values (NF4) times a vector."""
    _gemv(trial, 8)


@BITSANDBYTES.row(
    REPORTED,
    "a real read past the end of the scales: warps without a row read the scale of theirs, too",
    says="after the end of",
)
def gemv_4bit_with_a_tail(trial: Trial) -> None:
    """`gemv_4bit` for six rows, no multiple of the four of a block."""
    _gemv(trial, 6)


@BITSANDBYTES.row()
def adam_32bit(trial: Trial) -> None:
    """`kOptimizer32bit2State`: a step of Adam; a tail."""
    n, step = 5000, 3
    g, p, m, v = random(n), random(n, seed=2), random(n, seed=3), np.abs(random(n, seed=4))
    b1, b2, eps, decay, rate = 0.9, 0.99, 1e-8, 0.1, 1e-2
    wanted_m = m.astype(np.float64) * b1 + (1 - b1) * g
    wanted_v = v.astype(np.float64) * b2 + (1 - b2) * g.astype(np.float64) ** 2
    c1, c2 = 1 - b1**step, np.sqrt(1 - b2**step)
    stepped = p - rate * c2 / c1 * wanted_m / (np.sqrt(wanted_v) + eps * c2)
    args = [g, p, m, v, None, 0.0, 0.0, b1, b2, 0.0, 0.0, eps, decay, step, rate, 1.0, False, n]
    _launch(trial, "kOptimizer32bit2State<float, ADAM>", 2, 1024, args)
    trial.close("m", m, wanted_m, 1e-5)
    trial.close("v", v, wanted_v, 1e-5)
    trial.close("parameters", p, stepped * (1 - rate * decay), 1e-5)


@BITSANDBYTES.row()
def int8_vector_quant(trial: Trial) -> None:
    """`kInt8VectorQuant`: rows of float16 as 8-bit integers with a scale."""
    rows, columns = 3, 1500
    x = random(rows, columns).astype(np.float16)
    out, scales = np.zeros((rows, columns), np.int8), np.zeros(rows, np.float32)
    _launch(trial, "kInt8VectorQuant<half, 1024, 0>", rows, 1024, [x, out, scales, 0.0, rows, columns])
    largest = np.abs(x).max(1).astype(np.float64)
    trial.close("scales", scales, largest, 1e-6)
    trial.close("integers", out, np.rint(x * (127 / largest)[:, None]), 0.5 / 127)
