"""The subjects of the campaign: a kernel, the problems on which it runs, and its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from flash.launch.step import Step
from ptxgen import interpreter, ir
from ptxgen.arrays.views import host_array
from ptxgen.interpreter import Report, Result
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.tensormap import TensorMap

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: the sanitizers' reports, a description of a wrong result (empty if right), the bytes
    of the results, and the number of instructions dispatched.
    """

    reports: tuple[Report, ...]
    wrong: str
    results: bytes
    dispatched: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel on a problem. `arrays` replace the addresses of the plan; `results` are
    the arrays that the kernel writes, and `wrong()` describes the first wrong result.
    """

    plan: LaunchPlan
    arrays: tuple[Array, ...]
    results: tuple[Array, ...]
    wrong: Callable[[], str]

    @classmethod
    def of(cls, step: Step, results: tuple[Array, ...], wrong: Callable[[], str]) -> Launch:
        """The launch of one step of a call, whose arrays are on the host."""
        return cls(step.plan, tuple(map(host_array, step.arrays)), results, wrong)


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel of the campaign. Its problems are hashable, and the first of them reuse every buffer;
    `prepare(problem)` makes new arrays at each call. The first `scheduled` problems also run in random
    schedules, with these `seeds`. `maps` has a tensor map for each parameter that is one, for the proof.
    `sampled` is of how many kinds of mistakes the short campaign has a mutant; None: of as many as of other
    kernels.
    """

    name: str
    entry: str
    block: int
    module: ir.Module
    problems: tuple[Any, ...]
    prepare: Callable[[Any], Launch]
    scheduled: int = 2
    seeds: tuple[int, ...] = (1, 2, 3)
    maps: Mapping[str, TensorMap] = field(default_factory=dict)
    sampled: int | None = None

    def run(
        self, module: ir.Module, problem: Any, *, launch: Callable[..., Result] = interpreter.run, **how: Any
    ) -> Ran:
        """Run `module`, the kernel or a mutant of it, on a problem; `how` are keywords of `launch`,
        by default the interpreter.
        """
        prepared = self.prepare(problem)
        plan, arrays = prepared.plan, prepared.arrays
        done = launch(
            module,
            plan.entry,
            grid=plan.grid[0],
            block=plan.block[0],
            args=plan.on_host(arrays),
            dynamic_smem=plan.dynamic_shared,
            raise_on_report=False,
            **how,
        )
        results = b"".join(array.tobytes() for array in prepared.results)
        return Ran(done.reports, prepared.wrong(), results, done.counters.dispatched)
