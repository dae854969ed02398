"""How warps issue the main loop of a kernel on tensor cores: a model of one scheduler.

The warps of the CTAs that are resident on a quarter of a multiprocessor go round the loop. In each clock
the scheduler issues one instruction, of the warp that has waited longest. A warp waits for the clocks and
scoreboards that the assembler wrote into its instructions (`ptxgen.runtime.sass.Control`), for results of
tensor cores, for the unit that executes its next instruction, for its copies, and at barriers for the
other warps of its CTA. CTAs begin at random clocks, always the same ones. Units, clocks of a warp
instruction:

* tensor cores, f32, integers, special functions: 32 lanes, or the multiply-adds, by the rates of
  `ptxgen.report.rates`; copies to and reads from shared memory: one wavefront of 128 bytes is one clock
  of the multiprocessor, whose four schedulers share it;
* until a result is there: tensor cores 25 clocks on sm_80 (Sun et al., "Dissecting Tensor Cores via
  Microbenchmarks", 2022) and 33 on later targets, shared memory 30, global memory in L2 260 (Luo et al.,
  "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024). Assumed, without a source: special
  functions 22, other units that set a scoreboard 12, and 10 until operands of an access have been read.

Products of warpgroups (HGMMA) are asynchronous: a warp issues one while the one before it is executed, and
goes on; `gsb0` ends a group, for which `WARPGROUP.DEPBAR` waits. They take the multiply-adds of the four
tensor cores by the dense rate of the device. A loop that waits and arrives at named barriers
(`BAR.SYNC` and `BAR.ARV`) is one whose warpgroups take turns. Copies that mbarriers count have arrived when
they are asked for, and what HGMMA reads of shared memory takes nothing of it.

The model knows neither DRAM nor bank conflicts, nor what is in front of and behind the loop: it ranks
kernels, and promises no time.
"""

from __future__ import annotations

import enum
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from ptxgen.report.rates import DEVICES, INTEGER_LANES, SPECIAL_LANES, tensor_factor
from ptxgen.runtime.sass import Loop, SassInstr
from ptxgen.target import WARP_SIZE, Target

SCHEDULERS: Final = 4  # of a multiprocessor
_TURNS: Final = 8  # of the slowest warp
_STARTS: Final = 5  # ways for CTAs to begin, of which the mean is taken
_SPREAD: Final = 2500  # clocks within which CTAs begin
_SCOREBOARDS: Final = 6
_READ_CLOCKS: Final = 10  # until operands of a memory access have been read
_WAVEFRONT_BYTES: Final = 128
_NEVER: Final = float("inf")
_ARRIVES: Final = "BAR.ARV"
_GROUP_ENDS: Final = "gsb0"


class Unit(enum.Enum):
    """What executes an instruction; `NONE` is never waited for: branches, barriers, uniform integers."""

    TENSOR = "tensor cores"
    F32 = "f32"
    INTEGER = "integers"
    SPECIAL = "special functions"
    MEMORY = "shared memory"
    NONE = "none"


class Wait(enum.Enum):
    """What a warp waits for between two of its instructions, each behind what precedes it here."""

    STALL = "its own stall counts"
    MEMORY = "shared and global memory, also while others use it"
    TENSOR = "tensor cores, likewise"
    OTHER = "other units, copies, barriers and warps that issue"


_OF_WARPGROUPS: Final = "HGMMA"
_UNITS: Final[Mapping[Unit, tuple[str, ...]]] = {
    Unit.TENSOR: ("HMMA", _OF_WARPGROUPS),
    Unit.SPECIAL: ("MUFU",),
    Unit.F32: ("FADD", "FMUL", "FFMA", "FADD2", "FMUL2", "FFMA2", "HADD2", "HMUL2", "HFMA2"),
    Unit.MEMORY: ("LDSM", "LDS", "STS", "STSM", "LDGSTS", "LDG", "STG", "LDL", "STL", "SHFL", "ATOMS"),
    Unit.NONE: (
        *("BAR", "DEPBAR", "LDGDEPBAR", "BRA", "EXIT", "NOP", "WARPSYNC", "BSSY", "BSYNC", "CALL", "LDC"),
        *("S2R", "CS2R", "R2UR", "WARPGROUP", "SYNCS", "FENCE", "MEMBAR"),
    ),
}
_RESULT_CLOCKS: Final = {Unit.SPECIAL: 22.0, Unit.MEMORY: 30.0}
_OTHER_CLOCKS: Final = 12.0
_COPY_CLOCKS: Final = 260.0
_TENSOR_CLOCKS: Final = {80: 25.0, 86: 25.0, 89: 25.0}
_LATER_TENSOR_CLOCKS: Final = 33.0
_THREADS: Final = re.compile(r", (0x[0-9a-f]+)$")
_REGISTER: Final = re.compile(r"\bR(\d+)")
_PENDING: Final = re.compile(r"(?:SB|gsb)\d, (0x[0-9a-f]+)")


