"""Measures steps of serving on a GPU: packed batches over pages, and tokens of the problems that families of
kernels name, by the bytes that they need against the copy bandwidth and by their useful operations.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import flash
from benchmarks.measure.serving import Serving, arrays_of, unavoidable_bytes
from flash.commands.measure.cpu import Array, normal
from flash.commands.measure.device import Gpu
from flash.commands.measure.gpu import race
from flash.commands.measure.record import MS, Job, Rows, Setting, Work, flat, measured
from flash.families.choice import WORKLOADS
from flash.families.wgmma import WGMMA_TARGET
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference

GPU_SERVING_REMARKS: Final = (
    "serving on the GPU: calls of AttentionKernel.launch for a packed batch over pages, and of "
    "DecodeKernel.launch for tokens whose V is columns of K; bytes are what each CTA cannot avoid to move",
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """One token of each of `items` sequences, whose `heads` heads of Q share `keys` rows of K of `columns`
    columns, the first `values` of which are V, in the problem that a family calls `name`.
    """

    name: str
    columns: int
    values: int
    items: int
    keys: int
    heads: int = 128

    @property
    def config(self) -> AttentionConfig:
        """The config of the attention of a new token."""
        return AttentionConfig(self.columns, self.values, dtype="bf16", causal=True, shared_kv=True)

    @property
    def settings(self) -> dict[str, Setting]:
        """The step as the settings of a measurement."""
        sizes = {"d": self.columns, "dv": self.values, "heads": self.heads, "N": self.keys, "B": self.items}
        return {"dtype": "bf16", **sizes}

    @property
    def nbytes(self) -> int:
        """The bytes of K, read once, and of Q and O."""
        of_queries = self.heads * (self.columns + self.values)
        return 2 * self.items * (self.keys * self.columns + of_queries)

    @property
    def flops(self) -> float:
        """Floating-point operations that the output needs."""
        return 2.0 * self.items * self.heads * self.keys * (self.columns + self.values)


# Prompts in parts next to tokens of long sequences, and tokens alone; heads as in models of 70 G parameters.
_TOKENS: Final = tuple((1, keys) for keys in (1000, 2000, 4000, 8000) * 16)
STEPS: Final = (
    Serving("bf16", 128, 64, 8, 16, ((1024, 4096), (512, 512), *_TOKENS)),
    Serving("bf16", 128, 64, 8, 16, _TOKENS),
    Serving("bf16", 128, 64, 8, 64, _TOKENS),
)
TOKEN_STEPS: Final = tuple(
    Tokens(name, of["head_dim"], of["head_dim_v"], items, keys)
    for name, of in WORKLOADS.items()
    for items, keys in ((1, 8192), (64, 4096), (128, 8192))
)


def serving_gpu_jobs(gpu: Gpu, quick: bool) -> list[Job]:
    """A job for every step; those of named problems where a GPU has `wgmma`."""
    rounds, batch = (3, 2) if quick else (5, 3)
    packed, tokens = (STEPS[:1], TOKEN_STEPS[:1]) if quick else (STEPS, TOKEN_STEPS)
    result = [
        Job(
            f"serving page {step.page_size}, {len(step.lengths)} sequences, most queries {step.longest}",
            functools.partial(serve, gpu, step, rounds, batch),
        )
        for step in packed
    ]
    for step in tokens if gpu.target.name == WGMMA_TARGET else ():
        run = functools.partial(decode_tokens, gpu, step, rounds, batch)
        result.append(Job(f"{step.name} of {step.items} sequences, {step.keys} keys", run))
    return result


def serve(gpu: Gpu, step: Serving, rounds: int, batch: int) -> Rows:
    """Times and rates of a packed batch over pages, and the error of the last query of each sequence."""
    arrays = arrays_of(step)
    to = functools.partial(flash.to_device, device=gpu.ordinal, cuda=gpu.backend)
    arrays["out"] = np.full_like(arrays["out"], np.nan)
    q, k, v, out, *operands = (to(array) for array in arrays.values())
    how: dict[str, Any] = {"layout": "bshd", "max_seqlen_q": step.longest}
    how |= zip(list(arrays)[4:], operands, strict=True)
    kernel = flash.AttentionKernel(step.config, cuda=gpu.backend)

    def launch() -> None:
        kernel.launch(q, k, v, out=out, backend="cuda", **how)

    launch()
    error = _error(step, arrays, out.numpy())
    seen = sum(n * keys - n * (n - 1) // 2 for n, keys in step.lengths)
    flops = 4.0 * step.heads * step.head_dim * seen
    lengths = {"sequences": len(step.lengths), "longest": step.longest}
    settings: dict[str, Setting] = {
        **{name: step.settings[name] for name in ("dtype", "d", "heads", "kv", "page")},
        **lengths,
    }
    return _rates(gpu, "serving", launch, (rounds, batch), (unavoidable_bytes(step), flops), settings, error)


def _error(step: Serving, arrays: dict[str, Array], out: Array) -> float:
    """The largest error of the last query of each sequence."""
    worst = 0.0
    for number, (_, keys) in enumerate(step.lengths):
        row = int(arrays["cu_seqlens_q"][number + 1]) - 1
        pages = arrays["block_table"][number, : -(-keys // step.page_size)]
        k, v = (
            arrays[name][pages].reshape(-1, step.kv_heads, step.head_dim)[:keys].swapaxes(0, 1)[None]
            for name in ("k", "v")
        )
        q = arrays["q"][row][None, :, None]
        wide = [x.astype(np.float32) for x in (q, k, v)]
        exact, _ = attention_reference(wide[0], wide[1], wide[2])
        with np.errstate(invalid="ignore"):  # NaN of bf16 is reported, and no reason for a warning
            far = np.abs(out[row].astype(np.float64) - exact[0, :, 0]).max()
        worst = float(np.maximum(worst, far))  # NaN stays
    return worst


def decode_tokens(gpu: Gpu, step: Tokens, rounds: int, batch: int) -> Rows:
    """Times and rates of a token of each sequence, and the error of the first sequence."""
    config = step.config
    of_q, of_k = (step.items, step.heads, 1, step.columns), (step.items, 1, step.keys, step.columns)
    q, k = (x.astype(config.element.numpy) for x in normal(of_q, of_k))
    to = functools.partial(flash.to_device, device=gpu.ordinal, cuda=gpu.backend)
    there, cache, used = to(q), to(k), to(np.full(step.items, step.keys, np.int32))
    out = to(np.full((*of_q[:3], step.values), np.nan, np.float32).astype(config.element.numpy))
    kernel = flash.DecodeKernel(config, cuda=gpu.backend)

    def launch() -> None:
        kernel.launch(there, cache, seqused_k=used, out=out)

    launch()
    wide = [x[:1].astype(np.float32) for x in (q, k)]
    exact, _ = attention_reference(wide[0], wide[1], wide[1][..., : step.values])
    error = float(np.abs(out.numpy()[:1].astype(np.float64) - exact).max())
    return _rates(gpu, step.name, launch, (rounds, batch), (step.nbytes, step.flops), step.settings, error)


def _rates(
    gpu: Gpu,
    name: str,
    launch: Work,
    rounds: tuple[int, int],
    work: tuple[int, float],
    settings: dict[str, Setting],
    error: float,
) -> Rows:
    """Time, rates and the share of the copy bandwidth; `work` is (bytes, operations) of a call."""
    times = flat(race(gpu, {name: launch}, *rounds)[name])
    nbytes, flops = work
    result: Rows = [
        measured(name, "ms", [t * MS for t in times], config=settings),
        measured(f"{name}, needed", "TB/s", [nbytes / t / 1e12 for t in times], config=settings),
        measured(f"{name}, useful", "TFLOP/s", [flops / t / 1e12 for t in times], config=settings),
        measured(f"{name}, error", "", [error], config=settings),
    ]
    if gpu.copy_rate:
        part = [100 * nbytes / t / gpu.copy_rate for t in times]
        result.append(measured(f"{name}, of the copy ceiling", "%", part, config=settings, headline=True))
    return result
