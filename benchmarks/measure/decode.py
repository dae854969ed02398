"""Measures the global memory traffic of decode kernels, against the bytes that a decode step cannot avoid
reading and writing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.calls.memory import HostMemory
from flash.calls.step import Step
from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.decode.plan import CacheCall, kernel_of, steps_of
from flash.operands.dtype_names import DTypeName
from flash.operands.dtypes import F32_BYTES
from flash.problem.config import AttentionConfig
from flash.problem.rotary import rotary_tables
from ptxgen import interpreter
from ptxgen.arrays.views import ArrayView, host_array, view
from ptxgen.target import target as find_target

Array = NDArray[Any]

TARGET: Final = "sm_90"
SECTOR_BYTES: Final = 32
TRAFFIC_GOAL: Final = 1.02

DECODE_REMARKS: Final = (
    "one token of one sequence; bytes are those of the sectors that warps ask for, as the "
    "interpreter counts them, whether a cache has them or not",
    "unavoidable are K and V, Q, O and, with several splits, parts and their lse, once written and "
    "once read; block tables are not among them, of which each warp asks for itself",
    "with new=1 the row of the token is appended and turned, too: it is read and written once, and "
    "its angles are read",
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """One decode step: sizes of its arrays, all of `dtype`; `page_size` 0 is contiguous. With `new`
    1 the last of `seq_k` rows is appended, and the new key and the query are rotated.
    """

    dtype: DTypeName
    head_dim: int
    heads: int
    kv_heads: int
    seq_k: int
    splits: int
    page_size: int = 0
    new: int = 0

    @property
    def settings(self) -> dict[str, Setting]:
        """The step as the settings of a measurement."""
        return {
            "dtype": self.dtype,
            "d": self.head_dim,
            "heads": self.heads,
            "kv": self.kv_heads,
            "N": self.seq_k,
            "splits": self.splits,
            "page": self.page_size,
            "new": self.new,
        }


STEPS: Final = (
    Decoding("f16", 128, 8, 1, 4096, 4),
    Decoding("bf16", 128, 8, 8, 512, 1),
    Decoding("f16", 64, 32, 8, 1024, 2),
    Decoding("f32", 128, 8, 1, 2048, 4),
    Decoding("f16", 128, 8, 1, 4096, 4, 16),
    Decoding("f16", 128, 8, 1, 4096, 4, 64),
    Decoding("f16", 128, 8, 1, 4096, 4, 256),
    Decoding("f16", 128, 8, 1, 4096, 4, 64, new=1),
    Decoding("f32", 128, 8, 1, 2048, 4, new=1),
)


def decode_jobs(quick: bool) -> list[Job]:
    """One job for each decode step that is measured."""
    return [
        Job(
            f"decode {step.dtype} page {step.page_size}" + (" append" if step.new else ""),
            functools.partial(traffic, step),
        )
        for step in (STEPS[:1] if quick else STEPS)
    ]


def traffic(step: Decoding) -> Rows:
    """Bytes that one step moves, their ratio to the unavoidable bytes, and the launches."""
    launches = _launches(step)
    moved, needed = moved_bytes(step), unavoidable_bytes(step)
    return [
        measured("launches", "", [len(launches)], config=step.settings),
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


def unavoidable_bytes(step: Decoding) -> int:
    """Bytes of K and V read once, Q, O, split results and new rows written and read, and angles."""
    nbytes = AttentionConfig(step.head_dim, dtype=step.dtype).element.nbytes
    rows = step.seq_k * step.kv_heads + step.heads
    parts = step.heads * step.splits * (step.head_dim + 1) * F32_BYTES
    new = step.new * (2 * step.kv_heads * step.head_dim * nbytes + step.head_dim * F32_BYTES)
    return 2 * rows * step.head_dim * nbytes + (2 * parts if step.splits > 1 else 0) + new


def moved_bytes(step: Decoding) -> int:
    """Bytes that all kernels of the step read and write."""
    total = 0
    for launch in _launches(step):
        memory = [host_array(array) for array in launch.arrays]
        counters = interpreter.run(
            launch.build.module,
            grid=launch.plan.grid,
            block=launch.plan.block,
            args=launch.plan.on_host(memory),
            dynamic_smem=launch.plan.dynamic_shared,
            profile=True,
        ).counters
        read, written = counters.global_sectors_read, counters.global_sectors_written
        assert read is not None, "the launch was profiled"
        assert written is not None, "the launch was profiled"
        total += (read + written) * SECTOR_BYTES
    return total


def _launches(step: Decoding) -> list[Step]:
    call = _call(step)
    kernel = kernel_of(call, find_target(TARGET), step.splits)
    return steps_of(call, kernel, step.splits, HostMemory())


def _call(step: Decoding) -> CacheCall:
    config = AttentionConfig(step.head_dim, dtype=step.dtype, causal=True)
    shape = (1, step.kv_heads, step.seq_k)
    operands = {"seqused_k": np.array([step.seq_k], np.int32)}
    if step.page_size:
        pages = -(-step.seq_k // step.page_size)
        shape = (pages, step.kv_heads, step.page_size)
        operands["block_table"] = np.arange(pages, dtype=np.int32)[None, ::-1].copy()
    new = (1, step.heads, 1, step.head_dim)
    shapes = (new, (*shape, step.head_dim), (*shape, step.head_dim), new)
    q, k, v, out = (view(x.astype(config.element.numpy), "array") for x in normal(*shapes))
    inputs = {name: view(array, name) for name, array in operands.items()}
    return CacheCall(
        config,
        q,
        k,
        v,
        out,
        {},
        inputs | (_new_rows(step, config) if step.new else {}),
        step.page_size,
        step.seq_k,
        config.scale,
    )


def _new_rows(step: Decoding, config: AttentionConfig) -> dict[str, ArrayView]:
    shape = (1, step.kv_heads, step.new, step.head_dim)
    k, v = (view(x.astype(config.element.numpy), "array") for x in normal(shape, shape))
    cos, sin = (view(x, "table") for x in rotary_tables(step.seq_k, step.head_dim))
    return {"k_new": k, "v_new": v, "rotary_cos": cos, "rotary_sin": sin}
