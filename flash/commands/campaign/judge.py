"""Judges mutants: by verifier, proof, sanitizers, interpreter and results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.commands.campaign.infection import infected, probed
from flash.commands.campaign.kernels import subjects
from flash.commands.campaign.mistakes import Mutant, mutants
from flash.commands.campaign.reasons import reason
from flash.commands.campaign.subject import Ran, Subject
from ptxgen.check.prove import prove
from ptxgen.check.verify import verify
from ptxgen.errors import PtxGenError, TrapError
from ptxgen.interpreter.schedule.policies import LOCKSTEP
from ptxgen.ir import Module

# The checks that catch mutants, in the order in which they run.
CATCHERS: Final = {
    "verifier": "refused before anything runs",
    "proof": "an access is proved wrong before anything runs",
    "sanitizer": "reported by a sanitizer in a run",
    "trap": "the run stops: a bad address, a deadlock, no end",
    "value": "the results are wrong",
    "schedule": "any of these, in another order of warps",
    "unproved": "the proof no longer says yes to what it says yes to in the right kernel",
}
EQUIVALENT: Final = "equivalent"  # no check can catch it, for a known reason
HOLE: Final = "hole"  # no check caught it, and one should have

_WATCHED: Final = "all,mbarrier_init"  # the sanitizers

_PATIENCE: Final = 4  # times the right kernel's instructions: more count as an endless loop
_LEAST_PATIENCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a mutant.

    `caught_by` is the first of CATCHERS that caught it, or EQUIVALENT or HOLE; `also` are others
    that caught it in the same run. `what` is their message, or the reason of equivalence. `problem`
    is the index of the problem of that run, -1 without a run.
    """

    kernel: str
    name: str
    kind: str
    before: str
    after: str
    step: str
    mark: str
    where: str
    caught_by: str
    what: str
    also: tuple[str, ...] = ()
    problem: int = -1


@dataclass(frozen=True, slots=True)
class _Finding:
    caught_by: str
    what: str
    also: tuple[str, ...] = ()
    problem: int = -1


def judge(kernel: str, number: int) -> Verdict:
    """The verdict on the mutant of a kernel with index `number`."""
    subject, mutant = subjects()[kernel], mutants_of(kernel)[number]
    found = _found(subject, mutant, number)
    return Verdict(
        kernel,
        mutant.name,
        mutant.kind,
        mutant.before,
        mutant.after,
        mutant.step,
        mutant.mark,
        mutant.where,
        found.caught_by,
        found.what,
        found.also,
        found.problem,
    )


@lru_cache(maxsize=2)
def mutants_of(kernel: str) -> list[Mutant]:
    """All mutants of a kernel of the campaign."""
    subject = subjects()[kernel]
    return mutants(subject.module, subject.entry)


@lru_cache(maxsize=2)
def _probed(kernel: str) -> Module:
    subject = subjects()[kernel]
    return probed(subject.module, subject.entry, mutants_of(kernel))


@lru_cache(maxsize=256)
def _infected(kernel: str, problem: Any) -> NDArray[np.bool_]:
    """Which mutants of a kernel, in order, may differ from it on a problem."""
    return infected(subjects()[kernel], _probed(kernel), len(mutants_of(kernel)), problem)


def _found(subject: Subject, mutant: Mutant, index: int) -> _Finding:
    """Run the checks in order, and end at the first one that catches the mutant. On problems on which
    its run would be that of the right kernel, which passes, it is not run, but for the first: a sanitizer
    also reads the text.
    """
    module = mutant.module
    problems = verify(module)
    if problems:
        return _Finding("verifier", problems[0].message)
    proof = prove(module, subject.entry, block=subject.block, params=subject.maps).shared
    wrong = (*proof.problems, *proof.violations)
    if wrong:
        return _Finding("proof", str(wrong[0]))
    told, same = [], True
    for number, problem in enumerate(subject.problems):
        if _infected(subject.name, problem)[index]:
            told.append(number)
        elif number:
            continue
        found, ran = _run(subject, module, problem, number)
        if found is not None:
            return found
        same = same and ran is not None and ran.results == right(subject.name, problem).results
    return (
        _scheduled(subject, module, told)
        or (_Finding("unproved", str(proof.unknown[0])) if proof.unknown else None)
        or _survivor(mutant, subject.block, same)
    )


def _run(
    subject: Subject, module: Module, problem: Any, number: int, schedule: str = LOCKSTEP
) -> tuple[_Finding | None, Ran | None]:
    """What the checks find in one run, and the run if it completed."""
    limit = max(_LEAST_PATIENCE, _PATIENCE * right(subject.name, problem, schedule).dispatched)
    how: dict[str, Any] = {"sanitize": _WATCHED, "schedule": schedule, "max_instructions": limit}
    try:
        ran = subject.run(module, problem, **how)
    except TrapError as error:
        return _Finding("trap", str(error), (), number), None
    except PtxGenError as error:  # passed by the verifier, refused by the interpreter
        return _Finding("verifier", str(error), (), number), None
    noticed = _noticed(ran)
    if not noticed:
        return None, ran
    first, *others = noticed
    return _Finding(first, noticed[first], tuple(others), number), ran


def _scheduled(subject: Subject, module: Module, told: list[int]) -> _Finding | None:
    for number in [n for n in told if n < subject.scheduled]:
        for schedule in (f"pct:{seed}" for seed in subject.seeds):
            found, _ = _run(subject, module, subject.problems[number], number, schedule)
            if found is not None:
                what = f"{schedule}: {found.what}"
                return _Finding("schedule", what, (found.caught_by, *found.also), number)
    return None


def _survivor(mutant: Mutant, block: int, same: bool) -> _Finding:
    known = reason(mutant, block, same=same)
    if known is not None:
        return _Finding(EQUIVALENT, known)
    bits = "the same bits" if same else "other bits, within what is allowed"
    return _Finding(HOLE, f"nothing reported; {bits}")


def _noticed(ran: Ran) -> dict[str, str]:
    """The message of each check that found an error in a run, by the check's name."""
    reported = str(ran.reports[0]) if ran.reports else ""
    return {who: what for who, what in (("sanitizer", reported), ("value", ran.wrong)) if what}


@lru_cache(maxsize=256)
def right(kernel: str, problem: Any, schedule: str = LOCKSTEP) -> Ran:
    """The run of the unchanged kernel. Raises `PtxGenError` if a check finds an error in it: the
    verdicts on its mutants would mean nothing.
    """
    subject = subjects()[kernel]
    ran = subject.run(subject.module, problem, sanitize=_WATCHED, schedule=schedule)
    for what in _noticed(ran).values():
        raise PtxGenError(f"{kernel}: the kernel itself is found wrong on {problem}: {what}")
    return ran
