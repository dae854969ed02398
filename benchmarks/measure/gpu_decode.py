"""Measures decoding on a GPU: the read rate of keys and values against the copy bandwidth, the time
of a token against PyTorch's, and the bytes of a cache that are copied to the host.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import flash
from benchmarks.measure.decode import Decoding, unavoidable_bytes
from flash.commands.measure.cpu import Array, normal
from flash.commands.measure.device import Gpu
from flash.commands.measure.error import Judge
from flash.commands.measure.gpu import race
from flash.commands.measure.record import US, Goal, Job, Rows, Setting, Work, flat, measured, ratios
from flash.commands.measure.torch_peer import graphed, sdpa_of_a_token, torch_with_gpu
from flash.contract.resources import KernelResources
from flash.decode.plan import CacheCall, blocks_of, choose_splits, kernel_of, steps_of
from flash.operands.dtypes import DType
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import ArrayView, view
from ptxgen.runtime.cuda import CudaBackend

COPY_GOAL_PERCENT: Final = 85.0  # of the copy bandwidth
ERROR_GOAL: Final = 2.0  # times the error of numpy in f32 with equal roundings

GPU_DECODE_REMARKS: Final = (
    "decoding: bytes are K and V once, Q, O and, with several splits, parts written and read; the "
    "number of splits is that of the rule",
    "a token of one sequence: ours are calls in a row of DecodeKernel.launch, their host work "
    "included where the GPU waits for it; a step is DecodeStep.launch, which appends its key and "
    "value, too; a graph is captured once and replayed",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A decode step of `items` sequences, each with the sizes of `one`; its splits are not used."""

    one: Decoding
    items: int = 1

    @property
    def config(self) -> AttentionConfig:
        """The config of the attention of a new token."""
        return AttentionConfig(self.one.head_dim, dtype=self.one.dtype, causal=True)

    def settings(self, splits: int) -> dict[str, Setting]:
        """The step as the settings of a measurement."""
        return {"B": self.items, **replace(self.one, splits=splits).settings}

    def nbytes(self, splits: int) -> int:
        """The bytes that the kernels of the step cannot avoid reading and writing."""
        return self.items * unavoidable_bytes(replace(self.one, splits=splits))


# 512 MiB of K and V, several times any L2 cache; groups of 8 heads.
LARGE: Final = Batch(Decoding("bf16", 128, 64, 8, 8192, 1), 16)
TOKEN: Final = Batch(Decoding("bf16", 128, 32, 4, 1024, 1))
PAGES: Final = (0, 64, 128)


def gpu_decode_jobs(gpu: Gpu, quick: bool) -> list[Job]:
    """Jobs: the bandwidth for each layout, the latency of a token, and bytes copied to the host."""
    rounds, batch = (3, 2) if quick else (7, 3)
    jobs = []
    for size in PAGES[:2] if quick else PAGES:
        step = replace(LARGE, one=replace(LARGE.one, page_size=size))
        work = functools.partial(bandwidth, gpu, step, repeats=rounds * batch)
        jobs.append(Job(f"decode {step.items} sequences, page {size}", work))
    jobs.append(Job("decode a token", functools.partial(latency, gpu, TOKEN, rounds, batch)))
    jobs.append(Job("decode with a cache", functools.partial(copied, gpu)))
    return jobs


