"""How warps issue the main loop of a kernel on tensor cores: a model of one scheduler.

The warps of the CTAs that are resident on a quarter of a multiprocessor go round the loop. In each clock
the scheduler issues one instruction, of the warp that has waited longest. A warp waits for the clocks and
scoreboards that the assembler wrote into its instructions (`ptxgen.runtime.sass.Control`), for results of
tensor cores, for the unit that executes its next instruction (`issue_units`), for its copies, and at
barriers for the other warps of its CTA. CTAs begin at random clocks, always the same ones.

Clocks until a result is there: tensor cores 25 on sm_80 (Sun et al., "Dissecting Tensor Cores via
Microbenchmarks", 2022) and 33 on later targets, shared memory and mbarriers 30, global memory in L2 260
(Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024). Assumed, without a
source: tensor cores 25 on sm_75, special functions 22, tensor memory 30, other units that set a scoreboard
12, and 10 until operands of an access have been read. `role_model` reads kernels that multiply by `tcgen05`,
and issues a loop of theirs here.

Products of warpgroups (HGMMA, QGMMA) are asynchronous: a warp issues one and goes on; `gsb0` ends a group,
for which `WARPGROUP.DEPBAR` waits. A loop that waits and arrives at named barriers (`BAR.SYNC` and `BAR.ARV`)
is a ping-pong loop of its warpgroups. The rest was measured on an H800
(github.com/cicuvc/nvidia-sass-document, commit d26f1d88, notes/sm90/arch/wgmma.md and register_bandwidth.md),
not on kernels of this project:

* a product takes its multiply-adds by the dense rate of the device, or the clocks in which shared memory
  brings its operands, whichever are more. Tensor copies and bulk reductions pass through shared memory
  evenly while tensor cores work, and what warps read and write goes first;
* seven products may be queued, then a warp waits to issue the next one;
* results are there 49 clocks after the last multiply-add (a single product takes 53, 57 and 81 clocks for
  n8, n16 and n64);
* registers are written by one port: while a product is executed, each register that another instruction
  writes delays both by a clock. By this rule a stream of one write in two clocks lengthens a product of n8,
  n16 and n64 by 1.9, 3.9 and 15.9 clocks; measured were 1.9, 3.9 and 15.7, with products of 64 clocks
  each. That it holds for products without a gap, and of more columns, is assumed.

Copies that mbarriers count are assumed to have arrived when they are waited for. The model knows neither DRAM
nor bank conflicts, nor how long named barriers and branches take; what comes before and after the loop is
`issue_block`'s. Next to the H200's counters it is right within 5 points for three of four kernels, and tells
of head_dim 256 too little (docs/measurements.md, "The model and the counters"): it ranks kernels, and
promises no time.
"""

from __future__ import annotations

import enum
import random
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from ptxgen.report.issue_units import (
    OF_WARPGROUPS,
    SCHEDULERS,
    WAVEFRONT_BYTES,
    Unit,
    clocks_of,
    copied_bytes,
    rows_read,
    unit_of,
    writes_register,
)
from ptxgen.runtime.sass import IN_TENSOR_MEMORY, Loop, SassInstr
from ptxgen.target import WARP_SIZE, Target

_ITERATIONS: Final = 8  # of the slowest warp
_STARTS: Final = 5  # ways for CTAs to begin, of which the mean is taken
_SPREAD: Final = 2500  # clocks within which CTAs begin
_SCOREBOARDS: Final = 6
_READ_CLOCKS: Final = 10  # until operands of a memory access have been read
NEVER: Final = float("inf")
_ARRIVES: Final = "BAR.ARV"
_GROUP_ENDS: Final = "gsb0"
_OF_MBARRIERS: Final = "SYNCS"
_QUEUED: Final = 7  # products of warpgroups
_WRITE_CLOCKS: Final = 1.0  # by which a register that is written delays a product, and is delayed


class Wait(enum.Enum):
    """What a warp does in the clocks between two of its instructions: it issues, or waits for a result of a
    unit or for the unit, also while others use it. Of several reasons at once the first here counts.
    """

    ISSUE = "issues"
    STALL = "stall counts"
    MEMORY = "shared memory"
    GLOBAL = "global memory"
    TENSOR = "tensor cores"
    SPECIAL = "special functions"
    TENSOR_MEMORY = "tensor memory"
    ARITHMETIC = "f32 and integers"
    OTHER = "other results"
    BARRIER = "barrier"
    NOT_SELECTED = "another warp issues"


