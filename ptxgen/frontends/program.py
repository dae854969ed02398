"""`Program`: the kernels of a PTX text, run on the interpreter with results, findings and counters.

Every front end of this package makes one, whatever language its PTX was compiled from.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen import interpreter
from ptxgen.arrays.views import HOST, host_array, view
from ptxgen.errors import LaunchError, TrapError, did_you_mean, shown
from ptxgen.fragments import pretty
from ptxgen.frontends.cpp_names import Names
from ptxgen.frontends.structures import Structure
from ptxgen.interpreter import Counters, DeviceArena, Report, Result
from ptxgen.interpreter.arguments import Extent
from ptxgen.interpreter.launch import MAX_INSTRUCTIONS
from ptxgen.interpreter.program.linking import param_bytes
from ptxgen.interpreter.schedule.policies import LOCKSTEP, PCT, Schedule, schedule_of
from ptxgen.interpreter.variables import Contents
from ptxgen.ir import Kernel, Module
from ptxgen.kernels.findings import Findings, findings_of
from ptxgen.parse import Sources, parse_on_use
from ptxgen.tensormap import TensorMap
from ptxgen.text import render
from ptxgen.texture import Surface, Texture

_NO_NAMES: Final = Names({}, {})
_PLAIN: Final = (bool, int, float, bytes, np.generic, TensorMap, Texture, Surface)
_C_VALUES: Final = (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._SimpleCData)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of running a kernel; the arrays among its arguments hold the computed values.

    `findings` are those of all schedules, one for each line of the source; `result` is the run under
    the last schedule, None if that run was stopped, and `printed` is what the kernel printed in it;
    `ptx` is the text that ran.
    """

    name: str
    result: Result | None
    findings: Findings
    printed: str
    ptx: str = dataclasses.field(repr=False)

    @property
    def clean(self) -> bool:
        """Whether the run has no findings."""
        return self.findings.clean

    def __str__(self) -> str:
        return f"kernel {self.name}: {self.findings}"

    _repr_pretty_ = pretty

    def _repr_html_(self) -> str:
        """The findings in a notebook, what was printed, and the PTX."""
        texts = (
            ("printed", self.printed, True),
            (f"PTX, {len(self.ptx.splitlines()):,} lines", self.ptx, False),
        )
        return self.findings.shown_as(f"kernel {self.name}", *texts)

    @property
    def counters(self) -> Counters:
        """The instructions executed under the last schedule; none if that run was stopped."""
        return Counters() if self.result is None else self.result.counters


class Program:
    """The kernels of a PTX text or a module: `program["saxpy"].run(grid, block, args)`.

    `name` is the program's in messages; `sources` maps the path of a source to its lines, so that
    findings show the line; `names` are those that the source has for the symbols of the PTX, which
    messages show and `program[...]` takes, and the types of its pointers.

    Raises `ParseError` for text that is not PTX, or that has instructions which are not modelled.
    """

    def __init__(
        self,
        ptx: str | Module,
        *,
        name: str = "the program",
        sources: Sources | None = None,
        names: Names = _NO_NAMES,
    ) -> None:
        self.module = ptx if isinstance(ptx, Module) else parse_on_use(ptx, sources)
        self.ptx = render(ptx) if isinstance(ptx, Module) else ptx
        self.name = name
        self.names = names
        self._kernels: dict[str, ProgramKernel] = {}
        taken = [names.of_symbols.get(kernel.name, kernel.name) for kernel in self.module.kernels]
        for kernel, known in zip(self.module.kernels, taken, strict=True):
            shown_as = known if taken.count(known) == 1 else kernel.name  # overloads
            self._kernels[shown_as] = ProgramKernel(self, kernel, shown_as)

    def __repr__(self) -> str:
        return f"<program {self.name}: {', '.join(self._kernels) or 'no kernels'}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __getitem__(self, name: str) -> ProgramKernel:
        """The kernel of this name: the source's, or the symbol in the PTX. Raises `LaunchError`."""
        named = self._kernels.get(name)
        symbols = [kernel for kernel in self._kernels.values() if kernel.kernel.name == name]
        if named is None and not symbols:
            raise LaunchError(
                f"{self.name} has no kernel {shown(name)}{did_you_mean(name, self._kernels)} (it has "
                f"{', '.join(self._kernels) or 'none'})"
            )
        return named or symbols[0]

    def only(self) -> ProgramKernel:
        """The kernel of a program that has one. Raises `LaunchError` for any other number."""
        if len(self) != 1:
            raise LaunchError(
                f"{self.name} has the kernels {', '.join(self._kernels) or '(none)'}; say which one is to run"
            )
        return next(iter(self._kernels.values()))

    def readable(self, text: str) -> str:
        """A message with the source's names instead of the symbols of the PTX."""
        names = self.names.of_symbols
        return re.sub(r"[\w$]+", lambda word: names.get(word[0], word[0]), text) if names else text

    def symbols(self, contents: Contents | None) -> Contents:
        """Values for variables, by symbol instead of the name in the source."""
        known = {self.readable(variable.name): variable.name for variable in self.module.variables}
        return {known.get(name, name): value for name, value in (contents or {}).items()}

    def report(self, report: Report) -> Report:
        """A report with the source's names instead of the symbols of the PTX."""
        readable = self.readable
        return dataclasses.replace(
            report,
            region=readable(report.region),
            instr=readable(report.instr),
            other=readable(report.other),
            message=readable(report.message),
        )