# -------------------------------------------------------------------------------- bandwidth


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The arrays of a step on a GPU, and q, keys and values of the first sequence on the host."""

    call: CacheCall
    staging: Staging
    first: tuple[Array, Array, Array]

    def array(self, shape: tuple[int, ...], dtype: DType, *, is_cleared: bool = False) -> ArrayView:
        """A dense array on the GPU, not initialised."""
        assert not is_cleared
        there = ArrayView(
            0,
            shape,
            dense_strides(shape),
            dtype.array_name,
            self.call.q.device,
            False,
            "cuda_array_interface",
            None,
        )
        return self.staging.room_for(there)


@contextmanager
def on_device(gpu: Gpu, step: Batch) -> Iterator[OnDevice]:
    """Arrays of a step: normal keys and values, equal for each sequence, pages in random order."""
    one, config = step.one, step.config
    k, v = (x.astype(config.element.numpy) for x in normal(*[(one.kv_heads, one.seq_k, one.head_dim)] * 2))
    (q,) = normal((step.items, one.heads, 1, one.head_dim))
    q = q.astype(config.element.numpy)
    operands: dict[str, NDArray[Any]] = {"seqused_k": np.full(step.items, one.seq_k, np.int32)}
    wide = [np.broadcast_to(x, (step.items, *x.shape)) for x in (k, v)]
    if one.page_size:
        columns = one.seq_k // one.page_size
        order = np.random.default_rng(0).permutation(step.items * columns).astype(np.int32)
        operands["block_table"] = np.argsort(order).astype(np.int32).reshape(step.items, columns)
        wide = [_in_pages(x, one.page_size)[order] for x in wide]
    with Staging(gpu.backend, 0, gpu.ordinal) as staging:
        there = [staging.copy_of(view(np.ascontiguousarray(x), "array")) for x in (q, *wide)]
        inputs = {name: staging.copy_of(view(x, name)) for name, x in operands.items()}
        out = staging.room_for(view(np.empty_like(q), "out"))
        staging.wait()
        call = CacheCall(
            config, there[0], there[1], there[2], out, {}, inputs, one.page_size, one.seq_k, config.scale
        )
        yield OnDevice(call, staging, (q[:1], k[None], v[None]))


def _in_pages(x: Array, size: int) -> Array:
    """Rows [sequences, heads, rows, dim] in pages: [pages, heads, size, dim]."""
    items, heads, rows, dim = x.shape
    apart = x.reshape(items, heads, rows // size, size, dim).swapaxes(1, 2)
    pages: Array = apart.reshape(-1, heads, size, dim)
    return pages


def bandwidth(gpu: Gpu, step: Batch, *, repeats: int) -> Rows:
    """Bytes per second that the kernels of a step move, and their share of the copy bandwidth."""
    with on_device(gpu, step) as arrays:
        splits, work = _kernels(gpu, arrays)
        for _ in range(2):
            gpu.seconds(work)
        times = [gpu.seconds(work) for _ in range(repeats)]
        out = arrays.staging.fetch(arrays.call.out)
        arrays.staging.wait()
    settings, nbytes = step.settings(splits), step.nbytes(splits)
    rates = [nbytes / t / 1e12 for t in times]
    results: Rows = [
        measured("decoding", "us", [t * US for t in times], config=settings),
        measured("decoding, read + written", "TB/s", rates, config=settings),
        measured(
            "error of decoding / numpy",
            "x",
            [_judge(arrays.first).ratio(out[:1])],
            config=settings,
            goal=Goal("<=", ERROR_GOAL),
        ),
    ]
    if gpu.copy_rate:
        part = [100 * rate * 1e12 / gpu.copy_rate for rate in rates]
        results.append(
            measured(
                "decoding, of the copy ceiling",
                "%",
                part,
                config=settings,
                goal=Goal(">=", COPY_GOAL_PERCENT),
                headline=True,
            )
        )
    return results


def _kernels(gpu: Gpu, arrays: OnDevice) -> tuple[int, Work]:
    """The number of splits that "auto" chooses, and a function that launches the step."""
    call = arrays.call
    plain = kernel_of(call, gpu.target, 1)
    t = plain.tiling
    held = KernelResources(plain, t.registers, False, t.shared_bytes).ctas_per_sm
    slots = gpu.device.multiprocessors * max(held, 1)
    splits = choose_splits(blocks_of(call, plain), -(-call.longest // t.tile), slots)
    kernel = kernel_of(call, gpu.target, splits)
    launches = [gpu.ready(step.build.text, step.plan) for step in steps_of(call, kernel, splits, arrays)]

    def work() -> None:
        for launch in launches:
            launch()

    return splits, work


def _judge(first: tuple[Array, Array, Array]) -> Judge:
    """The `Judge` of the output of the first sequence."""
    exact, _ = attention_reference(*first, causal=True)
    return Judge(exact, float(np.abs(_same_roundings(*first) - exact).max()))


def _same_roundings(q: Array, k: Array, v: Array) -> Array:
    """Attention of one token in f32, with weights and result rounded to the dtype of v, as
    tensor-core kernels round them.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x.astype(np.float32), group, axis=1) for x in (k, v))
    scores = q.astype(np.float32) @ keys.swapaxes(2, 3) / np.float32(q.shape[3] ** 0.5)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    out = weights.astype(v.dtype).astype(np.float32) @ values
    rounded: Array = (out / weights.sum(axis=3, keepdims=True)).astype(v.dtype).astype(np.float64)
    return rounded


# -------------------------------------------------------------------------------- latency


