"""A kernel linked with its module: the routines that it may call, and the addresses of all
variables.

Each routine has a frame in the local memory of every thread, for its `.local` variables and for the
`.param` variables of calls. Without recursion, frames have fixed addresses; with it, a frame begins
at the end of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ptxgen.errors import LaunchError
from ptxgen.interpreter.machine.address_map import CONST_START, LOCAL_BYTES, PARAM_START
from ptxgen.ir import (
    Arguments,
    Function,
    Instr,
    Kernel,
    Module,
    Param,
    Prototype,
    Reg,
    Special,
    Symbol,
    Variable,
)
from ptxgen.target import TARGETS
from ptxgen.types import TYPES

_Result = TypeVar("_Result")

FUNCTION_ADDRESS: Final = 1 << 20  # address of the first function; the others follow
FUNCTION_BYTES: Final = 16

_FRAME_ALIGN: Final = 32
_DYNAMIC_ALIGN: Final = 16
# The driver reserves the beginning of a block's shared memory on sm_80 and later (CUDA C++
# Programming Guide 12.9, "Compute Capability 8.x"); it is modelled if a kernel asks for it.
RESERVED_BYTES: Final = 1 << 10
_RESERVED: Final = "%reserved_smem_offset_"
# The registers in which the driver passes the address of a cooperative launch's workspace: bits 63
# to 32, and 31 to 0 (`cooperative_groups/details/driver_abi.h` of the CUDA toolkit).
WORKSPACE: Final = ("%envreg1", "%envreg2")
_MOST_SHARED: Final = max(t.shared_per_block_optin for t in TARGETS.values())


@dataclass(frozen=True, slots=True)
class Location:
    """The value of a name: an address, or with `framed` an offset in the routine's frame. With `ranked` it is
    an address in shared memory, and the rank of the thread's CTA in its cluster is added.
    """

    value: int
    framed: bool = False
    ranked: bool = False


@dataclass(slots=True)
class Routine:
    """A kernel or function: its symbols, the size of its frame in bytes, and the frame's address if
    frames do not move. `calls` are the routines that it may call.
    """

    number: int
    source: Kernel | Function
    symbols: dict[str, Location]
    frame_bytes: int
    frame: int = 0
    calls: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the kernel or function."""
        return self.source.name


@dataclass(frozen=True, slots=True)
class Analysed:
    """A program with the results of analyses of it, which all its launches share."""

    # By analysis and arguments.
    _analyses: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def analysis(self, analyse: Callable[..., _Result], *arguments: Hashable) -> _Result:
        """The result of an analysis, a function of the program and of the arguments."""
        key = (analyse, *arguments)
        if key not in self._analyses:
            self._analyses[key] = analyse(self, *arguments)
        result: _Result = self._analyses[key]
        return result


@dataclass(frozen=True, slots=True)
class Linked(Analysed):
    """A kernel with everything that it needs.

    Each of `routines` comes after those that it calls, except in recursion; the kernel is the last.
    `outside` are functions without a body, by address. `recursive` says that frames move. Of the
    `shared_bytes` of a block, the first `reserved_bytes` are the driver's. `cooperative` says that
    the kernel asks for the workspace of its grid.
    """

    routines: tuple[Routine, ...]
    outside: Mapping[int, Function]
    addresses: Mapping[str, int]  # addresses of functions
    shared_bytes: int
    regions: tuple[tuple[str, int, int], ...]
    param_offsets: tuple[int, ...]
    param_bytes: int
    recursive: bool
    local_bytes: int
    reserved_bytes: int = 0
    cooperative: bool = False

    @property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        source = self.routines[-1].source
        assert isinstance(source, Kernel)
        return source


def constants(module: Module) -> tuple[dict[str, tuple[Variable, int]], int]:
    """The module's constant variables with their addresses in constant memory, and their total size
    in bytes.
    """
    placed, end = {}, 0
    for variable in module.variables:
        if variable.space == "const":
            start = _up(end, variable.align)
            placed[variable.name] = variable, CONST_START + start
            end = start + variable.nbytes
    return placed, end


def function_addresses(module: Module) -> dict[str, int]:
    """The address of each function, and of each kernel, which no call reaches."""
    names = (*(f.name for f in module.functions), *(k.name for k in module.kernels))
    return {name: FUNCTION_ADDRESS + n * FUNCTION_BYTES for n, name in enumerate(names)}


def code_addresses(module: Module) -> dict[str, int]:
    """The address of each function or kernel; a kernel's address cannot be called."""
    first = FUNCTION_ADDRESS + len(module.functions) * FUNCTION_BYTES
    kernels = {k.name: first + n * FUNCTION_BYTES for n, k in enumerate(module.kernels)}
    return {**kernels, **function_addresses(module)}