class Launch(NamedTuple):
    """A kernel of a program with the grid, the block and the arguments of a launch; `how` are the further
    arguments of `ProgramKernel.run`, such as `shared`.
    """

    kernel: ProgramKernel
    grid: Extent
    block: Extent | None
    args: Sequence[object]
    how: Mapping[str, Any]

    def run(self) -> Outcome:
        """Run the kernel. Returns and raises what `ProgramKernel.run` does."""
        return self.kernel.run(self.grid, self.block, self.args, **self.how)


class ProgramKernel:
    """A kernel of a program."""

    def __init__(self, program: Program, kernel: Kernel, name: str) -> None:
        self.program = program
        self.kernel = kernel
        self.name = name

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self.parameters)})>"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters as "name: type", the type being that of the PTX."""
        readable = self.program.readable
        return tuple(
            f"{readable(p.name)}: {f'{p.type}[{p.count}]' if p.count else p.type}" for p in self.kernel.params
        )

    def run(
        self,
        grid: Extent,
        block: Extent | None = None,
        args: Sequence[object] = (),
        *,
        shared: int = 0,
        cluster: Extent = 1,
        sanitize: object = True,
        schedule: Schedule | list[Schedule] | tuple[Schedule, ...] = LOCKSTEP,
        profile: bool = False,
        symbols: Contents | None = None,
        arena: DeviceArena | None = None,
        max_instructions: int = MAX_INSTRUCTIONS,
        raise_on_report: bool = True,
        progress: Callable[[int, int], None] | None = None,
        cooperative: bool = True,
    ) -> Outcome:
        """Run the kernel on the CPU, under all sanitizers by default; arrays are written in place.

        `grid` and `block` have one to three extents, x first; `block` may be left out if the PTX
        says it (`.reqntid`). `args` has one argument for each parameter, in order: an array on the
        host (numpy, torch, JAX, which is read-only, or any with DLPack) for a pointer; a number;
        None for a null pointer; for a structure a tuple of its members (an array is a pointer, an int
        a C int, a float a C float, others as numpy scalars), bytes, or a numpy or ctypes structure; a
        `TensorMap`, `Texture` or `Surface`. `shared` are the bytes of dynamic shared memory.

        Under several schedules the kernel runs once for each, on the same values; the arrays hold
        the results of the last. The other arguments are those of `ptxgen.interpreter.run`.

        Raises `TrapError` with all that was found, and with the `Outcome` as `outcome`, unless
        `raise_on_report` is false. Raises `LaunchError` for arguments that do not fit.
        """
        caller = self.name
        threads = self.block(block)
        schedules = self._schedules(schedule, arena)
        values = self.arguments(args)
        saved = Saved(values) if len(schedules) > 1 else None

        def once(order: Schedule) -> Result:
            if saved is not None:
                saved.restore()
            memory = DeviceArena() if arena is None else arena
            packed = packed_in(memory, values)
            return interpreter.run(
                self.program.module,
                self.kernel.name,
                grid=grid,
                block=threads,
                args=packed,
                dynamic_smem=shared,
                cluster=cluster,
                sanitize=sanitize,  # type: ignore[arg-type]  # run checks it
                profile=profile,
                schedule=order,
                max_instructions=max_instructions,
                symbols=self.program.symbols(symbols),
                arena=memory,
                raise_on_report=False,
                progress=progress,
                cooperative=cooperative,
            )

        try:
            findings, results = findings_of(once, schedules)
        except LaunchError as error:
            raise LaunchError(self.program.readable(str(error))) from None
        last = results[-1]
        result = None if isinstance(last, TrapError) else self._result(last)
        outcome = Outcome(caller, result, self._findings(findings), last.printed, self.program.ptx)
        if raise_on_report and not outcome.clean:
            raise FoundError(outcome)
        return outcome

    def _schedules(
        self, schedule: Schedule | list[Schedule] | tuple[Schedule, ...], arena: DeviceArena | None
    ) -> tuple[Schedule, ...]:
        schedules = tuple(schedule) if isinstance(schedule, list | tuple) else (schedule,)
        if not schedules:
            raise LaunchError(f"{self.name}: schedule must be a schedule or several, got {shown(schedule)}")
        for order in schedules:
            schedule_of(order)
        if len(schedules) > 1 and arena is not None:
            raise LaunchError(
                f"{self.name}: an arena keeps what a launch wrote, so that a second schedule would begin "
                "with other values; give one schedule"
            )
        return schedules

    def block(self, block: Extent | None) -> Extent:
        """The block of a launch: `block`, or else the PTX's. Raises `LaunchError` if neither is given."""
        if block is None and not self.kernel.reqntid:
            raise LaunchError(f"{self.name}: block must be given, the threads of a CTA: block=256")
        return self.kernel.reqntid if block is None else block

    def arguments(self, arguments: object) -> list[Any]:
        """The arguments of a launch as `run` takes them, checked: numpy arrays on the memory of arrays,
        structures, and values. Raises `LaunchError`.
        """
        if isinstance(arguments, Mapping):
            arguments = self._in_order(arguments)
        if not isinstance(arguments, Sequence) or isinstance(arguments, str | bytes):
            raise LaunchError(
                f"{self.name}: args must be a list with an argument for each parameter "
                f"({', '.join(self.parameters) or 'none'}), got {shown(arguments)}"
            )
        names = [self.program.readable(param.name) for param in self.kernel.params]
        names += [f"argument {n}" for n in range(len(names), len(arguments))]
        sizes = [param_bytes(param) for param in self.kernel.params]
        sizes += [0] * (len(names) - len(sizes))
        values = [
            argument(f"{self.name}: {name}", value, size)
            for name, value, size in zip(names, arguments, sizes, strict=False)
        ]
        self.check_elements(values)
        return values

    def check_elements(self, values: Sequence[object]) -> None:
        """Raise `LaunchError` for an array whose elements have another type than the C++ pointer
        that it is given for, as far as that is known.
        """
        for number, wanted in self.program.names.pointees.get(self.kernel.name, {}).items():
            value = values[number] if number < len(values) else None
            if isinstance(value, np.ndarray) and value.dtype.name not in wanted.dtypes:
                name = self.program.readable(self.kernel.params[number].name)
                raise LaunchError(
                    f"{self.name}: argument {number} ({name}) must be {wanted.dtypes[0]} ({wanted.type}), "
                    f"got {value.dtype}; convert it"
                )

    def _in_order(self, named: Mapping[Any, object]) -> list[object]:
        names = [self.program.readable(param.name) for param in self.kernel.params]
        for name in named:
            if name not in names:
                raise LaunchError(
                    f"{self.name} has no parameter {shown(name)}{did_you_mean(name, names)} (it has "
                    f"{', '.join(names) or 'none'})"
                )
        missing = [name for name in names if name not in named]
        if missing:
            raise LaunchError(f"{self.name}: args lacks {', '.join(missing)}; give every parameter")
        return [named[name] for name in names]

    def _result(self, result: Result) -> Result:
        reports = tuple(map(self.program.report, result.reports))
        variables = {self.program.readable(name): data for name, data in result.variables.items()}
        return dataclasses.replace(result, reports=reports, variables=variables)

    def _findings(self, findings: Findings) -> Findings:
        faults = tuple(map(self.program.readable, findings.faults))
        return Findings(tuple(by_line(map(self.program.report, findings.reports))), faults)


