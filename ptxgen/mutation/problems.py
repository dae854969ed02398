"""Kernels under test made of launches of any kernel; the right results are those of the kernel itself, or a
function gives them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ptxgen import interpreter, ir
from ptxgen.errors import LaunchError, TrapError, did_you_mean, shown
from ptxgen.frontends.program import Launch as Prepared
from ptxgen.frontends.program import Saved, arrays_of, packed_in
from ptxgen.interpreter import DeviceArena, Result
from ptxgen.mutation.comparison import Array, Tolerance
from ptxgen.mutation.kernel_under_test import KernelUnderTest, Launch
from ptxgen.tensormap import TensorMap

Expect = Callable[..., Any]
_OF_LAUNCHES: Final = {"shared": "dynamic_smem", "cluster": "cluster", "symbols": "symbols"}
_EXACT: Final = Tolerance()


@dataclass(frozen=True, slots=True)
class Problem:
    """A launch of a kernel, `arguments` as their author wrote them, and its number among all problems."""

    number: int
    launch: Prepared
    arguments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Nth:
    """A problem by its number, as a hashable problem of a kernel under test."""

    number: int

    def __str__(self) -> str:
        return f"problem {self.number}"


def kernels_under_test(
    problems: Sequence[Problem],
    expect: Expect | None = None,
    tolerance: Tolerance = _EXACT,
    *,
    deterministic: bool = False,
) -> list[KernelUnderTest]:
    """The kernels under test of problems: one for each different PTX text, block and dynamic shared memory,
    since static parameters and compilers specialise a kernel for its arguments.

    What a launch writes is compared, within the tolerance, with what the kernel itself writes; or, with
    `expect`, judged by it. It is called after each run with the arguments as the run left them, in order,
    and raises AssertionError where they are wrong, or returns the right arrays by the names of their
    parameters. If it has a parameter `before`, it gets there the arguments as they were before the run, too.
    With `deterministic`, a sum of floating-point numbers whose order nothing fixes is wrong.

    Raises `LaunchError` for arguments that do not fit, and for an `expect` that fails otherwise or returns
    something else.
    """
    groups: dict[Any, list[Problem]] = {}
    for problem in problems:
        launch = problem.launch
        key = (launch.kernel.program.ptx, launch.kernel.kernel.name, _block(launch), launch.how.get("shared"))
        groups.setdefault(key, []).append(problem)
    kernels: list[KernelUnderTest] = []
    for of_kernel in groups.values():
        name = of_kernel[0].launch.kernel.name
        earlier = sum(kernel.name.partition(" #")[0] == name for kernel in kernels)
        name += f" #{earlier + 1}" if earlier else ""
        repeated = [_Repeated(p, expect, tolerance) for p in of_kernel]
        kernels.append(replace(_kernel(name, repeated), deterministic=deterministic))
    return kernels


def _kernel(name: str, repeated: Sequence[_Repeated]) -> KernelUnderTest:
    by_number = {Nth(each.problem.number): each for each in repeated}
    first = repeated[0]
    return KernelUnderTest(
        name,
        first.kernel.name,
        _block(first.problem.launch),
        first.module,
        tuple(by_number),
        lambda number: by_number[number].prepared(),
        params=_bounds(repeated),
        dynamic_smem=first.how.get("dynamic_smem"),
    )


def _block(launch: Prepared) -> tuple[int, ...]:
    block = launch.kernel.block(launch.block)
    return tuple(block) if isinstance(block, Sequence) else (block,)


def _bounds(repeated: Sequence[_Repeated]) -> dict[str, Any]:
    """The bounds of parameters for the proof: tensor maps, and the least and greatest integer of problems."""
    bounds: dict[str, Any] = {}
    for n, param in enumerate(repeated[0].kernel.params):
        values = [each.values[n] for each in repeated if n < len(each.values)]
        if values and isinstance(values[0], TensorMap):
            bounds[param.name] = values[0]
        elif not param.count and all(isinstance(v, int | np.integer) and v >= 0 for v in values):
            bounds[param.name] = (min(map(int, values)), max(map(int, values)))
    return bounds


class _Repeated:
    """A problem that runs many times on the same values."""

    def __init__(self, problem: Problem, expect: Expect | None, tolerance: Tolerance) -> None:
        launch = problem.launch
        self.problem = problem
        self.kernel: ir.Kernel = launch.kernel.kernel
        self.module: ir.Module = launch.kernel.program.module
        self.values = launch.kernel.arguments(launch.args)
        self.how = {_OF_LAUNCHES[name]: value for name, value in launch.how.items() if name in _OF_LAUNCHES}
        self.how.setdefault("dynamic_smem", self.kernel.dynamic_shared_bytes)
        unknown = [name for name in launch.how if name not in _OF_LAUNCHES]
        if unknown:
            raise LaunchError(f"{launch.kernel.name}: {unknown[0]} is no argument of a mutated launch")
        self._saved = Saved(self.values)
        self._expect = expect
        self._before = [_copied(value) for value in problem.arguments]
        self._tolerance = tolerance
        readable = launch.kernel.program.readable
        self._arrays: dict[str, Array] = {}
        for param, value in zip(self.kernel.params, self.values, strict=False):
            for nth, array in enumerate(arrays_of(value)):
                if array.flags.writeable:
                    self._arrays[readable(param.name) + (f"[{nth}]" if nth else "")] = array

    def prepared(self) -> Launch:
        """A launch on the problem's values."""
        right = self._right  # before the arrays get their values again
        return Launch(self._again(), tuple(self._arrays.values()), functools.partial(self._wrong, right))

    def _again(self) -> dict[str, Any]:
        """The keywords of a run; restores the problem's values in its arrays."""
        self._saved.restore()
        launch, arena = self.problem.launch, DeviceArena()
        symbols = launch.kernel.program.symbols(self.how.get("symbols"))
        arguments = {"grid": launch.grid, "block": _block(launch), "args": packed_in(arena, self.values)}
        return {**arguments, **self.how, "symbols": symbols, "arena": arena}

    @functools.cached_property
    def _right(self) -> Mapping[str, Array]:
        """Copies of the arrays and of the variables in global memory after a run of the kernel itself, by
        name; empty if that run traps.
        """
        try:
            done = interpreter.run(self.module, self.kernel.name, raise_on_report=False, **self._again())
        except TrapError:
            return {}  # the judge's own run of the kernel reports the trap
        if self._expect is not None:
            self._judged_by(self._expect)
        return {name: array.copy() for name, array in (self._arrays | self._variables(done)).items()}

    def _variables(self, done: Result) -> dict[str, Array]:
        of_global = {v.name for v in self.module.variables if v.space == "global"}
        return {name: data for name, data in done.variables.items() if name in of_global}

    def _wrong(self, right: Mapping[str, Array], done: Result) -> str:
        """A description of the first wrong result of a run, by `expect` or by comparison with `right`; empty
        without one.
        """
        if self._expect is not None:
            try:
                return self._judged_by(self._expect)
            except Exception as error:
                return f"expect: {_first_line(error)}"
        for name, got in (self._arrays | self._variables(done)).items():
            tolerance = self._tolerance if name in self._arrays else _EXACT
            wrong = tolerance.difference(name, got, right[name]) if name in right else ""
            if wrong:
                return wrong
        return ""

    def _judged_by(self, expect: Expect) -> str:
        """The mistake that `expect` finds in the arrays as they are; empty if it finds none. Raises
        `LaunchError` if it fails by anything but an assertion, or returns no arrays that fit.
        """
        more = {"before": tuple(map(_copied, self._before))} if _has_before(expect) else {}
        caller = f"{self.problem.launch.kernel.name}: expect"
        try:
            returned = expect(*self.problem.arguments, **more)
        except AssertionError as error:
            return f"expect: {_first_line(error)}"
        except Exception as error:
            raise LaunchError(
                f"{caller} fails on problem {self.problem.number}: {_first_line(error)}"
            ) from error
        if returned is None:
            return ""
        if not isinstance(returned, Mapping):
            raise LaunchError(
                f"{caller} must return a mapping from names of parameters to the right arrays, or None after "
                f"its own assertions, got {shown(returned)}"
            )
        for name, values in returned.items():
            wrong = self._difference(caller, name, values)
            if wrong:
                return wrong
        return ""

    def _difference(self, caller: str, name: object, values: object) -> str:
        if name not in self._arrays:
            raise LaunchError(
                f"{caller} returns {shown(name)}, which is no array of the launch"
                f"{did_you_mean(name, self._arrays)} (its arrays are {', '.join(self._arrays) or 'none'})"
            )
        got = self._arrays[str(name)]
        wanted = np.asarray(values)
        if wanted.shape != got.shape:
            raise LaunchError(
                f"{caller} returns {name} of shape {wanted.shape}, and the array has {got.shape}"
            )
        return self._tolerance.difference(str(name), got, wanted)


def _has_before(expect: Expect) -> bool:
    code = getattr(expect, "__code__", None)
    return code is not None and "before" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _copied(value: Any) -> Any:
    """A copy of an argument, if it is an array of the host."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _first_line(error: Exception) -> str:
    """An error on one line: of numpy's assertions, the line that says how many elements differ."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = " ".join(lines[:2])
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