_OF_UNITS: Final = {
    Unit.TENSOR: Wait.TENSOR,
    Unit.F32: Wait.ARITHMETIC,
    Unit.INTEGER: Wait.ARITHMETIC,
    Unit.SPECIAL: Wait.SPECIAL,
    Unit.MEMORY: Wait.MEMORY,
    Unit.TENSOR_MEMORY: Wait.TENSOR_MEMORY,
    Unit.NONE: Wait.OTHER,
}
_RESULT_CLOCKS: Final = {Unit.SPECIAL: 22.0, Unit.MEMORY: 30.0, Unit.TENSOR_MEMORY: 30.0}
_MOVE_MANY: Final = (Unit.MEMORY, Unit.TENSOR_MEMORY)  # units that move a register of a warp after another
_OTHER_CLOCKS: Final = 12.0
_FROM_GLOBAL_MEMORY: Final = ("LDG", "ATOMG")
_OF_GLOBAL_MEMORY: Final = (*_FROM_GLOBAL_MEMORY, "LDGSTS", "STG", "REDG", "RED")
_GLOBAL_CLOCKS: Final = 260.0
_TENSOR_CLOCKS: Final = {75: 25.0, 80: 25.0, 86: 25.0, 89: 25.0}
_LATER_TENSOR_CLOCKS: Final = 33.0
WARPGROUP_CLOCKS: Final = 49.0
_THREADS: Final = re.compile(r", (0x[0-9a-f]+)$")
_REGISTER: Final = re.compile(r"\bR(\d+)")
_PENDING: Final = re.compile(r"(?:SB|gsb)\d, (0x[0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Busy:
    """The modelled loop: for each unit of a scheduler the share of clocks in which it is busy, 0 to 1; the
    clocks of a scheduler for an iteration of one warp; and for each instruction the clocks of a warp from its
    instruction before up to this one, by what it does in them.
    """

    shares: Mapping[Unit, float]
    clocks_of_iteration: float
    waits: Sequence[Mapping[Wait, float]]

    @property
    def waited(self) -> Mapping[Wait, float]:
        """The shares of a warp's clocks in the loop, 0 to 1."""
        sums = {wait: sum(of_step[wait] for of_step in self.waits) for wait in Wait}
        return {wait: clocks / sum(sums.values()) for wait, clocks in sums.items()}

    @property
    def tensor(self) -> float:
        """The share of clocks in which the tensor cores are busy, 0 to 1."""
        return self.shares[Unit.TENSOR]

    def clocks_of_ctas(self, threads: int, ctas: int) -> float:
        """The clocks in which each of `ctas` resident CTAs of `threads` threads completes one iteration."""
        return self.clocks_of_iteration * threads / WARP_SIZE / SCHEDULERS * ctas


@dataclass(slots=True)
class Step:
    """One instruction of the loop, as the model needs it."""

    instr: SassInstr
    unit: Unit
    clocks: float
    result: float
    stall: int
    waits: tuple[int, ...]
    on_write: int | None
    on_read: int | None
    registers: frozenset[int]
    writes: range  # the registers of a result of tensor cores
    pending: int  # groups of copies, or of products, that may still be under way after a DEPBAR
    mates: int  # warps of the scheduler that a barrier counts, 0 for all of the CTA
    reads: int  # bytes that a product of a warpgroup reads from shared memory
    writes_register: bool  # and is no product

    @classmethod
    def of(cls, instr: SassInstr, target: Target) -> Step:
        """The step of an instruction. Raises `ValueError` if it has no control word, or is a product of
        `tcgen05`.
        """
        control, unit = instr.control, unit_of(instr)
        if control is None:
            raise ValueError("the issue model needs instructions with their control words")
        if instr.name in IN_TENSOR_MEMORY:
            raise ValueError(
                "the issue model knows no products of tcgen05, which one thread starts for all warps: the "
                f"loop has {instr.opcode}; read the kernel by ptxgen.report.role_model"
            )
        known = Unit.MEMORY if instr.name == _OF_MBARRIERS else unit
        result = _RESULT_CLOCKS.get(known, _OTHER_CLOCKS)
        if instr.name in _FROM_GLOBAL_MEMORY:
            result = _GLOBAL_CLOCKS
        registers = [int(n) for n in _REGISTER.findall(instr.operands)]
        writes = range(0)
        if instr.name in OF_WARPGROUPS:
            registers = []  # DEPBAR waits for them
        elif unit is Unit.TENSOR:
            result = _TENSOR_CLOCKS.get(target.sm, _LATER_TENSOR_CLOCKS)
            writes = range(registers[0], registers[0] + 4)
            registers += [r + n for r in registers[-1:] for n in range(4)]  # of the sums
        pending = _PENDING.search(instr.operands) if "DEPBAR" in instr.opcode else None
        threads = _THREADS.search(instr.operands) if instr.name == "BAR" else None
        return cls(
            instr,
            unit,
            clocks_of(instr, target),
            result,
            max(control.stall, 1),
            control.waits,
            control.on_write,
            control.on_read,
            frozenset(registers),
            writes,
            int(pending[1], 16) if pending else 0,
            int(threads[1], 16) // (WARP_SIZE * SCHEDULERS) if threads else 0,
            sum(rows_read(instr)),
            writes_register(instr),
        )

    @property
    def awaited(self) -> Wait:
        """What a warp waits for that waits for the step's scoreboards."""
        return Wait.GLOBAL if self.instr.name in _OF_GLOBAL_MEMORY else _OF_UNITS[self.unit]

    @property
    def waits_for_products(self) -> bool:
        """Whether the instruction waits for groups of wgmma products."""
        return self.instr.opcode.startswith("WARPGROUP.DEPBAR")

    @property
    def arrives(self) -> bool:
        """Whether the instruction is a BAR.ARV, which lets the next warpgroup of a ping-pong run."""
        return self.instr.opcode.startswith(_ARRIVES)

    @property
    def is_product_of_warpgroup(self) -> bool:
        """Whether the instruction is a wgmma, a product of a warpgroup that runs asynchronously."""
        return self.instr.name in OF_WARPGROUPS


@dataclass(slots=True)
class _Product:
    """An asynchronous product: when its last multiply-add is done."""

    done: float = 0.0


@dataclass(slots=True)
class Shared:
    """What the warps of a scheduler share: for each unit the clock from which it is `free`, and the clocks
    for which it was `busy`; `passing` are the bytes that copies move through shared memory for each clock of
    the tensor cores, `owed` the clocks for which warps used it while a product was executed, `queued` the
    last products, and `spare` the clocks in which these wait for shared memory and write no registers.
    """

    passing: float
    free: dict[Unit, float] = field(default_factory=lambda: dict.fromkeys(Unit, 0.0))
    busy: dict[Unit, float] = field(default_factory=lambda: dict.fromkeys(Unit, 0.0))
    owed: float = 0.0
    spare: float = 0.0
    queued: deque[_Product] = field(
        default_factory=lambda: deque((_Product() for _ in range(_QUEUED)), _QUEUED)
    )

    def take(self, step: Step, clock: float) -> None:
        """Start an instruction that is no product of a warpgroup."""
        if step.unit is not Unit.NONE:
            self.free[step.unit] = clock + step.clocks
            self.busy[step.unit] += step.clocks
        if step.unit is Unit.MEMORY:
            self.owed += step.clocks

    def delay(self, clock: float) -> float:
        """The clocks by which a register that is written now delays a product, and is delayed."""
        if self.queued[-1].done <= clock:
            return 0.0
        if self.spare >= _WRITE_CLOCKS:
            self.spare -= _WRITE_CLOCKS
            return 0.0
        self.free[Unit.TENSOR] += _WRITE_CLOCKS
        for product in self.queued:
            if product.done > clock:
                product.done += _WRITE_CLOCKS
        return _WRITE_CLOCKS

    def multiply(self, step: Step, clock: float) -> _Product:
        """Start a product of a warpgroup after those that are queued."""
        if self.free[Unit.TENSOR] <= clock:
            self.owed = self.spare = 0.0
        memory = (step.reads + self.passing * step.clocks) / WAVEFRONT_BYTES
        takes = max(step.clocks, memory + self.owed)
        done = max(clock, self.free[Unit.TENSOR]) + takes
        self.owed = 0.0
        self.spare += takes - step.clocks
        self.busy[Unit.TENSOR] += step.clocks
        self.busy[Unit.MEMORY] += memory
        self.free[Unit.TENSOR] = done
        self.queued.append(_Product(done))
        return self.queued[-1]


@dataclass(slots=True, eq=False)
class Warp:
    """The state of a warp: its position in the loop, and the clocks at which its results and copies are
    ready.
    """

    cta: int
    ready: float
    at: int = 0
    iterations: int = 0
    issued: float = 0.0
    scoreboards: list[float] = field(default_factory=lambda: [0.0] * _SCOREBOARDS)
    # For each scoreboard, until when the results that set it keep it, by what a warp then waits for.
    set_by: list[dict[Wait, float]] = field(default_factory=lambda: [{} for _ in range(_SCOREBOARDS)])
    results: dict[int, float] = field(default_factory=dict)
    copies: float = 0.0
    groups: list[float] = field(default_factory=list)
    products: list[_Product] = field(default_factory=list)  # the last of each group
    ping_pong_since: float = NEVER  # since when a ping-pong barrier lets the warp run

    @property
    def position(self) -> tuple[int, int]:
        """Iterations that the warp has completed, and the index of its next step."""
        return self.iterations, self.at

    def waits(self, step: Step, when: float, clock: float, shared: Shared) -> Iterator[tuple[Wait, float]]:
        """The clocks since the warp's last instruction, by what it does in them, before it issues the next
        one at `clock`; `when` is the clock from which it might.
        """
        ends = dict.fromkeys(Wait, 0.0)

        def wait_for(wait: Wait, *until: float) -> None:
            ends[wait] = max(ends[wait], *until)

        for n in step.waits:
            for wait, done in self.set_by[n].items():
                wait_for(wait, done)
        if step.is_product_of_warpgroup:
            wait_for(Wait.TENSOR, shared.queued[0].done)
        elif step.unit is not Unit.NONE:
            wait_for(_OF_UNITS[step.unit], shared.free[step.unit])
        wait_for(Wait.TENSOR, 0.0, *(self.results.get(r, 0.0) for r in step.registers))
        wait_for(Wait.TENSOR, 0.0, *self._ends_of_groups(step))
        wait_for(Wait.GLOBAL, 0.0, *self._ends_of_copies(step))
        ends |= {Wait.ISSUE: self.issued + 1, Wait.STALL: self.ready, Wait.NOT_SELECTED: clock}
        if step.instr.name == "BAR":
            ends[Wait.BARRIER] = when
        begin = self.issued
        for wait, end in ends.items():
            until = max(begin, min(end, clock))
            yield wait, until - begin
            begin = until

    def _ends_of_copies(self, step: Step) -> list[float]:
        """When the groups of copies that the step waits for have arrived."""
        if step.instr.name != "DEPBAR":
            return []
        return self.groups[: max(len(self.groups) - step.pending, 0)]

    def _ends_of_groups(self, step: Step) -> list[float]:
        """When the groups of products that the step waits for have their results."""
        if not step.waits_for_products:
            return []
        waited = self.products[: max(len(self.products) - step.pending, 0)]
        return [product.done + WARPGROUP_CLOCKS for product in waited]

    def earliest(self, step: Step, shared: Shared) -> float:
        """The first clock at which the warp may issue the step."""
        when = max([self.ready, *(self.scoreboards[n] for n in step.waits)])
        if self.results:
            when = max([when, *(self.results.get(r, 0.0) for r in step.registers)])
        when = max([when, *self._ends_of_copies(step), *self._ends_of_groups(step)])
        if step.is_product_of_warpgroup:
            return max(when, shared.queued[0].done)
        return when if step.unit is Unit.NONE else max(when, shared.free[step.unit])


def modelled(loop: Loop, target: Target, threads: int, ctas: int, copied: float | None = None) -> Busy:
    """The model of a loop, for `ctas` resident CTAs of `threads` threads; `copied` are the bytes that tensor
    copies bring, and bulk reductions take, in an iteration of a CTA, by default what its products read as B
    (`copied_bytes`). Raises `ValueError` if the instructions have no control words.
    """
    steps = [Step.of(instr, target) for instr in loop.path]
    of_cta = max(1, threads // WARP_SIZE // SCHEDULERS)
    passes = copied_bytes(loop.path) if copied is None else copied
    multiplies = of_cta * sum(step.clocks for step in steps if step.is_product_of_warpgroup)
    passing = passes / multiplies if multiplies else 0.0
    chance = random.Random(1)
    runs = []
    for _ in range(_STARTS if ctas > 1 else 1):
        starts = [chance.randrange(_SPREAD) if ctas > 1 else 0 for _ in range(ctas)]
        warps = [Warp(n, start) for n, start in enumerate(starts) for _ in range(of_cta)]
        runs.append(_run(steps, warps, Shared(passing)))
    shares = {unit: mean(busy.shares[unit] for busy in runs) for unit in Unit}
    waits = [
        {wait: mean(of_step[wait] for of_step in of_runs) for wait in Wait}
        for of_runs in zip(*(busy.waits for busy in runs), strict=True)
    ]
    return Busy(shares, mean(busy.clocks_of_iteration for busy in runs), waits)


def _run(steps: Sequence[Step], warps: list[Warp], shared: Shared) -> Busy:
    """Issue until every warp has gone round `_ITERATIONS` times; the first iterations are not counted."""
    ping_pong = any(step.arrives for step in steps)
    for warp, before in zip(warps, [None, *warps], strict=False):
        if before is None or before.cta != warp.cta:
            warp.ping_pong_since = warp.ready  # the first of a CTA begins
    clock, since = 0.0, -1.0
    waited = [dict.fromkeys(Wait, 0.0) for _ in steps]
    counts = [0] * len(steps)
    left = dict.fromkeys(Unit, 0.0)  # that units have to do when the first counted clock begins
    while min(warp.iterations for warp in warps) < _ITERATIONS:
        when = [_when(warp, steps, shared, warps, ping_pong) for warp in warps]
        nth = min(range(len(warps)), key=lambda n: (when[n], warps[n].issued))
        warp, step = warps[nth], steps[warps[nth].at]
        clock = max(clock + 1, when[nth])
        if since < 0 and min(warp.iterations for warp in warps) > 0:
            since = clock
            left = {unit: max(until - clock, 0.0) for unit, until in shared.free.items()}
            shared.busy = dict.fromkeys(Unit, 0.0)
        if since >= 0:
            counts[warp.at] += 1
            for wait, clocks in warp.waits(step, when[nth], clock, shared):
                waited[warp.at][wait] += clocks
        if ping_pong and step.instr.name == "BAR":
            pass_ping_pong(warp, step, clock, warps)
        issue(warp, step, clock, shared)
        if warp.at == len(steps):
            warp.at, warp.iterations = 0, warp.iterations + 1
    clocks = clock - since  # up to the last instruction, which is not in it, nor what units then have to do
    after = {unit: max(until - clock, 0.0) for unit, until in shared.free.items()}
    shares = {unit: (used + left[unit] - after[unit]) / clocks for unit, used in shared.busy.items()}
    return Busy(
        shares,
        clocks * len(steps) / (sum(counts) - 1),
        [
            {wait: of_wait / count for wait, of_wait in of_step.items()}
            for of_step, count in zip(waited, counts, strict=True)
        ],
    )


def pass_ping_pong(warp: Warp, step: Step, clock: float, warps: Sequence[Warp]) -> None:
    """At a ping-pong barrier: end the warp's permission to run, or (BAR.ARV) give it to the next warp of its
    CTA.
    """
    if step.arrives:
        mates = [mate for mate in warps if mate.cta == warp.cta]
        mates[(mates.index(warp) + 1) % len(mates)].ping_pong_since = clock
    else:
        warp.ping_pong_since = NEVER


def _when(warp: Warp, steps: Sequence[Step], shared: Shared, warps: Sequence[Warp], ping_pong: bool) -> float:
    """The clock at which the warp may issue; at a barrier not before the previous warp's BAR.ARV
    (`ping_pong`), or the arrival of the CTA's last warp.
    """
    step = steps[warp.at]
    when = warp.earliest(step, shared)
    if step.instr.name != "BAR" or step.mates == 1 or step.arrives:
        return when
    if ping_pong:
        return max(when, warp.ping_pong_since)
    mates = [mate for mate in warps if mate.cta == warp.cta]
    if any(mate.position < warp.position for mate in mates):
        return NEVER
    here = [mate.earliest(steps[mate.at], shared) for mate in mates if mate.position == warp.position]
    return max(here)


def issue(warp: Warp, step: Step, clock: float, shared: Shared) -> None:
    """Issue the next step of a warp, and note when its result is ready."""
    warp.at, warp.issued, warp.ready = warp.at + 1, clock, clock + step.stall
    if step.is_product_of_warpgroup:
        product = shared.multiply(step, clock)
        if _GROUP_ENDS in step.instr.operands:
            warp.products = [*warp.products[-_SCOREBOARDS:], product]
        return
    shared.take(step, clock)
    if step.writes_register:
        warp.ready += shared.delay(clock)
    _note_result(warp, step, clock)


def _note_result(warp: Warp, step: Step, clock: float) -> None:
    """Note when the result of a step is there, and its operands have been read."""
    done = clock + step.result
    if step.unit in _MOVE_MANY:
        done += step.clocks
    ends = {step.on_write: done, step.on_read: clock + _READ_CLOCKS}
    for scoreboard, end in ends.items():
        if scoreboard is not None:
            warp.scoreboards[scoreboard] = max(warp.scoreboards[scoreboard], end)
            warp.set_by[scoreboard][step.awaited] = max(warp.set_by[scoreboard].get(step.awaited, 0.0), end)
    if step.unit is Unit.TENSOR:
        warp.results.update(dict.fromkeys(step.writes, done))
    if step.instr.name == "LDGSTS":
        warp.copies = max(warp.copies, clock + _GLOBAL_CLOCKS)
    elif step.instr.name == "LDGDEPBAR":
        warp.groups = [*warp.groups[-_SCOREBOARDS:], warp.copies]
