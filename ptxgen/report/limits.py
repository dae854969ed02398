"""The limits of a target and how much of them a kernel uses: occupancy, an issue model, a roofline.

The model divides the work of a run's warps on each unit of a multiprocessor by the unit's rate. It knows no
latency and no order; the busiest unit is a lower bound of the time. PTX is counted, of which the assembler
makes more or fewer instructions.
"""

from __future__ import annotations

import re
from typing import Final

from ptxgen.interpreter import Counters
from ptxgen.isa.tensor_memory import COLUMNS
from ptxgen.rates import (
    DEVICES,
    EXP2_LANES,
    INTEGER_LANES,
    ISSUED,
    OF_TENSOR_MEMORY,
    SOURCES,
    SPECIAL_LANES,
    WAVEFRONT_CLOCKS,
    WAVEFRONTS,
    Device,
    tensor_factor,
)
from ptxgen.report.classes import FLOAT, INTEGER, SPECIAL, class_of
from ptxgen.report.data import Bound, Limits, Roofline
from ptxgen.target import WARP_SIZE, Target

_SECTOR_BYTES: Final = 32
_MACS_TO_FLOPS: Final = 2
_FUSED: Final = re.compile(r"(fma|mad)\.")
_MOVES: Final = re.compile(r"(abs|neg|min|max|set|copysign|testp)\b")
_PAIRS: Final = re.compile(r"\.(f16x2|bf16x2|f32x2)\b")
_MATRIX: Final = re.compile(r"(?:mma|wmma\.mma|wgmma\.mma_async)\.")


