"""`run`: executes a kernel of a module on host arrays, one batch of CTAs after another."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from ptxgen.arguments import integer
from ptxgen.collector import uncollected
from ptxgen.errors import LaunchError, TrapError, did_you_mean, shown
from ptxgen.interpreter.arguments import Argument, Extent, Extents, extents, params_memory
from ptxgen.interpreter.debugging import DebuggedScheduler, Debugger
from ptxgen.interpreter.machine.address_map import CONST_START, LOCAL_START, PARAM_START
from ptxgen.interpreter.machine.arena import DeviceArena, Window
from ptxgen.interpreter.machine.barriers import Barriers
from ptxgen.interpreter.machine.copies import AsyncCopies
from ptxgen.interpreter.machine.lane_machine import LaneMachine
from ptxgen.interpreter.machine.lanes import WARP, Batch
from ptxgen.interpreter.machine.launch_queue import LaunchQueue
from ptxgen.interpreter.machine.memory import SharedMemory, Space, shared_stride
from ptxgen.interpreter.machine.registers import RegisterPool, registers_at_entry
from ptxgen.interpreter.program.blocks import Program, compile_program
from ptxgen.interpreter.program.linking import link
from ptxgen.interpreter.recording import RecordedScheduler, Recorder
from ptxgen.interpreter.reports import Counters, Result, origin_of
from ptxgen.interpreter.sanitizers.bounds import AllowedAllocations, allowed_allocations
from ptxgen.interpreter.sanitizers.definedness import UndefinedBits
from ptxgen.interpreter.sanitizers.findings import Findings, Reports, notes_of
from ptxgen.interpreter.sanitizers.grid_order import Span
from ptxgen.interpreter.sanitizers.names import sanitizers
from ptxgen.interpreter.sanitizers.undefined_arrays import UndefinedArrays
from ptxgen.interpreter.sanitizers.watch import Watch
from ptxgen.interpreter.schedule.policies import LOCKSTEP, PCT, Policy, Schedule, policy_of, schedule_of
from ptxgen.interpreter.schedule.scheduler import Scheduler
from ptxgen.interpreter.traffic import Traffic
from ptxgen.interpreter.variables import Contents, ModuleMemory, fill, module_memory
from ptxgen.ir import Kernel, Module
from ptxgen.parse import module_of, parse_on_use
from ptxgen.target import target_number

MAX_INSTRUCTIONS: Final = 20_000_000  # of a batch, in sequence: minutes of an endless loop
_MOST_COUNT: Final = (1 << 63) - 1
_MAX_LANES: Final = 1 << 18  # lanes of a batch; more lanes gain no speed
_MAX_SHADOW_BYTES: Final = 1 << 28  # bytes of a batch's race detector
_MAX_LOCAL_BYTES: Final = 1 << 28  # bytes of the threads' local memory, as far as it is known before the run
_RECURSION_BYTES: Final = 1 << 14  # local memory that a thread with recursive calls is assumed to need
# Bytes of the registers; the instructions' temporary values need as much again.
_MAX_REGISTER_BYTES: Final = 1 << 28
_MAX_SHARED_BYTES: Final = 1 << 28
_MAX_TENSOR_CTAS: Final = 1 << 10  # with 256 KiB of tensor memory each
_SHOWN_REPORTS: Final = 10  # reports in the message of a TrapError; Result has all
# Instructions of the kernels whose programs are cached: half a KiB for each.
_CACHED_INSTRUCTIONS: Final = 1 << 19


def run(
    ptx_or_module: str | Module,
    entry: str | None = None,
    *,
    grid: Extent,
    block: Extent,
    args: Sequence[Argument],
    dynamic_smem: int = 0,
    cluster: Extent = 1,
    sanitize: bool | str | Iterable[str] = False,
    profile: bool = False,
    schedule: Schedule = LOCKSTEP,
    stepwise: bool = False,
    max_instructions: int = MAX_INSTRUCTIONS,
    symbols: Contents | None = None,
    arena: DeviceArena | None = None,
    raise_on_report: bool = True,
    progress: Callable[[int, int], None] | None = None,
    recorder: Recorder | None = None,
    in_flight: Sequence[NDArray[Any]] = (),
    cooperative: bool = True,
    debugger: Debugger | None = None,
) -> Result:
    """Run a kernel on the CPU. The arrays among `args` are its device memory and hold its results
    afterwards.

    `entry` may be left out if there is one kernel. `grid`, `block` and `cluster` (in CTAs) have one
    to three extents, x first. `args` has one argument for each parameter: an array for a 64-bit
    parameter, which gets the address of the first element; a number, which may be an address from
    `arena.place`; `bytes` for a structure; or a `TensorMap`. `dynamic_smem` is in bytes. `symbols`
    are values for the module's variables in global and constant memory; launches with the same
    `arena` keep the values of these variables.

    `sanitize` is true for all sanitizers, or names some of `bounds`, `init`, `race`, `sync`, `proxy`
    (`ptxgen.interpreter.sanitizers.watch`), `all`, or what `all` does not include: `mbarrier_init`
    (`ptxgen.interpreter.sanitizers.shown_mbarriers`), `determinism`
    (`ptxgen.interpreter.sanitizers.sum_order`), `tensor_fence` and `tensor_order`
    (both `ptxgen.interpreter.sanitizers.tensor_order`), in a list or separated by commas. If they report
    anything, `TrapError` is raised at the end unless `raise_on_report` is false. A
    kernel that synchronises its grid (`grid.sync()` of cooperative groups) is launched
    cooperatively if all its CTAs fit into one batch; otherwise, or if `cooperative` is false, it is
    launched as any other kernel, and `grid.sync()` traps. With `profile`, the traffic of shared and
    global memory is counted. With `stepwise`, each instruction runs by itself, through the function
    of its row in the instruction table; this is the definition, and several times slower.
    Of a kernel that cancels launches (`clusterlaunchcontrol.try_cancel`), at most half of the clusters begin
    at once; the others begin when these have ended, unless they have been cancelled.
    `max_instructions` limits the instructions that one batch of CTAs executes in sequence.
    `progress` is called with the number of CTAs done and their total. With a `recorder`, only the
    first cluster of the grid runs, without sanitizers, and its first CTA is recorded. A `debugger`
    (`ptxgen.interpreter.debugging`) is called before each instruction, and the run is `stepwise`.

    `in_flight` are the arrays that the previous grid writes, if this one may begin before that has
    ended (programmatic dependent launch): the sanitizer `race` reports accesses to them before
    `griddepcontrol.wait`.

    `schedule` is "lockstep"; a `PCT`, under which warps run in an order drawn from a seed and
    asynchronous copies take a time drawn from it; or "pct:SEED" or "pct:SEED:DEPTH", which stand
    for a `PCT`.

    Raises `LaunchError`, before anything runs, for arguments that do not fit and for a kernel with an
    instruction that is not modelled, `ParseError` for text
    that is not PTX, `UnsupportedTargetError` for a `.target` without a number, `ModifierError` and
    `TypeMismatchError` for instructions that the table lacks, and `TrapError` if the kernel fails.
    """
    order = schedule_of(schedule)
    asked = sanitizers(sanitize)
    flags = {
        "profile": profile,
        "stepwise": stepwise,
        "raise_on_report": raise_on_report,
        "cooperative": cooperative,
    }
    _check(flags, progress, arena, recorder, debugger, asked)
    stepwise = stepwise or debugger is not None
    dynamic_smem = _count("dynamic_smem", dynamic_smem, 0)
    max_instructions = _count("max_instructions", max_instructions, 1)
    text = ptx_or_module if isinstance(ptx_or_module, str) else None
    module = _module(ptx_or_module)
    sm = target_number(module.target)
    kernel = _kernel(module, entry)
    shape = extents(kernel, grid, block, cluster)
    arena = DeviceArena() if arena is None else arena
    memory = module_memory(module, arena, text)
    cut_each = order is not None
    checks = frozenset({"init", "sync", "bounds"} & asked)
    clustered = math.prod(shape[2]) > 1
    program, allocations = _program(
        module, kernel, dynamic_smem, memory, checks, stepwise, cut_each, clustered=clustered
    )
    fill(memory, {} if symbols is None else symbols)
    params = params_memory(program.linked, args, arena)
    spans = tuple([_span(arena, array) for array in _arrays(in_flight)])
    traffic = Traffic(program.instrs) if profile else None
    launch = _Launch(
        program,
        allocations,
        sm,
        shape,
        dynamic_smem,
        arena,
        memory,
        params,
        max_instructions,
        order,
        traffic,
        recorder,
        spans,
        debugger,
    )
    if "init" in asked:
        launch.undefined = UndefinedArrays(arena, program.linked)
    total = math.prod(shape[0])
    size = launch.batch_size(bool(asked))
    if recorder is not None:
        total = size = math.prod(shape[2])
    if cooperative and program.linked.cooperative and total <= size:
        launch.workspace = arena.grid_workspace()
    elif program.analysis(_has, "clusterlaunchcontrol.try_cancel"):
        clusters = total // math.prod(shape[2])
        size = min(size, max(clusters - clusters // 2, 1) * math.prod(shape[2]))
    queue = launch.queue = LaunchQueue(total)
    with np.errstate(all="ignore"):
        while queue.next < total:
            launch.run_batch(*queue.take(size), asked)
            if progress is not None:
                progress(queue.next, total)
    if launch.undefined is None:
        arena.trust_heap()
    else:
        launch.undefined.finish()
    if traffic is not None:
        launch.counters.memory_by_instruction = traffic.by_instruction()
    if launch.reports and raise_on_report:
        raise TrapError(_all_reports(kernel.name, launch.reports))
    return Result(launch.counters, tuple(launch.reports.values()), "".join(launch.printed), memory.variables)


def _check(
    flags: Mapping[str, object],
    progress: object,
    arena: object,
    recorder: object,
    debugger: object,
    asked: frozenset[str],
) -> None:
    """Raise `LaunchError` for arguments of `run` of another type."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise LaunchError(f"{name} must be True or False, got {shown(flag)}")
    if progress is not None and not callable(progress):
        raise LaunchError(f"progress must be a function of two integers, got {shown(progress)}")
    if arena is not None and not isinstance(arena, DeviceArena):
        raise LaunchError(f"arena must be a DeviceArena, got {shown(arena)}; leave it out")
    if recorder is not None and not isinstance(recorder, Recorder):
        raise LaunchError(f"recorder must be a ptxgen.interpreter.recording.Recorder, got {shown(recorder)}")
    if recorder is not None and asked:
        raise LaunchError("a run with a recorder has no sanitizers; leave out sanitize, or run twice")
    if debugger is not None and not isinstance(debugger, Debugger):
        raise LaunchError(f"debugger must be a ptxgen.interpreter.debugging.Debugger, got {shown(debugger)}")


