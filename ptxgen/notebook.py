"""For Jupyter and Colab: a report and its timeline inline, and cells of PTX and CUDA C++ under the
sanitizers.

Kernels, proofs, findings and rankings show themselves in a notebook; `%load_ext ptxgen.notebook` adds
`%%ptx` and `%%cuda`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from ptxgen.commands.parts.limits import add_max_instructions
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.progress import bar, progress
from ptxgen.commands.parts.run_arguments import extents
from ptxgen.errors import LaunchError, PtxGenError, shown
from ptxgen.frames import load_template
from ptxgen.frontends import cuda
from ptxgen.frontends.program import Outcome, Program
from ptxgen.frontends.ptx import program_of
from ptxgen.interpreter.schedule.policies import LOCKSTEP
from ptxgen.kernels import KernelFunction
from ptxgen.kernels.function import DEFAULT_TARGET
from ptxgen.kernels.launch import extents as extents_of
from ptxgen.report import STEPS, Report, collect, page, subject_of_function
from ptxgen.report.charts import timeline
from ptxgen.report.data import Pipeline

__all__ = ["ReportView", "TimelineView", "load_ipython_extension", "progress", "report"]

_CELL: Final = "the cell"  # the name of a program in messages


def report(
    function: KernelFunction,
    grid: object = None,
    /,
    *arguments: object,
    target: str | None = None,
    threads: int | None = None,
    **statics: Any,
) -> ReportView:
    """The report of a kernel function (`docs/report.md`), shown inline: proofs, listings, registers and, with
    a grid and the arguments of a launch, a run on the interpreter, on copies of the arrays.

    `target`, `threads` and the static parameters are those of `KernelFunction.build`. Raises `LaunchError`
    for arguments that do not fit, and what `build` raises.
    """
    if not isinstance(function, KernelFunction):
        raise LaunchError(
            f"report: the first argument must be a function with @ptxgen.kernel, got {shown(function)}; of a "
            "tuned kernel f that is f.kernel"
        )
    extent = None if grid is None else extents_of(function.name, "grid", grid)
    subject = subject_of_function(
        function, extent, arguments, target=target, threads=threads, statics=statics
    )
    with progress(STEPS) as step:
        return ReportView(collect(subject, step))


@dataclass(frozen=True)
class ReportView:
    """A report that shows its page in a notebook; `str(view)` is the page as HTML, `height` pixels of it are
    visible at once.
    """

    report: Report = field(repr=False)
    height: int = 640

    def __repr__(self) -> str:
        return f"<report of {self.report.kernel} for {self.report.target}>"

    def __str__(self) -> str:
        return page(self.report)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, whose styles and script stay inside."""
        # Without a base, links within the page are links into the notebook's page (HTML, "srcdoc").
        inside = str(self).replace("<head>", '<head><base href="about:srcdoc">', 1)
        title = repr(self)[1:-1]
        return load_template("frame.html.j2").render(title=title, height=self.height, page=inside)

    @property
    def timeline(self) -> TimelineView:
        """The warps of the first CTA over time. Raises `LaunchError` for a report without a run."""
        if self.report.pipeline is None or not self.report.pipeline.shown:
            why = dict(self.report.missing).get("pipeline", "the first CTA executed nothing")
            raise LaunchError(f"{self.report.kernel}: there is no timeline: {why}")
        return TimelineView(self.report.kernel, self.report.pipeline)


@dataclass(frozen=True)
class TimelineView:
    """The warps of a kernel's first CTA over time, a slot being one instruction of one warp."""

    kernel: str
    pipeline: Pipeline = field(repr=False)

    def _repr_html_(self) -> str:
        """The timeline as a picture in the page's colours."""
        lanes = self.pipeline.lanes
        title = f"{self.kernel}: {sum(len(lane.warps) for lane in lanes)} warps of the first CTA over time"
        chart = timeline(self.pipeline)
        return load_template("timeline_inline.html.j2").render(
            title=title, c=chart, classes=self.pipeline.classes
        )


