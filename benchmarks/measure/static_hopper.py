"""Main loops of the forward kernels for Hopper, in machine code and by the issue model, next to those of
Triton's kernels and of flash-attn-4's, where it is installed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measure.static import LONGEST_LOOP
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.commands.measure.report import ROOT
from flash.commands.measure.static_quality import Assembled, Subject, assembled
from flash.contract.catalogue import build
from flash.families.wgmma import WARPGROUP, WGMMA, WGMMA_TARGET
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import SPECIAL_LANES
from ptxgen.report.issue_model import modelled
from ptxgen.report.issue_units import SCHEDULERS, Unit
from ptxgen.target import WARP_SIZE
from ptxgen.target import target as find_target

HEAD_DIMS: Final = (64, 128, 256)
DTYPE: Final = "bf16"
TRITON: Final = "tests/ptx/triton/attention_forward_hopper_d{d}.sm_90a"  # .ptx, and .json next to it
PEER: Final = "benchmarks/flash_attn_4_forward.py"
# Goals, % of the clocks: in which tensor cores are busy; which special functions need for an exponential of
# each score, of which kernels may compute some without them.
BUSY_TENSOR: Final = {128: 85, 256: 85}
BOUND_OF_EXPONENTIALS: Final = {64: 95}
_TIMEOUT_S: Final = 600.0  # to compile a kernel of flash-attn-4
_COLUMNS: Final = (
    *("d", "kernel", "tile", "registers", "spilled B", "instructions", "for 2048 scores", "R2UR"),
    *("EX2 in flight", "tensor cores %", "special functions %"),
)
_SCORES: Final = 2048

HOPPER_REMARKS: Final = (
    f"{DTYPE}, full attention; instructions are those of a warp in a turn of the main loop, then for "
    f"{_SCORES} scores; EX2 in flight are the exponentials behind a product that nobody has waited for yet",
    "tensor cores and special functions: the share of the clocks of the model in "
    "ptxgen/report/issue_model.py in which they are busy; its module says what it knows",
    "Triton's kernel is `attention_forward` of tests/ptx/make_triton.py, f16, for sm_90a; flash-attn-4's is "
    f"compiled by {PEER} where the package is installed; all go through the same assembler",
    "f32_grade multiplies three times in f16; its useful TFLOP/s are those of the model, and those that "
    "shared memory alone allows; of other rows it is the share of tensor cores that both allow",
    " | ".join(_COLUMNS),
)


def hopper_jobs(quick: bool) -> list[Job]:
    """A job for every head_dim, which assembles the kernels and models their main loops."""
    dims = HEAD_DIMS[:1] if quick else HEAD_DIMS
    return [Job(f"hopper d={d} {DTYPE} full", functools.partial(hopper_quality, d)) for d in dims]


def hopper_quality(head_dim: int) -> Rows:
    """The rows of one head_dim: ours, with its goals, and those of the peers."""
    config = AttentionConfig(head_dim, dtype=DTYPE, target=WGMMA_TARGET)
    kernel = config.kernel()
    t = WGMMA.require(kernel.tiling)
    try:
        ours = Reading.of(Subject.of(build(kernel)), t.consumers, f"{t.block_q}x{t.tile}")
    except BackendError as error:
        return [f"{kernel.name} was not assembled: {str(error).splitlines()[0]}"]
    results: Rows = [row(head_dim, "ours", ours)]
    for name, read in (("Triton", triton), ("flash-attn-4", flash_attn_4)):
        try:
            peer = read(head_dim)
        except BackendError as error:
            results.append(f"{head_dim} | {name}: {str(error).splitlines()[0]}")
            continue
        results.append(row(head_dim, name, peer))
        results += _ratios(head_dim, name, ours, peer)
    return [*results, *_goals(head_dim, ours)]


@dataclass(frozen=True)
class Reading:
    """The figures of a kernel from its machine code, and from the issue model of its main loop; shares are in
    %, `exponentials` that of the clocks which special functions need for an exponential of each score.
    """

    assembly: Assembled
    tile: str
    tensor: float
    special: float
    exponentials: float

    @classmethod
    def of(cls, subject: Subject, warpgroups: int, tile: str, copied: float | None = None) -> Reading:
        """Assemble a kernel and model its loop, which `warpgroups` warpgroups of a CTA execute; `copied` as
        in `modelled`. Raises `BackendError` without the tools for it.
        """
        target = find_target(WGMMA_TARGET)
        assembly = assembled(subject, target)
        if assembly.loop is None:
            raise BackendError(assembly.why_no_loop)
        busy = modelled(assembly.loop, target, warpgroups * WARPGROUP, max(assembly.ctas_per_sm, 1), copied)
        of_scores = assembly.scores * SCHEDULERS / SPECIAL_LANES / busy.clocks_of_iteration
        return cls(assembly, tile, 100 * busy.tensor, 100 * busy.shares[Unit.SPECIAL], 100 * of_scores)

    @property
    def instructions(self) -> int:
        """Instructions of a warp in an iteration of the main loop."""
        assert self.assembly.loop is not None  # see `of`
        return len(self.assembly.loop.path)

    @property
    def moves_to_uniform(self) -> int:
        """Moves from registers to uniform registers in an iteration."""
        assert self.assembly.loop is not None
        return sum(instr.name == "R2UR" for instr in self.assembly.loop.path)

    @property
    def exponentials_in_flight(self) -> str:
        """How many exponentials of an iteration are computed while a product is under way, and how many there
        are, as text.
        """
        assert self.assembly.loop is not None
        pending, covered, count = False, 0, 0
        for instr in self.assembly.loop.path * 2:
            if instr.name == "HGMMA":
                pending = True
            elif instr.opcode.startswith("WARPGROUP.DEPBAR") and instr.operands.endswith(" 0x0"):
                pending = False
            elif instr.opcode.startswith("MUFU.EX2"):
                covered, count = covered + pending, count + 1
        return f"{covered // 2}/{count // 2}"


@functools.cache
def triton(head_dim: int) -> Reading:
    """The reading of Triton's kernel. Raises `BackendError` without the tools for it."""
    base = TRITON.format(d=head_dim)
    text = (ROOT / f"{base}.ptx").read_text(encoding="utf-8")
    facts = json.loads((ROOT / f"{base}.json").read_text(encoding="utf-8"))
    threads = facts["block"]
    subject = Subject(text, facts["entry"], threads, facts["shared"], 2 * head_dim)
    constants = facts["constants"]
    return Reading.of(subject, threads // WARPGROUP, f"{constants['BM']}x{constants['BN']}")


def why_no_flash_attn_4() -> str:
    """Why flash-attn-4's kernels cannot be compiled; empty if the package is installed."""
    try:
        importlib.metadata.version("flash-attn-4")
    except importlib.metadata.PackageNotFoundError:
        return "it is not installed (pip install --pre flash-attn-4)"
    return ""


def flash_attn_4_text(head_dim: int, *options: str) -> str:
    """The PTX of flash-attn-4's forward kernel, with the options of `PEER`. Raises what `flash_attn_4_texts`
    raises.
    """
    return flash_attn_4_texts(head_dim, *options)[0]


@functools.cache
def flash_attn_4_texts(head_dim: int, *options: str) -> tuple[str, ...]:
    """The PTX of each kernel of flash-attn-4, with the options of `PEER`. Raises `BackendError` where the
    package is not installed or the kernels cannot be compiled.
    """
    if why := why_no_flash_attn_4():
        raise BackendError(why)
    with tempfile.TemporaryDirectory(prefix="ptxgen-") as folder:
        command = [sys.executable, str(ROOT / PEER), str(head_dim), folder, *options]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, cwd=folder
            )
        except subprocess.TimeoutExpired as error:
            raise BackendError(f"it was not compiled within {_TIMEOUT_S:.0f} s") from error
        files = sorted(Path(folder).glob("*.ptx"))
        if done.returncode or not files:
            message = done.stderr.strip().splitlines() or ["it left no PTX"]
            raise BackendError(f"it was not compiled: {message[-1]}")
        # Each is written as a string of C.
        return tuple(path.read_text(encoding="utf-8").rstrip("\0") for path in files)


