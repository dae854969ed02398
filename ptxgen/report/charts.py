"""The geometry of a report's charts: numbers that the templates print into SVG. Units are those of each
chart's view box, in which a character is about 7 wide.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.interpreter.traffic import BANKS
from ptxgen.report.data import (
    Bound,
    Lane,
    Pipeline,
    PtxLine,
    Report,
    Roofline,
    SassRow,
    SharedAccess,
    SharedMap,
)

WIDTH: Final = 1200
LEFT: Final = 150  # where the axis of a chart with labelled rows begins
CHUNK: Final = 100  # lines of a listing that are laid out together
_DASH: Final = "\u2013"  # an en dash, between the ends of a range
_CHARACTER: Final = 7.0
_BINS: Final = 1000  # columns of a timeline
_REGISTER_HEIGHT: Final = 200


def heat(count: int | None, most: int) -> int:
    """The colour class of a count in a heat map, 0 (none) to 5, by the logarithm of the count."""
    if not count or most <= 0:
        return 0
    return 5 if most == 1 else max(1, min(5, 1 + int(4 * math.log(count) / math.log(most))))


def short(count: int | None) -> str:
    """A count in at most five characters: 950, 1.2k, 34k, 5.6M."""
    if count is None:
        return ""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            scaled = count / size
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return str(count)


def percent(part: float, whole: float) -> str:
    """A share in percent with one digit after the point, as text; 0 if `whole` is 0."""
    return f"{100 * part / whole:.1f}" if whole else "0"


def ticks(most: float, count: int = 5) -> list[int]:
    """Round numbers from 0 to `most`, about `count` of them."""
    if most <= 0:
        return [0]
    rough = most / count
    power = 10 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= rough), 10 * power)
    whole = max(int(step), 1)
    return list(range(0, int(most) + 1, whole))


# ------------------------------------------------------------------------------------------ listings


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of a listing that are laid out together; `spark` is the outline of a bar for each line, in
    a box of 100 by the number of lines. `heat` is that of most of its lines, `loop` says that all its
    instructions are in the main loop.
    """

    rows: Sequence[Any]
    spark: str = ""
    heat: int = 0
    loop: bool = False


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def sass_chunks(rows: Sequence[SassRow]) -> Iterator[Chunk]:
    """Machine code in chunks."""
    for chunk in _chunks(rows):
        yield Chunk(chunk, loop=all(row.loop for row in chunk if row.address >= 0))


def ptx_chunks(lines: Sequence[PtxLine], most: int, most_warps: int) -> Iterator[Chunk]:
    """The PTX in chunks, with the live registers as sparklines; a bar of full width is `most` registers. The
    heat is that of `most_warps` for a line.
    """
    for chunk in _chunks(lines):
        path, last = ["M0 0"], 0
        for n, line in enumerate(chunk):
            width = last if line.registers is None else round(100 * line.registers / max(most, 1))
            last = width if line.kind not in ("directive",) else 0
            path.append(f"H{last}V{n + 1}")
        heats = Counter(heat(line.warps, most_warps) for line in chunk if line.warps is not None)
        yield Chunk(chunk, "".join([*path, "H0Z"]), max(heats, key=lambda h: heats[h], default=0))


# ---------------------------------------------------------------------------------------- registers


