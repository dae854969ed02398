"""Findings of runs of a kernel under the sanitizers, each problem once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ptxgen.errors import TrapError
from ptxgen.fragments import OK, WRONG, fragment, pretty
from ptxgen.interpreter import Report, Result
from ptxgen.interpreter.schedule.policies import Schedule


@dataclass(frozen=True)
class Findings:
    """Findings of runs under the sanitizers: `reports` of the sanitizers, and `faults`, which ended
    a run (an access outside all arrays, a deadlock); each problem once.
    """

    reports: tuple[Report, ...]
    faults: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether no run of the kernel under the sanitizers had a finding."""
        return not self.reports and not self.faults

    def __str__(self) -> str:
        texts = [*map(str, self.reports), *self.faults]
        return "\n".join(texts) if texts else "nothing was found"

    _repr_pretty_ = pretty

    def _repr_html_(self) -> str:
        """The findings of the sanitizers as HTML, which a notebook shows."""
        return self.shown_as("sanitizers")

    def shown_as(self, title: str, *texts: tuple[str, str, bool]) -> str:
        """HTML with a title, the findings, and texts to unfold, as `ptxgen.fragments.fragment` takes them."""
        rows = [*((report.kind, report) for report in self.reports), *(("stopped", f) for f in self.faults)]
        says = str(self) if self.clean else f"{len(rows)} problem{'s' * (len(rows) > 1)}"
        return fragment(title, says, OK if self.clean else WRONG, rows=rows, texts=texts)

    def require(self) -> None:
        """Raise `TrapError` with all findings, if there are any."""
        if not self.clean:
            raise TrapError(str(self))


def findings_of(
    run: Callable[[Schedule], Result], schedules: Iterable[Schedule]
) -> tuple[Findings, tuple[Result | TrapError, ...]]:
    """The findings and the results of `run` under each schedule.

    `run` returns its reports (`raise_on_report=False`), and raises `TrapError` if it is stopped.
    """
    reports: dict[tuple[str, str, str], Report] = {}
    faults: dict[str, None] = {}
    results: list[Result | TrapError] = []
    for schedule in schedules:
        try:
            result = run(schedule)
        except TrapError as error:
            faults[str(error)] = None
            results.append(error)
            continue
        results.append(result)
        for report in result.reports:
            reports.setdefault((report.kind, report.instr, report.other), report)
    return Findings(tuple(reports.values()), tuple(faults)), tuple(results)
