"""Draw how the interpreter's cost grows, from a result of `ptxgen bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

if not __package__:  # run as a script: draw what this checkout measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

import numpy as np

from flash.commands.measure.report import ROOT
from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell

NAME: Final = "bench_plot.py"
RESULT: Final = ROOT / "benchmarks" / "results" / "interpreter-cpu.json"
_AXES: Final = {"N": "longer sequences, 8 heads", "H": "more heads H, N = 256"}
_OFFSET: Final = "offset points"  # matplotlib's name of coordinates relative to a point


class Point(NamedTuple):
    """A measured launch: N or H, 10**9 thread-instructions, and seconds."""

    size: int
    work: float
    seconds: float


_EPILOG: Final = """\
example:
  python tools/bench.py --only interpreter --output benchmarks/results
  python tools/bench_plot.py --output docs/interpreter-cost.svg

exit codes:
  0  drawn
  1  the result cannot be read or has no growth in it, or the picture cannot be written
  2  wrong usage
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw, write; see the exit codes above."""
    parser = CommandParser(NAME, __doc__, _EPILOG)
    parser.add_argument("result", nargs="?", type=Path, default=RESULT, help="default: %(default)s")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the picture")
    arguments = parser.parse_args(argv)
    try:
        points = growth(json.loads(arguments.result.read_text(encoding="utf-8")))
        draw(points, arguments.output)
    except (OSError, ValueError) as error:
        return fail(NAME, FAILED, f"{arguments.result}: {error}")
    tell(str(arguments.output))
    return OK


def growth(result: dict[str, Any]) -> dict[str, list[Point]]:
    """The points of the launches that vary N, and of those that vary H, by that letter. Raises
    `ValueError`.
    """
    points: dict[str, list[Point]] = {axis: [] for axis in _AXES}
    for section in result["sections"].values():
        each = {str(x["config"]): x for x in section["measurements"] if x["name"] == "time / work"}
        for one in section["measurements"]:
            config = one["config"]
            if one["name"] == "time" and config.get("along") in points:
                axis = config["along"]
                work = one["median"] * 1e-3 / each[str(config)]["median"]  # in 10**9
                points[axis].append(Point(config[axis], work, one["median"] * 1e-3))
    empty = [axis for axis, samples in points.items() if len(samples) < 2]
    if empty:
        raise ValueError(
            f"the result has no growth along {' and '.join(empty)}; "
            "measure it with: python tools/bench.py --only interpreter --output benchmarks/results"
        )
    return points


def draw(points: dict[str, list[Point]], output: Path) -> None:
    """Draw one panel for each axis: time against work, and the fitted straight line."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "interpreter-cost"  # the same data give the same file
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for panel, (axis, samples) in zip(figure.subplots(1, len(points)), points.items(), strict=True):
        work, times = [p.work for p in samples], [p.seconds for p in samples]
        slope, start = np.polyfit(work, times, 1)
        line = [0.0, max(work)]
        label = f"{start:.2f} s + {slope:.1f} ns per thread-instruction"
        panel.plot(line, [start + slope * x for x in line], "--", color="tab:orange", label=label)
        panel.plot(work, times, "o", color="tab:blue")
        for p in samples:
            panel.annotate(f"{axis} = {p.size}", (p.work, p.seconds), (6, -10), textcoords=_OFFSET)
        panel.set(title=_AXES[axis], xlabel="10⁹ thread-instructions", ylabel="s")
        panel.set(xlim=(0, max(work) * 1.3), ylim=(0, max(times) * 1.2))
        panel.legend(frameon=False, loc="upper left")
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


if __name__ == "__main__":
    sys.exit(quietly(main))
