"""Measures gradients of attention on a GPU, as users call them, next to those of PyTorch's backends."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

import flash
from benchmarks.measure.gpu_attention import PEERS, Call, at_once
from flash.commands.measure.cpu import normal
from flash.commands.measure.device import Gpu
from flash.commands.measure.gpu import race
from flash.commands.measure.record import MS, Job, Rows, Work, flat, measured, ratios
from flash.commands.measure.torch_peer import first_line, on_gpu, torch_with_gpu
from ptxgen.errors import ConfigError

SEQS: Final = (4096, 16384, 1024, 512, 2048, 8192)  # those with published rates of others first
# The measured gradients of ours by name: the default, and one sweep by kernels whose CTAs add to dq in any
# order, or in a fixed one.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "ours": {},
    "ours in one sweep": {"deterministic": False, "sweeps": 1},
    "ours in one sweep in order": {"sweeps": 1},
}
PRODUCTS: Final = 2.5  # a backward pass has five products of matrices, a forward pass two

GPU_GRADIENT_REMARKS: Final = (
    "gradients: calls of flash.AttentionGradient.launch with the out and lse of a forward call, beside "
    "torch.autograd.grad of a result of PyTorch; useful operations are 2.5 times those of the forward pass; "
    "ours are two sweeps unless they say otherwise",
)


def gradient_calls(quick: bool) -> dict[str, Call]:
    """The measured calls, by the labels of their jobs: each number of queries and keys, and each head_dim,
    full and causal.
    """
    seqs, dims = (SEQS[:1], (128,)) if quick else (SEQS, (128, 64))
    calls = [Call("f16", dim, n, causal) for n in seqs for dim in dims for causal in (False, True)]
    return {f"gradients d={call.head_dim} N={call.seq} causal={call.causal}": call for call in calls}


def gradient_gpu_jobs(gpu: Gpu, quick: bool) -> list[Job]:
    """A job for each call, after one that assembles their kernels."""
    rounds, batch = (3, 2) if quick else (5, 3)
    calls = gradient_calls(quick)
    return [
        Job("assemble the kernels of gradients", lambda: prepared(gpu, tuple(calls.values()))),
        *(Job(name, functools.partial(backward, gpu, call, rounds, batch)) for name, call in calls.items()),
    ]


def prepared(gpu: Gpu, calls: Sequence[Call]) -> Rows:
    """Assemble the kernels of some calls, several at a time; the process keeps them."""
    at_once([functools.partial(_way, gpu, call, _drawn(call), way) for call in calls for way in WAYS])
    return []


def _drawn(call: Call) -> list[Any]:
    """The numbers of q, k, v and dout."""
    return [x.astype(call.config.element.numpy) for x in normal(*[call.size] * 4)]


def _way(gpu: Gpu, call: Call, host: Sequence[Any], way: str) -> tuple[Work, dict[str, Any]] | str:
    """Our gradients in one of the `WAYS`, or why there are none of it."""
    try:
        return _ours(gpu, call, host, **WAYS[way])
    except ConfigError as error:
        return f"gradients, {way}, were not measured: {first_line(error)}"


def _ours(gpu: Gpu, call: Call, host: Sequence[Any], **how: Any) -> tuple[Work, dict[str, Any]]:
    """Our gradients, launched once: a function that launches them again, and the arrays of the results.
    `how` are arguments of `flash.AttentionGradient`.
    """
    config = call.config
    to = functools.partial(flash.to_device, device=gpu.ordinal, cuda=gpu.backend)
    q, k, v, dout = map(to, host)
    out, lse = flash.AttentionKernel(config, cuda=gpu.backend).launch(q, k, v, return_lse=True)
    kernel = flash.AttentionGradient(config, cuda=gpu.backend, **how)
    into: dict[str, Any] = {name: to(np.full_like(host[0], np.nan)) for name in ("dq", "dk", "dv")}

    def launch() -> None:
        kernel.launch(dout, q, k, v, out, lse, backend="cuda", **into)

    launch()
    return launch, into


def backward(gpu: Gpu, call: Call, rounds: int, batch: int) -> Rows:
    """Interleaved times of gradients for q, k and v, and how far ours are from PyTorch's."""
    host = _drawn(call)
    contestants: dict[str, Callable[[], Any]] = {}
    results: Rows = []
    ours: list[Any] = []
    for way in WAYS:
        result = _way(gpu, call, host, way)
        if isinstance(result, str):
            results.append(result)
            continue
        contestants[way], into = result
        ours.append([into[name].numpy().astype(np.float32) for name in into])
    torch, why_not = torch_with_gpu()
    if torch is None:
        results.append(why_not)
    else:
        attention = importlib.import_module("torch.nn.attention")
        tensors = [on_gpu(torch, x, gpu.ordinal) for x in host]
        for name in PEERS:
            try:
                gradients = _of_torch(torch, getattr(attention.SDPBackend, name), attention, tensors, call)
                theirs = [x.float().cpu().numpy() for x in gradients()]
            except (AttributeError, RuntimeError) as error:
                results.append(f"gradients by torch {name} were not measured: {first_line(error)}")
                continue
            contestants[f"torch {name}"] = gradients
            far = max(float(np.abs(a - b).max()) for one in ours for a, b in zip(one, theirs, strict=True))
            results.append(measured(f"largest difference from torch {name}", "", [far], config=call.settings))
    samples = race(gpu, contestants, rounds, batch)
    for name, rounds_of_one in samples.items():
        times = flat(rounds_of_one)
        rates = [PRODUCTS * call.flops / t / 1e12 for t in times]
        results.append(measured(f"gradients, {name}", "ms", [t * MS for t in times], config=call.settings))
        results.append(measured(f"gradients, {name}, useful", "TFLOP/s", rates, config=call.settings))
        for way in WAYS if name not in WAYS else ():
            if way in samples:
                ratio = ratios(rounds_of_one, samples[way])
                label = f"gradients, speed of {way} / {name}"
                results.append(measured(label, "x", ratio, config=call.settings, headline=True))
    return results


def _of_torch(torch: Any, backend: Any, attention: Any, tensors: Any, call: Call) -> Callable[[], Any]:
    """A function that computes the gradients of a result of one backend of PyTorch."""
    q, k, v = (x.detach().requires_grad_() for x in tensors[:3])
    with attention.sdpa_kernel([backend]):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=call.causal)
    return lambda: torch.autograd.grad(out, (q, k, v), tensors[3], retain_graph=True)
