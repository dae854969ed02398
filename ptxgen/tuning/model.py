"""What a launch costs without a GPU, by a run on the interpreter under its sanitizers, the assembler's
resources, and the models of `ptxgen.report`.

The clocks of a launch are those of its busiest unit: of a unit of a multiprocessor its clocks for a CTA
(`ptxgen.report.limits`) times the CTAs of the multiprocessor that has most of them, of memory those for the
bytes of all CTAs. Of a kernel whose main loop multiplies on tensor
cores by `mma` or `wgmma`, tensor cores count as busy only for the share of clocks that the issue model says
(`ptxgen.report.issue_model`). Latencies of memory are not modelled: a kernel with fewer warps than
`HIDING_WARPS` on a multiprocessor ranks after those with more, and one that spills after those that do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ptxgen import interpreter
from ptxgen.errors import BackendError
from ptxgen.interpreter.recording import Recorder
from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.launch import Call, Extents, copies, interpreted
from ptxgen.rates import DEVICES, OF_TENSOR_MEMORY, Device
from ptxgen.report.data import Limits
from ptxgen.report.issue_model import modelled
from ptxgen.report.limits import limits
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.assembler_log import KernelUsage
from ptxgen.runtime.sass import find_disassembler, main_loop
from ptxgen.target import Target
from ptxgen.tuning.expected import Expected
from ptxgen.tuning.ranking import Candidate

HIDING_WARPS: Final = 8  # two for each scheduler, so that one computes while the other waits
_TENSOR, _MEMORY = "tensor cores", "global memory"  # names of units in `Limits`


def device_of(target: Target) -> Device | None:
    """The device whose multiprocessors and memory the model takes; None for a target without one."""
    return DEVICES.get(target.sm) or OF_TENSOR_MEMORY.get(target.sm)


def rank_of(candidate: Candidate) -> tuple[bool, int, bool, float, int]:
    """The sort key of candidates that the model has judged; the best candidate has the least key."""
    hidden = candidate.warps < HIDING_WARPS
    return (
        not candidate.works, candidate.spilled_bytes, hidden, candidate.cost, candidate.shared_bytes
    )  # fmt: skip


def by_model(
    configuration: str, built: BuiltFunction, grid: Extents, call: Call, expected: Expected
) -> Candidate:
    """The candidate of a built kernel, run on copies of the arrays of a call. Raises what the run and the
    assembler raise.
    """
    run = copies(call)
    result = interpreter.run(
        built.module,
        grid=grid,
        block=built.block,
        args=interpreted(built, run),
        dynamic_smem=built.kernel.dynamic_shared_bytes,
        cluster=built.attributes.cluster,
        sanitize=True,
        profile=True,
        raise_on_report=False,
    )
    problem = str(result.reports[0]) if result.reports else expected.problem(run)
    code = _assembled(built)
    needs = built.resources
    shared = needs.static_shared + built.kernel.dynamic_shared_bytes
    registers = needs.live_registers if code is None else code.usage.registers
    ctas = grid[0] * grid[1] * grid[2]
    bulk = _bulk_bytes(built, grid, call)
    of = limits(built.target, built.threads, registers, shared, ctas, result.counters, bulk)
    unit, clocks = _busiest(built, of, code, ctas)
    spilled = 0 if code is None else code.usage.spill_store_bytes + code.usage.spill_load_bytes
    return Candidate(
        configuration,
        built.sha256,
        built.threads,
        registers,
        spilled,
        shared,
        of.warps_per_sm,
        clocks,
        unit,
        problem,
    )


@dataclass(frozen=True)
class _Code:
    """The resources of an assembled kernel, and its cubin."""

    usage: KernelUsage
    cubin: bytes


def _assembled(built: BuiltFunction) -> _Code | None:
    """The assembled kernel, a cubin; None if no assembler is installed. Raises `AssemblerError`."""
    try:
        assembler = find_assembler(target=built.target.name)
    except BackendError:
        return None
    assembly = assembler.assemble(built.text, built.target.name)
    return _Code(assembly.kernel(built.kernel.name), assembly.cubin)


def _bulk_bytes(built: BuiltFunction, grid: Extents, call: Call) -> int:
    """The bytes that bulk copies move for the first CTA, which the counters of a run leave out."""
    if "cp.async.bulk" not in built.text:
        return 0
    recorder = Recorder()
    interpreter.run(
        built.module,
        grid=grid,
        block=built.block,
        args=interpreted(built, copies(call)),
        dynamic_smem=built.kernel.dynamic_shared_bytes,
        cluster=built.attributes.cluster,
        recorder=recorder,
    )
    return recorder.recording.bulk_bytes


def _busiest(built: BuiltFunction, of: Limits, code: _Code | None, ctas: int) -> tuple[str, float]:
    """The unit that a launch of these CTAs keeps busy for most clocks, and these clocks."""
    device = device_of(built.target)
    even = ctas if device is None else ctas / device.multiprocessors
    rounds = {_MEMORY: even, _TENSOR: math.ceil(even) / _tensor_share(built, of, code)}
    clocks = {b.unit: b.cycles * rounds.get(b.unit, math.ceil(even)) for b in of.bounds}
    unit = max(clocks, key=lambda name: clocks[name], default="")
    return unit, clocks.get(unit, 0.0)


def _tensor_share(built: BuiltFunction, of: Limits, code: _Code | None) -> float:
    """The share of clocks in which the main loop keeps tensor cores busy, 0 to 1; 1 if that is not known."""
    if code is None or not any(b.unit == _TENSOR for b in of.bounds):
        return 1.0
    try:
        loop = main_loop(find_disassembler().instructions(code.cubin))
        busy = None if loop is None else modelled(loop, built.target, built.threads, max(1, of.ctas_per_sm))
    except (BackendError, ValueError):  # no disassembler, or none of its machine code
        return 1.0
    return busy.tensor if busy is not None and busy.tensor > 0 else 1.0
