"""Measures the global memory traffic of the kernel for packed batches over pages, against the bytes that its
CTAs cannot avoid reading and writing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.decode import SECTOR_BYTES, TARGET, TRAFFIC_GOAL
from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.contract.catalogue import build
from flash.launch.calls import make_plan
from flash.launch.checks import Geometry, check
from flash.launch.kernel_choice import kernel_of
from flash.operands.dtype_names import DTypeName
from flash.operands.dtypes import I32
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from ptxgen import interpreter
from ptxgen.arrays.views import view
from ptxgen.target import target as find_target

Array = NDArray[Any]

SERVING_REMARKS: Final = (
    "serving: one launch for a batch of sequences of queries and keys, over pages; unavoidable are the "
    "keys and values that a row of a CTA sees, once for each CTA, Q, O, and the entries of the block table "
    "that it needs for K and for V",
)

Lengths = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """One step of the sequences of `lengths`, (queries, keys) each, with pages of `page_size`. It is causal,
    or of a prefix that tokens of several sequences see, which are then the queries of one.
    """

    dtype: DTypeName
    head_dim: int
    heads: int
    kv_heads: int
    page_size: int
    lengths: Lengths
    causal: bool = True

    @property
    def settings(self) -> dict[str, Setting]:
        """The step as the settings of a measurement."""
        return {
            "dtype": self.dtype,
            "d": self.head_dim,
            "heads": self.heads,
            "kv": self.kv_heads,
            "page": self.page_size,
            "causal": self.causal,
            "queries": " ".join(str(queries) for queries, _ in self.lengths),
            "keys": " ".join(str(keys) for _, keys in self.lengths),
        }

    @property
    def longest(self) -> int:
        """The most queries of a sequence."""
        return max(queries for queries, _ in self.lengths)

    @property
    def config(self) -> AttentionConfig:
        """The kernel's config: attention of packed sequences to paged keys and values."""
        return AttentionConfig(
            self.head_dim, dtype=self.dtype, causal=self.causal, varlen=True, page_size=self.page_size
        )


# A part of a prompt after a prefix, a short prompt, and single tokens; then single tokens alone.
MIXED: Final = ((1, 3000), (96, 1500), (1, 1111), (1, 40), (40, 40))
TOKENS: Final = ((1, 2048), (1, 777), (1, 1500))
# One token of each of 16 sequences that share a prefix: each sequence reads it, or one read serves all.
_SHARING: Final = 16
PREFIX: Final = (
    Serving("bf16", 128, 8, 2, 16, ((1, 1024),) * _SHARING, causal=False),
    Serving("bf16", 128, 8, 2, 16, ((_SHARING, 1024),), causal=False),
)
STEPS: Final = (
    Serving("f16", 128, 8, 2, 16, MIXED),
    Serving("bf16", 128, 8, 2, 64, MIXED),
    Serving("f16", 64, 8, 2, 16, MIXED),
    Serving("f32", 128, 8, 2, 16, MIXED),
    Serving("f16", 128, 8, 2, 16, TOKENS),
    Serving("f16", 128, 4, 4, 16, TOKENS),
    *PREFIX,
)


def serving_jobs(quick: bool) -> list[Job]:
    """One job for each batch of sequences that is measured."""
    return [
        Job(f"serving {step.dtype} d{step.head_dim} page {step.page_size}", functools.partial(traffic, step))
        for step in (STEPS[:1] if quick else STEPS)
    ]


def traffic(step: Serving) -> Rows:
    """Bytes that one step moves, and their ratio to the unavoidable bytes."""
    moved, needed = moved_bytes(step), unavoidable_bytes(step)
    return [
        measured("moved", "KiB", [moved / 1024], config=step.settings),
        measured(
            "moved / unavoidable",
            "x",
            [moved / needed],
            config=step.settings,
            goal=Goal("<=", TRAFFIC_GOAL),
            headline=True,
        ),
    ]


def unavoidable_bytes(step: Serving) -> int:
    """Bytes of the keys and values that the rows of each CTA see, of the entries of the block table for
    them, and of Q and O.
    """
    kernel, row = _kernel(step), step.head_dim * step.config.element.nbytes
    group = step.heads // step.kv_heads
    per_query, heads = (group, step.kv_heads) if kernel.packed else (1, step.heads)
    block, total = kernel.tiling.block_q, 0
    for queries, keys in step.lengths:
        total += 2 * queries * step.heads * row
        for first in range(0, queries * per_query, block):
            last = (min(first + block, queries * per_query) - 1) // per_query
            seen = max(keys - queries + last + 1, 0) if step.causal else keys
            total += 2 * heads * (seen * row + -(-seen // step.page_size) * I32.nbytes)
    return total


def moved_bytes(step: Serving) -> int:
    """Bytes of the sectors that the kernel's warps read and write."""
    arrays, geometry = _call(step)
    built = build(_kernel(step))
    plan = make_plan(built, geometry, step.config.scale, (0,) * len(arrays), step.config.numbers)
    counters = interpreter.run(
        built.module,
        grid=plan.grid,
        block=plan.block,
        args=plan.on_host(list(arrays.values())),
        dynamic_smem=plan.dynamic_shared,
        profile=True,
    ).counters
    read, written = counters.global_sectors_read, counters.global_sectors_written
    assert read is not None, "the launch was profiled"
    assert written is not None, "the launch was profiled"
    return (read + written) * SECTOR_BYTES


def _kernel(step: Serving) -> KernelConfig:
    return kernel_of(step.config, _call(step)[1], find_target(TARGET))


def arrays_of(step: Serving) -> dict[str, Array]:
    """The arrays of a step by name, in the order of the kernel's pointers: q, k and v, out like q, and the
    operands. q is [tokens, heads, head_dim], k and v are [pages, rows, kv_heads, head_dim]; pages are taken
    from the last on.
    """
    config, size = step.config, step.page_size
    counts = [-(-keys // size) for _, keys in step.lengths]
    table = np.zeros((len(counts), max(counts)), np.int32)
    pages = iter(reversed(range(sum(counts))))
    for columns, count in zip(table, counts, strict=True):
        columns[:count] = [next(pages) for _ in range(count)]
    ends = np.cumsum([0, *[queries for queries, _ in step.lengths]]).astype(np.int32)
    of_q = (int(ends[-1]), step.heads, step.head_dim)
    of_k = (sum(counts), size, step.kv_heads, step.head_dim)
    q, k, v, out = (x.astype(config.element.numpy) for x in normal(of_q, of_k, of_k, of_q))
    used = np.array([keys for _, keys in step.lengths], np.int32)
    return {"q": q, "k": k, "v": v, "out": out, "cu_seqlens_q": ends, "seqused_k": used, "block_table": table}


@functools.cache
def _call(step: Serving) -> tuple[dict[str, Array], Geometry]:
    """The arrays of a step and its geometry."""
    arrays = arrays_of(step)
    views = {name: view(array, name) for name, array in arrays.items()}
    geometry = check(
        step.config,
        *(views.pop(name) for name in ("q", "k", "v", "out")),
        layout="bshd",
        operands=views,
        max_seqlen_q=step.longest,
    )
    return arrays, geometry
