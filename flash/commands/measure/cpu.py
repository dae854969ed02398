"""Measures `flash.cpu.attention` on the CPU against PyTorch and plain numpy."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # has no types

from flash.commands.measure.record import MS, Found, Goal, Job, flat, interleaved, measured, ratios
from flash.cpu.attention import attention_cpu
from flash.scores.window import causal_offset

Array = NDArray[np.float32]

THREADS: Final = 2
BATCH, HEADS, HEAD_DIM = 1, 8, 64
RATIO_GOAL: Final = 1.3
# Difference of two orders of adding 4096 products in f32; a wrong result differs by 1e-2 or more.
AGREEMENT: Final = 1e-4
# A pool of OpenMP threads spins for about 5 ms after its last work (libgomp, GOMP_SPINCOUNT).
_SPIN_S: Final = 0.02


def normal(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Arrays of normally distributed numbers, equal for equal seeds."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def cpu_jobs(quick: bool) -> list[Job]:
    """Jobs for f32, batch 1, 8 heads of 64: full and causal, short and long."""
    lengths = (1024,) if quick else (1024, 4096)
    rounds, batch = (3, 3) if quick else (7, 4)
    return [
        Job(
            f"cpu N={n} {'causal' if causal else 'full'}",
            functools.partial(compare, n, causal, rounds, batch),
        )
        for n in lengths
        for causal in (False, True)
    ]


def compare(
    seq: int, causal: bool, rounds: int, batch: int, *, heads: int = HEADS, head_dim: int = HEAD_DIM
) -> Found:
    """Times of one shape, and the ratios of our time to each other's in the same round."""
    q, k, v = normal(*[(BATCH, heads, seq, head_dim)] * 3)
    contestants: dict[str, Callable[[], Array]] = {"ours": _ours(q, k, v, causal)}
    remarks: list[str] = []
    try:
        contestants["torch"] = _torch(q, k, v, causal)
    except ImportError as error:
        remarks.append(f"no comparison with PyTorch: {error}; pip install torch")
    contestants["numpy N²"] = functools.partial(dense_attention, q, k, v, causal)
    results = {name: work() for name, work in contestants.items()}
    with threadpool_limits(THREADS, "blas"):
        samples = interleaved(contestants, rounds=rounds, batch=batch, pause=_SPIN_S)
    settings = {"N": seq, "causal": causal}
    found: Found = [*remarks]
    for name, turns in samples.items():
        found.append(measured(name, "ms", [t * MS for t in flat(turns)], config=settings))
    for name in list(samples)[1:]:
        apart = float(np.abs(results["ours"] - results[name]).max())
        if not apart <= AGREEMENT:
            found.append(f"WRONG: ours and {name} differ by {apart:g} at N={seq} causal={causal}")
        goal = Goal("<=", RATIO_GOAL) if name == "torch" else None
        values = ratios(samples["ours"], samples[name])
        found.append(
            measured(
                f"time of ours / {name}", "x", values, config=settings, goal=goal, headline=name == "torch"
            )
        )
    return found


CPU_REMARKS: Final = (
    f"f32, B{BATCH} H{HEADS} d{HEAD_DIM}, {THREADS} threads for each contestant",
    "contestants have turns of several calls, of which the first two do not count: PyTorch's "
    "OpenMP threads spin for about 5 ms after a call, at the expense of the next contestant",
    "a ratio is of the medians of the same round; its n is the number of rounds",
)


def _ours(q: Array, k: Array, v: Array, causal: bool) -> Callable[[], Array]:
    out = np.empty_like(q)

    def attend() -> Array:
        attention_cpu(q, k, v, out, None, softmax_scale=None, causal=causal, threads=THREADS)
        return out

    return attend


def _torch(q: Array, k: Array, v: Array, causal: bool) -> Callable[[], Array]:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(THREADS)
    tensors = [torch.from_numpy(array) for array in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> Array:
        with torch.no_grad():
            return attend(*tensors, is_causal=causal).numpy()  # type: ignore[no-any-return]  # torch is untyped here

    return run


def dense_attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Plain attention in numpy: in f32, with the whole matrix of scores."""
    scores = (q * np.float32(q.shape[-1] ** -0.5)) @ k.swapaxes(2, 3)
    if causal:
        rows, columns = scores.shape[-2:]
        last = np.arange(rows)[:, None] + causal_offset(True, rows, columns)
        scores[..., np.arange(columns) > last] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.asarray(scores @ v, np.float32)
