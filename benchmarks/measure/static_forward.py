"""Main loops of the forward kernels on tensor cores, in machine code and by the issue model, next to those
of Triton's kernels and FlashAttention-2's; and those of f32 by products of f16.
"""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.commands.measure.report import ROOT
from flash.commands.measure.static_quality import Assembled, Subject, assembled
from flash.contract.catalogue import build
from flash.operands.dtype_names import Precision
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import DEVICES
from ptxgen.report.issue_model import Wait, modelled
from ptxgen.report.issue_units import SCHEDULERS, Unit
from ptxgen.runtime.sass import SassInstr
from ptxgen.target import Target
from ptxgen.target import target as find_target

TARGETS: Final = ("sm_80", "sm_90", "sm_120")
TURING: Final = "sm_75"  # f16 alone
DTYPES: Final = ("f16", "bf16")
HEAD_DIMS: Final = (64, 128, 256)
PRECISE: Final[Precision] = "f32_grade"
PRECISE_TARGETS: Final = ("sm_80", "sm_90")
TRITON: Final = "tests/ptx/triton/attention_forward_d{d}{suffix}.sm_80"  # .ptx, and .json next to it
PEER_DTYPE: Final = "f16"
FLASH_ATTENTION_2: Final = "benchmarks/results/flash-attn-2.json"
TRITON_HEAD_DIMS: Final = (64, 128)
SCORES: Final = 2048  # of a warp: the unit of instruction counts
NEAR: Final = 24  # instructions between two products, within which an exponential is near them

# Goals on sm_80 and on sm_75: % of the tensor cores; and on later targets: instructions for SCORES scores.
BUSY_GOALS: Final = {64: 80, 128: 90, 256: 70}
TURING_GOAL: Final = 60
INSTRUCTION_GOALS: Final = {64: 560, 128: 760}
# TFLOP/s of f32_grade on an A100: 2.5 times the 26 that are published for PyTorch's kernel of three products
# of tf32.
PRECISE_GOAL: Final = 65

_EXP2: Final = "MUFU.EX2"
_PRODUCT: Final = "HMMA"
_FIGURES: Final = (
    *("registers", "spilled B", "CTAs", "instructions", "HMMA %", "EX2 near HMMA", "longest without HMMA"),
    *("tensor cores %", "shared memory %", "TFLOP/s", "stalls %", "waits for memory %"),
    "waits for tensor cores %",
)
_COLUMNS: Final = ("target", "d", "dtype", "mask", "kernel", "tile", *_FIGURES)
FORWARD_REMARKS: Final = (
    f"instructions are those of a warp in the main loop for {SCORES} scores; EX2 is near HMMA if at most "
    f"{NEAR} instructions lie between the products around it",
    "tensor cores and shared memory: the share of the clocks of the model in "
    "ptxgen/report/issue_model.py in which they are busy; its module says what it knows",
    "stalls and waits: the share of a warp's clocks that it waits for its own stall counts, then for shared "
    "and global memory, then for tensor cores; the rest are other units, copies, barriers and other warps",
    "TFLOP/s: those of the model on all multiprocessors of the device of the target in "
    "ptxgen/rates.py, at its boost clock",
    "Triton's kernel is `attention_forward` of tests/ptx/make_triton.py, f16, through the same assembler",
    f"FlashAttention-2's figures, f16, are those of {FLASH_ATTENTION_2}, which "
    "benchmarks/flash_attn_2_forward.py writes",
    " | ".join(_COLUMNS),
)


def forward_jobs(quick: bool) -> list[Job]:
    """A job for every kernel and target, which assembles it and models its main loop."""
    dtypes, targets = (DTYPES[:1], TARGETS[:1]) if quick else (DTYPES, TARGETS)
    configs = [
        AttentionConfig(d, dtype=dtype, causal=causal, target=name)
        for name, d, dtype, causal in product(targets, HEAD_DIMS, dtypes, (False, True))
    ]
    if not quick:
        precise = product(PRECISE_TARGETS, HEAD_DIMS)
        configs += [AttentionConfig(d, precision=PRECISE, target=name) for name, d in precise]
        configs += [
            AttentionConfig(d, dtype=PEER_DTYPE, causal=causal, target=TURING)
            for d, causal in product(TRITON_HEAD_DIMS, (False, True))
        ]
    return [_job(config) for config in configs]


