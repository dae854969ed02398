"""Segments compiled to Python functions, and the program that they form.

`ptxgen.interpreter.program.writer` defines the arguments and the results of these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ptxgen.collector import uncollected
from ptxgen.errors import LaunchError
from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters
from ptxgen.interpreter.program.calls import Call, call_of
from ptxgen.interpreter.program.fast import FAST
from ptxgen.interpreter.program.linking import Analysed, Linked, Routine
from ptxgen.interpreter.program.registers import Named, prefix_of
from ptxgen.interpreter.program.segments import (
    Segment,
    Step,
    maybe_undefined,
    maybe_unwritten,
    segments,
    split,
    together,
)
from ptxgen.interpreter.program.stepwise import Stepper
from ptxgen.interpreter.program.wgmma_reader import Hooks, WgmmaReader
from ptxgen.interpreter.program.writer import Function, Writer
from ptxgen.ir import Instr, IntImm, Reg

_FULL_WARP: Final = 0xFFFFFFFF


@dataclass(slots=True)
class Block:
    """A segment and its function, compiled at its first call, with the register slots of its
    inputs and outputs. `shadow_inputs` are the slots whose shadows it takes, too, if undefined bits are
    followed.

    `call` is the call at the segment's end. `parts` are the segment cut before each instruction
    that the lanes of a warp execute together, for lanes that do not arrive together; or before
    every instruction, for schedules that switch inside a block. They are computed by `split` when first
    needed. `members` is the membermask of the instruction that a part begins with, or `member_slot`
    the register that holds it; `guard` is the slot of its guard and whether that is negated.
    """

    segment: Segment
    make: Callable[[Block], None] | None = field(default=None, repr=False)  # None: the function is compiled
    function: Function | None = None  # None of a segment without steps
    source: str = field(default="", repr=False)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    shadow_inputs: tuple[int, ...] = ()
    call: Call | None = None
    together: bool = False
    members: int = _FULL_WARP
    member_slot: int = -1
    guard: tuple[int, bool] | None = None
    parts: tuple[Block, ...] = ()
    split: Callable[[], tuple[Block, ...]] | None = field(default=None, repr=False)

    def compiled(self) -> Block:
        """The block with its function. Raises `TypeMismatchError` for operands that an instruction does not
        take.
        """
        if self.make is not None:
            with uncollected():
                self.make(self)
            self.make = None
        return self


@dataclass(frozen=True, slots=True)
class Program(Analysed):
    """A kernel and the functions that it calls, ready to run. `slots` maps registers and special
    registers to numbers, `dtypes` has the type of each. `entries` has the first block of each
    routine. If undefined bits are followed, `unwritten` are the slots of registers that some path may
    read before it has written them; else None.
    """

    linked: Linked
    instrs: tuple[Instr, ...]
    blocks: tuple[Block, ...]
    entries: tuple[int, ...]
    slots: Mapping[str, int]
    dtypes: tuple[np.dtype[Any], ...]
    unwritten: tuple[int, ...] | None = None
    wgmma: WgmmaRegisters | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source texts of the functions of all blocks, empty where no code is generated."""
        return tuple(block.compiled().source for block in self.blocks)


def compile_program(
    linked: Linked,
    *,
    follows: bool = False,
    touches: bool = False,
    stepwise: bool = False,
    cut_each: bool = False,
) -> Program:
    """The segments of a kernel and of the functions that it calls; each is compiled when it first runs.

    With `follows`, undefined bits are followed through registers; with `touches`, uses of the registers of
    `wgmma` by ordinary instructions are. With `stepwise`, no code is generated: each instruction runs by
    itself, through its row's function. With `cut_each`, the parts of blocks are single instructions, and
    multiplications by `wgmma` may be late.

    Raises `LaunchError`, which names the instruction, if the interpreter does not model one of them.
    """
    compiler = _Compiler(linked, follows, touches, stepwise, cut_each)
    for routine in linked.routines:
        compiler.add(routine)
    return compiler.program()


