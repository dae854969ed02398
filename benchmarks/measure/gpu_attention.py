"""Measures attention on a GPU as users call it: f16, bf16, fp8, and f32 by every precision, next to
PyTorch's backends and the rate of a product of matrices.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

import flash
from flash.commands.measure.ceilings import tensor_peak_flops
from flash.commands.measure.cpu import normal
from flash.commands.measure.device import Gpu
from flash.commands.measure.error import Judge, sampled_rows
from flash.commands.measure.gpu import TOKENS, WIDTH, race
from flash.commands.measure.record import (
    MS,
    Goal,
    Job,
    Measurement,
    Rows,
    Setting,
    Work,
    flat,
    measured,
    ratios,
)
from flash.commands.measure.torch_peer import first_line, on_gpu, torch_contestants, torch_with_gpu
from flash.families.choice import WORKLOADS, offered_tiles
from flash.families.wgmma import WGMMA_ROWS, WGMMA_TARGET
from flash.operands.dtype_names import DTypeName
from flash.operands.dtypes import FP8_DTYPES, INPUT_DTYPES
from flash.problem.config import AttentionConfig
from ptxgen.errors import PtxGenError

PEERS: Final = ("FLASH_ATTENTION", "CUDNN_ATTENTION")  # those of 16-bit types
PEERS_OF_F32: Final = ("EFFICIENT_ATTENTION",)
TILED_SEQ: Final = 8192
COMPARED_SEQ: Final = 4096  # at which the kernel without `wgmma` is measured, too
_MATRIX: Final = 8192  # rows and columns of the product that is the ceiling of tensor cores
_CHOSEN: Final = "chosen"  # the name of the tile that a launch chooses
_LEAST_TILE: Final = 48  # smaller tiles of keys are slower in every kernel

GPU_ATTENTION_REMARKS: Final = (
    f"attention: calls of AttentionKernel.launch, B = {TOKENS} / N, H = {WIDTH} / d, normal numbers; errors "
    "are the largest of 32 rows against float64; mma.sync is the kernel for sm_90, without wgmma",
    f"the ceiling of tensor cores is PyTorch's product of two bf16 matrices {_MATRIX} x {_MATRIX} of normal "
    "numbers; a GPU lowers its clock to keep its power, so that a kernel can be above it",
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `tokens` rows of all sequences together, and `heads` heads of Q and `kv_heads` of K and V, by
    default as many of each as have `width` columns together. `window` is the number of keys that a query
    sees, the last one at its own row; head_dim_v is head_dim by default. With `shared_kv` V is the first
    head_dim_v columns of K.
    """

    dtype: DTypeName | Literal["e4m3"]
    head_dim: int
    seq: int
    causal: bool
    precision: str | None = None
    tokens: int = TOKENS
    width: int = WIDTH
    head_dim_v: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    window: int | None = None
    shared_kv: bool = False

    @property
    def config(self) -> AttentionConfig:
        """The kernel's config with default tiles."""
        settings: dict[str, Any] = {"precision": self.precision} if self.precision else {}
        if self.window is not None:
            settings["window"] = (self.window - 1, 0)
        return AttentionConfig(
            self.head_dim,
            self.head_dim_v,
            dtype=self.dtype,
            causal=self.causal,
            shared_kv=self.shared_kv,
            **settings,
        )

    @property
    def size(self) -> tuple[int, int, int, int]:
        """[batch, heads, seq, head_dim] of Q."""
        heads = self.heads or max(self.width // self.head_dim, 1)
        return (max(self.tokens // self.seq, 1), heads, self.seq, self.head_dim)

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """[batch, heads, seq, columns] of Q, K, V and O."""
        batch, heads, seq, dim = self.size
        of_values, kv_heads = self.head_dim_v or dim, self.kv_heads or heads
        of_k, of_v = ((batch, kv_heads, seq, columns) for columns in (dim, of_values))
        return self.size, of_k, of_v, (batch, heads, seq, of_values)

    @property
    def settings(self) -> dict[str, Setting]:
        """The call as the settings of a measurement."""
        settings: dict[str, Setting] = {"dtype": self.precision or self.dtype, "d": self.head_dim}
        shape = {"dv": self.head_dim_v, "heads": self.heads, "kv_heads": self.kv_heads, "window": self.window}
        settings |= {"N": self.seq, "causal": self.causal}
        return settings | {name: number for name, number in shape.items() if number is not None}

    @property
    def label(self) -> str:
        """The call as the label of a job."""
        return " ".join(f"{name}={setting}" for name, setting in self.settings.items())

    @property
    def flops(self) -> float:
        """Operations that the result needs: 2 * (head_dim + head_dim_v) for each key that a query sees."""
        (batch, heads, seq, dim), of_values = self.size, self.sizes[2][3]
        seen = seq * (seq + 1) / 2 if self.causal else seq * seq
        if self.window is not None:
            left = max(seq - self.window, 0)  # queries with more keys before them than the window has
            seen -= left * (left + 1) / 2
        return 2.0 * batch * heads * seen * (dim + of_values)

    @property
    def for_hopper(self) -> bool:
        """Whether only the kernels for Hopper compute this call."""
        return self.config.target == WGMMA_TARGET


def _published(head_dim: int, seq: int, causal: bool, **more: Any) -> Call:
    """A call of one sequence with 64 heads of Q and 8 of K and V."""
    return Call("bf16", head_dim, seq, causal, tokens=seq, heads=64, kv_heads=8, **more)


# Shapes in which NVIDIA publishes rates of attention: 64 heads of queries for 8 of keys, one sequence.
PUBLISHED: Final = (
    *(_published(128, seq, causal) for seq in (4096, 16384) for causal in (False, True)),
    *(_published(192, 8192, causal, head_dim_v=128) for causal in (False, True)),
    _published(64, 8192, True, window=1024),
    *(_published(128, seq, True) for seq in (512, 1024, 2048)),
)
# Problems that families of kernels name, of one sequence with 128 heads of queries for one of keys.
OF_FAMILIES: Final = tuple(
    Call("bf16", seq=seq, causal=causal, tokens=seq, heads=128, kv_heads=1, **of)
    for of in WORKLOADS.values()
    for seq, causal in ((4096, False), (4096, True), (1024, True))
)


def attention_jobs(gpu: Gpu, quick: bool) -> list[Job]:
    """Jobs: the ceiling of tensor cores, forward calls, then tiles where a GPU has `wgmma`."""
    rounds, batch = (3, 2) if quick else (5, 3)
    jobs = [Job("tensor core ceiling", lambda: tensor_ceiling(gpu, repeats=rounds * batch))]
    every = [call for call in calls(quick) if gpu.target.name == WGMMA_TARGET or not call.for_hopper]
    jobs.append(Job("assemble the kernels", lambda: prepared(gpu, every)))
    for call in every:
        run = functools.partial(forward, gpu, call, rounds, batch)
        jobs.append(Job(call.label, run))
    if gpu.target.name == WGMMA_TARGET:
        for dim in (128,) if quick else (64, 96, 128, 192, 256):
            for causal in (False, True):
                call = Call("f16", dim, TILED_SEQ, causal)
                jobs.append(
                    Job(f"tiles d={dim} causal={causal}", functools.partial(tiles, gpu, call, 3, batch))
                )
    return jobs


def calls(quick: bool) -> list[Call]:
    """The calls that are measured on a GPU; with `quick` few of them."""
    if quick:
        return [Call("f16", 128, 4096, True)]
    of_f16 = [
        Call("f16", dim, seq, causal)
        for dim in (64, 128, 256)
        for seq in (512, 1024, 4096, 16384)
        for causal in (False, True)
    ]
    of_others = [
        *(Call("bf16", 128, 4096, causal) for causal in (False, True)),
        *(Call("e4m3", dim, 16384, causal) for dim in (64, 128, 256) for causal in (False, True)),
        *(
            Call("f32", dim, 4096, causal, precision)
            for precision in ("f32_grade", "tf32", "ieee")
            for dim in (64, 128)
            for causal in (False, True)
        ),
    ]
    return [*of_f16, *PUBLISHED, *OF_FAMILIES, *of_others]


def tensor_ceiling(gpu: Gpu, *, repeats: int) -> Rows:
    """TFLOP/s of PyTorch's product of two large matrices of bf16."""
    torch, why_not = torch_with_gpu()
    if torch is None:
        return [why_not]
    where = f"cuda:{gpu.ordinal}"
    a, b = (torch.randn(_MATRIX, _MATRIX, device=where, dtype=torch.bfloat16) for _ in range(2))
    times = race(gpu, {"product": lambda: a @ b}, repeats, 1)["product"]
    measurement = measured(
        "tensor core ceiling", "TFLOP/s", [2 * _MATRIX**3 / t / 1e12 for t in flat(times)], headline=True
    )
    gpu.tensor_flops = measurement.median * 1e12
    clock = gpu.most_clock_mhz()
    paper = tensor_peak_flops(gpu.target, gpu.device.multiprocessors, clock) / 1e12
    if not paper:
        return [measurement]
    return [
        measurement,
        measured("tensor core peak on paper", "TFLOP/s", [paper], config={"clock_mhz": clock}),
    ]


@functools.lru_cache(maxsize=4)
def _drawn(count: int, dtype: str) -> tuple[Any, ...]:
    """Normally distributed Q, K and V of a call."""
    return tuple(x.astype(INPUT_DTYPES[dtype].numpy) for x in normal(*[(count,)] * 3))


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The arrays of a call: Q, K and V on the host and on the device, and O, which holds NaN."""

    call: Call
    host: tuple[Any, ...]
    there: tuple[Any, ...]
    out: Any
    scales: dict[str, Any]

    @classmethod
    def of(cls, gpu: Gpu, call: Call) -> OnDevice:
        """Normal numbers, copied to the device; those of fp8 have scales of 1."""
        config = call.config
        *inputs, of_out = call.sizes
        drawn = _drawn(max(map(math.prod, inputs)), config.element.name)
        host = tuple(x[: math.prod(s)].reshape(s) for x, s in zip(drawn, inputs, strict=True))
        if call.shared_kv:
            host = *host[:2], host[1][..., : inputs[2][3]]
        to = functools.partial(flash.to_device, device=gpu.ordinal, cuda=gpu.backend)
        out = to(np.full(of_out, np.nan, np.float32).astype(config.output.numpy))
        names = [o.name for o in config.features.operands]
        scales = {name: to(np.ones(call.size[:2], np.float32)) for name in names}
        return cls(call, host, tuple(map(to, host[: 2 if call.shared_kv else 3])), out, scales)

    def launches(self, gpu: Gpu, config: AttentionConfig) -> Work:
        """A function that puts the call on the default stream, with the kernels of a config."""
        kernel = flash.AttentionKernel(config, cuda=gpu.backend)
        return lambda: kernel.launch(*self.there, out=self.out, backend="cuda", **self.scales)


def configs_of(gpu: Gpu, call: Call) -> dict[str, AttentionConfig]:
    """The configs of our contestants: the default, and at one seqlen the kernel without `wgmma`."""
    configs = {"ours": call.config}
    if gpu.target.name == WGMMA_TARGET and call.dtype in ("f16", "bf16") and call.seq == COMPARED_SEQ:
        configs["ours, mma.sync"] = replace(call.config, target="sm_90")
    return configs


def forward(gpu: Gpu, call: Call, rounds: int, batch: int) -> Rows:
    """Interleaved times of our calls and of PyTorch's backends; errors against float64."""
    arrays = OnDevice.of(gpu, call)
    contestants: dict[str, Callable[[], Any]] = {}
    rows = sampled_rows(call.size)
    wide = tuple(x.astype(np.float32) for x in arrays.host)
    exact = Judge.of((wide[0], wide[1], wide[2]), rows, call.causal, call.window).exact
    errors: dict[str, float] = {}
    remarks: list[str] = []
    for name, config in configs_of(gpu, call).items():
        launch = arrays.launches(gpu, config)
        try:
            launch()
        except PtxGenError as error:
            if name == "ours":
                raise
            remarks.append(f"{name} of {call.settings} was not launched: {first_line(error)}")
            continue
        errors[name] = _largest(arrays.out.numpy()[rows], exact)
        contestants[name] = launch
    others, refusals = _peers(gpu, arrays)
    remarks += refusals
    for name, attend in others.items():
        errors[name] = _largest(attend().float().cpu().numpy()[rows], exact)
    contestants |= others
    samples = race(gpu, contestants, rounds, batch)
    results: Rows = [*remarks]
    for name, times in samples.items():
        results += _rates(gpu, call, name, flat(times))
        results.append(measured(f"{name}, error", "", [errors[name]], config=call.settings))
    for name in contestants:
        if not name.startswith("ours"):
            ratio = ratios(samples[name], samples["ours"])
            results.append(
                measured(f"speed of ours / {name}", "x", ratio, config=call.settings, headline=True)
            )
    return results


def _peers(gpu: Gpu, arrays: OnDevice) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """PyTorch's backends on the arrays of a call, and remarks on why others are missing."""
    call = arrays.call
    torch, why_not = torch_with_gpu()
    if torch is None:
        return {}, [why_not]
    if call.window is not None:
        return {}, ["PyTorch's backends of attention take no window"]
    if call.dtype in FP8_DTYPES:
        return {}, []
    tensors = [on_gpu(torch, np.ascontiguousarray(x), gpu.ordinal) for x in arrays.host]
    backends = PEERS_OF_F32 if call.dtype == "f32" else PEERS
    tf32 = (call.precision == "tf32",) if call.dtype == "f32" else ()
    return torch_contestants(torch, tensors, call.causal, backends, tf32)


def _largest(result: Any, exact: Any) -> float:
    """The largest absolute error of sampled rows of the output."""
    return float(np.abs(result.astype(np.float64) - exact).max())


def _rates(gpu: Gpu, call: Call, name: str, times: Sequence[float]) -> list[Measurement]:
    """Times and rates of a contestant."""
    rates = [call.flops / t / 1e12 for t in times]
    results = [
        measured(name, "ms", [t * MS for t in times], config=call.settings),
        measured(f"{name}, useful", "TFLOP/s", rates, config=call.settings),
    ]
    if gpu.tensor_flops and call.dtype in ("f16", "bf16"):
        part = [100 * rate * 1e12 / gpu.tensor_flops for rate in rates]
        results.append(measured(f"{name}, of the tensor core ceiling", "%", part, config=call.settings))
    return results


def tiles(gpu: Gpu, call: Call, rounds: int, batch: int, least_tile: int = _LEAST_TILE) -> Rows:
    """Interleaved times of the kernels with `wgmma` of every tile, and of the one that a launch chooses."""
    arrays, target = OnDevice.of(gpu, call), gpu.target
    config = replace(call.config, target=target.name)
    sizes = offered_tiles(call.head_dim, call.head_dim, target, call.dtype)
    sizes = [(n, m) for n, m in sizes if n >= least_tile and m >= WGMMA_ROWS]
    configs = {_CHOSEN: config} | {f"{m}x{n}": replace(config, tile=n, block_q=m) for n, m in sizes}
    works = {name: arrays.launches(gpu, of) for name, of in configs.items()}
    at_once(works.values())
    contestants: dict[str, Callable[[], Any]] = {}
    results: Rows = []
    for name, launch in works.items():
        try:
            launch()
            contestants[name] = launch
        except PtxGenError as error:
            if name == _CHOSEN:
                raise
            results.append(f"tile {name} of {call.settings} was not launched: {first_line(error)}")
    samples = race(gpu, contestants, rounds, batch)
    for name, times in samples.items():
        rates = [call.flops / t / 1e12 for t in flat(times)]
        results.append(measured("tile, useful", "TFLOP/s", rates, config=call.settings | {"tile": name}))
    best = min(samples.values(), key=lambda times: min(flat(times)))
    goal = Goal("<=", 1.05)
    slower = ratios(samples[_CHOSEN], best)
    name = "time of the chosen tile / the best"
    return [*results, measured(name, "x", slower, config=call.settings, goal=goal, headline=True)]


def prepared(gpu: Gpu, every: Sequence[Call]) -> Rows:
    """Make and assemble the kernels of some calls, several at a time; the process keeps them. Calls of one
    config come one after the other, because threads that need one text at the same time would each make it.
    """
    of_config: dict[AttentionConfig, list[Call]] = {}
    for call in every:
        for config in configs_of(gpu, call).values():
            of_config.setdefault(config, []).append(call)

    def prepare(config: AttentionConfig) -> None:
        for call in of_config[config]:
            with contextlib.suppress(PtxGenError):
                OnDevice.of(gpu, call).launches(gpu, config)()

    at_once([functools.partial(prepare, config) for config in of_config])
    return []


def at_once(works: Iterable[Work]) -> None:
    """Do all works in several threads. Errors are ignored: a caller that does a work again gets its error."""

    def tried(work: Work) -> None:
        with contextlib.suppress(PtxGenError):
            work()

    with ThreadPoolExecutor() as pool:  # assemblers are processes
        list(pool.map(tried, works))