def _arrays(in_flight: object) -> Sequence[NDArray[Any]]:
    """The checked arrays of the argument `in_flight` of `run`."""
    arrays = in_flight if isinstance(in_flight, list | tuple) else (in_flight,)
    for array in arrays:
        if not isinstance(array, np.ndarray) or arrays is not in_flight:
            wanted = "in_flight must be a list of numpy arrays"
            raise LaunchError(f"{wanted}, got {shown(array)}; give what args has")
    return arrays


def _span(arena: DeviceArena, array: NDArray[Any]) -> Span:
    """The device addresses of an array, which is made device memory if it is none."""
    first = arena.place(array)
    if not array.size:
        return first, first
    low, high = byte_bounds(array)
    return first - (array.ctypes.data - low), first + (high - array.ctypes.data)


def _count(name: str, value: object, least: int) -> int:
    count = integer(value, least, _MOST_COUNT)
    if count is None:
        raise LaunchError(f"{name} must be an integer from {least}, got {shown(value)}")
    return count


def _module(source: object) -> Module:
    return _parsed(source) if isinstance(source, str) else module_of("run", source)


_parsed = functools.lru_cache(maxsize=8)(parse_on_use)


@dataclass(slots=True)
class _Launch:
    """One launch of a kernel in the interpreter, with the results of its batches of CTAs so far."""

    program: Program
    allocations: AllowedAllocations | None  # of shared addresses, if bounds are checked
    sm: int
    shape: tuple[Extents, ...]  # grid, block, cluster
    dynamic_smem: int
    arena: DeviceArena
    memory: ModuleMemory
    params: np.ndarray[Any, np.dtype[Any]]
    max_instructions: int
    order: PCT | None
    traffic: Traffic | None
    recorder: Recorder | None = None
    in_flight: tuple[Span, ...] = ()
    debugger: Debugger | None = None
    workspace: int = 0  # address of a cooperative launch's workspace
    counters: Counters = field(default_factory=Counters)
    reports: Reports = field(default_factory=dict)
    undefined: UndefinedArrays | None = None  # if undefined bits are followed
    printed: list[str] = field(default_factory=list)
    queue: LaunchQueue = field(init=False)

    def __post_init__(self) -> None:
        if self.debugger is not None:
            self.reports = self.debugger.reports()

    def batch_size(self, sanitize: bool) -> int:
        """The number of CTAs that the interpreter runs at once, as one batch."""
        _, block, cluster = self.shape
        linked = self.program.linked
        width = -(-math.prod(block) // WARP) * WARP
        local = max(linked.local_bytes, linked.recursive * _RECURSION_BYTES)
        if sanitize:
            local *= 4  # undefined bits, and two numbers for each four bytes
        registers = self.program.analysis(_register_bytes)
        sizes = [
            _MAX_LANES // width,
            _MAX_LOCAL_BYTES // max(local * width, 1),
            _MAX_REGISTER_BYTES // max(registers * width, 1),
            _MAX_SHARED_BYTES // max(linked.shared_bytes, 1),
        ]
        if self.program.analysis(_has, "tcgen05."):
            sizes.append(_MAX_TENSOR_CTAS)
        if sanitize and linked.shared_bytes:
            # The stamps of the last write and of each warp's last read, in bytes.
            unit_bytes = 8 + 8 * (width // WARP)
            units = linked.shared_bytes // self.program.analysis(_grain, "shared")
            sizes.append(_MAX_SHADOW_BYTES // (units * unit_bytes + 1))
        ctas = math.prod(cluster)
        return max(min(sizes) // ctas, 1) * ctas

    def run_batch(self, first: int, count: int, asked: frozenset[str]) -> None:
        """Run CTAs `first` to `first` + `count` - 1 as a batch. Raises `TrapError` if the kernel traps."""
        program, linked = self.program, self.program.linked
        grid, block, cluster = self.shape
        batch = Batch(
            grid,
            block,
            first,
            count,
            shared_stride(linked.shared_bytes),
            linked.shared_bytes,
            self.dynamic_smem,
            cluster,
            linked.reserved_bytes,
            self.workspace,
        )
        shared = SharedMemory.poisoned(linked.shared_bytes, batch.ctas)
        words = shared.window.data.view(np.uint32)
        notes = notes_of(linked) if asked else ()
        faults = Findings(linked.kernel.name, program.instrs, batch, linked.regions, self.reports, notes)
        watch = None
        if asked:
            grains = program.analysis(_grain, "shared"), program.analysis(_grain, "global")
            watch = Watch(asked, batch, program.instrs, faults, *grains, self.allocations, self.in_flight)
            watch.follow(linked)
            watch.follow_registers(program.wgmma)
            if first == 0:
                watch.check_text(linked)
        observer = watch or self.recorder
        copies = AsyncCopies(batch.lanes, words, observer)
        barriers = Barriers(batch.ctas, batch.width, observer)
        machine = LaneMachine(
            batch,
            self.arena,
            self._spaces(batch),
            shared,
            copies,
            barriers,
            observer,
            faults,
            self.sm,
            RegisterPool(batch, registers_at_entry(linked.kernel), observer),
            program.wgmma,
        )
        machine.queue = self.queue
        machine.printed, machine.traffic = self.printed, self.traffic
        if self.undefined is not None:
            frames = tuple(routine.frame_bytes for routine in linked.routines)
            machine.definedness = UndefinedBits(machine, faults, self.undefined, frames)
        policy = policy_of(self.order, machine)
        schedule = self._scheduler(machine, policy)
        try:
            schedule.run()
        except TrapError as error:
            origin = origin_of(program.instrs[machine.at])
            error.line, error.source = origin.ptx_line, origin.source
            error.printed = "".join(self.printed)
            if not self.reports:
                raise
            before = _all_reports(linked.kernel.name, self.reports)
            whole = TrapError(f"{error}\nbefore that, {before}")
            whole.printed, whole.line, whole.source = error.printed, error.line, error.source
            raise whole from error
        schedule.count(self.counters)
        self._count_tensor_memory(machine)
        if self.recorder is not None:
            self.recorder.finish()

    def _count_tensor_memory(self, machine: LaneMachine) -> None:
        for number, macs in machine.tensor_macs.items():
            self.counters.tensor_memory_macs[self.program.instrs[number].opcode] += macs
        self.counters.tensor_columns = max(self.counters.tensor_columns, machine.tensor_columns)

    def _scheduler(self, machine: LaneMachine, policy: Policy) -> Scheduler:
        if self.debugger is not None:
            debugged = DebuggedScheduler(self.program, machine, self.max_instructions, policy)
            machine.before = self.debugger.before
            self.debugger.begin(debugged)
            return debugged
        if self.recorder is None:
            return Scheduler(self.program, machine, self.max_instructions, policy)
        self.recorder.begin(self.program, machine)
        schedule = RecordedScheduler(self.program, machine, self.max_instructions, policy)
        schedule.recorder = self.recorder
        return schedule

    def _spaces(self, batch: Batch) -> dict[str, Space]:
        params, constant = self.params, self.memory.constant
        local_bytes = self.program.linked.local_bytes
        return {
            "local": Space.local(LOCAL_START, local_bytes, batch.lanes),
            "param": Space(PARAM_START, len(params), Window(PARAM_START, params)),
            "const": Space(CONST_START, len(constant), Window(CONST_START, constant)),
        }


def _all_reports(kernel: str, reports: Reports) -> str:
    shown = [f"  {report}" for report in list(reports.values())[:_SHOWN_REPORTS]]
    if len(reports) > _SHOWN_REPORTS:
        shown.append(f"  and {len(reports) - _SHOWN_REPORTS} more")
    count = f"{len(reports)} problem{'s' * (len(reports) > 1)}"
    return "\n".join([f"kernel {kernel}: the sanitizer reports {count}:", *shown])


def _has(program: Program, opcode: str) -> bool:
    """Whether any instruction of a program has an opcode that begins with `opcode`."""
    return any(instr.opcode.startswith(opcode) for instr in program.instrs)


def _register_bytes(program: Program) -> int:
    """The bytes that the interpreter needs for the registers of one lane (one thread)."""
    return sum(dtype.itemsize for dtype in program.dtypes)


def _grain(program: Program, space: str) -> int:
    """Bytes of a unit of the race detector: the width of the narrowest access to `space`, at most 4."""
    narrowest = 4
    for op in {step.op for block in program.blocks for step in block.segment.steps}:
        of = op.modifiers.get("space") or space
        if str(of).partition("::")[0] == space and any(o.address for o in op.operands):
            sizes = [o.type.nbytes for o in op.operands if o.type and not o.address and o.type.bits >= 8]
            narrowest = min([narrowest, *sizes])
    return narrowest


_Key = tuple[int, tuple[int, ...], tuple[tuple[str, int], ...], int, frozenset[str], bool, bool, bool]
_programs: OrderedDict[_Key, tuple[Module, Program, AllowedAllocations | None]] = OrderedDict()


def _program(
    module: Module,
    kernel: Kernel,
    dynamic_smem: int,
    memory: ModuleMemory,
    checks: frozenset[str],
    stepwise: bool,
    cut_each: bool,
    *,
    clustered: bool,
) -> tuple[Program, AllowedAllocations | None]:
    """The compiled kernel, and the allocations that its shared addresses should stay in if bounds
    are checked. Both are cached for the next launch; the cached objects hold the kernel and the
    functions, so that their ids stay unique.
    """
    functions = tuple(id(f) for f in module.functions)
    addresses = tuple(memory.addresses.items())
    key = id(kernel), functions, addresses, dynamic_smem, checks, stepwise, cut_each, clustered
    cached = _programs.get(key)
    if cached is None:
        with uncollected():
            linked = link(module, kernel, dynamic_smem, memory.addresses, clustered=clustered)
            program = compile_program(
                linked,
                follows="init" in checks,
                touches="sync" in checks,
                stepwise=stepwise,
                cut_each=cut_each,
            )
        allocations = allowed_allocations(module, linked, dynamic_smem) if "bounds" in checks else None
        cached = _programs[key] = module, program, allocations
        instructions = sum(len(program.instrs) for _, program, _ in _programs.values())
        while instructions > _CACHED_INSTRUCTIONS and len(_programs) > 1:
            instructions -= len(_programs.popitem(last=False)[1][1].instrs)
    _programs.move_to_end(key)
    return cached[1:]


def _kernel(module: Module, entry: object) -> Kernel:
    names = [k.name for k in module.kernels]
    if entry is None:
        if len(names) != 1:
            raise LaunchError(
                f"the module has the kernels {', '.join(names) or '(none)'}; say which with entry="
            )
        return module.kernels[0]
    if not isinstance(entry, str) or entry not in names:
        raise LaunchError(
            f"the module has no kernel {shown(entry)}{did_you_mean(entry, names)} "
            f"(it has {', '.join(names) or 'none'})"
        )
    return module.kernels[names.index(entry)]


__all__ = ["Argument", "run"]