@functools.cache
def flash_attn_4(head_dim: int) -> Reading:
    """The reading of flash-attn-4's kernel. Raises `BackendError` where it is not installed, cannot be
    compiled, or without the tools for it.
    """
    text = flash_attn_4_text(head_dim)
    entry = re.search(r"\.entry (\w+)", text)
    threads = re.search(r"\.(?:reqntid|maxntid) (\d+)", text)
    if entry is None or threads is None:
        raise BackendError("its PTX does not say how many threads a CTA has")
    # One warpgroup copies, the others multiply.
    warpgroups = int(threads[1]) // (WARP_SIZE * SCHEDULERS) - 1
    subject = Subject(text, entry[1], int(threads[1]), 0, 2 * head_dim)
    return Reading.of(subject, warpgroups, f"{64 * warpgroups} rows")


def row(head_dim: int, name: str, of: Reading) -> str:
    """The row of a kernel in the table."""
    assembly = of.assembly
    figures: Sequence[str | int] = (
        *(head_dim, name, of.tile, assembly.registers, assembly.spilled_bytes, of.instructions),
        f"{_SCORES * of.instructions / assembly.scores:.0f}",
        *(of.moves_to_uniform, of.exponentials_in_flight, f"{of.tensor:.1f}", f"{of.special:.1f}"),
    )
    return " | ".join(map(str, figures))


def settings_of(head_dim: int, kind: str = DTYPE) -> dict[str, Setting]:
    """The settings of a measurement: `kind` is the type of elements, or the precision of f32."""
    return {"target": WGMMA_TARGET, "d": head_dim, "dtype": kind, "causal": False}


def _ratios(head_dim: int, name: str, ours: Reading, theirs: Reading) -> Rows:
    per_score = [of.instructions / of.assembly.scores for of in (ours, theirs)]
    of = {"tensor cores": ours.tensor / theirs.tensor, "instructions": per_score[0] / per_score[1]}
    goals = {"tensor cores": Goal(">=", 1.0), "instructions": Goal("<=", 1.0)}
    return [
        measured(
            f"{what}: ours / {name}",
            "x",
            [ratio],
            config=settings_of(head_dim),
            goal=goals[what],
            headline=True,
        )
        for what, ratio in of.items()
    ]


def _goals(head_dim: int, ours: Reading) -> Rows:
    settings = settings_of(head_dim)
    tensor, bound = BUSY_TENSOR.get(head_dim), BOUND_OF_EXPONENTIALS.get(head_dim)
    few = Goal("<=", LONGEST_LOOP[head_dim])
    results: Rows = [
        measured("main loop", "instructions", [ours.instructions], config=settings, goal=few, headline=True),
        measured("R2UR", "in a turn", [ours.moves_to_uniform], config=settings, goal=Goal("<=", 0)),
        measured("spilled", "bytes", [ours.assembly.spilled_bytes], config=settings, goal=Goal("<=", 0)),
    ]
    if tensor is not None:
        goal = Goal(">=", tensor)
        results.append(
            measured("tensor cores busy", "%", [ours.tensor], config=settings, goal=goal, headline=True)
        )
    if bound is not None:
        goal = Goal(">=", bound)
        results.append(
            measured(
                "bound of exponentials", "%", [ours.exponentials], config=settings, goal=goal, headline=True
            )
        )
    return results