def _job(config: AttentionConfig) -> Job:
    target, d, kind, causal = _problem_of(config)
    return Job(f"forward d={d} {kind} {_mask(causal)} {target}", functools.partial(forward_quality, config))


def forward_quality(config: AttentionConfig) -> Rows:
    """The row of one kernel, with its goals, and those of the peers that have such a kernel."""
    kernel = config.kernel()
    t, problem = kernel.tiling, _problem_of(config)
    _, _, dtype, causal = problem
    try:
        ours = Reading.of(Subject.of(build(kernel)), kernel.target)
        rows: Rows = [_line(problem, "ours", f"{t.tile}x{t.block_q}x{t.threads}", figures(problem, ours))]
        if dtype == PEER_DTYPE and config.head_dim in TRITON_HEAD_DIMS and kernel.target.name != TURING:
            tile, theirs = triton(config.head_dim, causal, kernel.target.name)
            rows.append(_line(problem, "Triton", tile, figures(problem, theirs)))
            rows += _ratios(problem, "Triton", ours, theirs.tensor)
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    peer = flash_attention_2().get(problem)
    if peer:
        tile, known = peer
        rows.append(_line(problem, "FlashAttention-2", tile, known))
        rows += _ratios(problem, "FlashAttention-2", ours, known[_FIGURES.index("tensor cores %")])
    return [*rows, *_goals(problem, ours)]


@dataclass(frozen=True)
class Reading:
    """The figures of a kernel from its machine code, and from the issue model of its main loop."""

    assembly: Assembled
    path: tuple[SassInstr, ...]
    tensor: float  # the share of the clocks in which tensor cores are busy, %
    memory: float  # and shared memory
    clocks: float  # of a scheduler, for an iteration of one warp
    waits: Mapping[Wait, float]  # shares of a warp's clocks

    @classmethod
    def of(cls, subject: Subject, target: Target) -> Reading:
        """Assemble a kernel and model its loop. Raises `BackendError` without the tools for it."""
        assembly = assembled(subject, target)
        if assembly.loop is None:
            raise BackendError(assembly.why_no_loop)
        busy = modelled(assembly.loop, target, subject.threads, max(assembly.ctas_per_sm, 1))
        shares = 100 * busy.tensor, 100 * busy.shares[Unit.MEMORY]
        return cls(assembly, assembly.loop.path, *shares, busy.clocks_of_iteration, busy.waited)

    @property
    def instructions(self) -> float:
        """Instructions of a warp in the main loop for `SCORES` scores."""
        return SCORES * len(self.path) / self.assembly.scores

    def tflops(self, problem: _Problem) -> float:
        """TFLOP/s of the model: a multiply-add of each of two products is two operations for a column."""
        target, head_dim, _, _ = problem
        device = DEVICES[find_target(target).sm]
        clocks = device.multiprocessors * device.mhz * 1e6
        return 4 * head_dim * self.assembly.scores * SCHEDULERS * clocks / self.clocks / 1e12


def exponentials_near(path: Sequence[SassInstr]) -> tuple[int, int]:
    """How many exponentials of a loop lie between two products that are at most `NEAR` instructions
    apart, and how many there are; the loop is closed.
    """
    products = [n for n, instr in enumerate(path) if instr.name == _PRODUCT]
    indices = [n for n, instr in enumerate(path) if instr.opcode.startswith(_EXP2)]
    if not products:
        return 0, len(indices)
    round_trip = [products[-1] - len(path), *products, products[0] + len(path)]

    def gap(index: int) -> int:
        after = bisect.bisect(round_trip, index)
        return round_trip[after] - round_trip[after - 1] - 1

    return sum(gap(index) <= NEAR for index in indices), len(indices)


def longest_without_products(path: Sequence[SassInstr]) -> int:
    """The longest run of instructions of a closed loop without a product."""
    longest = run = 0
    for instr in (*path, *path):
        run = 0 if instr.name == _PRODUCT else min(run + 1, len(path))
        longest = max(longest, run)
    return longest


