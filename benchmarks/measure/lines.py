"""Measures the time that a line of emitted text takes, for every kernel of the documentation and for each
kind of kernel of `flash`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.measure.build import LINE_GOAL_US
from benchmarks.measure.gallery import function, sources
from benchmarks.measure.machine import MACHINE_REMARK, this_machine
from flash import cache_kernels
from flash.cache_kernels import CacheConfig
from flash.commands.measure.record import US, Goal, Job, Measurement, Rows, Setting, measured, seconds
from flash.contract.catalogue import emit
from flash.contract.gradients import emit_gradient
from flash.families.choice import WORKLOADS
from flash.kernels.append import AppendConfig, append_kernel
from flash.kernels.merge import MergeConfig, merge_kernel
from flash.operands.dtypes import DTYPES
from flash.problem.config import AttentionConfig
from flash.problem.features import Features
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import OWNERS, OWNERS_IN_ONE_SWEEP
from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.target import target
from ptxgen.text import render

SIZES: Final[Mapping[str, Mapping[str, Any]]] = {  # of kernels whose static parameters have no default
    "row_sums": {"rows": 4, "columns": 100}
}
_FEATURES: Final[Mapping[str, Any]] = {"causal": True, "softcap": 30.0, "sink": True, "mask": True}
FLASH: Final = {
    "f32": AttentionConfig(128, tile=32),
    "f32, sm_75": AttentionConfig(256, target="sm_75"),
    "f32_grade": AttentionConfig(128, precision="f32_grade"),
    "tf32": AttentionConfig(128, precision="tf32"),
    "f16": AttentionConfig(128, dtype="f16"),
    "f16, causal": AttentionConfig(128, dtype="f16", causal=True),
    "bf16, sm_90": AttentionConfig(64, dtype="bf16", target="sm_90"),
    "f16, features": AttentionConfig(64, dtype="f16", **_FEATURES),
    "f16, varlen": AttentionConfig(64, dtype="f16", varlen=True),
    "f16, sm_90a": AttentionConfig(128, dtype="f16", target="sm_90a"),
    "e4m3, sm_90a": AttentionConfig(128, dtype="e4m3", target="sm_90a"),
    "f32_grade, sm_90a": AttentionConfig(128, precision="f32_grade", target="sm_90a"),
    "latents, sm_90a": AttentionConfig(dtype="f16", target="sm_90a", **WORKLOADS["latents"]),
}
GRADIENTS: Final = {  # of which there is a kernel for each owner
    "f16": AttentionConfig(128, dtype="f16"),
    "f32": AttentionConfig(64),
    "f16, sm_90a": AttentionConfig(128, dtype="f16", target="sm_90a"),
}
TOGETHER: Final = "emission with verification, per line"
FLASH_PREFIX: Final = "flash: "
_ALIGNED: Final = 16  # bytes
LINE_REMARKS: Final = (
    "from a Python function or a configuration to PTX text, in a warm process, in time of the processor; "
    "verification has its own line, and the goal is for both together; the kernels share one process, whose "
    "memory is fragmented after the first few: in a process of its own a kernel takes about a tenth less",
    MACHINE_REMARK,
)


def line_jobs(quick: bool) -> list[Job]:
    """One job for each kernel whose emission is timed, and one that names the slowest of `flash`."""
    repeats = 5 if quick else 25
    measurements: list[Measurement] = []

    def measure(name: str, emit: Callable[[], ir.Module]) -> Rows:
        rows = per_line(name, emit, repeats)
        measurements.extend(row for row in rows if isinstance(row, Measurement))
        return rows

    jobs = [Job(name, functools.partial(measure, name, emit)) for name, emit in emitters().items()]
    jobs.append(Job("this machine", lambda: [this_machine()]))
    return [*jobs, Job("the slowest kernel of flash", lambda: slowest(measurements))]


def slowest(measurements: Sequence[Measurement]) -> Rows:
    """The time of a line of the kernel of `flash` whose lines take longest to emit, print and verify."""
    ours = [
        m for m in measurements if m.name == TOGETHER and str(m.config["kernel"]).startswith(FLASH_PREFIX)
    ]
    return (
        [replace(max(ours, key=lambda m: m.median), name=f"slowest {TOGETHER}", headline=True)]
        if ours
        else []
    )


def emitters() -> dict[str, Callable[[], ir.Module]]:
    """The functions that emit a kernel anew, by the kernel's name."""
    table: dict[str, Callable[[], ir.Module]] = {}
    for name in sources():
        table[name] = functools.partial(function(name).emit, **SIZES.get(name, {}))
    for name, config in FLASH.items():
        table[f"{FLASH_PREFIX}{name}"] = functools.partial(emit, config.kernel())
    for name, config in GRADIENTS.items():
        for owner in dict.fromkeys((*OWNERS, *OWNERS_IN_ONE_SWEEP)):
            kernel = gradient_config(config, owner, target(config.target or "sm_80"), _ALIGNED)
            table[f"{FLASH_PREFIX}gradients by {owner}, {name}"] = functools.partial(emit_gradient, kernel)
    for name, cache, splits in (
        ("decode", CacheConfig(), False),
        ("decode, pages, splits", CacheConfig(64), True),
    ):
        decoding = cache_kernels.decode(
            AttentionConfig(128, dtype="f16"), cache, splits=splits, group=8
        ).config
        table[f"{FLASH_PREFIX}{name}"] = functools.partial(emit, decoding)
    sm_80, f32, f16 = target("sm_80"), DTYPES["f32"], DTYPES["f16"]
    append = AppendConfig(sm_80, 128, 128, f16, Features(), 64, False, False)
    merge = MergeConfig(sm_80, 128, f16, f32, 16, 16, False)
    table[f"{FLASH_PREFIX}append"] = functools.partial(append_kernel, append)
    table[f"{FLASH_PREFIX}merge"] = functools.partial(merge_kernel, merge)
    return table


def per_line(name: str, emit: Callable[[], ir.Module], repeats: int) -> Rows:
    """The time of a line of one kernel, to emit, print and verify it."""
    module = emit()
    lines = render(module).count("\n")
    config: dict[str, Setting] = {"kernel": name, "lines": lines}
    times = [
        [
            seconds(work, time.process_time) * US / lines
            for work in (lambda: render(emit()), lambda: require_valid(module))
        ]
        for _ in range(repeats)
    ]
    emission, verification = zip(*times, strict=True)
    return [
        measured("emission, per line", "us", emission, config=config),
        measured("verification, per line", "us", verification, config=config),
        measured(TOGETHER, "us", [*map(sum, times)], config=config, goal=Goal("<=", LINE_GOAL_US)),
    ]
