"""The quality of kernels, judged without a GPU, and that of Triton's kernels."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from benchmarks.measure.static_gradients import GRADIENT_REMARKS, gradient_jobs
from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Goal, Job, Measurement, Rows, Setting, measured
from flash.commands.measure.report import ROOT
from flash.commands.measure.static_quality import (
    Assembled,
    Counted,
    Subject,
    assembled,
    count,
    counted,
    seen_scores,
)
from flash.contract.catalogue import build
from flash.families.wgmma import WGMMA_TARGET
from flash.problem.config import AttentionConfig
from ptxgen import interpreter
from ptxgen.errors import BackendError
from ptxgen.parse import parse
from ptxgen.runtime.sass import mix
from ptxgen.target import target as find_target

TARGETS: Final = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
# Most machine instructions of an iteration of the main loop, by head_dim: 16-bit types, sm_90a.
LONGEST_LOOP: Final = {64: 400, 128: 440, 256: 410}
DTYPES: Final = ("f16", "bf16", "f32")
HEAD_DIMS: Final = (64, 128)
SEQ: Final = {"f16": 1024, "bf16": 1024, "f32": 256}  # on the interpreter: queries, and keys
TRITON: Final = "tests/ptx/triton/attention_forward_d{d}{suffix}.sm_80"  # .ptx, and .json next to it
TRITON_DTYPE: Final = "f16"
COMPARED: Final = {  # figures that should be at most, or at least, Triton's
    "registers": "<=",
    "instructions": "<=",
    "HMMA share": ">=",
    "main loop": "<=",
}

_PER_SCORES: Final = "per 1000 scores"

STATIC_REMARKS: Final = (
    "Triton's kernel is `attention_forward` of tests/ptx/make_triton.py, f16, with the tile that "
    "ours has on sm_80; its PTX for sm_80 goes through the same assembler for the same target",
    "instructions, shared-memory wavefronts and their conflicts are counted by the interpreter, as "
    "PTX has them, for one head; a score counts if it is seen",
    "the main loop is machine code: the way round it that does all its products, reads of matrices "
    "and copies, and otherwise the shortest; nvdisasm is needed for it",
    *GRADIENT_REMARKS,
)


def static_jobs(quick: bool) -> list[Job]:
    """A job for every kernel and target, which assembles it, and interprets it or models its loop."""
    dtypes, targets = (DTYPES[:1], TARGETS[:1]) if quick else (DTYPES, TARGETS)
    jobs = []
    for dtype, d, causal, name in product(dtypes, LONGEST_LOOP, (False, True), targets):
        if (name == WGMMA_TARGET and dtype == "f32") or (name != WGMMA_TARGET and d not in HEAD_DIMS):
            continue  # f32 has the kernels of sm_90
        config = AttentionConfig(d, dtype=dtype, causal=causal, target=name)
        label = f"{config.kernel().name} {name}"
        jobs.append(Job(label, functools.partial(quality, config)))
    return [*jobs, *gradient_jobs(quick)]


def quality(config: AttentionConfig) -> Rows:
    """The figures of one kernel and, if there is a Triton kernel for its type, the ratios to its figures."""
    kernel = config.kernel()
    t, target = kernel.tiling, kernel.target
    settings: dict[str, Setting] = {
        "dtype": config.element.name,
        "d": t.head_dim,
        "causal": bool(config.causal),
        "target": target.name,
        "tile": t.tile,
        "block_q": t.block_q,
        "threads": t.threads,
    }
    try:
        ours = _Quality(
            kernel.name,
            settings,
            assembled(Subject.of(build(kernel)), target),
            count(config, SEQ[config.element.name]),
        )
        if kernel.family.target is not None:
            return [*ours.rows(), *ours.length(LONGEST_LOOP[t.head_dim])]
        if config.element.name != TRITON_DTYPE:
            return ours.rows()
        theirs = triton(t.head_dim, bool(config.causal), target.name)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    return [*ours.rows(), *theirs.rows(headline=False), *ours.compared(theirs)]


@dataclass(frozen=True)
class _Quality:
    """The figures of one kernel for one target."""

    name: str
    settings: Mapping[str, Setting]
    assembled: Assembled
    counted: Counted

    def _figures(self) -> dict[str, tuple[float, str]]:
        a, c = self.assembled, self.counted
        figures = {
            "registers": (a.registers, "per thread"),
            "shared memory": (a.shared_bytes, "bytes"),
            "occupancy": (100 * a.occupancy, "%"),
            "instructions": (c.instructions, _PER_SCORES),
            "HMMA share": (100 * c.product_share, "%"),
            "shared-memory wavefronts": (c.wavefronts, _PER_SCORES),
        }
        if a.loop:
            figures |= {
                "HMMA in a turn of the main loop": (a.loop.products, "instr."),
                "main loop": (a.loop_per_score, _PER_SCORES),
                "HMMA share of the main loop": (100 * a.loop_share, "%"),
            }
        return figures

    def rows(self, *, headline: bool = True) -> Rows:
        """The figures as measurements; only our kernels have goals."""
        a, c = self.assembled, self.counted
        least = Goal("<=", 0) if headline else None
        results: Rows = [
            measured("spilled", "bytes", [a.spilled_bytes], config=self.settings, goal=least),
            measured("bank conflicts", "turns", [c.conflicts], config=self.settings, goal=least),
        ]
        results += [
            measured(name, unit, [value], config=self.settings)
            for name, (value, unit) in self._figures().items()
        ]
        return [*results, self._mix()]

    def length(self, most: int) -> Rows:
        """The machine instructions of an iteration of the main loop, as a measurement with the goal
        `most`.
        """
        if self.assembled.loop is None:
            return []
        taken = len(self.assembled.loop.path)
        name, goal = "turn of the main loop", Goal("<=", most)
        return [measured(name, "instr.", [taken], config=self.settings, goal=goal, headline=True)]

    def _mix(self) -> str:
        a, target = self.assembled, self.settings["target"]
        if a.loop is None:
            return f"no main loop of {self.name} for {target}: {a.why_no_loop}"
        parts = ", ".join(f"{n} {name}" for name, n in mix(a.loop.path).items())
        return f"main loop of {self.name} for {target}, {len(a.loop.path)} instructions: {parts}"

    def compared(self, other: _Quality) -> list[Measurement]:
        """Ratios of this kernel's figures to the other's."""
        mine, its = self._figures(), other._figures()
        problem = {name: self.settings[name] for name in ("dtype", "d", "causal", "target")}
        return [
            measured(
                f"{name}: ours / Triton",
                "x",
                [mine[name][0] / its[name][0]],
                config=problem,
                goal=Goal(relation, 1),
                headline=True,
            )
            for name, relation in COMPARED.items()
            if name in mine and name in its
        ]


@functools.cache
def triton(head_dim: int, causal: bool, target: str) -> _Quality:
    """The figures of Triton's kernel. Raises `BackendError` without an assembler."""
    base = TRITON.format(d=head_dim, suffix="_causal" if causal else "")
    text = (ROOT / f"{base}.ptx").read_text(encoding="utf-8")
    facts = json.loads((ROOT / f"{base}.json").read_text(encoding="utf-8"))
    tile: dict[str, int] = facts["constants"]
    settings: dict[str, Setting] = {
        "by": "Triton",
        "dtype": TRITON_DTYPE,
        "d": head_dim,
        "causal": causal,
        "target": target,
        "tile": tile["BN"],
        "block_q": tile["BM"],
        "threads": facts["block"],
    }
    subject = Subject(text, facts["entry"], facts["block"], facts["shared"], 2 * head_dim)
    return _Quality(
        f"Triton's {facts['entry']} d={head_dim} {'causal' if causal else 'full'}",
        settings,
        assembled(subject, find_target(target)),
        _triton_counted(subject, tile["BM"], head_dim, causal),
    )


@functools.cache
def _triton_counted(subject: Subject, block_q: int, head_dim: int, causal: bool) -> Counted:
    seq = SEQ[TRITON_DTYPE]
    q, k, v = (x.astype(np.float16) for x in normal(*[(seq, head_dim)] * 3))
    out, scratch = np.zeros_like(q), np.zeros(1, np.uint8)
    result = interpreter.run(
        parse(subject.text),
        grid=(seq // block_q, 1),
        block=subject.threads,
        args=[q, k, v, out, seq, seq, head_dim**-0.5, scratch, scratch],
        dynamic_smem=subject.shared_bytes,
        profile=True,
    )
    return counted(result.counters, seen_scores(seq, causal))