@functools.cache
def triton(head_dim: int, causal: bool, target: str) -> tuple[str, Reading]:
    """The tile and the reading of Triton's kernel. Raises `BackendError` without the tools for it."""
    base = TRITON.format(d=head_dim, suffix="_causal" if causal else "")
    text = (ROOT / f"{base}.ptx").read_text(encoding="utf-8")
    facts = json.loads((ROOT / f"{base}.json").read_text(encoding="utf-8"))
    subject = Subject(text, facts["entry"], facts["block"], facts["shared"], 2 * head_dim)
    tile = f"{facts['constants']['BN']}x{facts['constants']['BM']}x{facts['block']}"
    return tile, Reading.of(subject, find_target(target))


@functools.cache
def flash_attention_2() -> dict[_Problem, tuple[str, list[Any]]]:
    """The tile and the figures of each of FlashAttention-2's kernels."""
    known = json.loads((ROOT / FLASH_ATTENTION_2).read_text(encoding="utf-8"))
    return {tuple(kernel["place"]): (kernel["tile"], kernel["figures"]) for kernel in known["kernels"]}


_Problem = tuple[str, int, str, bool]  # target, head_dim, type of elements or precision, whether causal


def _problem_of(config: AttentionConfig) -> _Problem:
    kind = PRECISE if config.precision == PRECISE else config.element.name
    return config.kernel().target.name, config.head_dim, kind, bool(config.causal)


def _mask(causal: bool) -> str:
    return "causal" if causal else "full"


def figures(problem: _Problem, reading: Reading) -> list[float | str]:
    """The figures of a row of the table, in the order of `_FIGURES`."""
    a = reading.assembly
    near, count = exponentials_near(reading.path)
    return [
        *(a.registers, a.spilled_bytes, a.ctas_per_sm, reading.instructions, 100 * a.loop_share),
        *(f"{near}/{count}", longest_without_products(reading.path), reading.tensor, reading.memory),
        reading.tflops(problem),
        100 * (reading.waits[Wait.ISSUE] + reading.waits[Wait.STALL]),
        *(100 * reading.waits[wait] for wait in (Wait.MEMORY, Wait.TENSOR)),
    ]


def _line(problem: _Problem, name: str, tile: str, figures: Sequence[float | str]) -> str:
    """One row of the printed table, its cells separated by ` | `."""
    target, d, dtype, causal = problem
    shown = [f"{figure:.1f}" if isinstance(figure, float) else str(figure) for figure in figures]
    return " | ".join([target, str(d), dtype, _mask(causal), name, tile, *shown])


def _settings(problem: _Problem) -> dict[str, Setting]:
    target, d, dtype, causal = problem
    return {"target": target, "d": d, "dtype": dtype, "causal": causal}


def _ratios(problem: _Problem, peer: str, ours: Reading, tensor: float) -> Rows:
    """The share of the clocks in which tensor cores are busy, as a multiple of that of a peer, `tensor` %."""
    return [
        measured(
            f"tensor cores: ours / {peer}",
            "x",
            [ours.tensor / tensor],
            config=_settings(problem),
            goal=Goal(">=", 1.0),
            headline=True,
        )
    ]


def _goals(problem: _Problem, ours: Reading) -> Rows:
    target, d, kind, _ = problem
    settings = _settings(problem)
    spilled, unit = ours.assembly.spilled_bytes, f"per {SCORES} scores"
    of_spills = measured(
        "spilled", "bytes", [spilled], config=settings, goal=Goal("<=", 0), headline=bool(spilled)
    )
    if kind == PRECISE:
        least = Goal(">=", PRECISE_GOAL) if target == "sm_80" else None
        rate = ours.tflops(problem)
        return [
            of_spills,
            measured("modelled", "TFLOP/s", [rate], config=settings, goal=least, headline=True),
        ]
    least_busy = {"sm_80": BUSY_GOALS[d], TURING: TURING_GOAL}.get(target)
    busy = None if least_busy is None else Goal(">=", least_busy)
    most = None if target == TURING else INSTRUCTION_GOALS.get(d)
    few = None if most is None else Goal("<=", most)
    return [
        of_spills,
        measured("tensor cores busy", "%", [ours.tensor], config=settings, goal=busy, headline=True),
        measured("instructions", unit, [ours.instructions], config=settings, goal=few, headline=True),
    ]
