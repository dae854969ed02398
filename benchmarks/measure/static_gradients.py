"""The quality of kernels of gradients, judged without a GPU, and that of Triton's."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.commands.measure.report import ROOT
from flash.commands.measure.static_quality import THOUSAND, Assembled, Subject, assembled
from flash.contract.gradients import gradient_build
from flash.families.wgmma import WARPGROUP, WGMMA_TARGET
from flash.families.wgmma_gradient import CONSUMERS, WgmmaGradientTiling
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, OWNERS, QUERIES, AnyGradientTiling
from ptxgen.errors import BackendError
from ptxgen.report.issue_model import modelled
from ptxgen.runtime.sass import mix
from ptxgen.target import Target
from ptxgen.target import target as find_target

TARGETS: Final = ("sm_80", "sm_90", WGMMA_TARGET, "sm_120")
DTYPES: Final = ("f16", "bf16")
HEAD_DIMS: Final = (64, 128, 256)
TRITON: Final = "tests/ptx/triton/backward/{owner}_d{d}{suffix}.sm_80"  # .ptx, and .json next to it
TRITON_DTYPE: Final = "f16"
LEAST_RATIO: Final = 1.1  # of the modelled shares of tensor cores
NEARLY_ALL: Final = 97.0  # % of tensor cores, of which 1.1 times Triton's share may be more
# Goals of the kernels with `wgmma`, by owner and head_dim: the most machine instructions of a consumer's warp
# in an iteration of the main loop, and the least share of the clocks, %, in which tensor cores are busy.
LONGEST_LOOP: Final = {(QUERIES, 64): 385, (KEYS, 64): 380, (QUERIES, 128): 410, (KEYS, 128): 325}
BUSY_TENSOR: Final = {(QUERIES, 128): 83, (KEYS, 128): 81}
_ALIGNED: Final = 16

GRADIENT_REMARKS: Final = (
    "Triton's kernels of gradients are `attention_backward_keys` and `attention_backward_queries` of "
    "tests/ptx/make_triton.py, f16; their PTX for sm_80 goes through the same assembler",
    "tensor cores busy is the share of the model in ptxgen/report/issue_model.py; of it, needed "
    "leaves out products that two CTAs, or the two warpgroups of a CTA, both make",
    f"kernels for {WGMMA_TARGET} multiply by wgmma, HGMMA in machine code, and Triton's have no counterpart; "
    "their main loop is that of a warp of a consumer, and registers are those at launch",
)


def gradient_jobs(quick: bool) -> list[Job]:
    """A job for every kernel and target, which assembles it and models its main loop."""
    dtypes, targets = (DTYPES[:1], TARGETS[:1]) if quick else (DTYPES, TARGETS)
    return [
        Job(
            f"gradients by {owner} d={d} {dtype} {'causal' if causal else 'full'} {name}",
            functools.partial(gradient_quality, AttentionConfig(d, dtype=dtype, causal=causal), owner, name),
        )
        for dtype, d, causal, owner, name in product(dtypes, HEAD_DIMS, (False, True), OWNERS, targets)
    ]


def gradient_quality(config: AttentionConfig, owner: str, on: str) -> Rows:
    """The figures of one kernel and, if there is a Triton kernel for its type, the ratios to its figures."""
    target = find_target(on)
    kernel = gradient_config(config, owner, target, _ALIGNED)
    t = kernel.tiling
    settings: dict[str, Setting] = {
        "dtype": config.element.name,
        "d": config.head_dim,
        "causal": bool(config.causal),
        "owner": owner,
        "target": on,
        "block": t.block,
        "tile": t.tile,
        "threads": t.threads,
    }
    try:
        built = gradient_build(kernel)
        shared = built.kernel.dynamic_shared_bytes
        subject = Subject(built.text, built.kernel.name, t.threads, shared, _columns(t, owner))
        ours = _Quality.of(kernel.name, settings, subject, _needed(t, owner), target, computing_threads(t))
        if isinstance(t, WgmmaGradientTiling):
            return [*ours.rows(), *ours.of_consumers(t, owner)]
        if config.element.name != TRITON_DTYPE:
            return ours.rows()
        theirs = triton(config.head_dim, bool(config.causal), owner, on)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    return [*ours.rows(), *theirs.rows(headline=False), *ours.compared(theirs)]


def _needed(t: AnyGradientTiling, owner: str) -> int:
    """The multiply-adds that a score needs: three products by queries, four by keys."""
    scores, weights = t.head_dim, t.head_dim_v
    return 2 * (scores + weights) if owner == KEYS else 2 * scores + weights


def computing_threads(t: AnyGradientTiling) -> int:
    """The threads of a CTA that compute."""
    return CONSUMERS * WARPGROUP if isinstance(t, WgmmaGradientTiling) else t.threads


def _columns(t: AnyGradientTiling, owner: str) -> int:
    """The multiply-adds that the kernel issues for a score: the products that make scores count once for each
    slice of columns, or for each warpgroup that makes them all.
    """
    return t.slices * sum(t.product_columns(owner))


@dataclass(frozen=True)
class _Quality:
    """The figures of one kernel for one target; `busy` and `needed` are shares of tensor cores, %."""

    name: str
    settings: Mapping[str, Setting]
    assembled: Assembled
    busy: float
    needed: float

    @classmethod
    def of(
        cls,
        name: str,
        settings: Mapping[str, Setting],
        subject: Subject,
        needed: int,
        target: Target,
        computing: int | None = None,
    ) -> _Quality:
        """Assemble a kernel and model its loop, which `computing` threads of a CTA execute; None: all. Raises
        `BackendError` without the tools for it.
        """
        assembly = assembled(subject, target)
        if assembly.loop is None:
            raise BackendError(assembly.why_no_loop)
        threads = subject.threads if computing is None else computing
        busy = 100 * modelled(assembly.loop, target, threads, max(assembly.ctas_per_sm, 1)).tensor
        return cls(name, settings, assembly, busy, busy * needed / subject.columns)

    def _figures(self) -> dict[str, tuple[float, str]]:
        a = self.assembled
        assert a.loop is not None  # else there is no quality
        product = next(name for name in ("HGMMA", "HMMA") if any(i.name == name for i in a.loop.path))
        return {
            "registers": (a.registers, "per thread"),
            "shared memory": (a.shared_bytes, "bytes"),
            "CTAs of a multiprocessor": (a.ctas_per_sm, "CTAs"),
            "main loop": (a.loop_per_score, f"per {THOUSAND} scores"),
            f"instructions for an {product}": (len(a.loop.path) / a.loop.products, "instr."),
            f"{product} share of the main loop": (100 * a.loop_share, "%"),
            "tensor cores busy": (self.busy, "%"),
            "tensor cores busy, needed": (self.needed, "%"),
        }

    def rows(self, *, headline: bool = True) -> Rows:
        """The figures as measurements; only our kernels have goals."""
        least = Goal("<=", 0) if headline else None
        spilled = measured(
            "spilled", "bytes", [self.assembled.spilled_bytes], config=self.settings, goal=least
        )
        figures = [
            measured(name, unit, [value], config=self.settings)
            for name, (value, unit) in self._figures().items()
        ]
        assert self.assembled.loop is not None
        path = self.assembled.loop.path
        parts = ", ".join(f"{n} {name}" for name, n in mix(path).items())
        return [spilled, *figures, f"main loop of {self.name}, {len(path)} instructions: {parts}"]

    def of_consumers(self, t: WgmmaGradientTiling, owner: str) -> Rows:
        """The figures of the warpgroups that compute, in a kernel with `wgmma`: the registers that they take,
        the instructions of an iteration of the main loop, and what it keeps busy, with their goals.
        """
        assert self.assembled.loop is not None
        longest, busy = (of.get((owner, t.head_dim)) for of in (LONGEST_LOOP, BUSY_TENSOR))
        rows: Rows = [
            measured(
                "registers of a consumer", "per thread", [t.registers_of_roles[1]], config=self.settings
            ),
            measured(
                "turn of the main loop",
                "instr.",
                [len(self.assembled.loop.path)],
                config=self.settings,
                goal=None if longest is None else Goal("<=", longest),
                headline=True,
            ),
        ]
        if busy is not None:
            goal = Goal(">=", busy)
            name = "tensor cores busy, by wgmma"
            rows.append(measured(name, "%", [self.busy], config=self.settings, goal=goal, headline=True))
        return rows

    def compared(self, other: _Quality) -> Rows:
        """Ratios of this kernel's figures to the other's, if the other's CTA fits on a multiprocessor."""
        if not other.assembled.ctas_per_sm:
            bytes_, on = other.assembled.shared_bytes, self.settings["target"]
            return [f"{other.name} takes {bytes_} bytes of shared memory, which a CTA has not on {on}"]
        mine, its = self._figures(), other._figures()
        problem = {name: self.settings[name] for name in ("dtype", "d", "causal", "owner", "target")}
        modelled_goal = min(LEAST_RATIO, NEARLY_ALL / other.needed)
        goals = {"HMMA share of the main loop": 1.0, "tensor cores busy, needed": modelled_goal}
        return [
            measured(
                f"{name}: ours / Triton",
                "x",
                [mine[name][0] / its[name][0]],
                config=problem,
                goal=Goal(">=", goal),
                headline=True,
            )
            for name, goal in goals.items()
        ]


@functools.cache
def triton(head_dim: int, causal: bool, owner: str, on: str) -> _Quality:
    """The figures of Triton's kernel. Raises `BackendError` without an assembler or disassembler."""
    base = TRITON.format(owner=owner, d=head_dim, suffix="_causal" if causal else "")
    text = (ROOT / f"{base}.ptx").read_text(encoding="utf-8")
    facts = json.loads((ROOT / f"{base}.json").read_text(encoding="utf-8"))
    tile: dict[str, int] = facts["constants"]
    settings: dict[str, Setting] = {
        "by": "Triton",
        "dtype": TRITON_DTYPE,
        "d": head_dim,
        "causal": causal,
        "owner": owner,
        "target": on,
        "block": tile["BN" if owner == KEYS else "BM"],
        "tile": tile["BM" if owner == KEYS else "BN"],
        "threads": facts["block"],
    }
    columns = (4 if owner == KEYS else 3) * head_dim
    subject = Subject(text, facts["entry"], facts["block"], facts["shared"], columns)
    name = f"Triton's {facts['entry']} d={head_dim} {'causal' if causal else 'full'}"
    return _Quality.of(name, settings, subject, columns, find_target(on))