def link(
    module: Module,
    kernel: Kernel,
    dynamic_smem: int,
    global_addresses: Mapping[str, int],
    *,
    clustered: bool = False,
) -> Linked:
    """Link a kernel with its routines and variables. `global_addresses` has the module's global
    variables; `clustered` says that addresses in shared memory hold the rank of their CTA in its cluster.

    Raises `LaunchError` for dynamic shared memory that is too small, and for more shared or local
    memory than any GPU has.
    """
    needed = kernel.dynamic_shared_bytes
    if dynamic_smem < needed:
        raise LaunchError(
            f"{kernel.name} needs {needed} bytes of dynamic shared memory, got dynamic_smem={dynamic_smem}"
        )
    functions = {f.name: f for f in module.functions}
    addresses = function_addresses(module)
    order, calls, recursive = _reachable(module, kernel, functions)
    specials = _specials(order)
    reserved = RESERVED_BYTES if any(name.startswith(_RESERVED) for name in specials) else 0
    shared = _Shared(module, kernel, order, dynamic_smem, reserved, clustered=clustered)
    static_bytes = shared.nbytes - reserved
    if static_bytes > _MOST_SHARED:
        raise LaunchError(
            f"{kernel.name} needs {static_bytes} bytes of shared memory, {dynamic_smem} of them "
            f"dynamic; a block has at most {_MOST_SHARED}"
        )
    const, _ = constants(module)
    known = {
        **{name: Location(address) for name, address in code_addresses(module).items()},
        **{name: Location(address) for name, address in global_addresses.items()},
        **{name: Location(address) for name, (_, address) in const.items()},
    }
    numbers = {id(source): n for n, source in enumerate(order)}
    routines: list[Routine] = []
    param_offsets: tuple[int, ...] = ()
    param_bytes = 0
    for source in order:
        symbols = {**known, **shared.symbols_of(source)}
        memory = [*_frame_params(source), *source.variables]
        if isinstance(source, Kernel):
            param_offsets, param_bytes = _param_layout(source)
            pairs = zip(source.params, param_offsets, strict=True)
            symbols.update((p.name, Location(PARAM_START + at)) for p, at in pairs)
        frame_bytes = 0
        for variable in memory:
            start = _up(frame_bytes, max(variable.align, 1))
            symbols[variable.name] = Location(start, framed=True)
            frame_bytes = start + variable.nbytes
        called = tuple(numbers[id(f)] for f in calls[id(source)])
        routines.append(Routine(len(routines), source, symbols, _up(frame_bytes, _FRAME_ALIGN), 0, called))
    if recursive:
        for routine in routines:  # ends the search if routines are recursive
            routine.frame_bytes = max(routine.frame_bytes, _FRAME_ALIGN)
    needed = _lay_out_frames(routines) if not recursive else sum(r.frame_bytes for r in routines)
    if needed > LOCAL_BYTES:
        raise LaunchError(
            f"{kernel.name} needs {needed} bytes of local memory a thread, which has at most {LOCAL_BYTES}"
        )
    local_bytes = min(4 * needed, LOCAL_BYTES) if recursive else needed
    return Linked(
        tuple(routines),
        {addresses[f.name]: f for f in module.functions if f.body is None},
        addresses,
        shared.nbytes,
        tuple(shared.regions),
        param_offsets,
        param_bytes,
        recursive,
        local_bytes,
        reserved,
        not specials.isdisjoint(WORKSPACE),
    )


def param_bytes(param: Param) -> int:
    """The size of a parameter in memory, bytes."""
    return TYPES[param.type].nbytes * max(param.count, 1)


def param_align(param: Param) -> int:
    """The alignment of a parameter in memory, bytes."""
    return max(param.align, TYPES[param.type].nbytes)


def _param_layout(kernel: Kernel) -> tuple[tuple[int, ...], int]:
    offsets, at = [], 0
    for param in kernel.params:
        at = _up(at, param_align(param))
        offsets.append(at)
        at += param_bytes(param)
    return tuple(offsets), at


def _frame_params(source: Kernel | Function) -> Iterator[Variable]:
    """The parameters and results of a function that are kept in memory."""
    if isinstance(source, Function):
        for param in (*source.results, *source.params):
            if not param.register:
                yield Variable("param", param.name, param_bytes(param), param_align(param))


def _lay_out_frames(routines: list[Routine]) -> int:
    """Give each routine a frame after those of all its callers. Returns the bytes of all frames."""
    for routine in reversed(routines):
        for n in routine.calls:
            callee = routines[n]
            callee.frame = max(callee.frame, routine.frame + routine.frame_bytes)
    return max(r.frame + r.frame_bytes for r in routines)