def register_chart(report: Report) -> dict[str, Any]:
    """Live registers over the lines of PTX; a point is the maximum over its lines."""
    known = [line for line in report.ptx if line.registers is not None]
    assembled = report.code.registers if report.code else 0
    most = max([report.live_registers, assembled, 8])
    left, right, top, bottom = 44, WIDTH - 12, 30, _REGISTER_HEIGHT - 26
    if not known:
        return {"points": ""}
    per = max(len(known) // _BINS, 1)
    groups = [known[i : i + per] for i in range(0, len(known), per)]
    width = (right - left) / len(groups)

    def y(registers: float) -> float:
        return round(bottom - (bottom - top) * registers / most, 1)

    path = [f"M{left} {bottom}"]
    for n, group in enumerate(groups):
        high = y(max(line.registers or 0 for line in group))
        path.append(f"V{high}H{round(left + (n + 1) * width, 1)}")
    numbers = [line.number for line in known]
    peak = max(range(len(known)), key=lambda n: known[n].registers or 0)
    at = round(left + (peak // per + 0.5) * width, 1)
    # The label of the peak ends or begins there, towards the middle; that of the assembler is on the other
    # side.
    ends = at > WIDTH / 2
    return {
        "width": WIDTH, "height": _REGISTER_HEIGHT, "left": left, "right": right, "bottom": bottom,
        "points": "".join([*path, f"V{bottom}Z"]),
        "ticks": [(n, y(n)) for n in ticks(most, 4)],
        "xticks": [
            (n, round(left + bisect.bisect_left(numbers, n) / per * width, 1))
            for n in ticks(numbers[-1], 10)
            if n >= numbers[0]
        ],
        "peak": known[peak], "peak_x": at, "peak_y": y(known[peak].registers or 0),
        "anchor": "end" if ends else "start", "label_x": at,
        "assembled_x": left if ends else right, "assembled_anchor": "start" if ends else "end",
        "assembled": assembled, "assembled_y": y(assembled),
    }  # fmt: skip


# ------------------------------------------------------------------------------------- shared memory


def degree_class(access: SharedAccess) -> str:
    """The class of an access by its bank conflicts: `free`, `some` or `many`."""
    if access.wavefronts <= access.least:
        return "free"
    return "some" if access.degree <= 2 else "many"


def bank_class(words: int) -> str:
    """The class of a bank by the words that it serves in one access: `none`, `free` (one), `some` (two) or
    `many`.
    """
    return ("none", "free", "some")[words] if words <= 2 else "many"


def shared_chart(shared: SharedMap, most_rows: int = 40) -> dict[str, Any]:
    """Regions of shared memory to scale, and a bar for the bytes of each access."""
    scale = (WIDTH - LEFT - 12) / max(shared.nbytes, 1)

    def box(first: int, nbytes: int) -> tuple[float, float]:
        return round(LEFT + first * scale, 1), max(round(nbytes * scale, 1), 1.5)

    rows = [a for a in shared.accesses if a.first >= 0][:most_rows]
    regions = []
    for n, region in enumerate(shared.regions):
        x, width = box(region.offset, region.nbytes)
        room = int(width / _CHARACTER) - 1
        regions.append((region, x, width, _fit(region.name, room), n % 2))
    return {
        "width": WIDTH, "height": 62 + 18 * len(rows), "left": LEFT,
        "regions": regions,
        "rows": [(a, *box(a.first, a.last - a.first + 1), 54 + 18 * n) for n, a in enumerate(rows)],
        "left_out": len(shared.accesses) - len(rows),
        "ticks": [(n, box(n, 0)[0]) for n in _byte_ticks(shared.nbytes) if box(n, 0)[0] < WIDTH - 20],
    }  # fmt: skip


def _byte_ticks(nbytes: int) -> list[int]:
    step = 1 << max((nbytes // 8).bit_length() - 1, 2)
    return list(range(0, nbytes + 1, step * (2 if nbytes // step > 12 else 1)))


def _fit(text: str, room: int) -> str:
    """A text, cut to `room` characters; nothing if there is no room for three."""
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= 3 else ""


def bank_strips(access: SharedAccess) -> list[tuple[int, str, int]]:
    """For each bank, its x coordinate in a strip, its class (`bank_class`), and the words that it serves."""
    return [(6 * bank, bank_class(access.banks[bank]), access.banks[bank]) for bank in range(BANKS)]


# ------------------------------------------------------------------------------------------ timeline


@dataclass(frozen=True, slots=True)
class LaneBox:
    """One row of the timeline: a path for each class that occurs, the ends of waits, copies in flight."""

    lane: Lane
    name: str
    y: int
    paths: tuple[tuple[int, str], ...]
    marks: str
    flight: str
    most_bytes: int


_LANE: Final = 46
_PLACE: Final = re.compile(r"^\S*:(\d+ )")  # the file and the line of a stage that is a line of the source
_TOP: Final = 58


def timeline(pipeline: Pipeline) -> dict[str, Any]:
    """The timeline: a row for each lane. If there are more slots than columns, a column shows the class
    that most of its slots have.
    """
    per, scale = _columns_of(pipeline)
    x = x_of_slots(pipeline)
    boxes = []
    for n, lane in enumerate(pipeline.lanes):
        y = _TOP + n * _LANE
        paths: dict[int, list[str]] = {}
        for value, start, count in _columns(lane, per, pipeline.shown):
            left, right = round(LEFT + start * scale, 1), round(LEFT + (start + count) * scale, 1)
            paths.setdefault(value, []).append(f"M{left} {y}H{right}v20H{left}z")
        marks = "".join(
            f"M{x(at + length)} {y - 3}v26" for at, length, _, _ in lane.waits if at <= pipeline.shown
        )
        flight, most = _flight(lane, pipeline.shown, x, y + 36)
        ordered = tuple((value, "".join(parts)) for value, parts in sorted(paths.items()))
        boxes.append(LaneBox(lane, warps_of(lane), y, ordered, marks, flight, most))
    stages = []
    for number, stage in enumerate(pipeline.stages):
        left, right = x(stage.start), x(stage.start + stage.slots)
        if stage.start < pipeline.shown:
            room = int((right - left) / _CHARACTER) - 1
            name = stage.name if len(stage.name) <= room else _PLACE.sub(r"\1", stage.name)
            stages.append((stage, left, round(right - left, 1), _fit(name, room), number % 2))
    used = {value for lane in pipeline.lanes for value in class_slots(lane) if value >= 0}
    return {
        "width": WIDTH, "height": _TOP + _LANE * len(boxes) + 18, "left": LEFT, "lanes": boxes,
        "stages": stages, "ticks": [(n, x(n)) for n in ticks(pipeline.shown, 10)], "per": per,
        "used": sorted(used), "flying": any(lane.flights for lane in pipeline.lanes),
    }  # fmt: skip


def x_of_slots(pipeline: Pipeline) -> Callable[[float], float]:
    """The function from slots to x coordinates of a timeline."""
    per, scale = _columns_of(pipeline)
    return lambda slot: round(LEFT + min(slot, pipeline.shown) / per * scale, 1)


def _columns_of(pipeline: Pipeline) -> tuple[int, float]:
    """The slots of a column of a timeline, and the width of a column."""
    per = max(-(-pipeline.shown // _BINS), 1)
    return per, (WIDTH - LEFT - 12) / max(-(-pipeline.shown // per), 1)


def warps_of(lane: Lane) -> str:
    """The warps of a lane in words: `warp 3`, `warps 0-3, 8`."""
    parts = []
    for _, group in itertools.groupby(enumerate(lane.warps), key=lambda pair: pair[1] - pair[0]):
        numbers = [warp for _, warp in group]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}{_DASH}{numbers[-1]}")
    return f"warp{'s' * (len(lane.warps) > 1)} {', '.join(parts)}"


def class_slots(lane: Lane) -> dict[int, int]:
    """How many slots a lane spends in each class; -1 is waiting."""
    slots: dict[int, int] = {}
    for value, _, count in lane.runs:
        slots[value] = slots.get(value, 0) + count
    return dict(sorted(slots.items()))


def _columns(lane: Lane, per: int, shown: int) -> Iterator[tuple[int, int, int]]:
    """(class, first column, columns), with equal neighbours as one."""
    values = itertools.chain.from_iterable(itertools.repeat(v, n) for v, _, n in lane.runs)
    slots = list(itertools.islice(values, shown))
    columns = [_most(slots[at : at + per]) for at in range(0, len(slots), per)]
    at = 0
    for value, group in itertools.groupby(columns):
        count = sum(1 for _ in group)
        yield value, at, count
        at += count


def _most(slots: Sequence[int]) -> int:
    return max(sorted(set(slots)), key=slots.count)


def _flight(lane: Lane, shown: int, x: Any, base: int) -> tuple[str, int]:
    """The outline of the bytes in flight over the slots, and their largest number."""
    changes: dict[int, int] = {}
    for start, end, nbytes, _ in lane.flights:
        until = shown if end < 0 else end
        changes[start] = changes.get(start, 0) + nbytes
        changes[until] = changes.get(until, 0) - nbytes
    steps = list(zip(sorted(changes), itertools.accumulate(changes[n] for n in sorted(changes)), strict=True))
    most = max((now for _, now in steps), default=0)
    if not most:
        return "", 0
    parts = [f"M{x(steps[0][0])} {base}"]
    parts += [f"H{x(at)}V{round(base - 11 * now / most, 1)}" for at, now in steps]
    return "".join([*parts, f"V{base}Z"]), most


# -------------------------------------------------------------------------------------------- limits


def bars(rows: Sequence[tuple[str, int]]) -> list[tuple[str, int, str, float, float]]:
    """(name, count, percent, x, width) of the parts of a bar that is 1200 wide."""
    total = sum(count for _, count in rows)
    boxes, at = [], 0.0
    for name, count in rows:
        width = WIDTH * count / total if total else 0.0
        boxes.append((name, count, percent(count, total), round(at, 1), round(width, 1)))
        at += width
    return boxes


def busy(bounds: Sequence[Bound]) -> list[tuple[Bound, str]]:
    """Each unit with its share of the time of the busiest one, percent."""
    longest = max((b.cycles for b in bounds), default=0.0)
    return [(b, percent(b.cycles, longest)) for b in bounds]


def roofline_chart(roofline: Roofline, cycles: float) -> dict[str, Any]:
    """A roofline on logarithmic axes: operations for each byte, and operations of a clock; `cycles` is
    what the busiest unit needs for one CTA.
    """
    width, height, left, right, top, bottom = 620, 340, 64, 590, 16, 296
    intensity = roofline.flops / roofline.nbytes
    best = max(roofline.peak, roofline.tensor_peak if roofline.tensor_flops else 0)
    lows = [intensity, 0.25 * roofline.peak / roofline.bytes_per_clock]
    x0, x1 = (
        math.floor(math.log10(min(lows))),
        math.ceil(math.log10(max(intensity, best / roofline.bytes_per_clock)) + 0.3),
    )
    reached = roofline.flops / cycles if cycles else 0.0
    attainable = min(best, intensity * roofline.bytes_per_clock)
    y1 = math.ceil(math.log10(best) + 0.1)
    y0 = min(math.floor(math.log10(max(min(reached, attainable), 1e-3))), y1 - 2)

    def x(value: float) -> float:
        return round(left + (right - left) * (math.log10(value) - x0) / (x1 - x0), 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * (math.log10(value) - y0) / (y1 - y0), 1)

    roofs = [("f32 units", roofline.peak)]
    if roofline.tensor_flops:
        roofs.append(("tensor cores, f16", roofline.tensor_peak))
    lines = []
    for name, peak in roofs:
        knee = peak / roofline.bytes_per_clock
        lines.append({"name": name, "peak": peak, "x": x(max(knee, 10**x0)), "y": y(peak)})
    first = max(10**x0, 10**y0 / roofline.bytes_per_clock)
    slope = (
        f"M{x(first)} {y(first * roofline.bytes_per_clock)}L{x(best / roofline.bytes_per_clock)} {y(best)}"
    )
    return {
        "width": width, "height": height, "left": left, "right": right, "top": top, "bottom": bottom,
        "xticks": [(f"{10.0**n:g}", x(10.0**n)) for n in range(x0, x1 + 1)],
        "yticks": [(f"{10.0**n:g}", y(10.0**n)) for n in range(y0, y1 + 1)],
        "roofs": lines, "slope": slope, "x": x(intensity), "attainable_y": y(attainable),
        "reached_y": y(reached) if reached else bottom, "intensity": intensity,
        "attainable": attainable, "reached": reached,
        "flip": x(intensity) > (left + right) / 2,
    }  # fmt: skip


def named(report: Report) -> dict[int, str]:
    """The names of source lines by id, such as `softmax.py:9`."""
    return {line.id: f"{file.name}:{line.number}" for file in report.sources for line in file.lines}


# Classes of machine code: their names on the page, and the colour of the class of PTX that is alike.
_SASS: Final = {
    "products": ("tensor cores", 0),
    "shared": ("shared memory", 4),
    "copies": ("global memory, copies", 5),
    "f32": ("floating point", 1),
    "exp2": ("exp2 and other functions", 2),
    "to 16 bits": ("conversions to 16 bits", 6),
    "lanes": ("lanes", 7),
    "control": ("control, barriers", 8),
}


def sass_class(name: str) -> tuple[str, int]:
    """The name and the colour, 0 to 8, of a class of machine code."""
    return _SASS.get(name, (name, 3))
