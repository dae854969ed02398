"""Write `docs/roles.svg`, what the warps of a CTA do in a kernel for Hopper, from a run of the interpreter,
or check that it is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from flash.commands.measure.static_quality import dense_launch
from flash.problem.config import AttentionConfig
from ptxgen import interpreter
from ptxgen.commands.parts.quiet import quietly
from ptxgen.frames import load_template
from ptxgen.interpreter.recording import Recorder
from ptxgen.report import charts
from ptxgen.report.classes import NAMES
from ptxgen.report.data import Pipeline
from ptxgen.report.pipeline import pipeline
from tools.commands.generated_file import write_or_check

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "roles.svg"
CONFIG: Final = AttentionConfig(64, dtype="f16", tile=32, target="sm_90a")
SEQ: Final = 192  # queries, and keys: six tiles
_TITLE: Final = "What the warps of a CTA do, slot by slot"
_CHARACTER: Final = 6.8  # the width of a letter of the picture's font
_APART: Final = 34


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_roles_picture.py", __doc__, PICTURE, "the interpreter draws", render)


def render() -> str:
    """The picture as SVG."""
    recording = recorded()
    chart = charts.timeline(recording)
    key = list(_key(chart["used"], chart["flying"]))
    return load_template("timeline.svg.j2").render(c=chart, classes=NAMES, key=key, title=_TITLE)


def recorded() -> Pipeline:
    """The timeline of the first CTA of the kernel."""
    build, plan, args = dense_launch(CONFIG, SEQ)
    recorder = Recorder()
    interpreter.run(
        build.module,
        grid=plan.grid,
        block=plan.block,
        args=args,
        dynamic_smem=plan.dynamic_shared,
        recorder=recorder,
    )
    return pipeline(recorder.recording, build.module.kernels[0], {})


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