def limits(
    target: Target,
    threads: int,
    registers: int,
    shared_bytes: int,
    ctas: int,
    counters: Counters | None,
    bulk_bytes: int = 0,
) -> Limits:
    """The limits of a kernel of `threads` threads with these registers per thread and bytes of shared memory;
    `ctas` ran and had these `counters`, None without a run. `bulk_bytes` are what bulk copies move for one
    CTA, which the counters leave out.
    """
    fit = target.blocks_per_sm_for(threads, registers, shared_bytes)
    columns = 0 if counters is None else counters.tensor_columns
    by_columns = COLUMNS // columns if columns else fit
    warps = -(-threads // WARP_SIZE)
    device = DEVICES.get(target.sm) or OF_TENSOR_MEMORY.get(target.sm)
    bounds: tuple[Bound, ...] = ()
    roofline = None
    notes = [*SOURCES]
    if counters is not None:
        bounds = _bounds(target, device, counters, ctas, bulk_bytes)
        notes += [
            "counts are of PTX instructions in the run, divided by its CTAs; a warp counts whole, also if "
            "some of its threads are inactive",
            "units work in parallel and never wait; global memory has no caches, so that each request "
            "moves its own sectors",
        ]
        if device is None:
            notes.append(f"no device is known here for {target.name}: no roofline, no tensor cores")
        else:
            roofline = _roofline(target, device, counters, ctas, bulk_bytes)
            notes.append(
                f"the device is {device.name}: {device.multiprocessors} multiprocessors at "
                f"{device.mhz} MHz, {device.gb_per_s} GB/s"
            )
        if target.sm in OF_TENSOR_MEMORY:
            notes.append("mma.sync counts at the rate of tcgen05.mma, which it does not reach")
    by = "tensor memory" if by_columns < fit else _limited_by(target, threads, registers, shared_bytes, fit)
    fit = min(fit, by_columns)
    return Limits(fit, fit * warps, target.warps_per_sm, by, bounds, roofline, tuple(notes))


def _limited_by(target: Target, threads: int, registers: int, shared_bytes: int, fit: int) -> str:
    """The resources that limit how many CTAs a multiprocessor holds."""
    if target.blocks_per_sm_for(threads, 0, 0) == fit:
        return "its warps or CTAs"
    needs = {"registers": (registers, 0), "shared memory": (0, shared_bytes)}
    names = [k for k, (r, s) in needs.items() if target.blocks_per_sm_for(threads, r, s) == fit]
    return " and ".join(names) or "registers and shared memory together"


def _bounds(
    target: Target, device: Device | None, counters: Counters, ctas: int, bulk_bytes: int
) -> tuple[Bound, ...]:
    by_class = {c: _warps(counters, c) / ctas for c in (FLOAT, SPECIAL, INTEGER)}
    lanes = target.fp32_lanes_per_sm
    bounds = [
        _bound("issue", counters.warp_instructions / ctas, "instructions", ISSUED, "of a warp a clock"),
        _bound("floating point", by_class[FLOAT], "instructions", lanes / WARP_SIZE, "of a warp a clock"),
        _bound(
            "exp2 and others",
            by_class[SPECIAL],
            "instructions",
            EXP2_LANES.get(target.sm, SPECIAL_LANES) / WARP_SIZE,
            "of a warp a clock",
        ),
        _bound("integers", by_class[INTEGER], "instructions", INTEGER_LANES / WARP_SIZE, "of a warp a clock"),
    ]
    wavefronts = counters.shared_wavefronts or 0
    rate = WAVEFRONTS / WAVEFRONT_CLOCKS.get(target.sm, 1)
    bounds.append(_bound("shared memory", wavefronts / ctas, "wavefronts", rate, "a clock"))
    if device is not None:
        macs = _equal_macs(counters, target.sm) / ctas
        bounds.append(_bound("tensor cores", macs, "multiply-adds of f16", device.macs, "a clock"))
        nbytes = _bytes(counters, ctas, bulk_bytes)
        bounds.append(
            _bound("global memory", nbytes, "bytes", device.bytes_per_clock, f"a clock, {device.name}")
        )
    return tuple(sorted((b for b in bounds if b.amount), key=lambda b: -b.cycles))


def _bound(unit: str, amount: float, of: str, rate: float, words: str) -> Bound:
    return Bound(unit, amount, of, f"{rate:.4g} {words}", amount / rate)


def _warps(counters: Counters, wanted: int) -> int:
    return sum(count for opcode, count in counters.by_opcode.items() if class_of(opcode) == wanted)


def _equal_macs(counters: Counters, sm: int) -> float:
    """The multiply-adds of matrix instructions, as the number of f16 multiply-adds that take the same
    time.
    """
    total = 0.0
    for opcode, count in counters.by_opcode.items():
        if _MATRIX.match(opcode):
            one = Counters()
            one.by_opcode[opcode] = count
            total += one.tensor_flops / _MACS_TO_FLOPS / tensor_factor(opcode, sm)
    in_tensor_memory = counters.tensor_memory_macs.items()
    return total + sum(macs / tensor_factor(opcode, sm) for opcode, macs in in_tensor_memory)


def _bytes(counters: Counters, ctas: int, bulk_bytes: int) -> float:
    sectors = (counters.global_sectors_read or 0) + (counters.global_sectors_written or 0)
    return sectors * _SECTOR_BYTES / ctas + bulk_bytes


def _roofline(
    target: Target, device: Device, counters: Counters, ctas: int, bulk_bytes: int
) -> Roofline | None:
    nbytes = _bytes(counters, ctas, bulk_bytes)
    simple = sum(_flops(opcode) * count for opcode, count in counters.by_opcode.items()) / ctas
    tensor = counters.tensor_flops / ctas
    if not nbytes or not simple + tensor:
        return None
    return Roofline(
        device.name,
        simple + tensor,
        tensor,
        nbytes,
        float(_MACS_TO_FLOPS * target.fp32_lanes_per_sm),
        float(_MACS_TO_FLOPS * device.macs),
        device.bytes_per_clock,
    )


def _flops(opcode: str) -> int:
    """Floating-point operations of a warp in an instruction other than a matrix instruction."""
    if class_of(opcode) not in (FLOAT, SPECIAL) or _MOVES.match(opcode):
        return 0
    pairs = 2 if _PAIRS.search(opcode) else 1
    return WARP_SIZE * pairs * (_MACS_TO_FLOPS if _FUSED.match(opcode) else 1)
