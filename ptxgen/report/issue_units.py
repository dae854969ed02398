"""Units that execute machine instructions, and for how many clocks each is busy.

Clocks of a warp instruction on one of the four schedulers of a multiprocessor:

* tensor cores, f32, integers, special functions: 32 lanes, or the multiply-adds, by the rates of
  `ptxgen.rates`; F2F, which rounds one f32 to f16, is assumed to take a special function's clocks;
* shared memory serves 128 bytes in a clock to all four schedulers (`ptxgen.rates`, `WAVEFRONTS`), on sm_75
  half of that (`WAVEFRONT_CLOCKS`).
  What a product of a warpgroup reads of it is in the instruction: B always, A where a descriptor names it,
  a row of K elements being 32 bytes for each type. A chain of products m64n8k16, n16, n32 and n64 with both
  operands in shared memory takes 18, 20, 24 and 32 clocks each by this, and by measurement on an H800
  (github.com/cicuvc/nvidia-sass-document, commit d26f1d88, notes/sm90/arch/wgmma.md, rounds 3 to 5: 21.0,
  22.8, 27.0 and 35.3 with 110 clocks for the whole of 32 products in them, 20.0 in longer chains of n16).

A product of `tcgen05` is started by one thread and takes the tensor cores of the multiprocessor, in a pair of
CTAs those of both, each of which computes half of the rows. Its instruction descriptor has the shape. Each
CTA reads its rows of A, unless these are in tensor memory, and B, in a pair half of it, 32 bytes of each row,
and 48 where K is 96, at 128 bytes in a clock (FlashAttention-4, arXiv 2603.05451). An instruction on two f32
at once (FFMA2) takes as long as two, since the published rate of f32 of a B200 is that of 128 lanes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ptxgen.isa.mma_descriptor import Product, product_of
from ptxgen.rates import (
    DEVICES,
    EXP2_LANES,
    INTEGER_LANES,
    OF_TENSOR_MEMORY,
    SPECIAL_LANES,
    TENSOR_MEMORY_BYTES,
    WAVEFRONT_CLOCKS,
    tensor_factor,
)
from ptxgen.runtime.sass import IN_TENSOR_MEMORY, SassInstr
from ptxgen.target import WARP_SIZE, Target

SCHEDULERS: Final = 4  # of a multiprocessor
WAVEFRONT_BYTES: Final = 128  # of shared memory in a clock of the multiprocessor
_ROW_BYTES: Final = 32  # of an operand of a product of a warpgroup: its K elements
_K_OF_FP4: Final = 64
_LONG_K: Final = 96  # of fp4, which takes the clocks of the other
_WITH_WEIGHTS: Final = ".WS"  # a product that keeps B, and uses all lanes with less rows
_TF32: Final = 2  # in an instruction descriptor
_LANES: Final = 128  # of tensor memory
_SHAPE: Final = re.compile(r"\.(\d+)x(\d+)x\d+")
_REPEATED: Final = re.compile(r"\.x(\d+)")
_CELLS: Final = re.compile(r"16dp(\d+)bit")  # of a load or store of tensor memory: bits in a row of 16 lanes
_COPIED: Final = re.compile(r"(\d+)dp(\d+)bit")
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
    TENSOR_MEMORY = "tensor memory"
    NONE = "none"


OF_WARPGROUPS: Final = ("HGMMA", "QGMMA")  # products of 16 bits, and of fp8
_ON_PAIRS: Final = ("FADD2", "FMUL2", "FFMA2")  # of f32
_REGISTER_BYTES: Final = 4
_UNITS: Final[Mapping[Unit, tuple[str, ...]]] = {
    Unit.TENSOR: ("HMMA", *OF_WARPGROUPS, *IN_TENSOR_MEMORY),
    Unit.TENSOR_MEMORY: ("LDTM", "STTM"),
    Unit.SPECIAL: ("MUFU", "F2F"),
    Unit.F32: ("FADD", "FMUL", "FFMA", *_ON_PAIRS, "HADD2", "HMUL2", "HFMA2"),
    Unit.MEMORY: ("LDSM", "LDS", "STS", "STSM", "LDGSTS", "LDG", "STG", "LDL", "STL", "SHFL", "ATOMS"),
    Unit.NONE: (
        *("BAR", "DEPBAR", "LDGDEPBAR", "BRA", "EXIT", "NOP", "WARPSYNC", "BSSY", "BSYNC", "CALL", "LDC"),
        *("S2R", "CS2R", "R2UR", "WARPGROUP", "SYNCS", "FENCE", "MEMBAR"),
    ),
}


def unit_of(instr: SassInstr) -> Unit:
    """The functional unit that executes an instruction."""
    if instr.name.startswith("U") and instr.name not in IN_TENSOR_MEMORY:
        return Unit.NONE
    return next((unit for unit, names in _UNITS.items() if instr.name in names), Unit.INTEGER)


def clocks_of(instr: SassInstr, target: Target) -> float:
    """The clocks for which a warp instruction keeps its unit of one scheduler busy; of a product of `tcgen05`
    the tensor cores of all four. Raises `ValueError` as `product_in_tensor_memory` does.
    """
    unit = unit_of(instr)
    if instr.name in IN_TENSOR_MEMORY:
        return _clocks_in_tensor_memory(instr, target)
    if unit is Unit.TENSOR:
        sm = _known(target)
        return instr.macs * SCHEDULERS / (DEVICES[sm].macs * tensor_factor(_product(instr), sm))
    if unit is Unit.TENSOR_MEMORY:
        return WARP_SIZE * _REGISTER_BYTES * _registers(instr) / TENSOR_MEMORY_BYTES
    special = EXP2_LANES.get(target.sm, SPECIAL_LANES) if ".EX2" in instr.opcode else SPECIAL_LANES
    lanes = {Unit.F32: target.fp32_lanes_per_sm, Unit.INTEGER: INTEGER_LANES, Unit.SPECIAL: special}
    if unit in lanes:
        return WARP_SIZE * SCHEDULERS * (1 + (instr.name in _ON_PAIRS)) / lanes[unit]
    each = SCHEDULERS * WAVEFRONT_CLOCKS.get(target.sm, 1)
    return each * _wavefronts(instr) if unit is Unit.MEMORY else 0.0


def product_in_tensor_memory(instr: SassInstr) -> Product:
    """What an instruction of `tcgen05` multiplies. Raises `ValueError` if its instruction descriptor is no
    literal, and `DescriptorError` if it is none that the instruction takes.
    """
    bits = instr.literal
    if bits is None:
        raise ValueError(
            f"{instr.opcode} {instr.operands}: expected a literal instruction descriptor, which has the "
            "shape of the product, got a register that is computed; call with_literals first, or emit a "
            "literal"
        )
    kinds = {
        "UTCHMMA": "tf32" if bits >> 7 & 7 == _TF32 else "f16",
        "UTCQMMA": "mxf8f6f4" if "tmem" in instr.operands.rpartition("idesc")[2] else "f8f6f4",
        "UTCOMMA": "mxf4nvf4",
        "UTCIMMA": "i8",
    }
    group = 2 if ".2CTA" in instr.opcode else 1
    return product_of(kinds[instr.name], bits, group=group, ws=_WITH_WEIGHTS in instr.opcode)


def _clocks_in_tensor_memory(instr: SassInstr, target: Target) -> float:
    """The clocks of a product on the tensor cores of a multiprocessor, in a pair of those of both."""
    of = product_in_tensor_memory(instr)
    device = OF_TENSOR_MEMORY.get(target.sm)
    if device is None:
        known = " and ".join(f"sm_{sm}" for sm in OF_TENSOR_MEMORY)
        raise ValueError(f"the rates of tcgen05 are known for {known}, not for {target.name}")
    k = of.k >> of.sparse
    leaves_lanes = of.group == 1 and _WITH_WEIGHTS not in instr.opcode
    rows = max(of.m, _LANES) if leaves_lanes else of.m // of.group
    macs = rows * of.n * (_K_OF_FP4 if k == _LONG_K else k)
    return macs / (device.macs * tensor_factor(f"tcgen05.mma.kind::{of.kind}", target.sm))


def copied_to_tensor_memory(instr: SassInstr) -> int:
    """The bytes of shared memory that a copy of `tcgen05` reads; 0 of others."""
    shape = _COPIED.search(instr.opcode) if instr.name == "UTCCP" else None
    return 0 if shape is None else int(shape[1]) * int(shape[2]) // 8


def _registers(instr: SassInstr) -> int:
    """The registers of a thread that a load or store of tensor memory moves."""
    repeated, cells = _REPEATED.search(instr.opcode), _CELLS.search(instr.opcode)
    of_one = max(int(cells[1]) // 64, 1) if cells else 1
    return of_one * int(repeated[1] if repeated else 1)


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
    """The bytes of A and of B that a product of a warpgroup, or a CTA's share of a product of `tcgen05`,
    reads from shared memory; 0, 0 of others. Raises `ValueError` as `product_in_tensor_memory` does.
    """
    if instr.name in IN_TENSOR_MEMORY:
        of = product_in_tensor_memory(instr)
        row = _ROW_BYTES * 3 // 2 if of.k >> of.sparse == _LONG_K else _ROW_BYTES
        a = 0 if instr.operands.startswith("tmem") else of.m // of.group
        return row * a, (row << of.sparse) * of.n // of.group
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
