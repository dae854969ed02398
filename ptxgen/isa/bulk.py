"""Bulk copies (PTX ISA, "Data Movement: Bulk Asynchronous Copy"), and `st.bulk`.

One thread starts a copy of many bytes; it completes on an mbarrier or in a bulk group of the
thread. `ptxgen.isa.tensor_copies` has those of boxes of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.async_copy import COPY
from ptxgen.isa.atomics import UPDATES
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.memory import canonical_space
from ptxgen.isa.spec import Effect, Gate, gate
from ptxgen.isa.undefined import moves
from ptxgen.types import ScalarType, b32, b64, bf16, f16, f32, f64, s32, s64, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MOVEMENT: Final = "Data Movement and Conversion Instructions"
SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"
_SM90: Final[dict[str, Any]] = {"ptx": (8, 0), "sm": 90}
_BULK: Final = f"{COPY}: Bulk copy"

# The destinations of copies with completion on an mbarrier; the CTA itself has its own name since
# PTX 8.6.
NEAR: Final[Mapping[str, Gate | None]] = {"shared::cluster": None, "shared::cta": gate(ptx=(8, 6), sm=90)}
FAR: Final = ("shared::cluster",)
COUNTED: Final = "mbarrier::complete_tx::bytes"
# Modifiers and operands of copies with or without a cache policy, to one CTA or to several.
HINT: Final = each("hinted hint policy", ("", "", ""), ("_hint", ".L2::cache_hint", ", policy:u64"))
TARGETS: Final = each(
    "cast multicast mask where to",
    ("", "", "", "", NEAR),
    ("_multicast", ".multicast::cluster", ", ctas:u16", " in each CTA of the cluster in the mask ctas", FAR),
)


# The operations of reductions with their types, in shared and in global memory.
_SHARED: Final = each(
    "first op type",
    ("add", ("add",), (u32, s32, u64)),
    ("min", ("min", "max"), (u32, s32)),
    ("inc", ("inc", "dec"), (u32,)),
    ("and", ("and", "or", "xor"), (b32,)),
)
_GLOBAL: Final = each(
    "first op type operation",
    ("add", ("add",), (u32, s32, u64, f32, f64), ".op.type"),
    ("inc", ("inc", "dec"), (u32,), ".op.type"),
    ("min", ("min", "max"), (u32, s32, u64, s64, f16, bf16), ".op.type"),
    ("and", ("and", "or", "xor"), (b32, b64), ".op.type"),
    ("add_noftz", "add", (f16, bf16), ".add.noftz.type"),
)

_TO_GLOBAL: Final = "global.shared::cta.bulk_group"
IN_GROUP: Final = ", in this thread's bulk group"
NEARER: Final = "brought to the L2 cache: a hint"

# The new value in memory from the old one, the copied one, and their type.
REDUCTIONS: Final = {op: UPDATES[op] for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor")}
_INTEGERS: Final = {b32: (u32, s32), b64: (u64, s64)}
# The elements of a tensor that each operation combines: its types in global memory, where those of bits
# stand for the integers of that size.
BOX_REDUCTIONS: Final[Mapping[str, tuple[ScalarType, ...]]] = {
    op: tuple(
        [
            t
            for row in _GLOBAL
            if op in row["op"]
            for type in row["type"]
            for t in _INTEGERS.get(type, (type,))
        ]
    )
    for op in REDUCTIONS
}


def unreduced(op: str, type: ScalarType) -> str:
    """Why the reduction `op` does not combine boxes of a tensor of `type`; empty if it does."""
    types = BOX_REDUCTIONS[op]
    return "" if type in types else f"{op} combines elements of {', '.join(map(str, types))}, got {type}"


def sums_floats(reduce: Any, type: ScalarType) -> bool:
    """Whether `reduce`, one of `REDUCTIONS` or None, adds floating-point numbers: their order shows."""
    return reduce is REDUCTIONS["add"] and type.kind in ("f", "x")


ASYNC: Final[dict[str, Any]] = {"ignores": ("policy", "to"), "effect": Effect.ASYNC, **_SM90}

# ---------------------------------------- copies of consecutive bytes


@inst(
    f"cp.async.bulk.to.global.{COUNTED}<multicast><hint> "
    "[dst:u32], [src:u64], size:u32, [mbar:u32]<mask><policy>",
    TARGETS,
    HINT,
    name="cp_async_bulk_load<cast><hinted>",
    section=f"{_BULK}: cp.async.bulk",
    **ASYNC,
)
def cp_async_bulk_load(
    machine: Machine, dst: Lanes, src: Lanes, size: Lanes, mbar: Lanes, ctas: Lanes | None = None
) -> tuple[()]:
    """Start copying size bytes from src to dst<where>; the mbarrier at mbar in the same CTA counts them."""
    machine.bulk_load(dst, src, size, mbar, ctas)
    return ()


@inst(
    f"<form>.bulk.shared::cluster.shared::cta.{COUNTED}<operation> "
    "[dst:u32], [src:u32], size:u32, [mbar:u32]",
    each(
        "name form operation does",
        ("cp_async_bulk_send", "cp.async", "", "copying size bytes from src to dst in a CTA of the cluster"),
    )
    + times(
        each(
            "name form operation does",
            (
                "cp_reduce_async_bulk_send_<first>",
                "cp.reduce.async",
                ".op.type",
                "combining the values in size bytes at dst, in a CTA of the cluster, with those at src",
            ),
        ),
        _SHARED,
    ),
    section=f"{_BULK}: <form>.bulk",
    **ASYNC,
)
def cp_async_bulk_send(
    machine: Machine,
    dst: Lanes,
    src: Lanes,
    size: Lanes,
    mbar: Lanes,
    *,
    op: str = "",
    type: ScalarType = b64,
) -> tuple[()]:
    """Start <does>; the mbarrier at mbar in that CTA counts them."""
    machine.bulk_send(dst, src, size, mbar, REDUCTIONS.get(op), type)
    return ()


@inst(
    "<form>.<way><hint><operation> <operands>, size:u32<policy>",
    HINT,
    each(
        "name form way operation operands does",
        (
            "cp_async_bulk_store<hinted>",
            "cp.async.bulk",
            _TO_GLOBAL,
            "",
            "[dst:u64], [src:u32]",
            f"Start copying size bytes from src to dst{IN_GROUP}",
        ),
        (
            "cp_async_bulk_prefetch<hinted>",
            "cp.async.bulk.prefetch",
            "L2.global",
            "",
            "[src:u64]",
            f"Have size bytes at src {NEARER}",
        ),
        (
            "cp_reduce_async_bulk_<first><hinted>",
            "cp.reduce.async.bulk",
            _TO_GLOBAL,
            _GLOBAL,
            "[dst:u64], [src:u32]",
            f"Start combining the values in size bytes at dst with those at src{IN_GROUP}",
        ),
    ),
    section=f"{_BULK}: <form>",
    **ASYNC,
)
def cp_async_bulk_store(
    machine: Machine,
    src: Lanes,
    size: Lanes,
    dst: Lanes | None = None,
    *,
    op: str = "",
    type: ScalarType = b64,
) -> tuple[()]:
    """<does>."""
    if dst is not None:  # without dst the instruction is a prefetch
        machine.bulk_store(dst, src, size, REDUCTIONS.get(op), type)
    return ()


# ---------------------------------------- values of registers


@inst(
    f"red.async.relaxed.cluster.shared::cluster.{COUNTED}.op.type [dst:u32], a, [mbar:u32]",
    _SHARED,
    name="red_async_<first>",
    effect=Effect.ASYNC,
    ptx=(8, 1),
    sm=90,
    undefined=moves("a"),
    section=f"{SYNCHRONIZATION}: red.async",
)
def red_async(machine: Machine, dst: Lanes, a: Lanes, mbar: Lanes, *, op: str, type: ScalarType) -> tuple[()]:
    """Start combining the value at dst, in a CTA of the cluster, with a; the mbarrier at mbar in
    that CTA counts the bytes.
    """
    machine.send_values(dst, (a,), mbar, REDUCTIONS[op], type)
    return ()


@inst(
    f"st.async{{.weak}}.shared::cluster.{COUNTED}{{.vec}}.type [dst:u32], a*vec, [mbar:u32]",
    each("vec type", (("v2", "v4"), (b32, u32, s32, f32)), (("v2",), (b64, u64, s64, f64))),
    name="st_async",
    ignores=("weak",),
    effect=Effect.ASYNC,
    ptx=(8, 1),
    sm=90,
    undefined=moves("a"),
    section=f"{MOVEMENT}: st.async",
)
def st_async(
    machine: Machine, dst: Lanes, a: Any, mbar: Lanes, *, vec: str | None, type: ScalarType
) -> tuple[()]:
    """Start writing a to dst in a CTA of the cluster; the mbarrier at mbar in that CTA counts the bytes."""
    machine.send_values(dst, a if vec else (a,), mbar, None, type)
    return ()


# ---------------------------------------- zeros


@inst(
    "st.bulk{.weak}{.space} [addr:u64], size:u64, 0",
    name="st_bulk",
    space=("shared::cta",),
    ignores=("weak",),
    effect=Effect.WRITE,
    ptx=(8, 6),
    sm=100,
    section=f"{MOVEMENT}: st.bulk",
)
def st_bulk(machine: Machine, addr: Lanes, size: Lanes, *, space: str | None) -> tuple[()]:
    """Write size bytes of zeros, a multiple of 8, to shared memory at addr on."""
    machine.store_zeros(canonical_space(space), addr, size)
    return ()


# ---------------------------------------- bulk groups


@inst(
    "cp.async.bulk.commit_group",
    name="cp_async_bulk_commit_group",
    effect=Effect.ASYNC,
    section=f"{_BULK}: cp.async.bulk.commit_group",
    **_SM90,
)
def cp_async_bulk_commit_group(machine: Machine) -> tuple[()]:
    """Make one bulk group of all bulk copies to global memory that this thread started since its
    last commit.
    """
    machine.bulk_commit()
    return ()


@inst(
    "cp.async.bulk.wait_group{.read} n:imm",
    name="cp_async_bulk_wait_group",
    effect=Effect.ASYNC,
    section=f"{_BULK}: cp.async.bulk.wait_group",
    **_SM90,
)
def cp_async_bulk_wait_group(machine: Machine, n: int, *, read: bool) -> tuple[()]:
    """Wait until at most the n newest bulk groups of this thread are incomplete; with .read, only
    until all others have read their sources.
    """
    machine.bulk_wait(n, read)
    return ()