def by_line(reports: Iterable[Report]) -> Iterator[Report]:
    """The reports, with one for all instructions of a line that have the same problem with the same
    other line: compilers unroll loops.
    """
    groups: dict[object, list[Report]] = {}
    for n, report in enumerate(reports):
        lines = (report.kind, report.source, report.other_source)
        groups.setdefault(n if report.source is None else lines, []).append(report)
    for first, *others in groups.values():
        more = ""
        if others:
            more = f"; so do {len(others)} more" if len(others) > 1 else "; so does one more"
            more += " of the instructions of this line"
        count = first.count + sum(report.count for report in others)
        yield dataclasses.replace(first, message=first.message + more, count=count)


class FoundError(TrapError):
    """Sanitizers found something, or the kernel was stopped; `outcome` has the findings."""

    def __init__(self, outcome: Outcome) -> None:
        findings = outcome.findings
        count = len(findings.reports) + len(findings.faults)
        lines = "\n".join(f"  {problem}" for problem in (*findings.reports, *findings.faults))
        super().__init__(f"{outcome.name}: {count} problem{'s' * (count > 1)} found:\n{lines}")
        self.outcome = outcome
        self.printed = outcome.printed


def argument(caller: str, value: object, nbytes: int = 0) -> Any:
    """An argument as the interpreter takes it, or a `Structure` of `nbytes` bytes, which is given
    as a tuple; arrays stay the memory of the caller.

    Raises `LaunchError`, whose message begins with `caller`, for arrays on a GPU and for objects that
    are no arguments.
    """
    if value is None:
        return 0
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, _C_VALUES):
        return bytes(value)
    if getattr(value, "requires_grad", False):
        value = value.detach()  # type: ignore[attr-defined]  # a tensor: the kernel may write it, as on a GPU
    if isinstance(value, tuple):
        return Structure(caller, _members(caller, value), nbytes)
    try:
        array = view(value, caller)
    except LaunchError as error:
        if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
            raise
        raise LaunchError(
            f"{caller} must be an array, a number, None for a null pointer, or bytes for a structure, got "
            f"{shown(value)}"
        ) from error
    if array.device != HOST:
        raise LaunchError(
            f"{caller} is on {array.device_name}, but the interpreter runs on the host; copy it to the host"
        )
    return host_array(array)


