"""The quality of a kernel, judged without a GPU: by the assembler's resources, by its main loop in
machine code, and by the interpreter's counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flash.commands.measure.cpu import normal
from flash.contract.catalogue import Build, build
from flash.launch.calls import counters, make_plan
from flash.launch.checks import alignment, check
from flash.problem.config import AttentionConfig
from ptxgen import interpreter
from ptxgen.arrays.views import view
from ptxgen.errors import BackendError
from ptxgen.interpreter import Counters
from ptxgen.report.role_model import RoleClocks, role_clocks, role_loops
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.runtime.sass import IN_TENSOR_MEMORY, Loop, find_disassembler, main_loop
from ptxgen.target import WARP_SIZE, Target

THOUSAND: Final = 1000  # scores: the unit of figures


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel as text, and its launch; `shared_bytes` is the dynamic shared memory of a CTA.

    `columns` is the number of multiply-adds for a score: padded head_dim + head_dim_v, with
    head_dim counted once for each slice of the values, times the products of `mma` for each.
    """

    text: str
    entry: str
    threads: int
    shared_bytes: int
    columns: int

    @classmethod
    def of(cls, built: Build) -> Subject:
        """The subject of one of our kernels."""
        t, kernel = built.config.tiling, built.kernel
        columns = t.products * t.value_slices * (t.score_columns + t.output_columns)
        return cls(built.text, kernel.name, t.threads, kernel.dynamic_shared_bytes, columns)


@dataclass(frozen=True, slots=True)
class Assembled:
    """An assembled kernel: 32-bit registers of a thread, bytes that its spill code moves, bytes of
    shared memory of a CTA; `occupancy` is the share of a multiprocessor's warps that can be
    resident, 0 to 1. If `loop` is None, `why_no_loop` says why; kernels with `tcgen05` have `roles` instead,
    the clocks of an iteration of all their roles.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    ctas_per_sm: int
    occupancy: float
    columns: int
    loop: Loop | None
    why_no_loop: str = ""
    roles: RoleClocks | None = None

    @property
    def scores(self) -> float:
        """Scores that a warp computes on tensor cores in an iteration of the main loop; 0 without a loop."""
        return self.loop.macs / self.columns if self.loop else 0.0

    @property
    def loop_per_score(self) -> float:
        """Machine instructions of a warp in the main loop for 1000 scores; 0 without a loop."""
        return THOUSAND * len(self.loop.path) / self.scores if self.loop else 0.0

    @property
    def loop_share(self) -> float:
        """The share of tensor-core instructions in the main loop, 0 to 1."""
        return self.loop.products / len(self.loop.path) if self.loop else 0.0


def assembled(subject: Subject, target: Target) -> Assembled:
    """Assemble a kernel; `loop` needs a disassembler. Raises `BackendError` if none assembles."""
    assembly = find_assembler(target=target.name).assemble(subject.text, target.name)
    usage = assembly.kernel(subject.entry)
    loop, roles, why = None, None, "no loop has products on tensor cores"
    try:
        instrs = find_disassembler().instructions(assembly.cubin)
        loop = main_loop(instrs)
        if any(instr.name in IN_TENSOR_MEMORY for instr in instrs):
            roles = role_clocks(role_loops(instrs), target)
    except (BackendError, ValueError) as error:
        why = str(error)
    shared = subject.shared_bytes + usage.static_shared_bytes
    ctas = target.blocks_per_sm_for(subject.threads, usage.registers, shared)
    return Assembled(
        usage.registers,
        usage.spill_store_bytes + usage.spill_load_bytes,
        shared,
        ctas,
        ctas * (subject.threads // WARP_SIZE) / target.warps_per_sm,
        subject.columns,
        loop,
        "" if loop else why,
        roles,
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of an interpreted launch, for 1000 visible scores: PTX instructions of a warp, and
    shared-memory wavefronts. `conflicts` is the number of wavefronts in the whole launch that bank
    conflicts cost; `product_share` is the share of tensor-core instructions, 0 to 1.
    """

    instructions: float
    wavefronts: float
    conflicts: int
    product_share: float


def counted(counters: Counters, scores: int) -> Counted:
    """The counters of a profiled launch, for 1000 of its `scores`."""
    products = sum(n for opcode, n in counters.by_opcode.items() if opcode.startswith(("mma.", "wgmma.mma")))
    wavefronts, conflicts = counters.shared_wavefronts, counters.shared_conflicts
    assert wavefronts is not None, "the launch was not profiled"
    assert conflicts is not None, "the launch was not profiled"
    return Counted(
        THOUSAND * counters.warp_instructions / scores,
        THOUSAND * wavefronts / scores,
        conflicts,
        products / counters.warp_instructions,
    )


def seen_scores(seq: int, causal: bool) -> int:
    """The number of visible (query, key) pairs of one head with `seq` queries and keys."""
    return seq * (seq + 1) // 2 if causal else seq * seq


def dense_launch(config: AttentionConfig, seq: int) -> tuple[Build, LaunchPlan, list[Any]]:
    """The kernel of a configuration that needs no arrays but Q, K, V and O, its launch on one head of
    `seq` queries and `seq` keys, normally distributed, and the arguments, arrays first.
    """
    (q, k), (v, out) = (normal(*[(1, 1, seq, dim)] * 2) for dim in (config.head_dim, config.value_dim))
    arrays = [view(x.astype(config.element.numpy), "array") for x in (q, k, v, out)]
    geometry = check(config, *arrays)
    pointers = [array.pointer for array in arrays]
    built = build(config.kernel(None, alignment(config, geometry, *pointers)))
    arrays += [view(counter, "tickets") for counter in counters(built.config)]
    pointers = [array.pointer for array in arrays]
    plan = make_plan(built, geometry, config.scale, tuple(pointers), config.numbers)
    memory = [np.asarray(array.owner) for array in arrays]
    return built, plan, plan.on_host(memory)


def count(config: AttentionConfig, seq: int) -> Counted:
    """Interpret one head of `seq` queries and `seq` keys, normally distributed, and count."""
    built, plan, args = dense_launch(config, seq)
    result = interpreter.run(
        built.module,
        grid=plan.grid,
        block=plan.block,
        args=args,
        dynamic_smem=plan.dynamic_shared,
        profile=True,
    )
    return counted(result.counters, seen_scores(seq, bool(config.causal)))
