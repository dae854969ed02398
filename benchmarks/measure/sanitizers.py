"""The `sanitizers` section of `ptxgen bench`: the time of proofs and of sanitized runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks.measure.interpreter import Run, launch
from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Goal, Job, Rows, Setting, Work, interleaved, measured, ratios, timed
from flash.commands.measure.report import ROOT
from flash.contract.catalogue import build
from flash.operands.dtype_names import DTypeName
from flash.problem.config import AttentionConfig
from ptxgen import interpreter
from ptxgen.check.prove import prove_global, prove_shared
from ptxgen.parse import parse

PROOF_GOAL_S: Final = 0.3  # for shared memory, or global memory, of a default kernel
RACE_GOALS: Final[dict[DTypeName, float]] = {
    "f32": 7.0,
    "f16": 2.5,
}  # times a plain run: scalar kernels, and tensor cores

_PROVED: Final = (64, 128, 256)
TRITON: Final = ("attention.sm_80", "attention.sm_90a", "matmul_3_stages.sm_90a")
_HEADS, _SEQ, _DIM = 2, 256, 64  # of the launches of Triton's kernels
_WATCHED: Final = ((64, 1, 2, 200, True), (128, 1, 2, 256, False))


def sanitizer_jobs(quick: bool) -> list[Job]:
    """Jobs: proofs of default kernels, and sanitized runs against plain ones, in f32 and f16."""
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
        *(
            Job(f"watch Triton's {name}", functools.partial(watched_triton, name, repeats))
            for name in (TRITON[:1] if quick else TRITON)
        ),
    ]


def proofs(head_dim: int, dtype: DTypeName, repeats: int) -> Rows:
    """Seconds for the proofs of the default causal kernel."""
    kernel = AttentionConfig(head_dim, dtype=dtype, causal=True, return_lse=True).kernel()
    built = build(kernel)
    module = built.module
    settings: dict[str, Setting] = {"d": head_dim, "dtype": dtype}
    block, contract = built.threads, built.promised
    shared = timed(lambda: prove_shared(module, block=block), repeats)
    whole = timed(lambda: prove_global(module, block=block, contract=contract), repeats)
    goal = Goal("<=", PROOF_GOAL_S)
    return [
        measured("shared memory proved", "s", shared, config=settings, goal=goal, headline=True),
        measured("global memory proved", "s", whole, config=settings, goal=goal, headline=True),
    ]


def watched(shape: tuple[int, int, int, int, bool], dtype: DTypeName, repeats: int) -> Rows:
    """Times of a run with the race detector, and with all sanitizers, against a plain run."""
    settings: dict[str, Setting] = {
        **dict(zip(("d", "B", "H", "N", "causal"), shape, strict=True)),
        "dtype": dtype,
    }
    return _against_plain(launch(*shape, dtype)[0], settings, dtype, repeats)


def watched_triton(name: str, repeats: int) -> Rows:
    """Times of a tensor-core kernel of Triton with sanitizers against a plain run."""
    return _against_plain(triton_launch(name), {"Triton": name, "N": _SEQ}, "f16", repeats)


def triton_launch(name: str) -> Run:
    """A launch of a tensor-core kernel of Triton: `mma.sync` for sm_80, `wgmma` for sm_90a."""
    folder = ROOT / "tests/ptx/triton"
    facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    module = parse((folder / f"{name}.ptx").read_text(encoding="utf-8"))
    scratch = [np.zeros(1, np.uint8)] * 2  # not used by any of the kernels
    if facts["entry"] == "attention":
        q, k, v = (x.astype(np.float16) for x in normal(*[(_HEADS, _SEQ, _DIM)] * 3))
        args = [q, k, v, np.zeros_like(q), _SEQ, _SEQ, _DIM**-0.5]
        grid = (_SEQ // facts["constants"]["BM"], _HEADS)
    else:
        a, b = (x.astype(np.float16) for x in normal(*[(_SEQ, _SEQ)] * 2))
        args = [a, b, np.zeros((_SEQ, _SEQ), np.float32), _SEQ, _SEQ]
        grid = (_SEQ // facts["constants"]["BM"], _SEQ // facts["constants"]["BN"])

    def run(**how: Any) -> interpreter.Result:
        return interpreter.run(
            module,
            grid=grid,
            block=facts["block"],
            args=[*args, *scratch],
            dynamic_smem=facts["shared"],
            **how,
        )

    return run


def _against_plain(
    run: Callable[..., interpreter.Result], settings: dict[str, Setting], dtype: DTypeName, repeats: int
) -> Rows:
    works: dict[str, Work] = {
        "plain": run,
        "race": functools.partial(run, sanitize="race"),
        "all": functools.partial(run, sanitize="all"),
    }
    for work in works.values():
        work()  # not timed: it generates the program
    samples = interleaved(works, rounds=repeats, batch=1, dropped=0)
    goal = Goal("<=", RACE_GOALS[dtype])
    return [
        measured(
            "race / plain",
            "x",
            ratios(samples["race"], samples["plain"]),
            config=settings,
            goal=goal,
            headline=True,
        ),
        measured(
            "all sanitizers / plain",
            "x",
            ratios(samples["all"], samples["plain"]),
            config=settings,
            headline=True,
        ),
    ]
