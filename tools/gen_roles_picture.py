"""Write `docs/roles.svg` and `docs/backward-roles.svg`, what the warps of a CTA do in kernels for Hopper, of
the forward pass and of gradients by keys, and `docs/blackwell-roles.svg`, what they do in the forward kernel
for Blackwell, and which columns of tensor memory they use; from runs of the interpreter. Or check that they
are up to date.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from benchmarks.gradient_sweeps import launches
from flash.commands.measure.static_quality import dense_launch
from flash.contract.gradients import GradientBuild, gradient_build
from flash.families.tcgen05 import TCGEN05
from flash.problem.config import AttentionConfig
from flash.problem.gradients import GradientConfig
from ptxgen import interpreter, ir
from ptxgen.commands.parts.quiet import quietly
from ptxgen.frames import load_template
from ptxgen.interpreter.recording import Recorder, Recording
from ptxgen.report import charts
from ptxgen.report.classes import NAMES, class_of
from ptxgen.report.data import Lane, Pipeline
from ptxgen.report.pipeline import pipeline
from ptxgen.target import target
from tools.commands.generated_file import write_or_check_each

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
TARGET: Final = "sm_90a"
TILE: Final = 32  # keys of a tile of the forward pass, queries of one of gradients by keys
CONFIG: Final = AttentionConfig(64, dtype="f16", tile=TILE, target=TARGET)
# Its scores are so far apart that maxima grow, and O is rescaled, at each tile.
BLACKWELL: Final = replace(CONFIG, target="sm_100a", block_q=256, softmax_scale=8.0)
SEQ: Final = 192  # queries, and keys: six tiles
_ROW: Final = 30  # the height of a row of columns
_HALF: Final = 10  # the height of what is read, or written, in it
_CHARACTER: Final = 6.8  # the width of a letter of the picture's font
_APART: Final = 34


class Picture(NamedTuple):
    """A picture of what the warps of a CTA do: its name in `docs/`, its title, and `interpret`, which runs
    the kernel under a recorder and returns its module. `roles` are the names of roles by their first warp,
    `columns` the first column of tensor memory and the number of columns by what they have.
    """

    name: str
    title: str
    interpret: Callable[[Recorder], ir.Module]
    roles: Mapping[int, str] = MappingProxyType({})
    columns: Mapping[str, tuple[int, int]] = MappingProxyType({})

    @property
    def file(self) -> Path:
        """The path of the picture."""
        return DOCS / self.name


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pictures and return 0; with `--check` write nothing, and return 1 if one is outdated."""
    files = {picture.file: functools.partial(render, picture) for picture in PICTURES}
    return write_or_check_each(argv, "gen_roles_picture.py", __doc__, files, "the interpreter draws")


def render(picture: Picture) -> str:
    """The picture as SVG."""
    recording, shown = recorded(picture)
    chart = charts.timeline(shown)
    roles = {box.y: role_of(picture, box.lane) for box in chart["lanes"]}
    rows = list(_rows(picture, recording, shown, chart["height"]))
    chart["height"] += _ROW * len(rows)
    key = list(_key(chart["used"], chart["flying"], bool(rows)))
    return load_template("timeline.svg.j2").render(
        c=chart, classes=NAMES, key=key, title=picture.title, roles=roles, rows=rows
    )


def recorded(picture: Picture) -> tuple[Recording, Pipeline]:
    """The recording and the timeline of the first CTA of the kernel."""
    recorder = Recorder()
    module = picture.interpret(recorder)
    return recorder.recording, pipeline(recorder.recording, module.kernels[0], {})


def role_of(picture: Picture, lane: Lane) -> str:
    """The role of the warps of a lane; empty if none is named."""
    first = max((warp for warp in picture.roles if warp <= lane.warps[0]), default=None)
    return "" if first is None else picture.roles[first]


class ColumnRow(NamedTuple):
    """A row for columns of tensor memory: a path for each class of instructions that use them."""

    name: str
    y: int
    paths: tuple[tuple[int, str], ...]


