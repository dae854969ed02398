"""The special registers (PTX ISA, "Special Registers"): read-only, named like `%tid.x`, read with
`mov`.
"""

from __future__ import annotations

from typing import Final

from ptxgen.errors import ModifierError, did_you_mean
from ptxgen.isa.spec import ANY, Gate, gate
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, b32, pred, u32, u64


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """One special register: its name with the `%`, its type, a description of its value, and its gate."""

    name: str
    type: ScalarType
    doc: str
    gate: Gate = ANY


def _vectors() -> list[SpecialRegister]:
    docs = {
        "tid": "the thread's index in its block along {}",
        "ntid": "number of threads in a block along {}",
        "ctaid": "the block's index in the grid along {}",
        "nctaid": "number of blocks in the grid along {}",
    }
    return [
        SpecialRegister(f"%{name}.{axis}", u32, doc.format(axis))
        for name, doc in docs.items()
        for axis in "xyz"
    ]


_FERMI: Final = gate(ptx=(2, 0), sm=20)
_RESERVED: Final = gate(ptx=(7, 6), sm=80)
_RESERVED_PARTS: Final = {
    "begin": "the beginning of the driver's part of",
    "end": "the end of the driver's part of",
    "cap": "the bytes of the driver's part of",
    "0": "the beginning of the first piece of the driver's part of",
    "1": "the beginning of the second piece of the driver's part of",
}
_MASKS: Final = {
    "eq": "this lane",
    "le": "this and lower lanes",
    "lt": "lower lanes",
    "ge": "this and higher lanes",
    "gt": "higher lanes",
}
_HOPPER: Final = gate(ptx=(7, 8), sm=90)
_CLUSTER_VECTORS: Final = {
    "clusterid": "the cluster's index in the grid along {}",
    "nclusterid": "number of clusters in the grid along {}",
    "cluster_ctaid": "the block's index in its cluster along {}",
    "cluster_nctaid": "number of blocks in a cluster along {}",
}
_REGISTERS: Final = (
    *_vectors(),
    SpecialRegister("%laneid", u32, "the thread's index in its warp, 0 to 31", gate(ptx=(1, 3))),
    SpecialRegister("%warpid", u32, "the warp's index in its block, which may change", gate(ptx=(1, 3))),
    SpecialRegister("%nwarpid", u32, "the largest number of warps of a multiprocessor", _FERMI),
    SpecialRegister(
        "%smid", u32, "the multiprocessor that runs the thread, which may change", gate(ptx=(1, 3))
    ),
    SpecialRegister("%nsmid", u32, "an upper bound of %smid", _FERMI),
    SpecialRegister("%gridid", u64, "the number of this launch in its context", gate(ptx=(3, 0), sm=30)),
    *(SpecialRegister(f"%lanemask_{k}", u32, f"one bit for {v}", _FERMI) for k, v in _MASKS.items()),
    SpecialRegister("%clock", u32, "a counter of cycles, lower 32 bits"),
    SpecialRegister("%clock64", u64, "a counter of cycles", _FERMI),
    SpecialRegister("%globaltimer", u64, "nanoseconds since an arbitrary moment", gate(ptx=(3, 1), sm=30)),
    SpecialRegister("%clock_hi", u32, "a counter of cycles, upper 32 bits", gate(ptx=(5, 0))),
    SpecialRegister("%globaltimer_lo", u32, "the lower 32 bits of %globaltimer", gate(ptx=(3, 1), sm=30)),
    SpecialRegister("%globaltimer_hi", u32, "the upper 32 bits of %globaltimer", gate(ptx=(3, 1), sm=30)),
    *(SpecialRegister(f"%pm{n}", u32, f"performance monitor {n}, lower 32 bits") for n in range(8)),
    *(
        SpecialRegister(f"%pm{n}_64", u64, f"performance monitor {n}", gate(ptx=(4, 0), sm=50))
        for n in range(8)
    ),
    *(SpecialRegister(f"%envreg{n}", b32, f"driver's register {n}", gate(ptx=(2, 1))) for n in range(32)),
    *(
        SpecialRegister(f"%reserved_smem_offset_{k}", b32, f"{v} shared memory", _RESERVED)
        for k, v in _RESERVED_PARTS.items()
    ),
    SpecialRegister(
        "%current_graph_exec", u64, "the CUDA graph that runs the kernel, or 0", gate(ptx=(8, 0), sm=50)
    ),
    SpecialRegister(
        "%aggr_smem_size",
        u32,
        "bytes of shared memory of a block, including the driver's part",
        gate(ptx=(8, 1), sm=90),
    ),
    SpecialRegister(
        "%total_smem_size",
        u32,
        "bytes of shared memory of a block, without the driver's part",
        gate(ptx=(4, 1), sm=20),
    ),
    SpecialRegister("%dynamic_smem_size", u32, "bytes of dynamic shared memory", gate(ptx=(4, 1), sm=20)),
    *(
        SpecialRegister(f"%{name}.{axis}", u32, doc.format(axis), _HOPPER)
        for name, doc in _CLUSTER_VECTORS.items()
        for axis in "xyz"
    ),
    SpecialRegister("%cluster_ctarank", u32, "the block's rank in its cluster", _HOPPER),
    SpecialRegister("%cluster_nctarank", u32, "number of blocks in a cluster", _HOPPER),
    SpecialRegister("%is_explicit_cluster", pred, "whether the launch asked for clusters", _HOPPER),
)

SPECIALS: Final[dict[str, SpecialRegister]] = {r.name: r for r in _REGISTERS}


def special(name: str) -> SpecialRegister:
    """The register called `name`. Raises `ModifierError`, with the nearest name, if there is none."""
    try:
        return SPECIALS[name]
    except KeyError:
        raise ModifierError(f"no special register {name!r}{did_you_mean(name, SPECIALS)}") from None
