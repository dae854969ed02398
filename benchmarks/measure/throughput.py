"""The throughput of the interpreter: thread-instructions in a second of CPU time, beside its goals."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any, Final

import numpy as np

from benchmarks.measure.interpreter import Run, launch
from benchmarks.measure.sanitizers import TRITON, triton_launch
from flash.commands.measure.record import (
    Goal,
    Job,
    Rows,
    Setting,
    Work,
    flat,
    interleaved,
    measured,
    ratios,
    seconds,
)
from flash.commands.measure.report import ROOT
from flash.operands.dtype_names import DTypeName
from ptxgen import interpreter
from ptxgen.parse import parse

SANITIZED_GOAL: Final = 1.5  # times a plain run
TRITON_GOAL: Final = 20.0  # M thread-instructions/s, of the median launch
NVCC_GOAL: Final = 5.0
THROUGHPUT_REMARKS: Final = (
    "throughput is of launches whose programs are cached, in CPU time; sums of tensor cores are computed by "
    "machine code where the extra `compiled` is installed, else by numpy",
    "the launches of nvcc's and Triton's kernels are larger than most in tests/interpreter, whose medians "
    "are lower: 4.9 to 5.3 M thread-instructions/s for nvcc's 412 launches, 20.4 M for Triton's 34, when "
    "last measured",
)

# By name: the goal in M thread-instructions/s, head_dim, heads, sequence, causal, the type and the target.
_OWN: Final[dict[str, tuple[float, int, int, int, bool, DTypeName, str]]] = {
    "f32": (300.0, 64, 32, 256, False, "f32", "sm_80"),
    "f16": (80.0, 128, 16, 256, False, "f16", "sm_80"),
    "Hopper": (60.0, 128, 8, 512, False, "f16", "sm_90a"),
    "Hopper causal": (60.0, 128, 8, 512, True, "f16", "sm_90a"),
}
_SM: Final = "sm_80"  # of nvcc's kernels

_clocked: Final = functools.partial(seconds, clock=time.process_time)


def throughput_jobs(quick: bool) -> list[Job]:
    """Jobs: our kernels, plain and sanitized, and launches of kernels of Triton and nvcc."""
    repeats = 2 if quick else 5
    return [
        *(Job(f"throughput of {name}", functools.partial(own, name, repeats)) for name in _OWN),
        Job("throughput of Triton's kernels", functools.partial(_triton, repeats)),
        Job("throughput of nvcc's kernels", functools.partial(_nvcc, repeats)),
    ]


def own(name: str, repeats: int) -> Rows:
    """The throughput of one of our kernels, and the time of a sanitized run against a plain one."""
    least, head_dim, heads, seq, causal, dtype, target = _OWN[name]
    run, ctas = launch(head_dim, 1, heads, seq, causal, dtype, target)
    works: dict[str, Work] = {"plain": run, "sanitized": functools.partial(run, sanitize="all")}
    executed = run().counters.thread_instructions
    works["sanitized"]()  # not timed: it generates the program
    samples = interleaved(works, rounds=repeats, batch=1, dropped=0, timer=_clocked)
    settings: dict[str, Setting] = {"kernel": name, "d": head_dim, "H": heads, "N": seq, "CTAs": ctas}
    speed = [executed / t / 1e6 for t in flat(samples["plain"])]
    slower = ratios(samples["sanitized"], samples["plain"])
    goal, slowest = Goal(">=", least), Goal("<=", SANITIZED_GOAL)
    return [
        measured("throughput", "M thread-instr./s", speed, config=settings, goal=goal, headline=True),
        measured("sanitized / plain", "x", slower, config=settings, goal=slowest, headline=True),
    ]


def _triton(repeats: int) -> Rows:
    return _median("Triton", [triton_launch(name) for name in TRITON], TRITON_GOAL, repeats)


def _nvcc(repeats: int) -> Rows:
    return _median("nvcc", nvcc_launches(), NVCC_GOAL, repeats)


def _median(compiler: str, runs: list[Run], least: float, repeats: int) -> Rows:
    """The median of the throughputs of launches, in each of some rounds."""
    executed = [run().counters.thread_instructions for run in runs]
    rounds = [
        statistics.median(n / _clocked(run) / 1e6 for run, n in zip(runs, executed, strict=True))
        for _ in range(repeats)
    ]
    settings: dict[str, Setting] = {"compiler": compiler, "launches": len(runs)}
    goal = Goal(">=", least)
    return [measured("median launch", "M thread-instr./s", rounds, config=settings, goal=goal, headline=True)]


def nvcc_launches() -> list[Run]:
    """Some launches of tests/interpreter/test_nvcc_programs.py. They are larger than most there: the median
    here executes 19,600 thread-instructions, that of all launches there 5,500.
    """
    rng = np.random.default_rng(0)

    def words(*shape: int) -> Any:
        return rng.integers(-1000, 1000, shape, np.int32)

    def floats(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32)

    wide = words(256).astype(np.int64)
    return [
        _launch("integers", "bytes_at_once", [words(64), words(64), words(6, 64)], block=64),
        _launch("integers", "dot_products", [words(64), words(64), words(4, 64)], block=64),
        _launch("scan", "scan_hillis_steele", [words(100), words(100), 100], block=128, dynamic_smem=800),
        _launch("scan", "scan_blelloch", [words(256), words(256)], block=128),
        _launch("scan", "scan_warp", [wide, wide.copy()], block=256),
        _launch("reduce", "reduce_shuffle", [floats(777), floats(1), 777], block=192),
        _launch("stencils", "heat", [floats(210), floats(210), 7, 6, 5, 0.125], (2, 2, 2), (4, 4, 4)),
    ]


def _launch(program: str, entry: str, args: list[Any], grid: Any = 1, block: Any = 32, **how: Any) -> Run:
    module = parse((ROOT / f"tests/ptx/nvcc/{program}.{_SM}.ptx").read_text(encoding="utf-8"))
    return functools.partial(interpreter.run, module, entry, grid=grid, block=block, args=args, **how)
