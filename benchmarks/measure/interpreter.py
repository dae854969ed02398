"""Measures the interpreter: speed of kernels, growth of its cost, and speed of the parser."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from flash.commands.measure.cpu import normal
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
    timed,
)
from flash.commands.measure.report import ROOT
from flash.contract.catalogue import build
from flash.launch.calls import make_plan
from flash.launch.checks import alignment, check
from flash.operands.dtype_names import DTypeName
from flash.problem.config import AttentionConfig
from ptxgen import interpreter
from ptxgen.arrays.views import view
from ptxgen.ir import Instr, Module
from ptxgen.parse import parse

STEPWISE_GOAL: Final = 3.0
MMA_GOAL_MS: Final = 200.0
PARSE_GOAL: Final = 30_000.0  # instructions/s

_INTERPRETED: Final = (  # head_dim, batch, heads, sequence, causal
    (64, 1, 1, 64, False),
    (64, 2, 4, 200, True),
    (128, 1, 2, 256, False),
    (40, 1, 2, 113, True),
)
_MANY_HEADS: Final = 8  # enough threads for efficient numpy loops
_LENGTHS: Final = (256, 512, 1024)  # with _MANY_HEADS heads
_HEADS: Final = (1, 2, 4, 8, 16)  # with seqlen 256
# Compiled by Triton for 4 warps: 64 queries a CTA, head_dim 64 (tests/ptx/make_triton.py).
MMA: Final = "tests/ptx/triton/attention.sm_80.ptx"
_MMA_QUERIES, _MMA_THREADS, _MMA_SHARED = 64, 128, 16384

Run = Callable[..., interpreter.Result]


def interpreter_jobs(quick: bool) -> list[Job]:
    """Jobs: whole kernels, ways to run them, growth, and the parser."""
    repeats = 2 if quick else 5
    shapes = _INTERPRETED[:1] if quick else _INTERPRETED
    return [
        *(
            Job(f"interpret d={d} B{b} H{h} N={n}", functools.partial(kernel, s, repeats))
            for s in shapes
            for d, b, h, n, _ in (s,)
        ),
        Job("generated and stepwise", functools.partial(_stepwise, repeats)),
        Job("mma.sync attention", functools.partial(_mma, repeats)),
        Job("growth", functools.partial(_growth, _HEADS[:3] if quick else _HEADS, repeats)),
        Job("parse", functools.partial(_parse, repeats)),
    ]


def launch(
    head_dim: int,
    batch: int,
    heads: int,
    seq: int,
    causal: bool,
    dtype: DTypeName = "f32",
    target: str = "sm_80",
) -> tuple[Run, int]:
    """A launch of the default kernel of a target, and its number of CTAs."""
    config = AttentionConfig(head_dim, causal=causal, dtype=dtype, target=target)
    numbers = normal(*[(batch, heads, seq, head_dim)] * 4)
    arrays = [view(x.astype(config.element.numpy), "array") for x in numbers]
    q, k, v, out = arrays
    geometry = check(config, q, k, v, out)
    pointers = tuple(array.pointer for array in arrays)
    built = build(config.kernel(None, alignment(config, geometry, *pointers)))
    plan = make_plan(built, geometry, config.scale, pointers)
    memory = [np.asarray(array.owner) for array in arrays]

    def run(**how: Any) -> interpreter.Result:
        return interpreter.run(
            built.module,
            grid=plan.grid,
            block=plan.block,
            args=plan.on_host(memory),
            dynamic_smem=plan.dynamic_shared,
            **how,
        )

    return run, math.prod(plan.grid)


def kernel(shape: tuple[int, int, int, int, bool], repeats: int) -> Rows:
    """Time and speed of one launch, plain, sanitized and profiled, with programs cached by a first
    launch.
    """
    run, _ = launch(*shape)
    works: dict[str, Work] = {
        "plain": run,
        "sanitized": functools.partial(run, sanitize=True),
        "profiled": functools.partial(run, profile=True),
    }
    counters = run().counters
    for work in works.values():
        work()  # not timed: it generates the program
    samples = interleaved(works, rounds=repeats, batch=1, dropped=0)
    plain = flat(samples["plain"])
    names = ("d", "B", "H", "N", "causal")
    settings: dict[str, Setting] = dict(zip(names, shape, strict=True))
    speed = [counters.thread_instructions / t / 1e6 for t in plain]
    return [
        measured("interpreter", "ms", [t * MS for t in plain], config=settings),
        measured("speed", "M thread-instr./s", speed, config=settings, headline=True),
        *(
            measured(
                f"{name} / plain",
                "x",
                ratios(samples[name], samples["plain"]),
                config=settings,
                headline=True,
            )
            for name in ("sanitized", "profiled")
        ),
    ]


def _stepwise(repeats: int) -> Rows:
    """The time of the f32 kernel, interpreted instruction by instruction, as a multiple of that with
    generated functions.
    """
    run, _ = launch(64, 1, 1, 64, False)
    works: dict[str, Work] = {"generated": run, "stepwise": functools.partial(run, stepwise=True)}
    for work in works.values():
        work()
    samples = interleaved(works, rounds=repeats, batch=1, dropped=0)
    slower = ratios(samples["stepwise"], samples["generated"])
    settings = {"d": 64, "H": 1, "N": 64}
    goal = Goal(">=", STEPWISE_GOAL)
    return [measured("stepwise / generated", "x", slower, config=settings, goal=goal, headline=True)]


def _mma(repeats: int) -> Rows:
    """Time of f16 attention on tensor cores: 4 warps a CTA, head_dim 64, 256 keys, 2 heads."""
    module = parse((ROOT / MMA).read_text(encoding="utf-8"))
    heads, seq, head_dim = 2, 256, 64
    q, k, v = (x.astype(np.float16) for x in normal(*[(heads, seq, head_dim)] * 3))
    out, scratch = np.zeros_like(q), np.zeros(1, np.uint8)

    def run() -> interpreter.Result:
        return interpreter.run(
            module,
            grid=(seq // _MMA_QUERIES, heads),
            block=_MMA_THREADS,
            args=[q, k, v, out, seq, seq, head_dim**-0.5, scratch, scratch],
            dynamic_smem=_MMA_SHARED,
        )

    times = [t * MS for t in timed(run, repeats)]
    settings = {"d": head_dim, "H": heads, "N": seq}
    goal = Goal("<=", MMA_GOAL_MS)
    return [measured("mma.sync attention", "ms", times, config=settings, goal=goal, headline=True)]


def growth(shape: tuple[int, ...], along: Mapping[str, Sequence[int]], repeats: int) -> list[Measurement]:
    """The time of launches with growing work: growing seqlen with 8 heads (`N`), growing heads with seqlen
    256 (`H`).

    `shape` begins with head_dim; `along` holds the values of `N` and `H`.
    """
    (head_dim,) = shape
    results = []
    for what, sizes in along.items():
        for size in sizes:
            heads, seq = (_MANY_HEADS, size) if what == "N" else (size, 256)
            run, ctas = launch(head_dim, 1, heads, seq, False)
            times = timed(run, max(repeats // 2, 1))
            done = run().counters.thread_instructions
            settings: dict[str, Setting] = {"along": what, "H": heads, "N": seq, "CTAs": ctas}
            results.append(measured("time", "ms", [t * MS for t in times], config=settings))
            each = [t * 1e9 / done for t in times]
            results.append(measured("time / work", "ns/thread-instr.", each, config=settings))
    return results


def parsing(texts: Mapping[str, str], repeats: int) -> list[Measurement]:
    """The speed of parsing PTX texts, given by name."""
    results = []
    for name, text in texts.items():
        count = _instructions(parse(text))
        times = timed(functools.partial(parse, text), 4 * repeats)
        speed = [count / t for t in times]
        settings: dict[str, Setting] = {"text": name, "instructions": count}
        goal = Goal(">=", PARSE_GOAL)
        results.append(measured("parsing", "instr./s", speed, config=settings, goal=goal, headline=True))
    return results


def _growth(heads: Sequence[int], repeats: int) -> Rows:
    return [*growth((64,), {"N": _LENGTHS, "H": heads}, repeats)]


def _parse(repeats: int) -> Rows:
    texts = {
        "ptxgen d=128": build(AttentionConfig(128).kernel()).text,
        "Triton attention": (ROOT / MMA).read_text(encoding="utf-8"),
        "nvcc matmul": (ROOT / "tests/ptx/nvcc/matmul.sm_80.ptx").read_text(encoding="utf-8"),
    }
    return [*parsing(texts, repeats)]


def _instructions(module: Module) -> int:
    routines: tuple[Any, ...] = (*module.kernels, *module.functions)
    bodies = (r.body or () for r in routines)
    return sum(isinstance(s, Instr) for body in bodies for s in body)