# ------------------------------------------------------------------------------------------ the magics


def load_ipython_extension(shell: Any) -> None:
    """Add `%%ptx` and `%%cuda` to an IPython shell; `%load_ext ptxgen.notebook` calls it."""
    for name, language, load in (("ptx", "PTX", _ptx), ("cuda", "CUDA C++", _cuda)):
        shell.register_magic_function(_magic(shell, name, language, load), "cell", name)


def _ptx(cell: str, _: argparse.Namespace) -> Program:
    return program_of(cell, _CELL)


def _cuda(cell: str, arguments: argparse.Namespace) -> Program:
    return cuda.compile(cell, name="cell.cu", target=arguments.target)


def _magic(
    shell: Any, name: str, language: str, load: Callable[[str, argparse.Namespace], Program]
) -> Callable[[str, str], Outcome]:
    """A cell magic, whose help is that of its options. What a user can mend is a `UsageError`, which IPython
    shows without a traceback.
    """
    refuse: type[Exception] = importlib.import_module("IPython.core.error").UsageError
    parser = _Parser(refuse, name, language)

    def magic(line: str, cell: str) -> Outcome:
        try:
            words = shlex.split(line, posix=False)  # quotes belong to the expressions
        except ValueError as error:
            raise refuse(f"%%{name}: {error} in the line: {line}") from None
        options = parser.parse_args(words)
        try:
            return _run(load(cell, options), options, [_value(shell, word) for word in options.arguments])
        except PtxGenError as error:
            raise refuse(f"%%{name}: {error}") from None

    magic.__doc__ = parser.format_help()
    return magic


def _value(shell: Any, text: str) -> Any:
    """The value of a Python expression in the notebook."""
    try:
        return shell.ev(text)
    except Exception as error:  # whatever the expression raises
        raise LaunchError(
            f"the argument {text} cannot be evaluated: {type(error).__name__}: {error}"
        ) from None


def _run(program: Program, options: argparse.Namespace, arguments: list[Any]) -> Outcome:
    kernel = program.only() if options.entry is None else program[options.entry]
    with bar(math.prod(options.grid)) as update:
        return kernel.run(
            options.grid,
            options.block,
            arguments,
            shared=options.shared,
            cluster=options.cluster,
            schedule=options.schedule,
            max_instructions=options.max_instructions,
            raise_on_report=False,
            progress=None if update is None else lambda done, _: update(done, f"{kernel.name}, CTAs"),
        )


class _Parser(argparse.ArgumentParser):
    """The options of a magic; what is wrong with them is an error of the class `refuse`."""

    def __init__(self, refuse: type[Exception], name: str, language: str) -> None:
        about = f"Run the {language} of a cell on the CPU under all sanitizers; arrays are written in place."
        super().__init__(
            f"%%{name}", description=about, epilog=f"example: %%{name} --grid 4 --block 256 x y 1000",
            add_help=False, allow_abbrev=False,
        )  # fmt: skip
        self._refuse = refuse
        add = self.add_argument
        add("arguments", nargs="*", metavar="ARGUMENT", help="a Python expression without spaces, such as x")
        add("--grid", type=extents, default=(1,), metavar="X[,Y[,Z]]", help="CTAs (default: 1)")
        add("--block", type=extents, metavar="X[,Y[,Z]]", help="threads of a CTA (default: .reqntid)")
        add("--entry", metavar="NAME", help="the kernel, if there are several")
        add("--cluster", type=extents, default=(1,), metavar="X[,Y[,Z]]", help="CTAs of a cluster")
        add("--shared", type=whole(0), default=0, metavar="BYTES", help="dynamic shared memory")
        add("--schedule", default=LOCKSTEP, help="lockstep, or pct:SEED for another order of warps")
        add_max_instructions(add)
        if language != "PTX":
            add("--target", default=DEFAULT_TARGET, metavar="NAME", help=f"(default: {DEFAULT_TARGET})")

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of ending the process."""
        raise self._refuse(f"{self.prog}: {message}\n{self.format_usage().rstrip()}")
