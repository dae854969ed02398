"""The resources that a kernel needs on a GPU, estimated from its instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ptxgen.check.flow import Block, blocks, reverse_post_order
from ptxgen.check.verify.budget import static_shared_bytes
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm, Kernel
from ptxgen.target import Target
from ptxgen.types import TYPES

_BARRIERS: Final = 16  # barriers of a block; PTX ISA, section "bar"


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
    if kernel.most_threads:
        fit = target.blocks_per_sm_for(kernel.most_threads, registers, static + dynamic)
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


_NO_STEP: Final = _Step((), (), kills=False)
# A number of live registers is one integer: 32-bit registers in the low bits, predicates above them.
_PREDICATES: Final = 32
_ONE_PREDICATE: Final = 1 << _PREDICATES


def live_registers(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """For each instruction of a kernel, in the order of the text, the 32-bit registers and the predicates
    that are live at it; (0, 0) if it cannot be reached. The largest are those of `resources`.
    """
    graph = blocks(kernel)
    live = [(0, 0)] * sum(len(block.instrs) for block in graph)
    for index, points in _live_in_blocks(graph).items():
        block = graph[index]
        live[block.start : block.start + len(block.instrs)] = map(_largest, points[: len(block.instrs)])
    return tuple(live)


def _most_live(graph: Sequence[Block]) -> tuple[int, int]:
    """The largest numbers of 32-bit registers and of predicates that are live at one point."""
    return _largest({n for points in _live_in_blocks(graph).values() for point in points for n in point})


def _largest(points: Iterable[int]) -> tuple[int, int]:
    """The largest number of 32-bit registers and that of predicates at some points; 0 without points."""
    words = max((n & (_ONE_PREDICATE - 1) for n in points), default=0)
    return words, max((n >> _PREDICATES for n in points), default=0)


def _live_in_blocks(graph: Sequence[Block]) -> dict[int, list[tuple[int, int]]]:
    """For each block that can be reached, the live registers after and before each of its instructions, and
    at its start if it has none.
    """
    size: dict[str, int] = {}
    steps = [[_step(instr, size) for instr in block.instrs] for block in graph]
    return {index: _live(steps[index], after, size) for index, after in _live_at_end(graph, steps).items()}


def _step(instr: Instr, size: dict[str, int]) -> _Step:
    """The registers that an instruction reads and writes; adds their sizes to `size`."""
    shape = shape_of(instr)
    if shape.complaints:
        return _NO_STEP
    names = shape.names(instr.operands)
    reads = names[shape.dests :]
    guard = instr.guard
    if guard is not None:
        reads = (*reads, guard.register.name)
        size[guard.register.name] = _size(guard.register.declared)
    if not size.keys() >= set(names):
        size.update(zip(names, map(_size, shape.declared), strict=True))
    return _Step(reads, names[: shape.dests], guard is None)


def _size(declared: str) -> int:
    """The size of one register of a class, as a number of live registers."""
    return _ONE_PREDICATE if declared == "pred" else -(-TYPES[declared].bits // 32)


def _live_at_end(graph: Sequence[Block], steps: Sequence[Sequence[_Step]]) -> Mapping[int, frozenset[str]]:
    """For each block that can be reached, the registers that are live at its end."""
    order = tuple(reversed(reverse_post_order(graph)))
    needs: dict[int, set[str]] = {}
    kills: dict[int, set[str]] = {}
    for index in order:
        needed: set[str] = set()
        killed: set[str] = set()
        for reads, writes, certain in reversed(steps[index]):
            if certain:
                needed.difference_update(writes)
                killed.update(writes)
            needed.update(reads)
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


def _live(steps: Sequence[_Step], after: frozenset[str], size: Mapping[str, int]) -> list[tuple[int, int]]:
    """The live registers after and before each instruction of a block with the registers `after` live at its
    end, and at its start if it has none.
    """
    alive = set(after)
    total = sum([size[name] for name in alive])
    backwards = []
    for reads, writes, kills in reversed(steps):
        live_after = total
        for name in writes:
            if name not in alive:  # a result needs a register even if no instruction reads it
                live_after += size[name]
        if kills:
            for name in writes:
                if name in alive:
                    alive.remove(name)
                    total -= size[name]
        for name in reads:
            if name not in alive:
                alive.add(name)
                total += size[name]
        backwards.append((live_after, total))
    return backwards[::-1] or [(total, total)]
