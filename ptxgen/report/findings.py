"""Findings of a report, and the lines of PTX that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ptxgen import ir
from ptxgen.check.problems import Problem
from ptxgen.check.prove import Verdict
from ptxgen.interpreter import Counters
from ptxgen.report import data
from ptxgen.report.data import ERROR, LINT, UNPROVED, Finding

_MOST_FINDINGS: Final = 500


def of_problem(problem: Problem) -> Finding:
    """The finding for a problem of the verifier."""
    return Finding(ERROR, f"verifier, {problem.kind}", problem.message, problem.line)


def counted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings without repetitions, the worst first, at most _MOST_FINDINGS."""
    count = Counter(findings)
    order = (ERROR, UNPROVED, LINT)
    ordered = sorted(count, key=lambda f: order.index(f.severity))
    merged = [Finding(f.severity, f.kind, f.message, f.line, count[f]) for f in ordered]
    left = len(merged) - _MOST_FINDINGS
    if left > 0:
        merged = merged[:_MOST_FINDINGS]
        merged.append(Finding(merged[-1].severity, "report", f"{left} more findings are left out"))
    return tuple(merged)


def of_verdicts(kind: str, verdicts: Sequence[Verdict], holds_for: str) -> data.Proved:
    """The verdicts on accesses of a kind, counted."""
    count = Counter(v.verdict for v in verdicts)
    return data.Proved(kind, len(verdicts), count["proved"], count["violation"], count["unknown"], holds_for)


def without_kernel(kernel: ir.Kernel, message: str) -> str:
    """A message without the kernel's name, which is in the page's title."""
    return message.removeprefix(f"kernel {kernel.name}: ")


def of_traffic(counters: Counters) -> Iterator[Finding]:
    """Bank conflicts and avoidable sectors, for each instruction that has them."""
    for cost in (counters.memory_by_instruction or {}).values():
        if cost.shared_conflicts:
            message = (
                f"{cost.shared_conflicts:,} bank conflicts: {cost.shared_wavefronts:,} wavefronts instead "
                f"of {cost.shared_least:,}"
            )
            yield Finding(LINT, "bank conflicts", message, cost.line)
        if cost.sectors_excess:
            moved = cost.sectors_read + cost.sectors_written
            message = (
                f"{cost.sectors_excess:,} avoidable sectors: {moved:,} of 32 bytes instead of "
                f"{cost.sectors_least:,}"
            )
            yield Finding(LINT, "uncoalesced", message, cost.line)
