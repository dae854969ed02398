"""What runs of a kernel under the sanitizers find, each problem once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ptxgen.errors import TrapError
from ptxgen.interpreter import Report, Result
from ptxgen.interpreter.schedule.policies import Schedule


@dataclass(frozen=True)
class Findings:
    """What runs under the sanitizers found: `reports` of the sanitizers, and `faults`, which ended
    a run (an access outside all arrays, a deadlock); each problem once.
    """

    reports: tuple[Report, ...]
    faults: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.reports and not self.faults

    def __str__(self) -> str:
        found = [*map(str, self.reports), *self.faults]
        return "\n".join(found) if found else "nothing was found"

    def require(self) -> None:
        """Raise `TrapError` with all that was found, if there is anything."""
        if not self.clean:
            raise TrapError(str(self))


def findings_of(
    run: Callable[[Schedule], Result], schedules: Iterable[Schedule]
) -> tuple[Findings, tuple[Result | TrapError, ...]]:
    """What `run` finds under each schedule, and its results, or what stopped it.

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
