"""What the campaign makes wrong and judges: a kernel, the problems it runs on, and its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flash.host.arrays import host_array
from flash.launch.step import Step
from ptxgen import interpreter, ir
from ptxgen.interpreter import Report, Result
from ptxgen.runtime.plan import LaunchPlan

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: what the sanitizers say, what is wrong with the results (empty: nothing), the
    results' bytes, and how many instructions were executed one after another.
    """

    reports: tuple[Report, ...]
    wrong: str
    results: bytes
    dispatched: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel on a problem. `arrays` are behind its pointers, in place of the
    addresses of the plan; `results` are those that it writes, and `wrong()` says in words what is
    wrong with them.
    """

    plan: LaunchPlan
    arrays: tuple[Array, ...]
    results: tuple[Array, ...]
    wrong: Callable[[], str]

    @classmethod
    def of(cls, step: Step, results: tuple[Array, ...], wrong: Callable[[], str]) -> Launch:
        """One step of a call, whose arrays are on the host."""
        return cls(step.plan, tuple(map(host_array, step.arrays)), results, wrong)


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel of the campaign. Every buffer is used again in the first of its problems, which are
    hashable; `prepare(problem)` makes new arrays each time.
    """

    name: str
    entry: str
    block: int
    module: ir.Module
    problems: tuple[Any, ...]
    prepare: Callable[[Any], Launch]

    def run(
        self,
        module: ir.Module,
        problem: Any,
        *,
        launch: Callable[..., Result] = interpreter.run,
        **how: Any,
    ) -> Ran:
        """Run the kernel or, as `module`, a mutant of it; `how` goes to the interpreter, or to the
        function that is given as `launch` and called in its place.
        """
        prepared = self.prepare(problem)
        plan, arrays = prepared.plan, prepared.arrays
        done = launch(
            module,
            plan.entry,
            grid=plan.grid[0],
            block=plan.block[0],
            args=[*arrays, *plan.values[len(arrays) :]],
            dynamic_smem=plan.dynamic_shared,
            raise_on_report=False,
            **how,
        )
        results = b"".join(array.tobytes() for array in prepared.results)
        return Ran(done.reports, prepared.wrong(), results, done.counters.dispatched)
