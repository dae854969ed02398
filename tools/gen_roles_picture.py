"""Write `docs/roles.svg` and `docs/backward-roles.svg`, what the warps of a CTA do in kernels for Hopper: of
the forward pass and of gradients by keys; from runs of the interpreter. Or check that they are up to date.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from benchmarks.gradient_sweeps import launches
from flash.commands.measure.static_quality import dense_launch
from flash.contract.gradients import GradientBuild, gradient_build
from flash.problem.config import AttentionConfig
from flash.problem.gradients import GradientConfig
from ptxgen import interpreter, ir
from ptxgen.commands.parts.quiet import quietly
from ptxgen.frames import load_template
from ptxgen.interpreter.recording import Recorder
from ptxgen.report import charts
from ptxgen.report.classes import NAMES
from ptxgen.report.data import Pipeline
from ptxgen.report.pipeline import pipeline
from ptxgen.target import target
from tools.commands.generated_file import write_or_check_each

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
TARGET: Final = "sm_90a"
TILE: Final = 32  # keys of a tile of the forward pass, queries of one of gradients by keys
CONFIG: Final = AttentionConfig(64, dtype="f16", tile=TILE, target=TARGET)
SEQ: Final = 192  # queries, and keys: six tiles
_CHARACTER: Final = 6.8  # the width of a letter of the picture's font
_APART: Final = 34


class Picture(NamedTuple):
    """A picture of what the warps of a CTA do: its name in `docs/`, its title, and `interpret`, which runs
    the kernel under a recorder and returns its module.
    """

    name: str
    title: str
    interpret: Callable[[Recorder], ir.Module]

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
    chart = charts.timeline(recorded(picture))
    key = list(_key(chart["used"], chart["flying"]))
    return load_template("timeline.svg.j2").render(c=chart, classes=NAMES, key=key, title=picture.title)


def recorded(picture: Picture) -> Pipeline:
    """The timeline of the first CTA of the kernel."""
    recorder = Recorder()
    module = picture.interpret(recorder)
    return pipeline(recorder.recording, module.kernels[0], {})


def _interpret_forward(recorder: Recorder) -> ir.Module:
    build, plan, args = dense_launch(CONFIG, SEQ)
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


PICTURES: Final = (
    Picture("roles.svg", "What the warps of a CTA do, slot by slot", _interpret_forward),
    Picture(
        "backward-roles.svg",
        "What the warps of a CTA that owns keys do in the backward pass, slot by slot",
        _interpret_keys,
    ),
)


def _key(used: Sequence[int], flying: bool) -> Iterator[tuple[str, str, float, int]]:
    """The colour, the words, the x coordinate and the row of each entry of the picture's key."""
    entries = [(f"c{n}", NAMES[n]) for n in used] + [("wait", "waiting")]
    if flying:
        entries.append(("air", "below a row: bytes in flight"))
    x, row = float(charts.LEFT), 0
    for kind, label in entries:
        width = _APART + len(label) * _CHARACTER
        if x + width > charts.WIDTH:
            x, row = float(charts.LEFT), row + 1
        yield kind, label, round(x, 1), row
        x += width


if __name__ == "__main__":
    sys.exit(quietly(main))
