"""`Device`: the device that a host program sees, and the answers to its calls.

Each method with `@answer` is a call of `answers/runtime.c` or `answers/driver.c`, by the same name.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ptxgen.check.resources import resources
from ptxgen.errors import ConfigError, LaunchError, PtxGenError
from ptxgen.frontends.program import Program, ProgramKernel
from ptxgen.frontends.ptx import program_of
from ptxgen.interpreter import Report
from ptxgen.interpreter.launch import MAX_INSTRUCTIONS
from ptxgen.interpreter.program.linking import link, param_bytes
from ptxgen.interpreter.variables import ModuleMemory, module_memory
from ptxgen.program.attributes import FIRST_WITH_CLUSTERS, MULTIPROCESSORS, device_attribute
from ptxgen.program.fatbinary import Ptx, entries
from ptxgen.program.maps import encoded
from ptxgen.program.memory import CAPACITY, DeviceMemory
from ptxgen.target import Target, target_for_device
from ptxgen.target import target as find_target

# Error codes of driver_types.h, "CUDA error types".
OK: Final = 0
_INVALID_VALUE, _NO_MEMORY, _INVALID_CONFIGURATION, _INVALID_SYMBOL = 1, 2, 9, 13
_INVALID_FUNCTION, _INVALID_IMAGE, _NO_IMAGE, _INVALID_PTX = 98, 200, 209, 218
_ILLEGAL_ADDRESS, _ASSERT, _MISALIGNED, _FAILURE, _TOO_LARGE = 700, 710, 716, 719, 720
_FAULTS: Final = (
    (r"assertion `", _ASSERT),
    (r"which is not a multiple of", _MISALIGNED),
    (r"wants to \w+ .* memory at|of global memory at", _ILLEGAL_ADDRESS),
)
_WORD: Final = (1 << 64) - 1  # numbers are unsigned, as the library casts them
_PORTABLE_CLUSTER: Final = 8  # CTAs of a cluster on any device that has clusters
_LEAST_SM: Final = 80  # of the device, unless another is asked for or the program needs a newer one


class StopProgramError(PtxGenError):
    """The program made a call that cannot be answered, and is to end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call: an error code, numbers and bytes."""

    status: int = OK
    numbers: tuple[int, ...] = ()
    data: bytes = b""


Answer = Callable[["Device", Sequence[int], bytes], Reply]
_ANSWERS: Final[dict[str, Answer]] = {}


def answer(method: Answer) -> Answer:
    """Register a method as the answer to the call of the same name."""
    _ANSWERS[method.__name__] = method
    return method


@dataclass(slots=True)
class _Kernel:
    """A kernel that the program has looked up. `offsets` are the offset and the bytes of each parameter in
    the block of arguments. Shared memory is in bytes: `static` is what the kernel declares, `allowed` the
    most that a launch may have in all.
    """

    kernel: ProgramKernel
    offsets: tuple[tuple[int, int], ...]
    static: int
    local: int  # bytes of a thread's local memory
    allowed: int


@dataclass(slots=True)
class _Module:
    """The PTX that a program has registered, for several targets, and its program once it is used."""

    images: tuple[Ptx, ...]
    program: Program | None = None


@dataclass
class Device:
    """The device: its memory, modules and kernels.

    `asked` is the target of the device, or None for a target that the program's PTX runs on; with `sanitize`
    the sanitizers watch all launches; `compiled` is when the program was made, in seconds since the epoch.
    `tell` is called with each fault of a kernel as it happens. `reports` are the sanitizers' findings, each
    problem once, and `faults` the errors that ended kernels.
    """

    name: str
    asked: Target | None
    sanitize: bool
    compiled: float
    memory: DeviceMemory
    tell: Callable[[str], None]
    max_instructions: int = MAX_INSTRUCTIONS  # of a launch, as `ptxgen.interpreter.run` counts them
    reports: dict[tuple[str, str, str, str], Report] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    launches: int = 0

    def __post_init__(self) -> None:
        self._fault = OK  # of a kernel; every later call returns it
        self._modules: list[_Module] = []
        self._kernels: list[_Kernel] = []

    def respond(self, name: str, numbers: Sequence[int], data: bytes) -> Reply:
        """The answer to a call. Raises `StopProgramError`, and other errors of this project for device
        code that cannot be run.
        """
        answer = _ANSWERS.get(name)
        if answer is None:
            raise StopProgramError(f"{name} is not known to the interpreter's process")
        return answer(self, numbers, data)

    @property
    def target(self) -> Target:
        """The target of the device."""
        if self.asked is not None:
            return self.asked
        newest = max((image.sm for module in self._modules for image in module.images), default=0)
        return target_for_device(*divmod(max(newest, _LEAST_SM), 10))

    # ------------------------------------------------------------------------------------ memory

    @answer
    def alloc(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Allocate: bytes -> address."""
        address = self.memory.allocate(numbers[0])
        return self._after(Reply(_NO_MEMORY) if address is None else Reply(numbers=(address,)))

    @answer
    def map(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Allocate memory that is a file: bytes, kind -> address, path."""
        mapped = self.memory.map(numbers[0], numbers[1])
        return self._after(Reply(_NO_MEMORY) if mapped is None else Reply(OK, mapped[:1], bytes(mapped[1])))

    @answer
    def free(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Free the memory at an address."""
        return self._after(_done(self.memory.free(numbers[0])))

    @answer
    def memory_at(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Look up an address -> kind of memory (0 for none), the allocation's first address, its bytes."""
        return Reply(numbers=self.memory.kind_at(numbers[0]))

    @answer
    def write(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Copy bytes to an address."""
        return self._after(_done(self._store(numbers[0], data)))

    @answer
    def fill(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Set the elements at an address: address, value, bytes, bytes of an element (0 is 1)."""
        address, value, nbytes, width = numbers[:4]
        width = width or 1
        held = None if address % width else self.memory.bytes_at(address, nbytes, writes=True)
        if held is not None:
            held.reshape(-1, width)[:] = list(value.to_bytes(width, "little"))
        return self._after(_done(held is not None))

    @answer
    def read(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Copy bytes from the device: address, number of bytes -> the bytes."""
        address, nbytes = numbers[:2]
        held = self.memory.bytes_at(address, nbytes)
        for report in self.memory.reports(address, nbytes):
            self._note(f"a copy at {report.source}", report)
        return self._after(Reply(_INVALID_VALUE) if held is None else Reply(data=held.tobytes()))

    @answer
    def copy(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Copy between addresses: to, from, bytes."""
        to, source, nbytes = numbers[:3]
        return self._after(_done(self.memory.copy(to, source, nbytes)))

    @answer
    def sync(self, _numbers: Sequence[int], _data: bytes) -> Reply:
        """Synchronize: the fault of an earlier kernel, if any; each launch has ended already."""
        return self._after(Reply())

    @answer
    def reset(self, _numbers: Sequence[int], _data: bytes) -> Reply:
        """Reset the device: free all memory, and clear a fault."""
        self._fault = OK
        for buffer in self.memory.arena.buffers:
            self.memory.free(buffer.base)
        self.memory.arena.modules.clear()
        return Reply()

    def _note(self, where: str, report: Report) -> None:
        self.reports.setdefault((where, report.kind, report.instr, report.other), report)

    def _store(self, address: int, data: bytes) -> bool:
        held = self.memory.bytes_at(address, len(data), writes=True)
        if held is not None:
            held.data[:] = data
        return held is not None

    def _after(self, reply: Reply) -> Reply:
        return Reply(self._fault) if self._fault else reply

    # ----------------------------------------------------------------------------------- modules

    @answer
    def load(self, _numbers: Sequence[int], data: bytes) -> Reply:
        """Register a fat binary -> module; or an error, and why. Its PTX is read when it is used first."""
        try:
            self._modules.append(_Module(tuple(entries(data))))
        except LaunchError as error:
            self.tell(str(error))
            return Reply(_INVALID_IMAGE, (), str(error).encode())
        return Reply(numbers=(len(self._modules) - 1,))

    @answer
    def load_ptx(self, _numbers: Sequence[int], data: bytes) -> Reply:
        """Load PTX -> module; or an error, and why."""
        sm = re.search(rb"^\s*\.target\s+sm_(\d+)", data, re.MULTILINE)
        image = Ptx(int(sm[1]) if sm else 0, 0, data, len(data))
        self._modules.append(_Module((image,)))
        try:
            loaded = self._program(len(self._modules) - 1) is not None
            why = "" if loaded else f"the PTX is for sm_{image.sm}, which the device, {self.target}, is not"
        except PtxGenError as error:
            loaded, why = False, str(error)
            self.tell(why)
        if not loaded:
            self._modules.pop()
            return Reply(_NO_IMAGE if image.sm > self.target.sm else _INVALID_PTX, (), why.encode())
        return self._after(Reply(numbers=(len(self._modules) - 1,)))

    def _program(self, number: int) -> Program | None:
        """The program of a module, None if it has no PTX for the device."""
        module = self._modules[number]
        if not module.images:
            raise StopProgramError(
                f"{self.name} has device code without PTX; compile it with PTX, as nvcc -arch=sm_80 does, or "
                "-gencode arch=compute_80,code=compute_80"
            )
        if module.program is None:
            fitting = [image for image in module.images if image.sm <= self.target.sm]
            if not fitting:
                has = ", ".join(f"sm_{image.sm}" for image in module.images)
                self.tell(f"the program has PTX for {has}, which does not run on the device, {self.target}")
                return None
            best = max(fitting, key=lambda image: image.sm)
            module.program = program_of(best.text(), self.name, self.compiled)
        return module.program

    def _variables(self, number: int) -> ModuleMemory | None:
        program = self._program(number)
        return None if program is None else module_memory(program.module, self.memory.arena)

    @answer
    def symbol(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Look up a variable: module, name -> address (0 in constant memory), bytes."""
        held = self._variables(numbers[0])
        name = data.decode()
        if held is None or name not in held.variables:
            return Reply(_INVALID_SYMBOL)
        return self._after(Reply(OK, (held.addresses.get(name, 0), len(held.variables[name]))))

    @answer
    def write_symbol(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Write to a variable: module, offset, bytes, bytes of the name; name and values."""
        return self._symbol_bytes(numbers, data, data[numbers[3] :])

    @answer
    def read_symbol(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Read from a variable: module, offset, bytes, bytes of the name; name."""
        return self._symbol_bytes(numbers, data, None)

    def _symbol_bytes(self, numbers: Sequence[int], data: bytes, values: bytes | None) -> Reply:
        module, offset, nbytes, name_bytes = numbers[:4]
        held = self._variables(module)
        variable: Any = None if held is None else held.variables.get(data[: name_bytes - 1].decode())
        if variable is None:
            return Reply(_INVALID_SYMBOL)
        if offset + nbytes > len(variable):
            return Reply(_INVALID_VALUE)
        part = variable[offset : offset + nbytes]
        if values is not None:
            part.data[:] = values
        return self._after(Reply(data=part.tobytes() if values is None else b""))

    # ----------------------------------------------------------------------------------- kernels

    @answer
    def function(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Look up a kernel: module, name -> kernel, parameters, their bytes; offset and bytes of each."""
        program = self._program(numbers[0])
        if program is None:
            return Reply(_NO_IMAGE)
        try:
            kernel = program[data.decode()]
        except LaunchError as error:
            self.tell(str(error))
            return Reply(_INVALID_FUNCTION)
        module = kernel.program.module
        variables = module_memory(module, self.memory.arena)
        dynamic = kernel.kernel.dynamic_shared_bytes  # bytes that the text itself declares
        linked = link(module, kernel.kernel, dynamic, variables.addresses)
        static = linked.shared_bytes - linked.reserved_bytes - dynamic
        sizes = map(param_bytes, kernel.kernel.params)
        offsets = tuple(zip(linked.param_offsets, sizes, strict=True))
        allowed = self.target.shared_per_block
        self._kernels.append(_Kernel(kernel, offsets, static, linked.local_bytes, allowed))
        packed = b"".join(struct.pack("<QQ", *offset) for offset in offsets)
        return Reply(OK, (len(self._kernels) - 1, len(offsets), linked.param_bytes), packed)

    @answer
    def kernels(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """The kernels of a module -> their count; their names, each ended by a 0."""
        program = self._program(numbers[0])
        if program is None:
            return Reply(_NO_IMAGE)
        names = [kernel.name for kernel in program.module.kernels]
        return Reply(OK, (len(names),), b"".join(name.encode() + b"\0" for name in names))

    @answer
    def launch(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Run a kernel: kernel, grid, block, bytes of shared memory, cluster, whether all CTAs are to be on
        the device at once; parameters -> its output.
        """
        held = self._kernels[numbers[0]]
        kernel, shared, cooperative = held.kernel, numbers[7], bool(numbers[11])
        if self._fault:
            return Reply(self._fault)
        if not all(numbers[1:7]):
            return Reply(_INVALID_CONFIGURATION)
        if held.static + shared > held.allowed:
            return Reply(_INVALID_VALUE)
        if cooperative:
            ctas, threads = math.prod(numbers[1:4]), math.prod(numbers[4:7])
            most = self._blocks_at_once(held, threads, shared) * MULTIPROCESSORS
            if ctas > most:
                self.tell(f"{kernel.name}: at most {most} CTAs are on the device at once, got {ctas}")
                return Reply(_TOO_LARGE)
        args = [data[at : at + size] for at, size in held.offsets]
        try:
            outcome = kernel.run(
                tuple(numbers[1:4]),
                tuple(numbers[4:7]),
                args,
                shared=shared,
                cluster=tuple(numbers[8:11]),
                sanitize=self.sanitize,
                max_instructions=self.max_instructions,
                arena=self.memory.arena,
                raise_on_report=False,
                cooperative=cooperative,
            )
        except LaunchError as error:
            self.tell(str(error))
            return Reply(_INVALID_CONFIGURATION)
        self.launches += 1
        for report in outcome.findings.reports:
            self._note(kernel.name, report)
        for fault in outcome.findings.faults:
            self.faults.append(fault)
            self.tell(fault)
            self._fault = _code_of(fault)
        return Reply(data=outcome.printed.encode())  # a fault is returned by the calls that follow

    @answer
    def attributes(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Attributes of a kernel, in the order of cudaFuncAttributes."""
        held = self._kernels[numbers[0]]
        kernel = held.kernel
        variables = module_memory(kernel.program.module, self.memory.arena)
        threads = kernel.kernel.threads or self.target.threads_per_block
        registers = resources(kernel.kernel, self.target).live_registers
        values = (held.static, len(variables.constant), held.local, threads, registers)
        # The "PTX version" of CUDA is the virtual architecture that the PTX is for, not that of its language.
        virtual = find_target(kernel.program.module.target).sm
        return Reply(OK, (*values, virtual, self.target.sm, held.allowed - held.static))

    @answer
    def allow_shared(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Set the most dynamic shared memory of a kernel's launches: kernel, bytes."""
        held = self._kernels[numbers[0]]
        if held.static + numbers[1] > self.target.shared_per_block_optin:
            return Reply(_INVALID_VALUE)
        held.allowed = max(held.static + numbers[1], self.target.shared_per_block)
        return Reply()

    @answer
    def occupancy(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Blocks on a multiprocessor at once: kernel, threads, bytes of dynamic shared memory -> blocks."""
        held, (threads, shared) = self._kernels[numbers[0]], numbers[1:3]
        if not 0 < threads < 1 << 31:
            return Reply(_INVALID_VALUE)
        return Reply(numbers=(self._blocks_at_once(held, threads, shared),))

    def _blocks_at_once(self, held: _Kernel, threads: int, shared: int) -> int:
        """Blocks of a kernel on a multiprocessor, with bytes of dynamic shared memory."""
        registers = resources(held.kernel.kernel, self.target).live_registers
        return self.target.blocks_per_sm_for(threads, registers, held.static + shared)

    @answer
    def clusters(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """Clusters at once: kernel, threads, bytes of dynamic shared memory, CTAs of a cluster -> clusters on
        the device, and the most CTAs of a cluster.
        """
        held, (threads, shared, ctas) = self._kernels[numbers[0]], numbers[1:4]
        if self.target.sm < FIRST_WITH_CLUSTERS or not ctas or not 0 < threads < 1 << 31:
            return Reply(_INVALID_VALUE)
        fit = self._blocks_at_once(held, threads, shared) * MULTIPROCESSORS
        return Reply(numbers=(fit // ctas, min(fit, _PORTABLE_CLUSTER)))

    @answer
    def shared_for(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """The most dynamic shared memory with which blocks fit on a multiprocessor at once: kernel, blocks,
        threads -> bytes.
        """
        held, (blocks, threads) = self._kernels[numbers[0]], numbers[1:3]
        if not 0 < threads <= self.target.threads_per_block or not 0 < blocks < 1 << 31:
            return Reply(_INVALID_VALUE)
        low, high = -1, self.target.shared_per_block_optin - held.static
        while low < high:  # the most that fits; -1 if not even no bytes do
            middle = (low + high + 1) // 2
            fit = self._blocks_at_once(held, threads, middle) >= blocks
            low, high = (middle, high) if fit else (low, middle - 1)
        return Reply(_INVALID_VALUE) if low < 0 else Reply(numbers=(low,))

    @answer
    def tensor_map(self, numbers: Sequence[int], data: bytes) -> Reply:
        """Encode a tensor map: type, rank, address, interleave, swizzle, promotion, fill; five dims, strides,
        sizes of a box and element strides -> its bytes.
        """
        if numbers[3]:
            raise StopProgramError(
                f"{self.name} encodes a tensor map with interleaved channels, which is not answered"
            )
        try:
            return self._after(Reply(data=encoded(numbers, struct.unpack("<20Q", data))))
        except ConfigError as error:
            self.tell(str(error))
            return Reply(_INVALID_VALUE)

    # ---------------------------------------------------------------------------- about the device

    @answer
    def device_name(self, _numbers: Sequence[int], _data: bytes) -> Reply:
        """The name of the device."""
        return Reply(data=f"ptxgen interpreter ({self.target})".encode())

    @answer
    def unanswered(self, _numbers: Sequence[int], data: bytes) -> Reply:
        """End the program, because it made a call that is not answered."""
        raise StopProgramError(
            f"{self.name} calls {data.decode()}, which is not answered; see docs/running-programs.md"
        )

    @answer
    def refused(self, _numbers: Sequence[int], data: bytes) -> Reply:
        """End the program for the reason in `data`."""
        raise StopProgramError(f"{self.name} cannot go on: {data.decode(errors='replace')}")

    @answer
    def attribute(self, numbers: Sequence[int], _data: bytes) -> Reply:
        """The value of a cudaDeviceAttr, which is a CUdevice_attribute, too."""
        value = device_attribute(numbers[0], self.target)
        if value is None:
            raise StopProgramError(
                f"{self.name} asks for device attribute {numbers[0]} (cudaDeviceAttr), which is not answered"
            )
        return Reply(numbers=(value & _WORD,))

    @answer
    def memory_info(self, _numbers: Sequence[int], _data: bytes) -> Reply:
        """The free and the total bytes of device memory."""
        return Reply(numbers=(CAPACITY - self.memory.used, CAPACITY))


def _done(worked: bool) -> Reply:
    return Reply(OK if worked else _INVALID_VALUE)


def _code_of(fault: str) -> int:
    return next((code for pattern, code in _FAULTS if re.search(pattern, fault)), _FAILURE)


__all__ = ["Device", "Reply", "StopProgramError"]