def unit_of(instr: SassInstr) -> Unit:
    """What executes an instruction."""
    if instr.name.startswith("U"):
        return Unit.NONE
    return next((unit for unit, names in _UNITS.items() if instr.name in names), Unit.INTEGER)


def clocks_of(instr: SassInstr, target: Target) -> float:
    """The clocks for which a warp instruction keeps its unit of one scheduler busy."""
    unit = unit_of(instr)
    if unit is Unit.TENSOR:
        word = ".tf32" if ".TF32" in instr.opcode else ""
        sm = _known(target)
        of = "wgmma" if instr.name == _OF_WARPGROUPS else "mma"
        macs = DEVICES[sm].macs * tensor_factor(f"{of}{word}", sm)
        return instr.macs * SCHEDULERS / macs
    lanes = {Unit.F32: target.fp32_lanes_per_sm, Unit.INTEGER: INTEGER_LANES, Unit.SPECIAL: SPECIAL_LANES}
    if unit in lanes:
        return WARP_SIZE * SCHEDULERS / lanes[unit]
    return SCHEDULERS * _wavefronts(instr) if unit is Unit.MEMORY else 0.0


def _wavefronts(instr: SassInstr) -> int:
    if instr.name == "LDSM":
        last = instr.opcode.rpartition(".")[2]
        return int(last) if last in ("2", "4") else 1
    if instr.name == "SHFL":
        return 1
    nbytes = 16 if ".128" in instr.opcode else 8 if ".64" in instr.opcode else 4
    return WARP_SIZE * nbytes // _WAVEFRONT_BYTES


def _known(target: Target) -> int:
    """The device with rates that stands for the target."""
    return target.sm if target.sm in DEVICES else max(sm for sm in DEVICES if sm <= target.sm)


@dataclass(frozen=True, slots=True)
class Busy:
    """The modelled loop: the share of its clocks in which each unit of a scheduler is busy, 0 to 1, the
    clocks of a scheduler for a turn of one warp, and the share of a warp's clocks that it waits for what.
    """

    shares: Mapping[Unit, float]
    clocks_of_turn: float
    waits: Mapping[Wait, float]

    @property
    def tensor(self) -> float:
        """The share of the tensor cores."""
        return self.shares[Unit.TENSOR]


@dataclass(slots=True)
class _Step:
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
    pending: int  # groups of copies, or of products, that may still be under way behind a DEPBAR
    mates: int  # warps of the scheduler that a barrier counts, 0 for all of the CTA

    @classmethod
    def of(cls, instr: SassInstr, target: Target) -> _Step:
        control, unit = instr.control, unit_of(instr)
        if control is None:
            raise ValueError("the issue model needs instructions with their control words")
        result = _RESULT_CLOCKS.get(unit, _OTHER_CLOCKS)
        registers = [int(n) for n in _REGISTER.findall(instr.operands)]
        writes = range(0)
        if instr.name == _OF_WARPGROUPS:
            result = _LATER_TENSOR_CLOCKS
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
        )

    @property
    def waits_for_products(self) -> bool:
        """Whether it is a wait for groups of products."""
        return self.instr.opcode.startswith("WARPGROUP.DEPBAR")

    @property
    def is_product_of_warpgroup(self) -> bool:
        """Whether it is an asynchronous product."""
        return self.instr.name == _OF_WARPGROUPS


