"""A kernel under test: its module, the problems on which it runs, and its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ptxgen import interpreter, ir
from ptxgen.check.prove import Bound
from ptxgen.interpreter import Report, Result

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
    """A launch of a kernel on a problem. `how` are keywords of `ptxgen.interpreter.run` (`grid`, `block`,
    `args`, `dynamic_smem` and others); `results` are the arrays that the kernel writes, and `wrong`
    describes the first wrong result after a run, whose `Result` it gets.
    """

    how: Mapping[str, Any]
    results: tuple[Array, ...]
    wrong: Callable[[Result], str]


@dataclass(frozen=True, slots=True)
class KernelUnderTest:
    """A kernel whose mutants are judged. Its problems are hashable, and the first of them should use every
    buffer several times; `prepare(problem)` makes a launch whose arrays have the problem's values. The first
    `scheduled` problems also run in random schedules, with these `seeds`. `block` is the threads of a CTA.
    For the proof `params` has a tensor map for each parameter that is one, and may have bounds of others, and
    `dynamic_smem` is the bytes of dynamic shared memory, if the kernel's regions do not say it. `sampled` is
    the number of kinds of which a short campaign has a mutant; None: the same as for other kernels. In a
    `deterministic` kernel a sum of floating-point numbers whose order nothing fixes is a mistake.
    """

    name: str
    entry: str
    block: int | tuple[int, ...]
    module: ir.Module
    problems: tuple[Any, ...]
    prepare: Callable[[Any], Launch]
    scheduled: int = 2
    seeds: tuple[int, ...] = (1, 2, 3)
    params: Mapping[str, Bound] = field(default_factory=dict)
    sampled: int | None = None
    dynamic_smem: int | None = None
    deterministic: bool = False

    def run(
        self, module: ir.Module, problem: Any, *, launch: Callable[..., Result] = interpreter.run, **how: Any
    ) -> Ran:
        """Run `module`, the kernel or a mutant of it, on a problem; `how` are keywords of `launch`,
        by default the interpreter, in addition to those of the problem's launch.
        """
        prepared = self.prepare(problem)
        done = launch(module, self.entry, **prepared.how, raise_on_report=False, **how)
        results = b"".join(array.tobytes() for array in (*prepared.results, *done.variables.values()))
        return Ran(done.reports, prepared.wrong(done), results, done.counters.dispatched)
