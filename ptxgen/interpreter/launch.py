"""`run`: a kernel of a module on arrays, batch of CTAs after batch of CTAs."""

from __future__ import annotations

import functools
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import LaunchError, TrapError, did_you_mean
from ptxgen.interpreter.arena import DeviceArena, Window, joined_spans
from ptxgen.interpreter.barriers import Barriers
from ptxgen.interpreter.blocks import Program, compile_kernel
from ptxgen.interpreter.copies import AsyncCopies
from ptxgen.interpreter.faults import Faults, Reports
from ptxgen.interpreter.lanes import WARP, Batch
from ptxgen.interpreter.machine import LaneMachine
from ptxgen.interpreter.memory import SharedMemory, shared_stride
from ptxgen.interpreter.race import RaceDetector
from ptxgen.interpreter.reports import Counters, Result
from ptxgen.interpreter.schedule import Lockstep
from ptxgen.ir import Kernel, Module, Param
from ptxgen.isa.table import op_of
from ptxgen.parse import parse
from ptxgen.types import TYPES

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

Argument = np.ndarray[Any, np.dtype[Any]] | np.generic | int | float
Extent = int | Sequence[int]

MAX_INSTRUCTIONS: Final = 20_000_000  # in a row: minutes of an endless loop
_MAX_LANES: Final = 1 << 18  # of a batch; more gain no speed
_MAX_SHADOW_BYTES: Final = 1 << 28  # what a batch's race detector may hold
_MAX_THREADS: Final = 1024
_MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)
_DYNAMIC_ALIGN: Final = 16
_SCHEDULES: Final = ("lockstep",)
_SHOWN_REPORTS: Final = 10  # in the message of a TrapError; Result has all
_PROGRAMS: Final = 16  # kernels whose functions are kept


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a kernel's variables lie in shared memory, and its parameters in their own space."""

    symbols: dict[str, int]
    regions: tuple[tuple[str, int, int], ...]
    shared_bytes: int
    param_offsets: tuple[int, ...]
    param_bytes: int