class _Compiler:
    """Makes a program, routine by routine."""

    def __init__(self, linked: Linked, follows: bool, touches: bool, stepwise: bool, cut_each: bool) -> None:
        self._wgmma = WgmmaReader()
        self._hooks = Hooks(self._wgmma.uses, touches=touches, late=cut_each)
        self._linked = linked
        self._follows = follows
        self._unwritten: list[int] = []
        self._suspects: frozenset[str] | None = None  # registers of the kernel, the last routine
        self._stepwise = stepwise
        self._cut_each = cut_each
        self._instrs: list[Instr] = []
        self._blocks: list[Block] = []
        self._entries: list[int] = []
        self._slots: dict[str, int] = {}
        self._dtypes: list[np.dtype[Any]] = []

    def add(self, routine: Routine) -> None:
        """Compile a routine; the routines that it calls must have been compiled."""
        first = len(self._blocks)
        parts = segments(
            routine.source, number=routine.number, first_segment=first, first_step=len(self._instrs)
        )
        for step in (step for part in parts for step in part.steps):
            if step.op.row.unmodelled:
                raise LaunchError(_refusal(routine.name, step))
        self._wgmma.add(parts)
        parameters = {p.name for p in getattr(routine.source, "params", ()) if p.register}
        names = [Named.of(part, self._linked, routine, self._hooks) for part in parts]
        for name, dtype in (item for named in names for item in named.dtypes.items()):
            if name not in self._slots:
                self._slots[name] = len(self._slots)
                self._dtypes.append(dtype)
        if self._follows:
            unwritten = maybe_unwritten(parts, parameters, first)
            prefix = prefix_of(self._linked, routine)
            self._unwritten += [self._slots[prefix + name] for name in sorted(unwritten)]
            if routine is self._linked.routines[-1]:
                self._suspects = maybe_undefined(parts, unwritten, (p.name for p in routine.source.params))
        # The stepwise definition treats every register as live.
        wanted = _everything(names) if self._stepwise else _live_out(parts, names, first)
        for part, after in zip(parts, wanted, strict=True):
            self._blocks.append(self._block(part, after, routine))
        self._entries.append(first if parts else -1)
        self._instrs += [s for s in routine.source.body or () if isinstance(s, Instr)]

    def program(self) -> Program:
        """The program of the routines compiled so far."""
        return Program(
            self._linked,
            tuple(self._instrs),
            tuple(self._blocks),
            tuple(self._entries),
            self._slots,
            tuple(self._dtypes),
            tuple(self._unwritten) if self._follows else None,
            self._wgmma.uses if self._wgmma.uses.registers else None,
        )

    def _writer(self, part: Segment, routine: Routine) -> Writer | Stepper:
        if self._stepwise:
            return Stepper(part, self._linked, routine, self._hooks, follows=self._follows)
        suspects = self._suspects if routine is self._linked.routines[-1] else None
        return Writer(
            part, self._linked, routine, FAST, self._hooks, follows=self._follows, suspects=suspects
        )

    def _block(self, part: Segment, wanted: set[str], routine: Routine) -> Block:
        def make(block: Block) -> None:
            writer = self._writer(part, routine)
            outputs = tuple(name for name in writer.written if name in wanted)
            block.function, block.source = writer.finish(outputs)
            block.inputs = tuple(self._slots[name] for name in writer.inputs)
            block.outputs = tuple(self._slots[name] for name in outputs)
            block.shadow_inputs = tuple(self._slots[name] for name in writer.shadow_inputs)

        block = Block(part, make if part.steps else None)
        leave = part.leave
        if leave is not None and leave.calls:
            # The call need not keep registers that its results overwrite.
            prefix = prefix_of(self._linked, routine)
            live = wanted - {prefix + r.name for r in leave.written}
            saved = tuple(sorted(self._slots[name] for name in live if name in self._slots))
            block.call = call_of(leave.instr, self._linked, routine, self._slots, prefix.__add__, saved)
        block.together = any(together(step) for step in part.steps)
        if part.steps:
            self._note_members(block, part.steps[0], routine)
        if block.together or (self._cut_each and len(part.steps) > 1):
            block.split = lambda: self._split(part, wanted, routine)
        return block

    def _note_members(self, block: Block, step: Step, routine: Routine) -> None:
        prefix = prefix_of(self._linked, routine)
        if step.instr.guard is not None:
            block.guard = self._slots[prefix + step.instr.guard.register.name], step.instr.guard.negated
        for want, got in zip(step.op.flat, step.instr.operands, strict=False):
            if want.name == "membermask" and isinstance(got, IntImm):
                block.members = got.value & _FULL_WARP
            elif want.name == "membermask" and isinstance(got, Reg):
                block.member_slot = self._slots[prefix + got.name]

    def _split(self, part: Segment, wanted: set[str], routine: Routine) -> tuple[Block, ...]:
        blocks: list[Block] = []
        for one in reversed(split(part, each=self._cut_each)):
            blocks.append(self._block(one, wanted, routine))
            blocks[-1].split = None
            wanted = wanted | Named.of(one, self._linked, routine, self._hooks).read
        return tuple(reversed(blocks))


def _refusal(name: str, step: Step) -> str:
    """The message about an instruction that the interpreter does not model."""
    origin = f" ({step.instr.origin})" if step.instr.origin is not None else ""
    return (
        f"{name} does not run on the interpreter: it has {step.op.opcode}{origin}, and "
        f"{step.op.row.unmodelled}; run it on a GPU"
    )


def _everything(names: list[Named]) -> list[set[str]]:
    """For each segment, all registers of the routine."""
    return [{name for named in names for name in named.dtypes}] * len(names)


def _live_out(parts: list[Segment], names: list[Named], first: int) -> list[set[str]]:
    """For each segment, the registers that a later segment may read."""
    live_in = [set(named.read) for named in names]
    live_out: list[set[str]] = [set() for _ in parts]
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(parts))):
            out = set().union(*(live_in[s - first] for s in parts[n].successors))
            if parts[n].ends_function:
                out |= names[n].results
            if out != live_out[n]:
                live_out[n] = out
                live_in[n] = {*names[n].read, *(out - names[n].written)}
                changed = True
    return live_out
