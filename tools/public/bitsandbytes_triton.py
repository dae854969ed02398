"""Triton kernels of bitsandbytes, which its host code launches."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tools.public.bitsandbytes import NF4
from tools.public.rows import Source
from tools.public.trial import Trial

BITSANDBYTES_TRITON: Final = Source("bitsandbytes, Triton", package="bitsandbytes==0.50.2")


def _kernels(name: str) -> Any:
    return importlib.import_module(f"bitsandbytes.backends.triton.{name}")


def _x(n: int, seed: int = 1) -> Any:
    torch = importlib.import_module("torch")
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@BITSANDBYTES_TRITON.row()
def quantize_4bit(trial: Trial) -> None:
    """`quantize_nf4_blockwise_kernel`: blocks of 64 numbers as 4-bit values and a scale."""
    torch = importlib.import_module("torch")
    x, blocks = _x(512), 8
    scales, out = torch.empty(blocks), torch.empty(256, dtype=torch.uint8)
    function = _kernels("kernels_4bit").quantize_4bit_blockwise_triton
    with trial.triton():
        function(x, 64, "nf4", blocks, scales, 512, out)
    largest = x.reshape(blocks, 64).abs().amax(1)
    values = (x / largest.repeat_interleave(64))[:, None] - torch.from_numpy(NF4)
    indices = values.abs().argmin(1)
    trial.close("scales", scales, largest, 1e-6)
    trial.close("4-bit values", out, indices[::2] << 4 | indices[1::2], 1e-9)


@BITSANDBYTES_TRITON.row()
def dequantize_4bit(trial: Trial) -> None:
    """`dequant_nf4_kernel`: numbers from 4-bit values and scales."""
    torch = importlib.import_module("torch")
    packed = torch.arange(256).to(torch.uint8)
    scales, out = _x(8).abs(), torch.empty(512)
    function = _kernels("kernels_4bit").dequantize_4bit_impl
    with trial.triton():
        function(packed, scales, 64, "nf4", torch.float32, out)
    indices = torch.stack([packed >> 4, packed & 15], 1).ravel().long()
    trial.close("out", out, torch.from_numpy(NF4)[indices] * scales.repeat_interleave(64), 1e-6)


@BITSANDBYTES_TRITON.row()
def dequantize_8bit(trial: Trial) -> None:
    """`dequant_8bit_kernel`: numbers from 8-bit codes and scales; a tail."""
    torch = importlib.import_module("torch")
    codes = torch.arange(300).remainder(256).to(torch.uint8)
    scales, code, out = _x(5).abs(), _x(256, 2), torch.empty(300)
    function = _kernels("kernels_8bit_quant").dequant_8bit_blockwise
    with trial.triton():
        function(codes, scales, code, 64, torch.float32, out)
    trial.close("out", out, code[codes.long()] * scales.repeat_interleave(64)[:300], 1e-6)


@BITSANDBYTES_TRITON.row()
def adam(trial: Trial) -> None:
    """`_optimizer_update_2state_32bit_triton_kernel`: a step of Adam in place; a tail."""
    g, p, m, v = _x(300), _x(300, 2), _x(300, 3), _x(300, 4).abs()
    b1, b2, eps, decay, rate, step = 0.9, 0.99, 1e-8, 0.1, 1e-2, 3
    wanted_m = m.double() * b1 + (1 - b1) * g.double()
    wanted_v = v.double() * b2 + (1 - b2) * g.double() ** 2
    c1, c2 = 1 - b1**step, (1 - b2**step) ** 0.5
    step_of = rate * c2 / c1 * wanted_m / (wanted_v.sqrt() + eps * c2)
    wanted_p = p.double() * (1 - rate * decay) - step_of
    function = _kernels("kernels_optim").optimizer_update_32bit_impl
    with trial.triton():
        function("adam", g, p, m, v, None, 0.0, 0.0, b1, b2, 0.0, 0.0, eps, decay, step, rate)
    trial.close("m", m, wanted_m, 1e-5)
    trial.close("v", v, wanted_v, 1e-5)
    trial.close("parameters", p, wanted_p, 1e-5)