def run(
    ptx_or_module: str | Module,
    entry: str | None = None,
    *,
    grid: Extent,
    block: Extent,
    args: Sequence[Argument],
    dynamic_smem: int = 0,
    sanitize: bool = False,
    schedule: str = "lockstep",
    max_instructions: int = MAX_INSTRUCTIONS,
    arena: DeviceArena | None = None,
    raise_on_report: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Run a kernel on the CPU; arrays among `args` are its device memory and hold its results
    afterwards.

    `entry` may be left out if there is one kernel. `grid` and `block` have one to three extents, x
    first. Each argument goes with one parameter: an array with a `u64` one (it gets the address of
    the first element), or a number, which may be an address made by `arena.place`. `dynamic_smem`
    is in bytes. With `sanitize`, races and missing waits in shared memory, reads of memory that was
    not written and of registers that may not have been written are reported, and if there are any,
    `TrapError` is raised at the end unless `raise_on_report` is false. `max_instructions` bounds
    what one batch of CTAs executes one after another. `progress` is called with the CTAs done and
    their total.

    Raises `LaunchError` for arguments that do not fit before anything runs, `ParseError` for text
    that is not PTX, `ModifierError` and `TypeMismatchError` for instructions that the table lacks,
    `TrapError` when the kernel fails.
    """
    if schedule not in _SCHEDULES:
        raise LaunchError(
            f"schedule must be one of {', '.join(_SCHEDULES)}, got {schedule!r}"
            f"{did_you_mean(str(schedule), _SCHEDULES)}"
        )
    kernel = _kernel(
        _parsed(ptx_or_module) if isinstance(ptx_or_module, str) else ptx_or_module, entry
    )
    extents = _extents(kernel, grid, block)
    layout = _layout(kernel, dynamic_smem)
    arena = DeviceArena() if arena is None else arena
    params = _params(kernel, layout, args, arena)
    program = _program(kernel, layout, sanitize)
    counters = Counters()
    reports: Reports = {}
    total = math.prod(extents[0])
    grain = _grain(program) if sanitize else 0
    size = _batch_size(extents[1], layout.shared_bytes, grain)
    with np.errstate(all="ignore"):
        for first in range(0, total, size):
            batch = Batch(
                *extents, first, min(size, total - first),
                shared_stride(layout.shared_bytes), layout.shared_bytes, dynamic_smem,
            )  # fmt: skip
            _run_batch(
                program, batch, layout, arena, params, grain, max_instructions, counters, reports
            )
            if progress is not None:
                progress(first + batch.ctas, total)
    if reports and raise_on_report:
        raise TrapError(_all_reports(kernel.name, reports))
    return Result(counters, tuple(reports.values()))


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Module:
    return parse(text)


def _run_batch(
    program: Program,
    batch: Batch,
    layout: _Layout,
    arena: DeviceArena,
    params: Window,
    grain: int,
    max_instructions: int,
    counters: Counters,
    reports: Reports,
) -> None:
    shared = SharedMemory.poisoned(layout.shared_bytes, batch.ctas)
    race = RaceDetector(batch.ctas, batch.width, shared.stride // grain) if grain else None
    words = shared.window.data.view(np.uint32)
    copies = AsyncCopies(batch.lanes, words, race, 4 // grain if grain else 1)
    barriers = Barriers(batch.ctas, batch.width, race)
    faults = Faults(program.kernel.name, program.instrs, batch, layout.regions, reports)
    machine = LaneMachine(
        batch, arena, params, shared, copies, barriers, race, grain, faults,
    )  # fmt: skip
    schedule = Lockstep(program, machine, max_instructions)
    try:
        schedule.run()
    except TrapError as error:
        if not reports:
            raise
        raise TrapError(
            f"{error}\nbefore that, {_all_reports(program.kernel.name, reports)}"
        ) from error
    schedule.count(counters)


def _all_reports(kernel: str, reports: Reports) -> str:
    shown = [f"  {report}" for report in list(reports.values())[:_SHOWN_REPORTS]]
    if len(reports) > _SHOWN_REPORTS:
        shown.append(f"  and {len(reports) - _SHOWN_REPORTS} more")
    count = f"{len(reports)} problem{'s' * (len(reports) > 1)}"
    return "\n".join([f"kernel {kernel}: the sanitizer reports {count}:", *shown])


def _batch_size(block: tuple[int, int, int], shared_bytes: int, grain: int) -> int:
    width = -(-math.prod(block) // WARP) * WARP
    size = max(_MAX_LANES // width, 1)
    if grain and shared_bytes:
        # The stamps of the last write and of each warp's last read.
        unit_bytes = 8 + 8 * (width // WARP)
        size = min(size, max(_MAX_SHADOW_BYTES // (shared_bytes // grain * unit_bytes + 1), 1))
    return size


def _grain(program: Program) -> int:
    """Bytes of the narrowest access to shared memory, at most 4: what the race detector
    distinguishes.
    """
    narrowest = 4
    for instr in program.instrs:
        op = op_of(instr)
        if op.modifiers.get("space", "shared") == "shared" and any(o.address for o in op.operands):
            sizes = [
                o.type.nbytes for o in op.operands if o.type and not o.address and o.type.bits >= 8
            ]
            narrowest = min([narrowest, *sizes])
    return narrowest


# -------------------------------------------------------------------------------- kernel and layout

_programs: OrderedDict[tuple[int, tuple[tuple[str, int], ...], bool], Program] = OrderedDict()


def _program(kernel: Kernel, layout: _Layout, sanitize: bool) -> Program:
    """The kernel's functions, kept for the next launch. The kept program holds the kernel, so its
    id stays its own.
    """
    key = id(kernel), tuple(layout.symbols.items()), sanitize
    found = _programs.get(key)
    if found is None:
        found = _programs[key] = compile_kernel(kernel, layout.symbols, sanitize=sanitize)
        while len(_programs) > _PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return found


def _kernel(module: Module, entry: str | None) -> Kernel:
    names = [k.name for k in module.kernels]
    if entry is None:
        if len(names) != 1:
            raise LaunchError(
                f"the module has the kernels {', '.join(names) or '(none)'}; say which with entry="
            )
        return module.kernels[0]
    if entry not in names:
        raise LaunchError(
            f"the module has no kernel {entry!r}{did_you_mean(entry, names)} "
            f"(it has {', '.join(names) or 'none'})"
        )
    return module.kernels[names.index(entry)]


def _layout(kernel: Kernel, dynamic_smem: int) -> _Layout:
    needed = kernel.dynamic_shared_bytes
    if dynamic_smem < needed:
        raise LaunchError(
            f"{kernel.name} needs {needed} bytes of dynamic shared memory, "
            f"got dynamic_smem={dynamic_smem}"
        )
    symbols: dict[str, int] = {}
    regions = []
    end = 0
    for variable in kernel.shared:
        start = -(-end // variable.align) * variable.align
        symbols[variable.name] = start
        regions.append((variable.name, start, variable.nbytes))
        end = start + variable.nbytes
    if kernel.dynamic_shared:
        align = max([_DYNAMIC_ALIGN, *(r.align for r in kernel.regions)])
        end = -(-end // align) * align
        symbols[kernel.dynamic_shared] = end
        regions += [(r.name, end + r.offset, r.nbytes) for r in kernel.regions]
    offsets = []
    at = 0
    for param in kernel.params:
        size = TYPES[param.type].nbytes
        at = -(-at // size) * size
        symbols[param.name] = at
        offsets.append(at)
        at += size
    return _Layout(symbols, tuple(regions), end + dynamic_smem, tuple(offsets), at)


def _extents(
    kernel: Kernel, grid: Extent, block: Extent
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    grid, block = _extent(kernel, "grid", grid), _extent(kernel, "block", block)
    threads = math.prod(block)
    if any(g > most for g, most in zip(grid, _MAX_GRID, strict=True)):
        raise LaunchError(f"{kernel.name}: grid must be at most {_MAX_GRID}, got {grid}")
    if threads > _MAX_THREADS:
        raise LaunchError(
            f"{kernel.name}: a block has at most {_MAX_THREADS} threads, got {block}, "
            f"{threads} threads"
        )
    if kernel.threads and threads > kernel.threads:
        raise LaunchError(
            f"{kernel.name} promises at most {kernel.threads} threads a block (.maxntid), "
            f"got {threads}"
        )
    return grid, block


def _extent(kernel: Kernel, what: str, given: Extent) -> tuple[int, int, int]:
    try:
        sizes = tuple(map(operator.index, (given,) if isinstance(given, int) else given))
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise LaunchError(
            f"{kernel.name}: {what} must be one to three numbers from 1, got {given!r}"
        )
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


# ---------------------------------------------------------------------------------------- arguments


def _params(
    kernel: Kernel, layout: _Layout, args: Sequence[Argument], arena: DeviceArena
) -> Window:
    if len(args) != len(kernel.params):
        names = ", ".join(f"{p.name}: {p.type}" for p in kernel.params)
        raise LaunchError(
            f"{kernel.name} takes {len(kernel.params)} arguments ({names}), got {len(args)}"
        )
    pairs = list(zip(kernel.params, args, strict=True))
    numbers = {
        p.name: _number(kernel, n, p, a)
        for n, (p, a) in enumerate(pairs)
        if not isinstance(a, np.ndarray)
    }
    arrays = [
        (p, _array(kernel, n, p, a)) for n, (p, a) in enumerate(pairs) if isinstance(a, np.ndarray)
    ]
    for low, high, owners, writable, name in joined_spans([(p.name, a) for p, a in arrays]):
        arena.place_span(low, high, owners, writable, name=name)
    memory = np.zeros(layout.param_bytes, np.uint8)
    for param, offset in zip(kernel.params, layout.param_offsets, strict=True):
        if param.name in numbers:
            value = numbers[param.name]
        else:
            value = np.array(arena.address_of(next(a for p, a in arrays if p is param)), np.uint64)
        memory[offset : offset + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
    return Window(0, memory)


def _array(kernel: Kernel, number: int, param: Param, array: Lanes) -> Lanes:
    who = f"{kernel.name}: argument {number} ({param.name})"
    if TYPES[param.type].bits != 64 or TYPES[param.type].is_float:
        raise LaunchError(f"{who} must be a number for its type {param.type}, got an array")
    if array.dtype.hasobject:
        raise LaunchError(f"{who} must be an array of numbers, got {array.dtype}")
    return array


def _number(kernel: Kernel, number: int, param: Param, value: Any) -> Lanes:
    type = TYPES[param.type]
    who = f"{kernel.name}: argument {number} ({param.name})"
    if type.is_float:
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise LaunchError(f"{who} must be a number for its type {type}, got {value!r}")
        return np.asarray(value, type.dtype)
    try:
        whole = operator.index(value)
    except TypeError:
        raise LaunchError(f"{who} must be an integer for its type {type}, got {value!r}") from None
    low = 0 if type.kind == "u" else -(1 << (type.bits - 1))
    high = (1 << (type.bits - (type.kind == "s"))) - 1
    if not low <= whole <= high:
        raise LaunchError(f"{who} must be from {low} to {high} for its type {type}, got {whole}")
    return np.array(whole & ((1 << type.bits) - 1), f"u{type.nbytes}")


__all__ = ["Argument", "run"]