class _Shared:
    """The layout of a CTA's shared memory."""

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        order: Iterable[Kernel | Function],
        dynamic: int,
        reserved: int,
        *,
        clustered: bool,
    ) -> None:
        self.nbytes = reserved
        self._clustered = clustered
        self.regions = [("the driver's reserved memory", 0, reserved)] if reserved else []
        self._of_routine: dict[int, dict[str, Location]] = {}
        self._module: dict[str, Location] = {}
        arrays = {kernel.dynamic_shared} - {""}
        align = max([_DYNAMIC_ALIGN, *(r.align for r in kernel.regions)])
        for variable in module.variables:
            if variable.space == "shared" and variable.nbytes:
                self._module[variable.name] = self._add(variable.name, variable.nbytes, variable.align)
            elif variable.space == "shared":
                arrays.add(variable.name)
                align = max(align, variable.align)
        for source in order:
            self._of_routine[id(source)] = {
                s.name: self._add(s.name, s.nbytes, s.align) for s in source.shared
            }
        if arrays:
            start = _up(self.nbytes, align)
            self._module.update(dict.fromkeys(arrays, Location(start, ranked=clustered)))
            self.regions += [(r.name, start + r.offset, r.nbytes) for r in kernel.regions]
            self.nbytes = start
        self.nbytes += dynamic

    def symbols_of(self, source: Kernel | Function) -> dict[str, Location]:
        return {**self._module, **self._of_routine[id(source)]}

    def _add(self, name: str, nbytes: int, align: int) -> Location:
        start = _up(self.nbytes, align)
        self.regions.append((name, start, nbytes))
        self.nbytes = start + nbytes
        return Location(start, ranked=self._clustered)


def _specials(order: Iterable[Kernel | Function]) -> set[str]:
    """The special registers that routines name."""
    return {
        operand.name
        for source in order
        for statement in source.body or ()
        if isinstance(statement, Instr)
        for operand in statement.operands
        if isinstance(operand, Special)
    }


def _reachable(
    module: Module, kernel: Kernel, functions: Mapping[str, Function]
) -> tuple[list[Kernel | Function], dict[int, list[Function]], bool]:
    """The routines with a body that the kernel may reach, each after those that it calls; the
    functions that each may call; and whether any may call itself again.
    """
    taken = {
        functions[p.symbol].name: functions[p.symbol]
        for v in module.variables
        for p in v.pointers
        if p.symbol in functions
    }
    sources: tuple[Kernel | Function, ...] = (kernel, *module.functions)
    for source in sources:
        for name in _named(source, taken=True):
            if name in functions:
                taken[name] = functions[name]

    def called(source: Kernel | Function) -> list[Function]:
        callees = {name: functions[name] for name in _named(source, taken=False) if name in functions}
        if any(isinstance(_callee(s), Reg) for s in source.body or ()):
            callees |= taken
        return [f for f in callees.values() if f.body is not None]

    order: list[Kernel | Function] = []
    calls = {id(kernel): called(kernel)}
    recursive = False
    # Iterative, because a chain of calls may be longer than Python's stack.
    work: list[tuple[Kernel | Function, Iterator[Function]]] = [(kernel, iter(calls[id(kernel)]))]
    inside = {id(kernel)}
    while work:
        source, rest = work[-1]
        callee = next(rest, None)
        if callee is None:
            work.pop()
            inside.remove(id(source))
            order.append(source)
        elif id(callee) in inside:
            recursive = True
        elif id(callee) not in calls:
            calls[id(callee)] = called(callee)
            inside.add(id(callee))
            work.append((callee, iter(calls[id(callee)])))
    return order, calls, recursive


def _callee(statement: object) -> object:
    """The callee of a call: its first operand that is not a list of arguments; None if the
    statement is not a call.
    """
    if not isinstance(statement, Instr) or statement.opcode.split(".")[0] != "call":
        return None
    return next((o for o in statement.operands if not isinstance(o, Arguments)), None)


def _named(source: Kernel | Function, *, taken: bool) -> Iterator[str]:
    """The names that direct calls go to; or with `taken`, the names that are used in other ways."""
    for statement in source.body or ():
        callee = _callee(statement)
        if callee is not None:
            if isinstance(callee, Symbol) and not taken:
                yield callee.name
        elif taken and isinstance(statement, Instr):
            bases = (getattr(operand, "base", operand) for operand in statement.operands)
            yield from (b.name for b in bases if isinstance(b, Symbol))


def initial(variable: Variable, resolve: Callable[[str, bool], int]) -> bytes:
    """A variable's initial bytes. `resolve` gives the address of a name, generic or not."""
    data = bytearray(variable.data.ljust(variable.nbytes, b"\0"))
    for p in variable.pointers:
        value = (resolve(p.symbol, p.generic) + p.addend) >> p.shift
        data[p.offset : p.offset + p.nbytes] = (value & ((1 << 8 * p.nbytes) - 1)).to_bytes(
            p.nbytes, "little"
        )
    return bytes(data)


def signature(routine: Kernel | Function | Prototype) -> tuple[tuple[Param, ...], tuple[Param, ...]]:
    """The results and the parameters of a function or of a prototype."""
    return (() if isinstance(routine, Kernel) else routine.results), routine.params


def _up(value: int, align: int) -> int:
    return -(-value // max(align, 1)) * max(align, 1)