def _members(caller: str, members: tuple[object, ...]) -> tuple[Any, ...]:
    """The members of a structure, arrays of other libraries as numpy arrays on their memory."""
    return tuple(
        _members(f"{caller}[{n}]", member)
        if isinstance(member, tuple)
        else member
        if member is None
        else argument(f"{caller}[{n}]", member)
        for n, member in enumerate(members)
    )


def packed_in(arena: DeviceArena, values: Iterable[Any]) -> list[Any]:
    """The arguments as `ptxgen.interpreter.run` takes them with an arena, in which the arrays of structures
    are placed.
    """
    return [value.pack(arena) if isinstance(value, Structure) else value for value in values]


class Saved:
    """The values of the arrays among arguments, for a run that begins with them again."""

    def __init__(self, values: Sequence[Any]) -> None:
        arrays = [array for value in values for array in arrays_of(value)]
        self._saved = [(array, array.copy()) for array in arrays if array.flags.writeable]

    def restore(self) -> None:
        """Write the saved values to the arrays."""
        for array, values in self._saved:
            array[...] = values


def arrays_of(value: object) -> list[np.ndarray[Any, Any]]:
    """The arrays of a structure, a tensor map, a texture or a surface; an array itself; else none."""
    if isinstance(value, Structure):
        return value.arrays
    for name in ("base", "array"):  # a tensor map has `base`; a texture or surface `array`
        inner = getattr(value, name, None)
        if isinstance(value, TensorMap | Texture | Surface) and isinstance(inner, np.ndarray):
            return [inner]
    return [value] if isinstance(value, np.ndarray) else []


__all__ = ["PCT", "FoundError", "Launch", "Outcome", "Program", "ProgramKernel", "Saved", "argument"]