def latency(gpu: Gpu, step: Batch, rounds: int, batch: int) -> Rows:
    """Times of a token as launches and as a CUDA graph, and of PyTorch if it uses a GPU."""
    one, config = step.one, step.config
    shapes = [(step.items, h, n, one.head_dim) for h, n in _heads_and_rows(one)]
    host = [x.astype(config.element.numpy) for x in normal(*shapes)]
    used = np.full(step.items, one.seq_k, np.int32)
    torch, why_not = torch_with_gpu()
    if torch is None:
        arrays = [flash.to_device(x, device=gpu.ordinal, cuda=gpu.backend) for x in (*host, used)]
        alone = {"ours": _token(gpu, config, arrays), "ours, step": _step(gpu, step, arrays, host)}
        return [why_not, *_latencies(step, race(gpu, alone, rounds, batch))]
    where = f"cuda:{gpu.ordinal}"
    dtype = getattr(torch, config.element.array_name)
    tensors = [torch.from_numpy(x.astype(np.float32)).to(where, dtype) for x in host]
    ours = _token(gpu, config, [*tensors, torch.from_numpy(used).to(where)])
    whole = _step(gpu, step, tensors, host)
    theirs = sdpa_of_a_token(torch, *tensors[:3])
    contestants = {
        "ours": ours,
        "ours, step": whole,
        "torch": theirs,
        "ours, graph": graphed(torch, ours),
        "ours, step, graph": graphed(torch, whole),
        "torch, graph": graphed(torch, theirs),
    }
    samples = race(gpu, contestants, rounds, batch)
    results = _latencies(step, samples)
    for how in ("", ", graph"):
        ratio = ratios(samples[f"ours{how}"], samples[f"torch{how}"])
        results.append(
            measured(f"latency of ours / torch{how}", "x", ratio, config=_settings(step), headline=True)
        )
    return results


def _heads_and_rows(one: Decoding) -> tuple[tuple[int, int], ...]:
    """The numbers (heads, rows) of q, k, v and the result."""
    keys = (one.kv_heads, one.seq_k)
    return (one.heads, 1), keys, keys, (one.heads, 1)


def _token(gpu: Gpu, config: AttentionConfig, arrays: Sequence[Any]) -> Work:
    q, k, v, out, used = arrays
    kernel = flash.DecodeKernel(config, cuda=gpu.backend)
    return lambda: kernel.launch(q, k, v, seqused_k=used, out=out)


def _step(gpu: Gpu, step: Batch, arrays: Sequence[Any], host: Sequence[Array]) -> Work:
    """The launches of a `DecodeStep`, which also append the last key and value of each sequence."""
    one = step.one
    cache = flash.KVCache(
        1,
        step.items,
        one.kv_heads,
        one.head_dim,
        one.seq_k,
        dtype=one.dtype,
        backend="cuda",
        device=gpu.ordinal,
        cuda=gpu.backend,
    )
    cache.append(0, *host[1:3])
    last = [flash.to_device(x[:, :, -1:], device=gpu.ordinal, cuda=gpu.backend) for x in host[1:3]]
    return flash.DecodeStep(arrays[0], cache, *last, layer=0, out=arrays[3]).launch


def _settings(step: Batch) -> dict[str, Setting]:
    return {name: value for name, value in step.settings(0).items() if name != "splits"}


def _latencies(step: Batch, samples: Mapping[str, list[list[float]]]) -> Rows:
    return [
        measured(f"a token, {name}", "us", [t * US for t in flat(rounds)], config=_settings(step))
        for name, rounds in samples.items()
    ]


# -------------------------------------------------------------------------------- copies


class HostCopies(CudaBackend):
    """A GPU backend like `backend` that counts the bytes copied to the host."""

    def __init__(self, backend: CudaBackend) -> None:
        vars(self).update(vars(backend))  # shares the driver and loaded modules
        self.nbytes = 0

    def copy_to_host(self, host: int, address: int, nbytes: int, stream: int = 0, *, ordinal: int) -> None:
        """Copy to the host, and count the bytes."""
        self.nbytes += nbytes
        super().copy_to_host(host, address, nbytes, stream, ordinal=ordinal)


def copied(gpu: Gpu, *, layers: int = 2, tokens: int = 4, head_dim: int = 64) -> Rows:
    """Bytes that are copied to the host while tokens are decoded with a cache on the GPU."""
    cuda = HostCopies(gpu.backend)
    cache = flash.KVCache(
        layers, 2, 2, head_dim, 64, dtype="bf16", page_size=16, backend="cuda", device=gpu.ordinal, cuda=cuda
    )
    for count in (20, *[1] * tokens):
        for layer in range(layers):
            q, k, v = (
                flash.to_device(x.astype(cache.element.numpy), device=gpu.ordinal, cuda=cuda)
                for x in normal((2, 8, count, head_dim), *[(2, 2, count, head_dim)] * 2)
            )
            flash.attention_with_kvcache(q, cache, k, v, layer=layer)
    gpu.backend.synchronize(ordinal=gpu.ordinal)
    return [
        measured(
            "copied to the host by decoding",
            "bytes",
            [cuda.nbytes],
            config={"layers": layers, "tokens": tokens},
            goal=Goal("<=", 0),
            headline=True,
        )
    ]
