"""Judges mutants: by verifier, proof, sanitizers, interpreter and results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ptxgen.check.prove import Proof, prove
from ptxgen.check.verify import verify
from ptxgen.errors import PtxGenError, TrapError
from ptxgen.interpreter.sanitizers.names import ALL, DETERMINISM, MBARRIER_INIT, TENSOR_FENCE
from ptxgen.interpreter.schedule.policies import LOCKSTEP
from ptxgen.ir import Module
from ptxgen.mutation.argument import Reason
from ptxgen.mutation.kernel_under_test import KernelUnderTest, Ran
from ptxgen.mutation.operators import Mutant, mutants
from ptxgen.mutation.reachability import Reach, probed, reach
from ptxgen.mutation.reasons import reason

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

# How far the change of a mutant that no check caught came, on any problem.
NOT_EXECUTED: Final = "not executed"
NOT_INFECTED: Final = "no other result"
NOT_PROPAGATED: Final = "the same bits"
WITHIN_TOLERANCE: Final = "other bits, within what is allowed"

_WATCHED: Final = (ALL, MBARRIER_INIT, TENSOR_FENCE)  # the sanitizers

_PATIENCE: Final = 4  # times the right kernel's instructions: more count as an endless loop
_LEAST_PATIENCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a mutant.

    `caught_by` is the first of CATCHERS that caught it, or EQUIVALENT or HOLE; `also` are others that caught
    it in the same run. `what` is the message of `caught_by`, or the reason of equivalence. `problem` is the
    index of the problem of that run, -1 without a run. `reach` says of a mutant that no check caught how far
    its change came: NOT_EXECUTED, NOT_INFECTED, NOT_PROPAGATED or WITHIN_TOLERANCE.
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
    reach: str = ""


@dataclass(frozen=True, slots=True)
class _Finding:
    caught_by: str
    what: str
    also: tuple[str, ...] = ()
    problem: int = -1
    reach: str = ""


class Judge:
    """The verdicts on the mutants of a kernel: `Judge(kernel).verdict(0)`.

    `reasons` say why some mutants that no check catches are equivalent. What the kernel itself does on a
    problem is computed once.
    """

    def __init__(self, kernel: KernelUnderTest, reasons: Sequence[Reason] = ()) -> None:
        self.kernel = kernel
        self.reasons = tuple(reasons)
        self.mutants: list[Mutant] = mutants(kernel.module, kernel.entry)
        self._watched = (*_WATCHED, *((DETERMINISM,) if kernel.deterministic else ()))
        self._right = functools.lru_cache(maxsize=256)(self._run_right)
        self._reach = functools.lru_cache(maxsize=256)(self._run_probed)

    @functools.cached_property
    def probed(self) -> Module:
        """The kernel's module with probes for all mutants (`ptxgen/mutation/reachability.py`)."""
        return probed(self.kernel.module, self.kernel.entry, self.mutants)

    def verdict(self, number: int) -> Verdict:
        """The verdict on the mutant with index `number` in `mutants`.

        Raises `PtxGenError` if a check finds an error in the kernel itself.
        """
        m, finding = self.mutants[number], self._judged(number)
        texts = (m.name, m.kind, m.before, m.after, m.step, m.mark, m.where)
        how = (finding.caught_by, finding.what, finding.also, finding.problem, finding.reach)
        return Verdict(self.kernel.name, *texts, *how)

    def require_right(self) -> None:
        """Raise `PtxGenError` if a check finds an error in the kernel itself, on any problem."""
        _ = self._unproved
        for problem in self.kernel.problems:
            self.right(problem)

    def right(self, problem: Any, schedule: str = LOCKSTEP) -> Ran:
        """The run of the unchanged kernel. Raises `PtxGenError` if a check finds an error in it: the
        verdicts on its mutants would mean nothing.
        """
        return self._right(problem, schedule)

    def reach(self, problem: Any) -> Reach:
        """For each mutant, whether a run on a problem reaches its instruction and may differ from the
        kernel's.
        """
        return self._reach(problem)

    def _run_right(self, problem: Any, schedule: str) -> Ran:
        try:
            ran = self.kernel.run(self.kernel.module, problem, sanitize=self._watched, schedule=schedule)
        except TrapError as error:
            raise self._wrong(f" on {problem}: {error}") from error
        for what in _noticed(ran).values():
            where = f" on {problem}: {what}"
            if schedule != LOCKSTEP:
                where += f" (under {schedule}: if results depend on the order of warps, allow a tolerance)"
            raise self._wrong(where)
        return ran

    def _wrong(self, what: str) -> PtxGenError:
        return PtxGenError(f"{self.kernel.name}: the kernel itself is found wrong{what}")

    def _run_probed(self, problem: Any) -> Reach:
        self.right(problem)  # or the probed kernel might stop
        return reach(self.kernel, self.probed, self.mutants, problem)

    @functools.cached_property
    def _unproved(self) -> int:
        """The number of accesses and barriers of the unchanged kernel that are not proved. Raises
        `PtxGenError` for a kernel that is refused by the verifier or the proof.
        """
        problems = verify(self.kernel.module)
        if problems:
            raise self._wrong(f" by the verifier: {problems[0].message}")
        proof = self._proof(self.kernel.module)
        for violation in (*proof.problems, *proof.violations):
            raise self._wrong(f" by the proof: {violation}")
        return len(proof.unknown)

    def _proof(self, module: Module) -> Proof:
        kernel = self.kernel
        return prove(
            module, kernel.entry, block=kernel.block, params=kernel.params, dynamic_smem=kernel.dynamic_smem
        ).shared

    def _judged(self, number: int) -> _Finding:
        """Run the checks in order, and end at the first one that catches the mutant. On problems on which
        its run would be that of the right kernel, which passes, it is not run, but for the first: a sanitizer
        also reads the text.
        """
        module, allowed = self.mutants[number].module, self._unproved
        problems = verify(module)
        if problems:
            return _Finding("verifier", problems[0].message)
        proof = self._proof(module)
        for wrong in (*proof.problems, *proof.violations):
            return _Finding("proof", str(wrong))
        infected, same = [], True
        for nth, problem in enumerate(self.kernel.problems):
            if self.reach(problem).infected[number]:
                infected.append(nth)
            elif nth:
                continue
            finding, ran = self._run(module, problem, nth)
            if finding is not None:
                return finding
            same = same and ran is not None and ran.results == self.right(problem).results
        finding = self._scheduled(module, infected)
        if finding is None and len(proof.unknown) > allowed:
            finding = _Finding("unproved", str(proof.unknown[0]))
        return finding or self._survivor(number, infected, same=same)

    def _run(
        self, module: Module, problem: Any, number: int, schedule: str = LOCKSTEP
    ) -> tuple[_Finding | None, Ran | None]:
        """The finding of the checks in one run, None if they find nothing; and the run if it completed."""
        limit = max(_LEAST_PATIENCE, _PATIENCE * self.right(problem, schedule).dispatched)
        how: dict[str, Any] = {"sanitize": self._watched, "schedule": schedule, "max_instructions": limit}
        try:
            ran = self.kernel.run(module, problem, **how)
        except TrapError as error:
            return _Finding("trap", str(error), (), number), None
        except PtxGenError as error:  # passed by the verifier, refused by the interpreter
            return _Finding("verifier", str(error), (), number), None
        noticed = _noticed(ran)
        if not noticed:
            return None, ran
        first, *others = noticed
        return _Finding(first, noticed[first], tuple(others), number), ran

    def _scheduled(self, module: Module, infected: list[int]) -> _Finding | None:
        for number in [n for n in infected if n < self.kernel.scheduled]:
            for schedule in (f"pct:{seed}" for seed in self.kernel.seeds):
                finding, _ = self._run(module, self.kernel.problems[number], number, schedule)
                if finding is not None:
                    also = (finding.caught_by, *finding.also)
                    what = f"{schedule}: {finding.what}"
                    return replace(finding, caught_by="schedule", what=what, also=also)
        return None

    def _survivor(self, number: int, infected: list[int], *, same: bool) -> _Finding:
        mutant = self.mutants[number]
        known = reason(mutant, self.kernel.block, self.reasons, same=same)
        if infected:
            how_far = NOT_PROPAGATED if same else WITHIN_TOLERANCE
        else:
            executed = any(self.reach(p).executed[number] for p in self.kernel.problems)
            how_far = NOT_INFECTED if executed else NOT_EXECUTED
        if known is not None:
            return _Finding(EQUIVALENT, known, reach=how_far)
        return _Finding(HOLE, f"nothing reported; {how_far}", reach=how_far)


def _noticed(ran: Ran) -> dict[str, str]:
    """The message of each check that found an error in a run, by the check's name."""
    reported = str(ran.reports[0]) if ran.reports else ""
    return {caller: what for caller, what in (("sanitizer", reported), ("value", ran.wrong)) if what}
