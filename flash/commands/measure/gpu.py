"""Measures a GPU: first its ceilings, then attention kernels against these and against PyTorch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from flash.commands.measure.ceilings import (
    THREADS,
    bytes_per_cta,
    copy_kernel,
    fma_flops,
    fma_kernel,
    peak_flops,
)
from flash.commands.measure.cpu import Array, normal
from flash.commands.measure.device import Gpu
from flash.commands.measure.error import Judge, sampled_rows
from flash.commands.measure.record import (
    MS,
    Goal,
    Job,
    Measurement,
    Rows,
    Setting,
    Work,
    flat,
    interleaved,
    measured,
    ratios,
)
from flash.commands.measure.torch_peer import torch_contestants, torch_with_gpu
from flash.contract.catalogue import Build, build
from flash.launch.calls import make_plan
from flash.launch.checks import Geometry, check
from flash.operands.dtype_names import DTypeName
from flash.problem.config import AttentionConfig
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import ArrayView, view

TOKENS: Final = 16384  # batch * sequence, and
WIDTH: Final = 2048  # heads * head_dim, as in the benchmarks of the FlashAttention papers
CEILING_GOAL_PERCENT: Final = 50.0
CEILING_FROM: Final = 4096  # seqlen from which the goal holds
ERROR_GOAL: Final = 2.0  # times the error of the same-precision numpy reference

_SAMPLE_MS: Final = (
    10.0  # the least time of a sample, which has as many calls as this takes: events resolve 0.5 us
)
_MOST_CALLS: Final = 64

GPU_REMARKS: Final = (
    "timed by CUDA events around calls in a row on the default stream; the second-level cache is "
    "not flushed, so inputs that fit stay in it between calls",
    "contestants have turns of several calls, in changing order, in one process; a ratio is of the "
    "medians of the same round",
    "`computed` counts what the kernel issues, padding included; `useful` what the result needs: "
    "4 * d flops for each pair that is seen",
    "the FMA ceiling is of operands that hardly change, which take less power than data do",
    f"B = {TOKENS} / N, H = {WIDTH} / d, f32",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One attention problem of the benchmark; `head_dim_v` is head_dim unless it is given."""

    head_dim: int
    seq: int
    causal: bool
    tokens: int = TOKENS
    width: int = WIDTH
    dtype: DTypeName = "f32"
    head_dim_v: int | None = None

    @property
    def config(self) -> AttentionConfig:
        """The problem with the default tiles."""
        return AttentionConfig(self.head_dim, self.head_dim_v, self.dtype, self.causal)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """[batch, heads, seq, head_dim] of Q and K."""
        return (max(self.tokens // self.seq, 1), max(self.width // self.head_dim, 1), self.seq, self.head_dim)

    @property
    def value_size(self) -> tuple[int, int, int, int]:
        """[batch, heads, seq, head_dim_v] of V and O."""
        return *self.size[:3], self.config.value_dim

    @property
    def settings(self) -> dict[str, Setting]:
        """The problem as the settings of a measurement."""
        return {"d": self.head_dim, "N": self.seq, "causal": self.causal}


def gpu_jobs(gpu: Gpu, quick: bool) -> list[Job]:
    """Jobs: the ceilings, then exact f32."""
    head_dims, lengths = ((64,), (1024,)) if quick else ((64, 128), (4096,))
    rounds, batch = (3, 2) if quick else (7, 3)
    jobs = [
        Job("FMA ceiling", lambda: fma_ceiling(gpu, repeats=batch * rounds)),
        Job("copy ceiling", lambda: copy_ceiling(gpu, repeats=batch * rounds)),
    ]
    for d in head_dims:
        for n in lengths:
            for causal in (False, True):
                shape = Shape(d, n, causal)
                jobs.append(
                    Job(
                        f"attention {shape.size} causal={causal}",
                        functools.partial(against_torch, gpu, shape, rounds, batch),
                    )
                )
    return jobs


# -------------------------------------------------------------------------------- ceilings


def fma_ceiling(gpu: Gpu, *, repeats: int, rounds: int = 8192) -> Rows:
    """TFLOP/s of independent fma on all multiprocessors at full occupancy."""
    ctas = gpu.device.multiprocessors * (gpu.target.threads_per_sm // THREADS)
    with gpu.memory(ctas * THREADS * 4) as out:
        work = gpu.kernel(
            fma_kernel(gpu.target), ctas, {"out": out, "turns": rounds, "factor": 0.5, "term": 1.0}
        )
        rates = [fma_flops(ctas, rounds) / t for t in _samples(gpu, work, repeats)]
    results = measured("FMA ceiling", "TFLOP/s", [rate / 1e12 for rate in rates], headline=True)
    gpu.fma_flops = results.median * 1e12
    clock = gpu.most_clock_mhz()
    if not clock:
        return [results]
    paper = peak_flops(gpu.target, gpu.device.multiprocessors, clock) / 1e12
    return [results, measured("FMA peak on paper", "TFLOP/s", [paper], config={"clock_mhz": clock})]


def copy_ceiling(gpu: Gpu, *, repeats: int, nbytes: int = 1 << 30) -> Rows:
    """TB/s read and written in global memory, by 16-byte accesses to far more than the L2 cache."""
    ctas = nbytes // bytes_per_cta()
    with gpu.memory(nbytes) as source, gpu.memory(nbytes) as copy:
        work = gpu.kernel(copy_kernel(gpu.target), ctas, {"source": source, "copy": copy})
        rates = [2 * ctas * bytes_per_cta() / t / 1e12 for t in _samples(gpu, work, repeats)]
    results = measured("copy ceiling, read + written", "TB/s", rates, config={"bytes": nbytes}, headline=True)
    gpu.copy_rate = results.median * 1e12
    return [results]


def _samples(gpu: Gpu, work: Work, repeats: int) -> list[float]:
    for _ in range(2):
        gpu.seconds(work)
    return [gpu.seconds(work) for _ in range(repeats)]


# -------------------------------------------------------------------------------- attention


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The arrays of one problem on the host, and their views on the device."""

    shape: Shape
    host: tuple[Array, Array, Array]
    views: tuple[ArrayView, ArrayView, ArrayView, ArrayView]  # Q, K, V, O
    staging: Staging

    def contestant(self, gpu: Gpu, config: AttentionConfig | None = None) -> tuple[Work, Build, Geometry]:
        """Our kernel on these arrays, by default with default tiles: the launch, build and
        geometry.
        """
        config = config or self.shape.config
        geometry = check(config, *self.views)
        built = build(config.kernel(gpu.target))
        plan = make_plan(built, geometry, config.scale, tuple(array.pointer for array in self.views))
        return gpu.ready(built.text, plan), built, geometry

    def output(self) -> Array:
        """A host copy of O on the device."""
        out = self.staging.fetch(self.views[3])
        self.staging.wait()
        return out


@contextmanager
def on_device(gpu: Gpu, shape: Shape) -> Iterator[OnDevice]:
    """Normally distributed Q, K and V of a shape, and memory for O, on the device."""
    numpy_type = shape.config.element.numpy
    q, k, v, out = (
        x.astype(numpy_type, copy=False)
        for x in normal(shape.size, shape.size, shape.value_size, shape.value_size)
    )
    with Staging(gpu.backend, 0, gpu.ordinal) as staging:
        there = (
            *(staging.copy_of(view(array, "array")) for array in (q, k, v)),
            staging.room_for(view(out, "out")),
        )
        staging.wait()
        yield OnDevice(shape, (q, k, v), there, staging)  # type: ignore[arg-type]  # four arrays


def against_torch(gpu: Gpu, shape: Shape, rounds: int, batch: int) -> Rows:
    """Interleaved times of our default kernel and each PyTorch backend; errors against float64."""
    with on_device(gpu, shape) as arrays:
        work, built, geometry = arrays.contestant(gpu)
        work()
        rows = sampled_rows(shape.size)
        judge = Judge.of(arrays.host, rows, shape.causal)
        tile = {"tile": built.config.tiling.tile, "block_q": built.config.tiling.block_q}
        errors = {"ours": judge.ratio(arrays.output()[rows])}
        contestants: dict[str, Callable[[], Any]] = {"ours": work}
        torch, why_not = torch_with_gpu()
        remarks = [why_not] if why_not else []
        if torch is not None:
            tensors = [torch.from_numpy(array).to(f"cuda:{gpu.ordinal}") for array in arrays.host]
            others, remarks = torch_contestants(torch, tensors, shape.causal)
            errors |= {name: judge.ratio(attend().cpu().numpy()[rows]) for name, attend in others.items()}
            contestants |= others
        samples = race(gpu, contestants, rounds, batch)
    results: Rows = [*remarks, *_rates(gpu, shape, samples["ours"], built, geometry, tile)]
    useful = built.resources.useful_flops(*_counts(geometry)) / 1e12
    for name, times in list(samples.items())[1:]:
        results.append(
            measured(f"{name}, useful", "TFLOP/s", [useful / t for t in flat(times)], config=shape.settings)
        )
        ratio = ratios(times, samples["ours"])
        results.append(measured(f"speed of ours / {name}", "x", ratio, config=shape.settings, headline=True))
    for name, error in errors.items():
        ours = name == "ours"
        results.append(
            measured(
                f"error of {name} / numpy f32",
                "x",
                [error],
                config=shape.settings,
                goal=Goal("<=", ERROR_GOAL) if ours else None,
                headline=ours,
            )
        )
    return results


def race(
    gpu: Gpu, contestants: Mapping[str, Callable[[], Any]], rounds: int, batch: int
) -> dict[str, list[list[float]]]:
    """Seconds of one call of each contestant, from samples of at least `_SAMPLE_MS`."""
    calls = {name: calls_for(gpu.seconds(work) * MS) for name, work in contestants.items()}
    repeated = {name: functools.partial(_repeat, work, calls[name]) for name, work in contestants.items()}
    samples = interleaved(repeated, rounds=rounds, batch=batch, dropped=1, timer=gpu.seconds)
    return {
        name: [[t / calls[name] for t in round_] for round_ in rounds] for name, rounds in samples.items()
    }


def _repeat(work: Work, times: int) -> None:
    for _ in range(times):
        work()


def calls_for(call_ms: float) -> int:
    """The number of calls in a sample of at least `_SAMPLE_MS`, at most `_MOST_CALLS`."""
    return min(max(math.ceil(_SAMPLE_MS / max(call_ms, 1e-3)), 1), _MOST_CALLS)


def _counts(geometry: Geometry) -> tuple[int, int, int, int]:
    return geometry.batch, geometry.heads, geometry.seq_q, geometry.seq_k


def _rates(
    gpu: Gpu,
    shape: Shape,
    rounds: Sequence[Sequence[float]],
    built: Build,
    geometry: Geometry,
    tile: Mapping[str, Setting],
) -> list[Measurement]:
    """Times and rates of one of our kernels."""
    settings = {**shape.settings, **tile}
    times = flat(rounds)
    computed = built.resources.flops(*_counts(geometry))
    useful = built.resources.useful_flops(*_counts(geometry))
    results = [
        measured("ours", "ms", [t * MS for t in times], config=settings),
        measured("ours, computed", "TFLOP/s", [computed / t / 1e12 for t in times], config=settings),
        measured("ours, useful", "TFLOP/s", [useful / t / 1e12 for t in times], config=settings),
    ]
    if gpu.fma_flops:
        wanted = Goal(">=", CEILING_GOAL_PERCENT) if shape.seq >= CEILING_FROM else None
        part = [100 * computed / t / gpu.fma_flops for t in times]
        results.append(
            measured("computed, of the FMA ceiling", "%", part, config=settings, goal=wanted, headline=True)
        )
    return results
