"""Draw how the interpreter's cost grows, from a result of tools/bench.py."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script: draw what this checkout measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench_report import ROOT

OK, FAILED = 0, 1

OUTPUT: Final = ROOT / "docs" / "interpreter-cost.svg"
RESULT: Final = ROOT / "benchmarks" / "results" / "interpreter-cpu.json"
_AXES: Final = {"N": "sequence length N, 8 heads", "H": "heads, N = 256"}

_EPILOG: Final = """\
example:
  python tools/bench.py --only interpreter && python tools/bench_plot.py

exit codes:
  0  drawn
  1  the result cannot be read or has no growth in it, or the picture cannot be written
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw, write; see the exit codes above."""
    parser = argparse.ArgumentParser(
        prog="bench_plot.py", description=__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("result", nargs="?", type=Path, default=RESULT, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    try:
        found = growth(json.loads(arguments.result.read_text(encoding="utf-8")))
        draw(found, arguments.output)
    except (OSError, ValueError) as error:
        print(f"bench_plot.py: {error}", file=sys.stderr)
        return FAILED
    print(arguments.output)
    return OK


def growth(result: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """Size and time (ms) of each kernel, along N and along H. Raises `ValueError`."""
    points: dict[str, list[tuple[int, float]]] = {axis: [] for axis in _AXES}
    for section in result["sections"]:
        for one in section["measurements"]:
            config = one["config"]
            if one["name"] == "time" and config.get("along") in points:
                axis = config["along"]
                points[axis].append((config[axis], one["median"]))
    empty = [axis for axis, found in points.items() if len(found) < 2]
    if empty:
        raise ValueError(
            f"the result has no growth along {' and '.join(empty)}; "
            "measure it with: python tools/bench.py --only interpreter"
        )
    return points


def draw(points: dict[str, list[tuple[int, float]]], output: Path) -> None:
    """One panel an axis: time against size, and what time in proportion to the work would be."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "interpreter-cost"  # the same data give the same file
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for panel, (axis, found) in zip(figure.subplots(1, len(points)), points.items(), strict=True):
        sizes, times = zip(*sorted(found), strict=True)
        power = 2 if axis == "N" else 1  # attention's work grows with N squared, and with H
        largest, slowest = sizes[-1], times[-1]
        panel.loglog(sizes, times, "o-", label="measured")
        ideal = [slowest * (size / largest) ** power for size in sizes]
        panel.loglog(sizes, ideal, "--", label="in proportion to the work")
        panel.set(xlabel=_AXES[axis], ylabel="ms", xticks=sizes, xticklabels=map(str, sizes))
        panel.minorticks_off()
        panel.legend(frameon=False)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
