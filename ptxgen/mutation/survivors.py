"""Reports on surviving mutants: the source line of each, and what a problem needs to notice it."""

from __future__ import annotations

import re
from typing import Final

from ptxgen.mutation.judge import NOT_EXECUTED, NOT_INFECTED, NOT_PROPAGATED, Judge, Verdict

# What a problem needs in which a mutant has another result, by a pattern of the mutant's name.
_NEEDED: Final = {
    r"\b\w\w to \w\w @": "a thread compares equal operands",
    r"never taken @": "a thread takes this branch",
    r"[+-]1 @": "a thread has an operand at the limit",
    r"dropped @": "a thread does not meet the condition",
}


def survivor(judge: Judge, verdict: Verdict) -> str:
    """The change, its source line, and what a further problem needs, in lines."""
    where = f"{verdict.where}: {source_line(judge, verdict)}".removesuffix(": ")
    return (
        f"{verdict.kernel}: survived, {verdict.name}\n  from    {where}\n  before  {verdict.before}\n"
        f"  after   {verdict.after or '(gone)'}\n  needs   {needs(verdict)}\n"
    )


def source_line(judge: Judge, verdict: Verdict) -> str:
    """The text of the source line of a mutant; empty if it is not at hand."""
    return next(mutant.line for mutant in judge.mutants if mutant.name == verdict.name)


def needs(verdict: Verdict) -> str:
    """What a further problem needs to notice a mutant that no check caught."""
    if verdict.reach == NOT_EXECUTED:
        return "a problem that executes this line: no thread does"
    if verdict.reach == NOT_INFECTED:
        needed = (words for pattern, words in _NEEDED.items() if re.search(pattern, verdict.name))
        return f"a problem in which {next(needed, 'the change has an effect')}; so far none does"
    if verdict.reach == NOT_PROPAGATED:
        return "a problem in which the change shows in an array, or a reason why it cannot"
    return "a smaller tolerance, or a problem with a larger error: results differ within what is allowed"