def _rows(picture: Picture, recording: Recording, shown: Pipeline, top: int) -> Iterator[ColumnRow]:
    """The rows for the columns of a picture, the first one `top` below its edge: what is written in the upper
    half, what is read in the lower one.
    """
    x = charts.x_of_slots(shown)
    for n, (name, (begin, columns)) in enumerate(picture.columns.items()):
        y, paths = top + _ROW * n, defaultdict[int, list[str]](list)
        for use in recording.column_uses:
            if begin <= use.first < begin + columns:
                left, right = x(use.start), x(shown.shown if use.end < 0 else use.end)
                box = f"M{left} {y + _HALF * (not use.writes)}H{right}v{_HALF}H{left}z"
                paths[class_of(recording.instrs[use.at].opcode)].append(box)
        drawn = tuple((of, "".join(dict.fromkeys(boxes))) for of, boxes in sorted(paths.items()))
        yield ColumnRow(f"{name} ({begin}\N{EN DASH}{begin + columns - 1})", y, drawn)


def _interpret_forward(recorder: Recorder, config: AttentionConfig = CONFIG) -> ir.Module:
    build, plan, args = dense_launch(config, SEQ)
    interpreter.run(
        build.module,
        grid=plan.grid,
        block=plan.block,
        args=args,
        dynamic_smem=plan.dynamic_shared,
        recorder=recorder,
    )
    return build.module


def _interpret_keys(recorder: Recorder) -> ir.Module:
    queries, keys = launches(CONFIG, target(TARGET), SEQ, one_sweep=False, build=_with_small_tiles)
    queries.interpret()  # writes D, which the other kernel reads
    keys.interpret(recorder=recorder)
    return keys.build.module


def _with_small_tiles(kernel: GradientConfig) -> GradientBuild:
    """The kernel of a configuration with tiles of TILE rows, several of which the small problem has."""
    return gradient_build(replace(kernel, tiling=replace(kernel.wgmma, tile=TILE)))


def _blackwell_columns() -> dict[str, tuple[int, int]]:
    """The columns of the row tiles of the kernel for Blackwell."""
    t = TCGEN05.require(BLACKWELL.kernel().tiling)
    columns, first = dict[str, tuple[int, int]](), 0
    for i in range(t.row_tiles):
        columns[f"S{i}, P{i}"] = first, t.tile
        columns[f"O{i}"] = first + t.tile, t.output_columns
        first += t.tile + t.output_columns
    return columns


PICTURES: Final = (
    Picture("roles.svg", "What the warps of a CTA do, slot by slot", _interpret_forward),
    Picture(
        "backward-roles.svg",
        "What the warps of a CTA that owns keys do in the backward pass, slot by slot",
        _interpret_keys,
    ),
    Picture(
        "blackwell-roles.svg",
        "What the warps of a CTA do, and who uses which columns of tensor memory, slot by slot",
        functools.partial(_interpret_forward, config=BLACKWELL),
        {0: "softmax", 8: "correction", 12: "multiplying", 13: "loading", 15: ""},
        _blackwell_columns(),
    ),
)


def _key(used: Sequence[int], flying: bool, has_columns: bool) -> Iterator[tuple[str, str, float, int]]:
    """The colour, the words, the x coordinate and the row of each entry of the picture's key."""
    entries = [(f"c{n}", NAMES[n]) for n in used] + [("wait", "waiting")]
    if flying:
        entries.append(("air", "below a row: bytes in flight"))
    if has_columns:
        entries.append(("columns", "columns of tensor memory: above written, below read"))
    x, row = float(charts.LEFT), 0
    for kind, label in entries:
        width = _APART + len(label) * _CHARACTER
        if x + width > charts.WIDTH:
            x, row = float(charts.LEFT), row + 1
        yield kind, label, round(x, 1), row
        x += width


if __name__ == "__main__":
    sys.exit(quietly(main))
