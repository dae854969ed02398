"""How long a block of queries takes a CTA of warpgroups: the issue model from the kernel's first instruction
to its last, not only round its main loop.

Each warpgroup executes what is before the loops once, a number of iterations, and once what is after them
(`ptxgen.runtime.sass.block_of`), by the rules of `issue_model`. A barrier whose number is in a register is a
ping-pong barrier of warpgroups, unless a single warpgroup meets at it; at a barrier with a literal number all
consumers wait. A persistent CTA is timed from block to block: where no barrier holds it up, a warpgroup
begins the next block while others finish theirs. Copies are assumed to have arrived when they are waited for:
`launch_model` has a block's waits for memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ptxgen.report.issue_model import NEVER, Shared, Step, Warp, issue, pass_ping_pong
from ptxgen.report.issue_units import copied_bytes
from ptxgen.runtime.sass import Block
from ptxgen.target import Target

_FEW, _MORE = 2, 6  # iterations of the main loop, by whose difference one is timed
_BLOCKS: Final = 4  # of a persistent CTA, the last of which is timed
_ALL: Final = "0x0"  # the barrier of all threads of a CTA
_NUMBER: Final = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class BlockClocks:
    """The clocks of a CTA for a block of queries: `first` with one tile of keys, `cut` for each further tile
    that a mask cuts, `main` for each other tile; `once` are the clocks that each block of a persistent CTA
    but its first saves: what is not repeated, and what passes while the block before is finished.
    """

    first: float
    cut: float
    main: float
    once: float

    def clocks(self, tiles: int, cut: int, *, persistent: bool = False) -> float:
        """The clocks of a block with `tiles` tiles, of which a mask cuts `cut`, the first among them."""
        further = min(max(cut - 1, 0), tiles - 1)
        start = self.first - self.once * persistent
        return start + further * self.cut + (tiles - 1 - further) * self.main


def block_clocks(block: Block, target: Target, warpgroups: int) -> BlockClocks:
    """The model of a block of queries, for a CTA with `warpgroups` consumers. Raises `ValueError` if the
    instructions have no control words.
    """

    def issued(cut: int, main: int, blocks: int = 1) -> float:
        path = [*block.before, *(block.cut * cut), *(block.main * main), *block.after]
        repeated = path[block.once : len(path) - block.ending]
        path = [*path[: block.once], *(repeated * (blocks - 1)), *path[block.once :]]
        copied = copied_bytes(block.main) * (1 + cut + main) * blocks
        return _issued([Step.of(instr, target) for instr in path], warpgroups, copied)[-1]

    few = issued(0, _FEW)
    main = (issued(0, _MORE) - few) / (_MORE - _FEW)
    cut = issued(1, _FEW) - few if block.cut else main
    saved = few - (issued(0, _FEW, _BLOCKS) - issued(0, _FEW, _BLOCKS - 1)) if block.once else 0.0
    return BlockClocks(few - _FEW * main, cut, main, saved)


def _issued(steps: Sequence[Step], warpgroups: int, copied: float) -> list[float]:
    """The clock at which the last warp issues each step."""
    multiplies = warpgroups * sum(step.clocks for step in steps if step.is_product_of_warpgroup)
    shared = Shared(copied / multiplies if multiplies else 0.0)
    ordered, meetings = _barriers(steps)
    warps = [Warp(0, 0.0) for _ in range(warpgroups)]
    warps[0].ping_pong_since = 0.0
    clock, result = 0.0, [0.0] * len(steps)

    def when(warp: Warp) -> float:
        earliest = warp.earliest(steps[warp.at], shared)
        if warp.at in ordered and not steps[warp.at].arrives:
            return max(earliest, warp.ping_pong_since)
        if warp.at not in meetings:
            return earliest
        if any(other.at < warp.at for other in warps):
            return NEVER
        return max(other.earliest(steps[other.at], shared) for other in warps if other.at == warp.at)

    while left := [warp for warp in warps if warp.at < len(steps)]:
        warp = min(left, key=lambda one: (when(one), one.issued))
        clock = max(clock + 1, when(warp))
        result[warp.at] = clock
        if warp.at in ordered:
            pass_ping_pong(warp, steps[warp.at], clock, warps)
        issue(warp, steps[warp.at], clock, shared)
    return result


def _barriers(steps: Sequence[Step]) -> tuple[set[int], set[int]]:
    """The indices of ping-pong barriers, and of barriers at which all consumers wait. Literal numbers at
    which some only arrive (the begin and end of a ping-pong) are neither, nor are barriers of one warpgroup.
    """
    numbers = {
        n: step.instr.operands.split(",")[0]
        for n, step in enumerate(steps)
        if step.instr.name == "BAR" and step.mates != 1
    }
    arrived = {number for n, number in numbers.items() if steps[n].arrives}
    ordered = {n for n, number in numbers.items() if not _NUMBER.fullmatch(number)}
    return ordered, {
        n for n, number in numbers.items() if number not in {*arrived, _ALL} and n not in ordered
    }
