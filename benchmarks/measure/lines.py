"""Measures the time that a line of emitted text takes, for every kernel of the documentation and for each
kind of kernel of `flash`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.measure.build import LINE_GOAL_US
from benchmarks.measure.gallery import function, sources
from flash.commands.measure.record import US, Goal, Job, Rows, Setting, measured, seconds
from flash.contract.catalogue import emit
from flash.kernels.append import AppendConfig, append_kernel
from flash.kernels.merge import MergeConfig, merge_kernel
from flash.operands.dtypes import DTYPES
from flash.problem.config import AttentionConfig
from flash.problem.features import Features
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
}
LINE_REMARKS: Final = (
    "from a Python function or a configuration to PTX text, in a warm process, in time of the processor; "
    "verification has its own line",
)


def line_jobs(quick: bool) -> list[Job]:
    """One job for each kernel whose emission is timed."""
    repeats = 5 if quick else 25
    return [Job(name, functools.partial(per_line, name, emit, repeats)) for name, emit in emitters().items()]


def emitters() -> dict[str, Callable[[], ir.Module]]:
    """The functions that emit a kernel anew, by the kernel's name."""
    table: dict[str, Callable[[], ir.Module]] = {}
    for name in sources():
        table[name] = functools.partial(function(name).emit, **SIZES.get(name, {}))
    for name, config in FLASH.items():
        table[f"flash: {name}"] = functools.partial(emit, config.kernel())
    sm_80, f32, f16 = target("sm_80"), DTYPES["f32"], DTYPES["f16"]
    append = AppendConfig(sm_80, 128, 128, f16, Features(), 64, False, False)
    merge = MergeConfig(sm_80, 128, f16, f32, 16, 16, False)
    table["flash: append"] = functools.partial(append_kernel, append)
    table["flash: merge"] = functools.partial(merge_kernel, merge)
    return table


def per_line(name: str, emit: Callable[[], ir.Module], repeats: int) -> Rows:
    """The time of a line of one kernel, to emit and print it, and to verify it."""
    module = emit()
    lines = render(module).count("\n")
    config: dict[str, Setting] = {"kernel": name, "lines": lines}
    emission, verification = (
        [seconds(work, time.process_time) * US / lines for _ in range(repeats)]
        for work in (lambda: render(emit()), lambda: require_valid(module))
    )
    goal = Goal("<=", LINE_GOAL_US)
    return [
        measured("emission, per line", "us", emission, config=config, goal=goal),
        measured("verification, per line", "us", verification, config=config),
    ]
