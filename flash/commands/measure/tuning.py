"""Candidates for the tiles of a kernel, the methods that judge them, and their ranking."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from flash.commands.measure.device import Gpu
from flash.commands.measure.gpu import OnDevice, Shape, on_device, race
from flash.commands.measure.record import MS, flat, ratios
from flash.commands.measure.static_quality import (
    THOUSAND,
    Assembled,
    Counted,
    Subject,
    assembled,
    count,
    seen_scores,
)
from flash.contract.catalogue import build
from flash.families.choice import offered_tiles
from flash.operands.dtype_names import Auto, DTypeName
from flash.operands.dtypes import F32
from flash.problem.config import STAGES, AttentionConfig
from ptxgen.errors import ConfigError
from ptxgen.report.issue_model import modelled
from ptxgen.report.issue_units import SCHEDULERS
from ptxgen.runtime.assembler import find_assembler
from ptxgen.target import WARP_SIZE
from ptxgen.target import target as find_target

Entry = dict[str, Any]  # the record of one candidate, for JSON

# A multiprocessor issues one warp instruction a cycle from each of its schedulers, and its shared memory
# serves one wavefront a cycle (CUDA C++ Programming Guide, "Hardware Multithreading" and "Shared Memory", for
# all GPUs from sm_70 on).
# Two warps for each scheduler: one computes while the other waits.
ENOUGH_WARPS: Final = 2 * SCHEDULERS

RULES: Final[Mapping[str, str]] = {
    "static": (
        "kernels that spill come last, by bytes spilled; the others by cost, the cycles of a "
        f"multiprocessor for {THOUSAND} scores: those of the issue model for the main loop, times the "
        f"products that the launch executes for each that its scores need, and at least instructions / "
        f"{SCHEDULERS} and shared-memory wavefronts; without a loop on tensor cores that can be "
        "disassembled, the last two alone, behind them kernels that leave fewer than "
        f"{ENOUGH_WARPS} warps resident on a multiprocessor; what costs the same by shared memory, the "
        "least first"
    ),
    "gpu": "by time, as a multiple of the default's, measured in turns with it",
}

_ROUNDS, _BATCH = 5, 3  # timed calls of a candidate and the default, on a GPU


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem to tune for: kernels of one kind for one target, with `seq` queries and keys."""

    head_dim: int
    head_dim_v: int
    dtype: DTypeName
    causal: bool
    target: str
    seq: int

    @property
    def key(self) -> str:
        """The problem's key in a result: `f16_d128_causal_sm_90_n1024`."""
        values = f"v{self.head_dim_v}" if self.head_dim_v != self.head_dim else ""
        mask = "causal" if self.causal else "full"
        return f"{self.dtype}_d{self.head_dim}{values}_{mask}_{self.target}_n{self.seq}"

    def config(
        self, tile: int | Auto = "auto", block_q: int | Auto = "auto", stages: int | Auto = "auto"
    ) -> AttentionConfig:
        """The config of the problem with given tiles. Raises `ConfigError` if they do not fit."""
        return AttentionConfig(
            self.head_dim,
            self.head_dim_v,
            self.dtype,
            self.causal,
            tile=tile,
            block_q=block_q,
            stages=stages,
            target=self.target,
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """Tiles that a kernel for the problem can have."""

    config: AttentionConfig
    is_default: bool

    @property
    def stages(self) -> int:
        """The number of stages: tiles of K, and of V, in shared memory."""
        return getattr(self.config.kernel().tiling, "stages", 1)

    @property
    def facts(self) -> Entry:
        """The entry of a candidate before it is judged."""
        kernel = self.config.kernel()
        t = kernel.tiling
        text = build(kernel).text
        return {
            "kernel": kernel.name,
            "tile": t.tile,
            "block_q": t.block_q,
            "stages": self.stages,
            "threads": t.threads,
            "default": self.is_default,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }


def candidates(problem: Problem) -> list[Candidate]:
    """Every tile that is offered for the target, with every number of stages that fits; the default
    is the first. Raises `ConfigError` for a problem without a kernel.
    """
    default = problem.config()
    chosen = default.kernel().name
    candidates = [Candidate(default, is_default=True)]
    target = find_target(problem.target)
    for tile, block_q in offered_tiles(problem.head_dim, problem.head_dim_v, target, problem.dtype):
        for stages in (1,) if problem.dtype == F32.name else STAGES:
            with suppress(ConfigError):  # the tile does not fit with this number of stages
                config = problem.config(tile, block_q, stages)
                if config.kernel().name != chosen:
                    candidates.append(Candidate(config, is_default=False))
    return candidates


class Method(Protocol):
    """A method that judges candidates: its name in a result, and the means that it uses."""

    @property
    def name(self) -> str:
        """One of `RULES`."""

    @property
    def means(self) -> str:
        """The tools or the device with which the figures are measured, with versions."""

    def judge(self, candidate: Candidate) -> Entry:
        """The figures of one candidate. Raises `PtxGenError` if it cannot be judged."""


class Static:
    """The method by assembler and interpreter, without a GPU."""

    name = "static"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def means(self) -> str:
        """The assembler, with its version."""
        assembler = find_assembler(target=self.problem.target)
        return f"{assembler.name} {assembler.version}"

    def judge(self, candidate: Candidate) -> Entry:
        """Registers, spills and occupancy from the assembler, the interpreter's counters, and the share of
        the tensor cores by the issue model, if it knows the main loop, or by that of roles.
        """
        built = build(candidate.config.kernel())
        kernel, seq = built.config, self.problem.seq
        assembly = assembled(Subject.of(built), kernel.target)
        counts = count(candidate.config, seq)
        cost = max(counts.instructions / SCHEDULERS, counts.wavefronts)
        model: Entry = {}
        if assembly.loop is not None:
            busy = modelled(
                assembly.loop, kernel.target, kernel.tiling.computing_threads, max(assembly.ctas_per_sm, 1)
            )
            model["tensor_share"] = busy.tensor
            cost = max(cost, busy.clocks_of_iteration / SCHEDULERS * _rounds(assembly, counts))
        elif assembly.roles is not None:
            model["tensor_share"] = assembly.roles.tensor
            iterations = built.resources.visited_tiles(seq, seq) * THOUSAND
            cost = max(cost, assembly.roles.of_iteration * iterations / seen_scores(seq, self.problem.causal))
        return {
            "registers": assembly.registers,
            "spilled_bytes": assembly.spilled_bytes,
            "shared_bytes": assembly.shared_bytes,
            "ctas_per_sm": assembly.ctas_per_sm,
            "warps_per_sm": assembly.ctas_per_sm * kernel.tiling.threads // WARP_SIZE,
            "occupancy": assembly.occupancy,
            "instructions": counts.instructions,
            "wavefronts": counts.wavefronts,
            "bank_conflicts": counts.conflicts,
            "hmma_share": counts.product_share,
            **model,
            "cost": cost,
        }


def _rounds(assembly: Assembled, counts: Counted) -> float:
    """Iterations of the main loop for 1000 visible scores, by the products that a launch executes, those of
    hidden scores included.
    """
    assert assembly.loop is not None, "the kernel has a main loop"
    return counts.instructions * counts.product_share / assembly.loop.products


class Timed:
    """The method by time on a GPU; candidate and default are timed alternately, so that both run at equal
    clocks.
    """

    name = "gpu"

    def __init__(self, gpu: Gpu, arrays: OnDevice, default: AttentionConfig) -> None:
        self.gpu = gpu
        self.arrays = arrays
        self.default = default

    @property
    def means(self) -> str:
        """The device and its driver."""
        device = self.gpu.device
        return f"{device.name}, driver {'.'.join(map(str, device.driver_version))}"

    def judge(self, candidate: Candidate) -> Entry:
        """Milliseconds of a call, and its time as a multiple of the default's."""
        config = candidate.config
        contestants = {"default": self.arrays.contestant(self.gpu, self.default)[0]}
        name = "default" if candidate.is_default else "candidate"
        contestants[name] = self.arrays.contestant(self.gpu, config)[0]
        samples = race(self.gpu, contestants, _ROUNDS, _BATCH)
        times = [t * MS for t in flat(samples[name])]
        return {
            "ms": statistics.median(times),
            "least_ms": min(times),
            "samples": len(times),
            "times_default": statistics.median(ratios(samples[name], samples["default"])),
        }


@contextmanager
def timed(problem: Problem, gpu: Gpu) -> Iterator[Timed]:
    """The method that measures on a GPU, with the problem's arrays on the GPU."""
    shape = Shape(
        problem.head_dim, problem.seq, problem.causal, dtype=problem.dtype, head_dim_v=problem.head_dim_v
    )
    with on_device(gpu, shape) as arrays:
        yield Timed(gpu, arrays, problem.config())


def ranked(entries: Sequence[Entry], method: str) -> list[Entry]:
    """Entries with ranks by the method's rule, the best first; failed entries come last."""
    key = _static_key if method == Static.name else _timed_key
    order = sorted(entries, key=lambda entry: (True,) if "failed" in entry else (False, *key(entry)))
    return [{"rank": rank, **_without_rank(entry)} for rank, entry in enumerate(order, start=1)]


def _without_rank(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "rank"}


def _static_key(entry: Entry) -> tuple[float, ...]:
    few = "tensor_share" not in entry and entry["warps_per_sm"] < ENOUGH_WARPS
    return entry["spilled_bytes"], few, entry["cost"], entry["shared_bytes"]


def _timed_key(entry: Entry) -> tuple[float, ...]:
    return (entry["times_default"],)


def is_known(entry: Entry, facts: Entry) -> bool:
    """Whether an entry of an earlier run, by equal means, has the same facts and did not fail."""
    return "failed" not in entry and all(entry.get(name) == value for name, value in facts.items())


def record(problem: Problem, method: Method, entries: Sequence[Entry]) -> dict[str, Any]:
    """The record of one problem in a result."""
    return {
        "problem": asdict(problem),
        "method": method.name,
        "means": method.means,
        "rule": RULES[method.name],
        "candidates": ranked(entries, method.name),
    }
