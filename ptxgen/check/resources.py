"""The resources that a kernel needs on a GPU, estimated from its instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ptxgen.check.flow import Block, blocks, reverse_post_order
from ptxgen.check.verify.budget import static_shared_bytes
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm, Kernel
from ptxgen.target import Target
from ptxgen.types import TYPES

_BARRIERS: Final = 16  # barriers of a block; PTX ISA, section "bar"
_PREDICATE: Final = "pred"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one kernel.

    Shared memory is in bytes for each block; the dynamic part is the size of the regions.
    `live_registers` is the largest number of 32-bit registers that are live at one point,
    `live_predicates` the largest number of live predicates. Both are estimates close to a lower
    bound: the assembler can need fewer by moving or recomputing values, and usually needs more for
    scheduling. `barriers` is how many of the 16 are used (all, if a register holds a barrier's
    number). `blocks_per_sm` is the number of blocks that fit on one multiprocessor with that many
    registers (0: the kernel promises no block size). `mix` counts the instructions by the first
    word of their opcode, the most frequent first.
    """

    static_shared: int
    dynamic_shared: int
    live_registers: int
    live_predicates: int
    barriers: int
    blocks_per_sm: int
    mix: tuple[tuple[str, int], ...]

    @property
    def shared_total(self) -> int:
        """Static and dynamic shared memory together, bytes."""
        return self.static_shared + self.dynamic_shared


def resources(kernel: Kernel, target: Target) -> Resources:
    """The resources of a kernel in which `verify` finds no problem.

    An instruction that is wrong counts in `mix` only.
    """
    static, dynamic = static_shared_bytes(kernel), kernel.dynamic_shared_bytes
    instrs = [s for s in kernel.body if isinstance(s, Instr)]
    mix = Counter(instr.opcode.partition(".")[0] for instr in instrs)
    registers, predicates = _most_live(blocks(kernel))
    fit = 0
    if kernel.threads:
        fit = target.blocks_per_sm_for(kernel.threads, registers, static + dynamic)
    return Resources(
        static_shared=static,
        dynamic_shared=dynamic,
        live_registers=registers,
        live_predicates=predicates,
        barriers=_barriers(instrs),
        blocks_per_sm=fit,
        mix=tuple(sorted(mix.items(), key=lambda item: (-item[1], item[0]))),
    )


def _barriers(instrs: Sequence[Instr]) -> int:
    named = {
        instr.operands[0] for instr in instrs if instr.opcode in ("bar.sync", "bar.arrive") and instr.operands
    }
    literal = all(isinstance(operand, IntImm) for operand in named)
    return len(named) if literal else _BARRIERS


class _Step(NamedTuple):
    """The registers that one instruction reads and writes; `kills` is false for a guarded write."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kills: bool


def live_registers(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """For each instruction of a kernel, in the order of the text, the 32-bit registers and the predicates
    that are live at it; (0, 0) if it cannot be reached. The largest are those of `resources`.
    """
    graph = blocks(kernel)
    live = [(0, 0)] * sum(len(block.instrs) for block in graph)
    registers, predicates = _live_in_blocks(graph)
    for index in registers:
        block = graph[index]
        pairs = zip(registers[index], predicates[index], strict=True)
        live[block.start : block.start + len(block.instrs)] = list(pairs)[: len(block.instrs)]
    return tuple(live)


def _most_live(graph: Sequence[Block]) -> tuple[int, int]:
    """The largest numbers of 32-bit registers and of predicates that are live at one point."""
    registers, predicates = (
        max((n for of in live.values() for n in of), default=0) for live in _live_in_blocks(graph)
    )
    return registers, predicates


def _live_in_blocks(graph: Sequence[Block]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The 32-bit registers, and the predicates, that are live in the blocks, as `_live` has them."""
    declared: dict[str, str] = {}
    steps = [[_step(instr, declared) for instr in block.instrs] for block in graph]
    at_end = _live_at_end(graph, steps)
    words = {n: -(-TYPES[d].bits // 32) for n, d in declared.items() if d != _PREDICATE}
    predicates = {name: 1 for name, d in declared.items() if d == _PREDICATE}
    return _live(steps, at_end, words), _live(steps, at_end, predicates)


def _step(instr: Instr, declared: dict[str, str]) -> _Step:
    """The registers that an instruction reads and writes; adds their declared classes to `declared`."""
    shape = shape_of(instr)
    if shape.complaints:
        return _Step((), (), kills=False)
    names = shape.names(instr.operands)
    declared.update(zip(names, shape.declared, strict=True))
    reads = names[shape.dests :]
    if instr.guard is not None:
        guard = instr.guard.register
        declared[guard.name] = guard.declared
        reads = (*reads, guard.name)
    return _Step(reads, names[: shape.dests], instr.guard is None)


def _live_at_end(graph: Sequence[Block], steps: Sequence[Sequence[_Step]]) -> Mapping[int, frozenset[str]]:
    """For each block that can be reached, the registers that are live at its end."""
    order = tuple(reversed(reverse_post_order(graph)))
    needs: dict[int, set[str]] = {}
    kills: dict[int, set[str]] = {}
    for index in order:
        needed: set[str] = set()
        killed: set[str] = set()
        for step in reversed(steps[index]):
            if step.kills:
                needed.difference_update(step.writes)
                killed.update(step.writes)
            needed.update(step.reads)
        needs[index], kills[index] = needed, killed
    at_start = {index: frozenset(needs[index]) for index in order}
    at_end: dict[int, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for index in order:
            after = frozenset().union(*(at_start[s] for s in graph[index].successors))
            if at_end.get(index) == after:
                continue
            at_end[index] = after
            at_start[index] = frozenset(needs[index] | (after - kills[index]))
            changed = True
    return at_end


def _live(
    steps: Sequence[Sequence[_Step]], at_end: Mapping[int, frozenset[str]], size: Mapping[str, int]
) -> dict[int, list[int]]:
    """For each block that can be reached, the total size of the registers that are live at each of its
    instructions, and at its start if it has none; registers that `size` lacks do not count.

    A register is live at an instruction if it is before it or after it.
    """
    live = {}
    for index, after in at_end.items():
        alive = {name for name in after if name in size}
        total = sum(size[name] for name in alive)
        backwards = []
        for step in reversed(steps[index]):
            live_after = total
            for name in step.writes:
                if name not in alive:  # a result needs a register even if no instruction reads it
                    live_after += size.get(name, 0)
            if step.kills:
                for name in step.writes:
                    if name in alive:
                        alive.remove(name)
                        total -= size[name]
            for name in step.reads:
                if name in size and name not in alive:
                    alive.add(name)
                    total += size[name]
            backwards.append(max(live_after, total))
        live[index] = backwards[::-1] or [total]
    return live
