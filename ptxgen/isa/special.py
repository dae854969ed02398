"""The special registers (PTX ISA, "Special Registers"): read-only, named like `%tid.x`, read with
`mov`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptxgen.errors import ModifierError, did_you_mean
from ptxgen.isa.spec import ANY, Gate, gate
from ptxgen.types import ScalarType, u32, u64


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """One special register: its name with the `%`, its type, what it holds, and what it needs."""

    name: str
    type: ScalarType
    doc: str
    gate: Gate = ANY


def _vectors() -> list[SpecialRegister]:
    docs = {
        "tid": "the thread's place in its block along {}",
        "ntid": "threads in a block along {}",
        "ctaid": "the block's place in the grid along {}",
        "nctaid": "blocks in the grid along {}",
    }
    return [
        SpecialRegister(f"%{name}.{axis}", u32, doc.format(axis))
        for name, doc in docs.items()
        for axis in "xyz"
    ]


_FERMI: Final = gate(ptx=(2, 0), sm=20)
_MASKS: Final = {
    "eq": "this lane",
    "le": "this and lower lanes",
    "lt": "lower lanes",
    "ge": "this and higher lanes",
    "gt": "higher lanes",
}
_REGISTERS: Final = (
    *_vectors(),
    SpecialRegister("%laneid", u32, "the thread's place in its warp, 0 to 31", gate(ptx=(1, 3))),
    SpecialRegister(
        "%warpid", u32, "the warp's place in its block, which may change", gate(ptx=(1, 3))
    ),
    SpecialRegister("%nwarpid", u32, "the most warps a multiprocessor holds", _FERMI),
    SpecialRegister(
        "%smid", u32, "the multiprocessor that runs the thread, which may change", gate(ptx=(1, 3))
    ),
    SpecialRegister("%nsmid", u32, "an upper bound of %smid", _FERMI),
    SpecialRegister(
        "%gridid", u64, "the number of this launch in its context", gate(ptx=(3, 0), sm=30)
    ),
    *(
        SpecialRegister(f"%lanemask_{k}", u32, f"one bit for {v}", _FERMI)
        for k, v in _MASKS.items()
    ),
    SpecialRegister("%clock", u32, "a counter of cycles, lower 32 bits"),
    SpecialRegister("%clock64", u64, "a counter of cycles", _FERMI),
    SpecialRegister(
        "%globaltimer", u64, "nanoseconds since an arbitrary moment", gate(ptx=(3, 1), sm=30)
    ),
    SpecialRegister(
        "%total_smem_size",
        u32,
        "bytes of shared memory of a block, without what the driver reserves",
        gate(ptx=(4, 1), sm=20),
    ),
    SpecialRegister(
        "%dynamic_smem_size", u32, "bytes of shared memory given at launch", gate(ptx=(4, 1), sm=20)
    ),
)

SPECIALS: Final[dict[str, SpecialRegister]] = {r.name: r for r in _REGISTERS}


def special(name: str) -> SpecialRegister:
    """The register called `name`; raises `ModifierError` with the nearest name otherwise."""
    try:
        return SPECIALS[name]
    except KeyError:
        raise ModifierError(f"no special register {name!r}{did_you_mean(name, SPECIALS)}") from None