@dataclass(slots=True, eq=False)
class _Warp:
    """Where a warp is, and what it waits for."""

    cta: int
    ready: float
    at: int = 0
    turns: int = 0
    issued: float = 0.0
    scoreboards: list[float] = field(default_factory=lambda: [0.0] * _SCOREBOARDS)
    memory: list[float] = field(default_factory=lambda: [0.0] * _SCOREBOARDS)  # those that memory sets
    waits: dict[Wait, float] = field(default_factory=lambda: dict.fromkeys(Wait, 0.0))
    results: dict[int, float] = field(default_factory=dict)
    copies: float = 0.0
    groups: list[float] = field(default_factory=list)
    products: list[float] = field(default_factory=list)  # groups of products: when each is done
    turn: float = _NEVER  # since when it is the warp's turn

    @property
    def place(self) -> tuple[int, int]:
        """How far the warp is."""
        return self.turns, self.at

    def note_waits(self, step: _Step, clock: float, free: Mapping[Unit, float]) -> None:
        """Count what the warp has waited for since its last instruction, before it issues the next one."""
        memory = [self.memory[n] for n in step.waits]
        if step.unit is Unit.MEMORY:
            memory.append(free[step.unit])
        tensor = [self.results.get(r, 0.0) for r in step.registers]
        if step.unit is Unit.TENSOR:
            tensor.append(free[step.unit] - step.clocks * step.is_product_of_warpgroup)
        if step.waits_for_products and len(self.products) > step.pending:
            tensor += self.products[: len(self.products) - step.pending]
        ends = {
            Wait.STALL: self.ready,
            Wait.MEMORY: max(memory, default=0.0),
            Wait.TENSOR: max(tensor, default=0.0),
            Wait.OTHER: clock,
        }
        begin = self.issued
        for wait, end in ends.items():
            until = max(begin, min(end, clock))
            self.waits[wait] += until - begin
            begin = until

    def earliest(self, step: _Step, free: Mapping[Unit, float]) -> float:
        """When the warp may issue the step."""
        when = max([self.ready, *(self.scoreboards[n] for n in step.waits)])
        if self.results:
            when = max([when, *(self.results.get(r, 0.0) for r in step.registers)])
        if step.instr.name == "DEPBAR" and len(self.groups) > step.pending:
            when = max(when, *self.groups[: len(self.groups) - step.pending])
        if step.waits_for_products and len(self.products) > step.pending:
            when = max(when, *self.products[: len(self.products) - step.pending])
        if step.is_product_of_warpgroup:
            return max(when, free[step.unit] - step.clocks)
        return when if step.unit is Unit.NONE else max(when, free[step.unit])


