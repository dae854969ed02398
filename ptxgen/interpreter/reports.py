"""The results of a run: counters, and the reports of the sanitizers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from ptxgen.ir import NOWHERE, Instr, Location, Origin
from ptxgen.text import render_instr


@dataclass(frozen=True, slots=True)
class Report:
    """One problem that a sanitizer found; each pair of instructions is reported once.

    `kind` is `race` (accesses of two threads that nothing orders, at least one of them a write), `pending`
    (an access to bytes that an asynchronous copy may still be writing), `uninitialised` (something depends on
    shared or local memory or memory from `malloc` that nothing has written), `undefined` (something depends
    on a register that nothing has written, or on what a shuffle has read from a lane that does not take
    part), `sync` (a barrier, an asynchronous operation or `setmaxnreg` used against its rules), `proxy` (an
    asynchronous operation on data that an ordinary instruction wrote, without `fence.proxy.async`),
    `mbarrier_init` (a bulk copy that completes on an mbarrier of its own CTA that no fence shows to it),
    `determinism` (sums of floating-point numbers whose order nothing fixes), `tensor_fence` (accesses of
    two threads to tensor memory without the fences and waits of the manual), `tensor_order` (operations of
    one thread on tensor memory that the manual does not order) or `bounds` (an access outside
    the shared variable that its address is computed from).

    `address` is in bytes; in shared memory it counts from the beginning of the CTA's; in tensor memory it is
    a lane times 65,536 plus a column. `region` is
    the variable or array at the address, or the register. `threads` are indices within the CTA, x
    fastest: the thread with the problem and the other thread, if there is one; `cta` is the CTA's
    index in the grid, and `other_cta` the other thread's CTA if it is another one. `note` is the
    last note of the algorithm before the instruction, in kernels that have notes; `count` is the
    number of accesses, each by many threads at once, that met the problem. `source` and
    `other_source` are the source lines of the two instructions: of the Python function that emitted
    them, or of the language that the PTX was compiled from; None if the PTX does not say it. `line`
    and `other_line` are their lines of the PTX text, 0 for instructions that Python emitted.
    """

    kind: str
    space: str
    address: int
    region: str
    cta: tuple[int, int, int]
    threads: tuple[int, ...]
    instr: str
    other: str
    message: str
    other_cta: tuple[int, int, int] | None = None
    note: str = ""
    count: int = field(default=1, compare=False)
    source: Location | None = None
    other_source: Location | None = None
    line: int = field(default=0, compare=False)  # `instr` names it, too
    other_line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.message

    def as_json(self) -> dict[str, Any]:
        """The fields in a form that `json.dumps` takes."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """The traffic of shared and global memory of one instruction in a run, as
    `ptxgen.interpreter.traffic` counts it. `where` is the instruction's text and line, `line` and
    `source` are the latter as those of a `Report`; a request is an access of one warp.

    `shared_least` and `sectors_least` are the smallest possible costs of the same requests: without
    bank conflicts, and with the bytes of each request side by side.
    """

    where: str
    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_least: int = 0
    global_requests: int = 0
    sectors_read: int = 0
    sectors_written: int = 0
    sectors_least: int = 0
    line: int = field(default=0, kw_only=True)
    source: Location | None = field(default=None, kw_only=True)

    @property
    def shared_conflicts(self) -> int:
        """The wavefronts beyond the least, which bank conflicts cost."""
        return self.shared_wavefronts - self.shared_least

    @property
    def sectors_excess(self) -> int:
        """The sectors of 32 bytes beyond the least."""
        return self.sectors_read + self.sectors_written - self.sectors_least


@dataclass(slots=True)
class Counters:
    """The number of instructions executed. An instruction whose guard is false counts, but not its
    accesses.

    `by_opcode` counts warp-instructions: one for each warp with an active thread that executes the
    instruction. `dispatched` counts the instructions that the interpreter executed one after
    another, which determine its time. `by_instruction` has the warp-instructions of each instruction
    that ran, by its number in the kernel and the functions that it calls. `memory_by_instruction` has
    the traffic of the instructions that accessed shared or global memory, by the same number. It is
    None, as are its sums, unless the run was asked to `profile`.

    `tensor_memory_macs` has the multiply-adds of `tcgen05.mma` by opcode; `tensor_columns` is the most
    columns of tensor memory that a CTA had at once.
    """

    by_opcode: Counter[str] = field(default_factory=Counter)
    warp_instructions: int = 0
    thread_instructions: int = 0
    dispatched: int = 0
    by_instruction: Counter[int] = field(default_factory=Counter)
    memory_by_instruction: Mapping[int, MemoryTraffic] | None = None
    tensor_memory_macs: Counter[str] = field(default_factory=Counter)
    tensor_columns: int = 0

    @property
    def tensor_flops(self) -> int:
        """Operations of `mma`, `wmma.mma`, `wgmma` and `tcgen05.mma`: a multiplication and an addition for
        each product of two elements. Operations on integers and single bits count, too.
        """
        by_opcode = sum(count * _tensor_flops(opcode) for opcode, count in self.by_opcode.items())
        return by_opcode + 2 * self.tensor_memory_macs.total()

    @property
    def shared_requests(self) -> int | None:
        """Accesses of warps to shared memory."""
        return self._sum("shared_requests")

    @property
    def shared_wavefronts(self) -> int | None:
        """Wavefronts of accesses to shared memory: clocks in which the banks serve an access of a warp."""
        return self._sum("shared_wavefronts")

    @property
    def shared_conflicts(self) -> int | None:
        """Wavefronts that bank conflicts cost."""
        return self._sum("shared_conflicts")

    @property
    def global_requests(self) -> int | None:
        """Accesses of warps to global memory."""
        return self._sum("global_requests")

    @property
    def global_sectors_read(self) -> int | None:
        """Sectors of 32 bytes read from global memory, also by atomic operations."""
        return self._sum("sectors_read")

    @property
    def global_sectors_written(self) -> int | None:
        """Sectors of 32 bytes written to global memory, also by atomic operations."""
        return self._sum("sectors_written")

    @property
    def global_sectors_excess(self) -> int | None:
        """Sectors beyond those that would hold the bytes of each request side by side."""
        return self._sum("sectors_excess")

    @property
    def traffic_not_counted(self) -> tuple[str, ...]:
        """Opcodes that ran but whose traffic is not counted: bulk copies, `wgmma`, and products and copies of
        `tcgen05`.
        """
        return tuple(sorted(filter(_UNSEEN.match, self.by_opcode)))

    def worst(self, by: str, most: int = 5) -> list[tuple[int, MemoryTraffic]]:
        """The instructions, at most `most`, with the largest figure `by`, such as
        `shared_conflicts` or `sectors_excess`; those with 0 are left out.
        """
        figures = [(getattr(t, by), n, t) for n, t in (self.memory_by_instruction or {}).items()]
        ordered = sorted(figures, key=lambda item: (-item[0], item[1]))
        return [(n, t) for figure, n, t in ordered[:most] if figure]

    def _sum(self, figure: str) -> int | None:
        if self.memory_by_instruction is None:
            return None
        figures: list[int] = [getattr(t, figure) for t in self.memory_by_instruction.values()]
        return sum(figures)


_TENSOR: Final = re.compile(r"(mma|wmma\.mma|wgmma\.mma_async)\..*?\bm(\d+)n(\d+)k(\d+)\b")
_UNSEEN: Final = re.compile(
    r"cp(\.reduce)?\.async\.bulk\.(?!commit|wait|prefetch)|wgmma\.mma|tcgen05\.(mma|cp)"
)
_WARPGROUP: Final = 4  # warps that execute a wgmma together


def _tensor_flops(opcode: str) -> int:
    """Operations of one warp in a matrix instruction; 0 for other instructions."""
    shape = _TENSOR.match(opcode)
    if shape is None:
        return 0
    m, n, k = (int(size) for size in shape.groups()[1:])
    flops = 2 * m * n * k
    if shape[1].startswith("wgmma"):
        return flops // _WARPGROUP
    # Each quarter of a warp multiplies its own matrices: PTX ISA, "mma.m8n8k4 with .f16".
    quarters = 4 if (m, n, k) == (8, 8, 4) and ".f16" in opcode else 1
    return flops * quarters


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a run, besides the arrays that it was given, which hold the computed values.

    `printed` is the text that the kernel printed; `variables` are the bytes of the module's
    variables in global and constant memory by name, `[n]` uint8: views, not copies.
    """

    counters: Counters
    reports: tuple[Report, ...]
    printed: str = ""
    variables: Mapping[str, np.ndarray[Any, np.dtype[Any]]] = field(default_factory=dict)


def where_from(instr: Instr) -> str:
    """An instruction's text and origin: `add.s32 %r1, %r2, 3; (forward.py:41)`.

    The origin is the source line of the language that the PTX was compiled from, if the PTX says it
    (`.loc`): `(saxpy.cu:12: out[i] = a * x[i];)`; else the line of the PTX text.
    """
    text = render_instr(instr)
    if instr.origin is None:
        return text
    if instr.origin.location is not None:
        return f"{text} ({instr.origin.location})"
    if instr.origin.code is None:
        return f"{text} (line {instr.origin.line})"
    file = instr.origin.file.replace("\\", "/").rpartition("/")[2]
    return f"{text} ({file}:{instr.origin.line})"


def origin_of(instr: Instr) -> Origin:
    """The origin of an instruction, `NOWHERE` if it has none."""
    return instr.origin or NOWHERE
