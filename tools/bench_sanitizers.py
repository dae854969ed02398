"""The `sanitizers` section of `tools/bench.py`: what a proof and a watched run cost."""

from __future__ import annotations

import functools
from typing import Final

from flash.build import build
from flash.config import AttentionConfig
from flash.contract import global_contract
from ptxgen.check.global_proof import prove_global
from ptxgen.check.proof import prove_shared
from tools.bench_interpreter import launch
from tools.bench_record import (
    Found,
    Goal,
    Job,
    Setting,
    Work,
    interleaved,
    measured,
    ratios,
    timed,
)

PROOF_GOAL_S: Final = 0.3  # of a default kernel's shared memory
RACE_GOALS: Final = {"f32": 7.0, "f16": 2.5}  # times the plain run: scalar, and tensor cores

_PROVED: Final = (64, 128, 256)
_WATCHED: Final = ((64, 1, 2, 200, True), (128, 1, 2, 256, False))


def sanitizer_jobs(quick: bool) -> list[Job]:
    """Proofs of default kernels, and watched runs beside plain ones, in both types."""
    repeats = 2 if quick else 5
    dims = _PROVED[:1] if quick else _PROVED
    shapes = _WATCHED[:1] if quick else _WATCHED
    return [
        *(
            Job(f"prove {dtype} d={d}", functools.partial(proofs, d, dtype, repeats))
            for dtype in RACE_GOALS
            for d in dims
        ),
        *(
            Job(f"watch {dtype} d={shape[0]}", functools.partial(watched, shape, dtype, repeats))
            for dtype in RACE_GOALS
            for shape in shapes
        ),
    ]


def proofs(head_dim: int, dtype: str, repeats: int) -> Found:
    """Seconds for the proofs of the default causal kernel."""
    kernel = AttentionConfig(head_dim, dtype=dtype, causal=True, return_lse=True).kernel()
    module = build(kernel).module
    settings: dict[str, Setting] = {"d": head_dim, "dtype": dtype}
    block, contract = kernel.tiling.threads, global_contract(kernel)
    shared = timed(lambda: prove_shared(module, block=block), repeats)
    whole = timed(lambda: prove_global(module, block=block, contract=contract), repeats)
    goal = Goal("<=", PROOF_GOAL_S)
    return [
        measured("shared memory proved", "s", shared, config=settings, goal=goal, headline=True),
        measured("global memory proved", "s", whole, config=settings, goal=goal, headline=True),
    ]


def watched(shape: tuple[int, int, int, int, bool], dtype: str, repeats: int) -> Found:
    """A run with the race detector, and with all sanitizers, against a plain one."""
    run, _ = launch(*shape, dtype)
    works: dict[str, Work] = {
        "plain": run,
        "race": functools.partial(run, sanitize="race"),
        "all": functools.partial(run, sanitize="all"),
    }
    for work in works.values():
        work()  # each generates its program once, which does not count
    samples = interleaved(works, rounds=repeats, batch=1, dropped=0)
    settings: dict[str, Setting] = {
        **dict(zip(("d", "B", "H", "N", "causal"), shape, strict=True)),
        "dtype": dtype,
    }
    goal = Goal("<=", RACE_GOALS[dtype])
    return [
        measured(
            "race / plain", "x", ratios(samples["race"], samples["plain"]), config=settings,
            goal=goal, headline=True,
        ),
        measured(
            "all sanitizers / plain", "x", ratios(samples["all"], samples["plain"]),
            config=settings, headline=True,
        ),
    ]  # fmt: skip
