"""Write `docs/gpu.md` from the ledger, the results of GPUs and the models, or check that it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure.predictions import LENGTHS
from flash.families.choice import WORKLOADS
from ptxgen.commands.parts.quiet import quietly
from ptxgen.frames import load_template
from tools.commands import gpu_figures
from tools.commands.generated_file import write_or_check
from tools.commands.gpu_figures import Row, Table
from tools.commands.shipped_kernels import SEQS, TOKENS, WIDTH

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "gpu.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_gpu_page.py", __doc__, PAGE, "the results and the ledger say", render)


def render(families: Callable[[str], Table] = gpu_figures.of_families) -> str:
    """The page as Markdown. `families` returns the table of texts that ran on a device, for which it emits
    many kernels.
    """
    figures, first = gpu_figures, gpu_figures.first()
    cleared = first["what_clearing_values_costs"]["rows"]
    return load_template("gpu.md.j2").render(
        first=first,
        torch=_short(first["versions"]["torch"]),
        cudnn=_short(first["versions"]["cudnn"]),
        tests=first["tests"],
        which_ran=figures.which_ran(),
        devices=[
            {"device": name, "sm": round(float(capability) * 10), "families": families(name)}
            for name, capability in sorted(figures.devices().items())
        ],
        vectors=figures.vectors(),
        tokens=TOKENS,
        width=WIDTH,
        seqs=SEQS,
        flash=figures.of_peer("flash"),
        full=figures.of_launches(False),
        causal=figures.of_launches(True),
        matmul=_rate(figures.one(first["calls"], who="matmul8192")),
        clocks=figures.clocks(),
        error=_errors(figures.call("ours", 128)["err"], figures.call("cudnn", 128)["err"]),
        others=figures.of_others(),
        f32_grade=figures.errors_of_f32_grade(),
        wide_fp8=_rate(figures.through_the_api(256, 8192)),
        workloads={
            name: {**of, "rate": _rate(figures.through_the_api(of["head_dim"], 4096))}
            for name, of in WORKLOADS.items()
        },
        schedulers=figures.of_schedulers(),
        counters=figures.of_counters(),
        lengths=LENGTHS,
        blackwell=figures.of_blackwell(),
        clearing_64=_percent(figures.costs_of_clearing(64)),
        clearing_128=_percent(figures.costs_of_clearing(128)),
        without=figures.one(cleared, d=128, N=4096),
        clusters=figures.costs_of_clusters(),
        later=[
            of | {"table": figures.of_calls(of), "counters": figures.of_later_counters(of)}
            for of in figures.later()
        ],
    )


def _rate(row: Row) -> str:
    """The TFLOP/s of a call, as the page prints it."""
    return f"{row['tflops']:.0f}"


def _short(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def _errors(ours: float, theirs: float) -> str:
    shown = f"{ours:.1e}".replace("e-0", "e-"), f"{theirs:.1e}".replace("e-0", "e-")
    return f"{shown[0]} for both" if shown[0] == shown[1] else f"{shown[0]}, and {shown[1]} for cuDNN's,"


def _percent(span: tuple[int, int]) -> str:
    least, most = span
    return f"{most} %" if least == most else f"{least} to {most} %"


if __name__ == "__main__":
    sys.exit(quietly(main))