def modelled(loop: Loop, target: Target, threads: int, ctas: int) -> Busy:
    """The model of a loop, for `ctas` resident CTAs of so many threads. Raises `ValueError` if the
    instructions have no control words.
    """
    steps = [_Step.of(instr, target) for instr in loop.path]
    of_cta = max(1, threads // WARP_SIZE // SCHEDULERS)
    chance = random.Random(1)
    found = []
    for _ in range(_STARTS if ctas > 1 else 1):
        starts = [chance.randrange(_SPREAD) if ctas > 1 else 0 for _ in range(ctas)]
        found.append(_run(steps, [_Warp(n, start) for n, start in enumerate(starts) for _ in range(of_cta)]))
    shares = {unit: mean(busy.shares[unit] for busy in found) for unit in Unit}
    waits = {wait: mean(busy.waits[wait] for busy in found) for wait in Wait}
    return Busy(shares, mean(busy.clocks_of_turn for busy in found), waits)


def _run(steps: Sequence[_Step], warps: list[_Warp]) -> Busy:
    """Issue until every warp has gone round `_TURNS` times; the first turns are not counted."""
    free = dict.fromkeys(Unit, 0.0)
    in_turns = any(step.instr.opcode.startswith(_ARRIVES) for step in steps)
    for warp, before in zip(warps, [None, *warps], strict=False):
        if before is None or before.cta != warp.cta:
            warp.turn = warp.ready  # the first of a CTA begins
    clock, since, count = 0.0, -1.0, 0
    busy = dict.fromkeys(Unit, 0.0)
    while min(warp.turns for warp in warps) < _TURNS:
        when = [_when(warp, steps, free, warps, in_turns) for warp in warps]
        nth = min(range(len(warps)), key=lambda n: (when[n], warps[n].issued))
        warp, step = warps[nth], steps[warps[nth].at]
        clock = max(clock + 1, when[nth])
        if since < 0 and min(warp.turns for warp in warps) > 0:
            since = clock
            busy = {unit: max(until - clock, 0.0) for unit, until in free.items()}
        if since >= 0:
            warp.note_waits(step, clock, free)
        if in_turns and step.instr.name == "BAR":
            _turn(warp, step, clock, warps)
        _issue(warp, step, clock, free)
        if since >= 0:
            busy[step.unit] += step.clocks
            count += 1
        if warp.at == len(steps):
            warp.at, warp.turns = 0, warp.turns + 1
    clocks = clock - since  # up to the last instruction, which is not in it, nor what units then have to do
    shares = {unit: (used - max(free[unit] - clock, 0.0)) / clocks for unit, used in busy.items()}
    waited = {wait: sum(warp.waits[wait] for warp in warps) for wait in Wait}
    all_clocks = sum(waited.values())
    return Busy(
        shares,
        clocks * len(steps) / (count - 1),
        {wait: of_wait / all_clocks for wait, of_wait in waited.items()},
    )


def _turn(warp: _Warp, step: _Step, clock: float, warps: Sequence[_Warp]) -> None:
    """Take the turn of a warp, or give it to the next one of its CTA."""
    if step.instr.opcode.startswith(_ARRIVES):
        mates = [mate for mate in warps if mate.cta == warp.cta]
        mates[(mates.index(warp) + 1) % len(mates)].turn = clock
    else:
        warp.turn = _NEVER


def _when(
    warp: _Warp, steps: Sequence[_Step], free: Mapping[Unit, float], warps: Sequence[_Warp], in_turns: bool
) -> float:
    """When the warp may issue; at a barrier, when it is its turn, or the last warp of its CTA is there."""
    step = steps[warp.at]
    when = warp.earliest(step, free)
    if step.instr.name != "BAR" or step.mates == 1 or step.instr.opcode.startswith(_ARRIVES):
        return when
    if in_turns:
        return max(when, warp.turn)
    mates = [mate for mate in warps if mate.cta == warp.cta]
    if any(mate.place < warp.place for mate in mates):
        return _NEVER
    here = [mate.earliest(steps[mate.at], free) for mate in mates if mate.place == warp.place]
    return max(here)


def _issue(warp: _Warp, step: _Step, clock: float, free: dict[Unit, float]) -> None:
    """Issue the next step of a warp, and note what waits for its result."""
    warp.at, warp.issued, warp.ready = warp.at + 1, clock, clock + step.stall
    if step.is_product_of_warpgroup:
        _start_product(warp, step, clock, free)
        return
    if step.unit is not Unit.NONE:
        free[step.unit] = clock + step.clocks
    done = clock + step.result
    if step.unit is Unit.MEMORY:
        done += step.clocks
    if step.on_write is not None:
        warp.scoreboards[step.on_write] = max(warp.scoreboards[step.on_write], done)
        if step.unit is Unit.MEMORY:
            warp.memory[step.on_write] = max(warp.memory[step.on_write], done)
    if step.on_read is not None:
        at = clock + _READ_CLOCKS
        warp.scoreboards[step.on_read] = max(warp.scoreboards[step.on_read], at)
    if step.unit is Unit.TENSOR:
        warp.results.update(dict.fromkeys(step.writes, done))
    if step.instr.name == "LDGSTS":
        warp.copies = max(warp.copies, clock + _COPY_CLOCKS)
    elif step.instr.name == "LDGDEPBAR":
        warp.groups = [*warp.groups[-_SCOREBOARDS:], warp.copies]


def _start_product(warp: _Warp, step: _Step, clock: float, free: dict[Unit, float]) -> None:
    """Start an asynchronous product behind those that its unit has, and note when its group is done."""
    free[step.unit] = max(clock, free[step.unit]) + step.clocks
    if _GROUP_ENDS in step.instr.operands:
        warp.products = [*warp.products[-_SCOREBOARDS:], free[step.unit] + step.result]
