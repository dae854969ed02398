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

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
class Walk:
    """The numbers of tiles of keys that a warpgroup meets for a block of queries: `hidden` from all its rows;
    `cut` by the mask, the first that it computes among them; `apart`, which its rows see whole, but rows of
    another warpgroup of the CTA do not; and `others`, which all rows of the CTA see whole.
    """

    hidden: int
    cut: int
    apart: int
    others: int

    @property
    def tiles(self) -> int:
        """All tiles, as many as the CTA has."""
        return self.hidden + self.cut + self.apart + self.others


@dataclass(frozen=True, slots=True)
class BlockClocks:
    """The clocks of a CTA for a block of queries: `first` with one tile of keys, `cut` for each further tile
    that a mask cuts, `main` for each other tile; `once` are the clocks that each block of a persistent CTA
    but its first saves: what is not repeated, and what passes while the block before is finished. Where
    warpgroups skip tiles, `of_walks` gives the clocks of what each of them meets, in a CTA's first block.
    """

    first: float
    cut: float
    main: float
    once: float
    of_walks: Callable[[tuple[Walk, ...]], float] | None = None

    def clocks(self, walks: Sequence[Walk], *, persistent: bool = False) -> float:
        """The clocks of a block of queries, each warpgroup of which computes the tiles of one of `walks`.
        Where no warpgroup skips a tile, the mask hides keys of the same tiles for all of them.
        """
        saved, others = self.once * persistent, min(walk.others for walk in walks)
        if self.of_walks is None:
            tiles = walks[0].tiles
            further = min(max(tiles - others - 1, 0), tiles - 1)
            return self.first - saved + further * self.cut + (tiles - 1 - further) * self.main
        more = max(others - _FEW, 0)
        fewer = tuple(replace(walk, others=walk.others - more) for walk in walks)
        return self.of_walks(fewer) - saved + more * self.main


def block_clocks(block: Block, target: Target, warpgroups: int, copied: int | None = None) -> BlockClocks:
    """The model of a block of queries, for a CTA with `warpgroups` consumers; `copied` as in `modelled`.
    Raises `ValueError` if the instructions have no control words.
    """
    of_tile = copied_bytes(block.main) if copied is None else copied
    # Whether the scores of the first tile come before the loops, as where products overlap.
    begins = any(Step.of(i, target).is_product_of_warpgroup for i in block.before)
    # Warpgroups that skip tiles do not alternate in those that a mask cuts for others.
    unordered = [i for i in block.main if i.name != "BAR"]

    def path_of(walk: Walk, blocks: int = 1) -> list[Step]:
        further, apart, others = walk.cut, walk.apart, walk.others
        if begins:
            further = max(walk.cut - 1, 0)
            if not walk.cut:  # the first tile is whole
                apart, others = max(apart - 1, 0), others - (not apart)
        path = [*block.before[: block.skips_at], *(block.skipped * walk.hidden)]
        path += [
            *block.before[block.skips_at :],
            *((block.cut or block.main) * further),
            *(unordered * apart),
        ]
        path += [*(block.main * others), *block.after]
        repeated = path[block.once : len(path) - block.ending]
        path = [*path[: block.once], *(repeated * (blocks - 1)), *path[block.once :]]
        return [Step.of(instr, target) for instr in path]

    def issued(cut: int, main: int, blocks: int = 1) -> float:
        walk = Walk(0, 1 + cut, 0, main)
        return _issued([path_of(walk, blocks)] * warpgroups, of_tile * walk.tiles * blocks)

    @functools.cache
    def of_walks(walks: tuple[Walk, ...]) -> float:
        return _issued([path_of(walk) for walk in walks], of_tile * walks[0].tiles)

    few = issued(0, _FEW)
    main = (issued(0, _MORE) - few) / (_MORE - _FEW)
    cut = issued(1, _FEW) - few if block.cut else main
    saved = few - (issued(0, _FEW, _BLOCKS) - issued(0, _FEW, _BLOCKS - 1)) if block.once else 0.0
    return BlockClocks(few - _FEW * main, cut, main, saved, of_walks if block.skipped else None)


@dataclass(frozen=True, slots=True)
class _Way:
    """A warp, its steps, the indices of those that are ping-pong barriers, and of those at which all
    consumers wait.
    """

    warp: Warp
    steps: Sequence[Step]
    ordered: set[int]
    meetings: list[int]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> _Way:
        return cls(Warp(0, 0.0), steps, *_barriers(steps))

    def earliest(self, shared: Shared) -> float:
        """The clock from which the warp may issue its next step, other warps aside."""
        return self.warp.earliest(self.steps[self.warp.at], shared)

    def when(self, ways: Sequence[_Way], shared: Shared) -> float:
        """The clock at which the warp may issue its next step."""
        at, earliest = self.warp.at, self.earliest(shared)
        if at in self.ordered and not self.steps[at].arrives:
            return max(earliest, self.warp.ping_pong_since)
        if at not in self.meetings:
            return earliest
        nth = self.meetings.index(at)
        if any(other.warp.at < other.meetings[nth] for other in ways):
            return NEVER
        return max(other.earliest(shared) for other in ways if other.warp.at == other.meetings[nth])


def _issued(paths: Sequence[Sequence[Step]], copied: float) -> float:
    """The clock at which the last step is issued, of warps with these `paths`, while so many bytes are
    `copied`.
    """
    multiplies = sum(step.clocks for steps in paths for step in steps if step.is_product_of_warpgroup)
    shared = Shared(copied / multiplies if multiplies else 0.0)
    ways = [_Way.of(steps) for steps in paths]
    warps = [way.warp for way in ways]
    warps[0].ping_pong_since = 0.0
    clock = 0.0
    while left := [way for way in ways if way.warp.at < len(way.steps)]:
        clocks = [way.when(ways, shared) for way in left]
        nth = min(range(len(left)), key=lambda n: (clocks[n], left[n].warp.issued))
        way, clock = left[nth], max(clock + 1, clocks[nth])
        warp, step = way.warp, way.steps[way.warp.at]
        if warp.at in way.ordered:
            pass_ping_pong(warp, step, clock, warps)
        issue(warp, step, clock, shared)
    return clock


def _barriers(steps: Sequence[Step]) -> tuple[set[int], list[int]]:
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
    return ordered, [
        n for n, number in numbers.items() if number not in {*arrived, _ALL} and n not in ordered
    ]
