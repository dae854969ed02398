"""The map of a kernel's shared memory, from its declarations and from two runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ptxgen.interpreter import MemoryTraffic
from ptxgen.interpreter.recording import Recording
from ptxgen.interpreter.traffic import BANKS
from ptxgen.report.data import Region, SharedAccess, SharedMap


def shared_map(
    nbytes: int,
    regions: Sequence[tuple[str, int, int]],
    traffic: Mapping[int, MemoryTraffic],
    recording: Recording,
    sources: Mapping[int, int],
) -> SharedMap:
    """The map of `nbytes` of shared memory. `regions` are names with their first byte and their size,
    `traffic` is the cost of each instruction by its number, and `sources` has the ids of
    source lines by the line of the PTX text. Accesses of one source line and opcode are added up.
    """
    parts = [Region(*region) for region in regions if region[2]]
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    lines = {n: _line(recording, n) for n in range(len(recording.instrs))}
    for number, cost in traffic.items():
        if cost.shared_requests:
            # Without a source line each line of PTX is a group of its own.
            source = sources.get(lines[number], 0) or -lines[number]
            groups[source, recording.instrs[number].opcode].append(number)
    accesses = [
        _group(source, opcode, numbers, parts, traffic, recording)
        for (source, opcode), numbers in groups.items()
    ]
    accesses.sort(key=lambda access: (-(access.wavefronts - access.least), access.line))
    return SharedMap(nbytes, tuple(parts), tuple(accesses))


def _group(
    source: int,
    opcode: str,
    numbers: Sequence[int],
    regions: Sequence[Region],
    traffic: Mapping[int, MemoryTraffic],
    recording: Recording,
) -> SharedAccess:
    costs = [traffic[n] for n in numbers]
    sites = [recording.sites[n] for n in numbers if n in recording.sites]
    first = min((site.first for site in sites), default=-1)
    last = max((site.last for site in sites), default=-1)
    touched = [r.name for r in regions if first < r.offset + r.nbytes and last >= r.offset] if sites else []
    worst = max(sites, key=lambda site: max(site.banks), default=None)
    return SharedAccess(
        max(source, 0),
        opcode,
        min(_line(recording, n) for n in numbers),
        len(numbers),
        ", ".join(touched),
        first,
        last,
        sum(c.shared_requests for c in costs),
        sum(c.shared_wavefronts for c in costs),
        sum(c.shared_least for c in costs),
        worst.banks if worst is not None else (0,) * BANKS,
    )


def _line(recording: Recording, number: int) -> int:
    origin = recording.instrs[number].origin
    return origin.line if origin is not None else 0
