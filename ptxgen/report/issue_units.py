"""Units that execute machine instructions, and for how many clocks each is busy.

Clocks of a warp instruction on one of the four schedulers of a multiprocessor:

* tensor cores, f32, integers, special functions: 32 lanes, or the multiply-adds, by the rates of
  `ptxgen.rates`;
* shared memory serves 128 bytes in a clock to all four schedulers (`ptxgen.rates`, `WAVEFRONTS`).
  What a product of a warpgroup reads of it is in the instruction: B always, A where a descriptor names it,
  a row of K elements being 32 bytes for each type. A chain of products m64n8k16, n16, n32 and n64 with both
  operands in shared memory takes 18, 20, 24 and 32 clocks each by this, and by measurement on an H800
  (github.com/cicuvc/nvidia-sass-document, commit d26f1d88, notes/sm90/arch/wgmma.md, rounds 3 to 5: 21.0,
  22.8, 27.0 and 35.3 with 110 clocks for the whole of 32 products in them, 20.0 in longer chains of n16).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ptxgen.rates import DEVICES, INTEGER_LANES, SPECIAL_LANES, tensor_factor
from ptxgen.runtime.sass import CLASSES, SassInstr
from ptxgen.target import WARP_SIZE, Target

SCHEDULERS: Final = 4  # of a multiprocessor
WAVEFRONT_BYTES: Final = 128  # of shared memory in a clock of the multiprocessor
_ROW_BYTES: Final = 32  # of an operand of a product of a warpgroup: its K elements
_SHAPE: Final = re.compile(r"\.(\d+)x(\d+)x\d+")
_WRITES: Final = re.compile(r"(?:U?P\w+, )?R\d+")


class Unit(enum.Enum):
    """A unit that executes instructions; `NONE` (branches, barriers, uniform integers) is never waited
    for.
    """

    TENSOR = "tensor cores"
    F32 = "f32"
    INTEGER = "integers"
    SPECIAL = "special functions"
    MEMORY = "shared memory"
    NONE = "none"


OF_WARPGROUPS: Final = ("HGMMA", "QGMMA")  # products of 16 bits, and of fp8
# Products, loads, stores, copies and commits of `tcgen05`, whose clocks are not known.
IN_TENSOR_MEMORY: Final = ("UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA", *CLASSES["tensor memory"])
_UNITS: Final[Mapping[Unit, tuple[str, ...]]] = {
    Unit.TENSOR: ("HMMA", *OF_WARPGROUPS),
    Unit.SPECIAL: ("MUFU",),
    Unit.F32: ("FADD", "FMUL", "FFMA", "FADD2", "FMUL2", "FFMA2", "HADD2", "HMUL2", "HFMA2"),
    Unit.MEMORY: ("LDSM", "LDS", "STS", "STSM", "LDGSTS", "LDG", "STG", "LDL", "STL", "SHFL", "ATOMS"),
    Unit.NONE: (
        *("BAR", "DEPBAR", "LDGDEPBAR", "BRA", "EXIT", "NOP", "WARPSYNC", "BSSY", "BSYNC", "CALL", "LDC"),
        *("S2R", "CS2R", "R2UR", "WARPGROUP", "SYNCS", "FENCE", "MEMBAR"),
    ),
}


def unit_of(instr: SassInstr) -> Unit:
    """The functional unit that executes an instruction."""
    if instr.name.startswith("U"):
        return Unit.NONE
    return next((unit for unit, names in _UNITS.items() if instr.name in names), Unit.INTEGER)


def clocks_of(instr: SassInstr, target: Target) -> float:
    """The clocks for which a warp instruction keeps its unit of one scheduler busy."""
    unit = unit_of(instr)
    if unit is Unit.TENSOR:
        sm = _known(target)
        return instr.macs * SCHEDULERS / (DEVICES[sm].macs * tensor_factor(_product(instr), sm))
    lanes = {Unit.F32: target.fp32_lanes_per_sm, Unit.INTEGER: INTEGER_LANES, Unit.SPECIAL: SPECIAL_LANES}
    if unit in lanes:
        return WARP_SIZE * SCHEDULERS / lanes[unit]
    return SCHEDULERS * _wavefronts(instr) if unit is Unit.MEMORY else 0.0


def _product(instr: SassInstr) -> str:
    """The PTX opcode of a tensor-core instruction, as `tensor_factor` takes it."""
    word = ".tf32" if ".TF32" in instr.opcode else ".e4m3" if instr.name == "QGMMA" else ""
    return f"{'wgmma' if instr.name in OF_WARPGROUPS else 'mma'}{word}"


def _wavefronts(instr: SassInstr) -> int:
    if instr.name == "LDSM":
        last = instr.opcode.rpartition(".")[2]
        return int(last) if last in ("2", "4") else 1
    if instr.name == "SHFL":
        return 1
    nbytes = 16 if ".128" in instr.opcode else 8 if ".64" in instr.opcode else 4
    return WARP_SIZE * nbytes // WAVEFRONT_BYTES


def _known(target: Target) -> int:
    """The key in `DEVICES` of the device whose rates are used for the target: its number, or the nearest
    below.
    """
    return target.sm if target.sm in DEVICES else max(sm for sm in DEVICES if sm <= target.sm)


def rows_read(instr: SassInstr) -> tuple[int, int]:
    """The bytes of A and of B that a product of a warpgroup reads from shared memory; 0, 0 of others."""
    shape = _SHAPE.search(instr.opcode) if instr.name in OF_WARPGROUPS else None
    if shape is None:
        return 0, 0
    a = int(shape[1]) if "gdesc" in instr.operands.split(",")[1] else 0
    return _ROW_BYTES * a, _ROW_BYTES * int(shape[2])


def copied_bytes(path: Sequence[SassInstr]) -> int:
    """The bytes that tensor copies bring for an iteration of a CTA whose warpgroups each read all of its
    tiles of K and V once, as B of their products.
    """
    return sum(rows_read(instr)[1] for instr in path)


def writes_register(instr: SassInstr) -> bool:
    """Whether a warp instruction, no product of a warpgroup, writes a register of each lane."""
    of = unit_of(instr)
    return of not in (Unit.NONE, Unit.TENSOR) and _WRITES.match(instr.operands) is not None
