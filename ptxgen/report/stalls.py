"""What a warp waits for, by line of PTX: the issue model's clocks of each instruction of a path, added up for
the lines that the instructions are from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ptxgen.interpreter.recording import IDLE, Recording
from ptxgen.report.data import LOOP, WHOLE, StallLine, Stalls
from ptxgen.report.issue_model import Wait, modelled
from ptxgen.report.issue_units import SCHEDULERS
from ptxgen.report.machine_code import Path
from ptxgen.runtime.sass import Loop
from ptxgen.target import WARP_SIZE, Target


def stalls(path: Path, target: Target, warps: int, ctas: int, sources: Mapping[int, int]) -> Stalls:
    """The clocks of a path for `ctas` resident CTAs, each with `warps` warps on it; `sources` has the source
    line of each line of PTX that has one. Instructions without a line are the line 0's. A whole kernel is
    modelled as if CTAs followed each other. Raises `ValueError` for instructions that `modelled` refuses.
    """
    if warps < SCHEDULERS:  # several CTAs share the schedulers
        warps, ctas = SCHEDULERS, max(1, -(-ctas * warps // SCHEDULERS))
    loop = Loop(tuple(path.instrs), len(path.instrs))
    of_steps = modelled(loop, target, warps * WARP_SIZE, ctas).waits
    reasons = list(Wait)
    clocks: dict[int, list[float]] = {}
    counts: dict[int, int] = {}
    for line, of_step in zip(path.lines, of_steps, strict=True):
        sums = clocks.setdefault(line, [0.0] * len(reasons))
        counts[line] = counts.get(line, 0) + 1
        for n, reason in enumerate(reasons):
            sums[n] += of_step[reason]
    lines = [StallLine(n, sources.get(n, 0), counts[n], tuple(clocks[n])) for n in clocks]
    lines.sort(key=lambda line: (-line.total, line.line))
    return Stalls(
        LOOP if path.is_loop else WHOLE,
        warps // SCHEDULERS * ctas,
        sum(line.total for line in lines),
        tuple(reason.value for reason in reasons),
        tuple(lines),
    )


def warps_on(lines: Collection[int], recording: Recording, warps: int) -> int:
    """How many recorded warps executed an instruction of most of these lines; all `warps` if none did."""
    numbers = [
        n
        for n, instr in enumerate(recording.instrs)
        if instr.origin is not None and instr.origin.line in lines
    ]
    if not numbers or not recording.slots.size:
        return warps
    inside = np.zeros(len(recording.instrs) + 1, np.bool_)  # the last is that of IDLE
    inside[numbers] = True
    assert IDLE == -1
    seen = [len(np.unique(slots[inside[slots]])) for slots in recording.slots]
    return sum(2 * count > len(numbers) for count in seen) or warps
