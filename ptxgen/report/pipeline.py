"""The timeline of a kernel's first CTA, from a recording."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from ptxgen import ir
from ptxgen.interpreter.recording import IDLE, Recording
from ptxgen.report.classes import NAMES, class_of
from ptxgen.report.data import Lane, Pipeline, Stage

_MOST_STAGES: Final = 200
_OF_COMPILERS: Final = re.compile(r"(begin|end) inline asm|%bb|%L|--|[.@$]")  # notes that name no step


def pipeline(recording: Recording, kernel: ir.Kernel, names: Mapping[int, str]) -> Pipeline:
    """The timeline of a recording. Stages are named by the notes of the kernel or, if it has none, by
    `names`, which has words for lines of the PTX text.
    """
    classes = np.array([class_of(instr.opcode) for instr in recording.instrs] or [0], np.int64)
    lines = [instr.origin.line if instr.origin is not None else 0 for instr in recording.instrs]
    notes = _notes(kernel) or dict(names)
    waits, flights = defaultdict(list), defaultdict(list)
    for wait in recording.waits:
        waits[wait.warp].append((wait.start, wait.end - wait.start, lines[wait.at], wait.kind))
    for flight in recording.flights:
        flights[flight.warp].append((flight.start, flight.end, flight.nbytes, lines[flight.at]))
    lanes: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for warp, length in enumerate(recording.lengths):
        slots = recording.slots[warp]
        runs = tuple(_runs(np.where(slots == IDLE, IDLE, classes[slots])[:length].tolist()))
        lanes[length, runs, tuple(waits[warp]), tuple(flights[warp])].append(warp)
    return Pipeline(
        NAMES,
        max(recording.lengths, default=0),
        recording.recorded_slots,
        tuple(itertools.islice(_stages(recording, lines, notes), _MOST_STAGES)),
        tuple(Lane(tuple(warps), *same) for same, warps in lanes.items()),  # type: ignore[arg-type]
    )


def _runs(values: list[int]) -> Iterator[tuple[int, int, int]]:
    """(value, first slot, slots) of each run of equal values."""
    at = 0
    for value, group in itertools.groupby(values):
        count = sum(1 for _ in group)
        yield value, at, count
        at += count


def _notes(kernel: ir.Kernel) -> dict[int, str]:
    """For each line of PTX with an instruction, the note before it."""
    notes, note = dict[int, str](), ""
    for statement in kernel.body:
        if isinstance(statement, ir.Note):
            note = note if _OF_COMPILERS.match(statement.text) else statement.text
        elif isinstance(statement, ir.Instr) and statement.origin is not None and note:
            notes[statement.origin.line] = note
    return notes


def _stages(recording: Recording, lines: list[int], names: Mapping[int, str]) -> Iterator[Stage]:
    """The stages of the first warp; a stage without a name goes on with the one before."""
    if not recording.recorded_slots:
        return
    now = Stage("", 0, 0, 0)
    for slot, number in enumerate(recording.slots[0].tolist()):
        if slot >= recording.lengths[0]:
            break
        name = names.get(lines[number], "") if number != IDLE else ""
        if name and name != now.name:
            if now.name:
                yield now
            now = Stage(name, slot, 0, lines[number])
        now = Stage(now.name, now.start, slot + 1 - now.start, now.line)
    if now.name:
        yield now
