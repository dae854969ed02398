"""Data movement and memory (PTX ISA, "Data Movement and Conversion", "Parallel Synchronization").

Addresses: every address operand is declared u64; in shared memory a 32-bit register holds one just
as well, and the table's readers accept either. Without a state space an address is generic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.spec import Effect, gate, inst
from ptxgen.types import (
    b8,
    b16,
    b32,
    b64,
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    pred,
    s8,
    s16,
    s32,
    s64,
    u8,
    u16,
    u32,
    u64,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.types import ScalarType

MOVEMENT: Final = "Data Movement and Conversion Instructions"
SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"
NARROW: Final = (f32, b32, u32, s32, b16, u16, s16, b8, u8, s8)  # up to four in one 16-byte access
WIDE: Final = (b64, u64, s64, f64)  # up to two
LOAD_SPACES: Final = ("global", "shared", "param", "const", "local")
STORE_SPACES: Final = ("global", "shared", "local")
_FERMI: Final = gate(ptx=(2, 0), sm=20)
LOAD_CACHE: Final = dict.fromkeys(("ca", "cg", "cs", "lu", "cv"), _FERMI)
STORE_CACHE: Final = dict.fromkeys(("wb", "cg", "cs", "wt"), _FERMI)
GENERIC: Final = "generic"

# ---------------------------------------- mov


@inst(
    "mov.type d, a",
    type=(u32, s32, u64, s64, f32, f64, b32, b64, u16, s16, b16, pred),
    section=f"{MOVEMENT}: mov",
)
def mov(a: Lanes) -> Lanes:
    """d = a: a register, a literal, a special register, or the address of a variable."""
    return a


@inst("mov.b32 d, a:b16*2", name="pack", section=f"{MOVEMENT}: mov")
def pack_b32_b16(a: tuple[Lanes, ...]) -> Lanes:
    """d = the elements of a side by side, the first in the lowest bits."""
    return _packed(a, np.dtype(np.uint32))


@inst("mov.b64 d, a:b32*2", name="pack", section=f"{MOVEMENT}: mov")
def pack_b64_b32(a: tuple[Lanes, ...]) -> Lanes:
    """d = the elements of a side by side, the first in the lowest bits."""
    return _packed(a, np.dtype(np.uint64))


@inst("mov.b64 d, a:b16*4", name="pack", section=f"{MOVEMENT}: mov")
def pack_b64_b16(a: tuple[Lanes, ...]) -> Lanes:
    """d = the elements of a side by side, the first in the lowest bits."""
    return _packed(a, np.dtype(np.uint64))


@inst("mov.b32 d:b16*2, a", name="unpack", section=f"{MOVEMENT}: mov")
def unpack_b32_b16(a: Lanes) -> tuple[Lanes, ...]:
    """d = the parts of a, the lowest bits first."""
    return _unpacked(a, 2)


@inst("mov.b64 d:b32*2, a", name="unpack", section=f"{MOVEMENT}: mov")
def unpack_b64_b32(a: Lanes) -> tuple[Lanes, ...]:
    """d = the parts of a, the lowest bits first."""
    return _unpacked(a, 2)


@inst("mov.b64 d:b16*4, a", name="unpack_b16", section=f"{MOVEMENT}: mov")
def unpack_b64_b16(a: Lanes) -> tuple[Lanes, ...]:
    """d = the parts of a, the lowest bits first."""
    return _unpacked(a, 4)


def _packed(parts: tuple[Lanes, ...], dtype: np.dtype[np.generic]) -> Lanes:
    step = 8 * dtype.itemsize // len(parts)
    whole = parts[0].astype(dtype)
    for n, part in enumerate(parts[1:], 1):
        whole = np.bitwise_or(whole, np.left_shift(part.astype(dtype), dtype.type(n * step)))
    return whole


def _unpacked(whole: Lanes, count: int) -> tuple[Lanes, ...]:
    step = 8 * whole.dtype.itemsize // count
    part = np.dtype(f"u{whole.dtype.itemsize // count}")
    return tuple(
        np.right_shift(whole, whole.dtype.type(n * step)).astype(part) for n in range(count)
    )


# ---------------------------------------- ld and st


def _load(machine: Machine, space: str, addr: Lanes, type: ScalarType, vec: str | None) -> Any:
    values = machine.load(space, addr, type, int(vec[1:]) if vec else 1)
    return values if vec else values[0]


@inst(
    "ld.space{.cop}{.vec}.type d*vec, [addr:u64]",
    space=LOAD_SPACES, cop=LOAD_CACHE, vec=("v2", "v4"), type=NARROW,
    effect=Effect.READ, section=f"{MOVEMENT}: ld",
)  # fmt: skip
def ld(
    machine: Machine, addr: Lanes, *, space: str, cop: str | None, vec: str | None, type: ScalarType
) -> Any:
    """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches."""
    del cop
    return _load(machine, space, addr, type, vec)


@inst(
    "ld.space{.cop}{.vec}.type d*vec, [addr:u64]",
    space=LOAD_SPACES, cop=LOAD_CACHE, vec=("v2",), type=WIDE,
    effect=Effect.READ, section=f"{MOVEMENT}: ld",
)  # fmt: skip
def ld_wide(
    machine: Machine, addr: Lanes, *, space: str, cop: str | None, vec: str | None, type: ScalarType
) -> Any:
    """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches."""
    del cop
    return _load(machine, space, addr, type, vec)


@inst(
    "ld{.vec}.type d*vec, [addr:u64]",
    name="ld_generic",
    vec=("v2", "v4"),
    type=NARROW,
    ptx=(2, 0),
    sm=20,
    effect=Effect.READ,
    section=f"{MOVEMENT}: ld",
)
def ld_generic(machine: Machine, addr: Lanes, *, vec: str | None, type: ScalarType) -> Any:
    """d = the value, or the vector of consecutive values, at the generic address addr."""
    return _load(machine, GENERIC, addr, type, vec)


@inst(
    "ld{.vec}.type d*vec, [addr:u64]", name="ld_generic", vec=("v2",), type=WIDE, ptx=(2, 0), sm=20,
    effect=Effect.READ, section=f"{MOVEMENT}: ld",
)  # fmt: skip
def ld_generic_wide(machine: Machine, addr: Lanes, *, vec: str | None, type: ScalarType) -> Any:
    """d = the value, or the vector of consecutive values, at the generic address addr."""
    return _load(machine, GENERIC, addr, type, vec)


_EVICT: Final = {"L1::no_allocate": gate(ptx=(7, 4), sm=70)}
_PREFETCH: Final = {
    "L2::64B": gate(ptx=(7, 4), sm=75),
    "L2::128B": gate(ptx=(7, 4), sm=75),
    "L2::256B": gate(ptx=(7, 4), sm=80),
}


@inst(
    "ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]", name="ld_nc",
    evict=_EVICT, prefetch=_PREFETCH, vec=("v2", "v4"), type=NARROW, ptx=(3, 1), sm=32,
    effect=Effect.READ, section=f"{MOVEMENT}: ld.global.nc",
)  # fmt: skip
def ld_nc(
    machine: Machine, addr: Lanes, *, evict: str | None, prefetch: str | None, vec: str | None,
    type: ScalarType,
) -> Any:  # fmt: skip
    """d = the value, or the vector of consecutive values, at addr, which nobody writes while the
    kernel runs.
    """
    del evict, prefetch
    return _load(machine, "global", addr, type, vec)


@inst(
    "ld.global.nc{.evict}{.prefetch}{.vec}.type d*vec, [addr:u64]", name="ld_nc",
    evict=_EVICT, prefetch=_PREFETCH, vec=("v2",), type=WIDE, ptx=(3, 1), sm=32,
    effect=Effect.READ, section=f"{MOVEMENT}: ld.global.nc",
)  # fmt: skip
def ld_nc_wide(
    machine: Machine, addr: Lanes, *, evict: str | None, prefetch: str | None, vec: str | None,
    type: ScalarType,
) -> Any:  # fmt: skip
    """d = the value, or the vector of consecutive values, at addr, which nobody writes while the
    kernel runs.
    """
    del evict, prefetch
    return _load(machine, "global", addr, type, vec)


def _store(
    machine: Machine, space: str, addr: Lanes, a: Lanes | tuple[Lanes, ...], type: ScalarType
) -> tuple[()]:
    machine.store(space, addr, type, a if isinstance(a, tuple) else (a,))
    return ()


@inst(
    "st.space{.cop}{.vec}.type [addr:u64], a*vec",
    space=STORE_SPACES, cop=STORE_CACHE, vec=("v2", "v4"), type=NARROW,
    effect=Effect.WRITE, section=f"{MOVEMENT}: st",
)  # fmt: skip
def st(
    machine: Machine, addr: Lanes, a: Lanes | tuple[Lanes, ...], *,
    space: str, cop: str | None, vec: str | None, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    """Write a, or the elements of the vector a, to addr on; .cop is a hint for the caches."""
    del cop, vec
    return _store(machine, space, addr, a, type)


@inst(
    "st.space{.cop}{.vec}.type [addr:u64], a*vec",
    space=STORE_SPACES, cop=STORE_CACHE, vec=("v2",), type=WIDE,
    effect=Effect.WRITE, section=f"{MOVEMENT}: st",
)  # fmt: skip
def st_wide(
    machine: Machine, addr: Lanes, a: Lanes | tuple[Lanes, ...], *,
    space: str, cop: str | None, vec: str | None, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    """Write a, or the elements of the vector a, to addr on; .cop is a hint for the caches."""
    del cop, vec
    return _store(machine, space, addr, a, type)


@inst(
    "st{.vec}.type [addr:u64], a*vec",
    name="st_generic",
    vec=("v2", "v4"),
    type=NARROW,
    ptx=(2, 0),
    sm=20,
    effect=Effect.WRITE,
    section=f"{MOVEMENT}: st",
)
def st_generic(
    machine: Machine,
    addr: Lanes,
    a: Lanes | tuple[Lanes, ...],
    *,
    vec: str | None,
    type: ScalarType,
) -> tuple[()]:
    """Write a, or the elements of the vector a, to the generic address addr on."""
    del vec
    return _store(machine, GENERIC, addr, a, type)


@inst(
    "st{.vec}.type [addr:u64], a*vec", name="st_generic", vec=("v2",), type=WIDE, ptx=(2, 0), sm=20,
    effect=Effect.WRITE, section=f"{MOVEMENT}: st",
)  # fmt: skip
def st_generic_wide(
    machine: Machine,
    addr: Lanes,
    a: Lanes | tuple[Lanes, ...],
    *,
    vec: str | None,
    type: ScalarType,
) -> tuple[()]:
    """Write a, or the elements of the vector a, to the generic address addr on."""
    del vec
    return _store(machine, GENERIC, addr, a, type)


# ---------------------------------------- addresses, prefetch

SPACES: Final = ("global", "shared", "const", "local")


@inst(
    "cvta.space.u64 d, a",
    space=SPACES,
    ptx=(2, 0),
    sm=20,
    effect=Effect.ADDRESS,
    section=f"{MOVEMENT}: cvta",
)
def cvta(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """d = the generic address of the address a in space."""
    return machine.convert_address(space, a, to_space=False)


@inst(
    "cvta.to.space.u64 d, a", name="cvta_to", space=SPACES, ptx=(2, 0), sm=20,
    effect=Effect.ADDRESS, section=f"{MOVEMENT}: cvta",
)  # fmt: skip
def cvta_to(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """d = the address in space of the generic address a."""
    return machine.convert_address(space, a, to_space=True)


@inst(
    "prefetch.global.level [addr:u64]",
    level=("L1", "L2"),
    ptx=(2, 0),
    sm=20,
    section=f"{MOVEMENT}: prefetch",
)
def prefetch(addr: Lanes, *, level: str) -> tuple[()]:
    """Bring the line at addr into the cache; changes no value."""
    del addr, level
    return ()


# ---------------------------------------- atomics

_MODERN: Final = gate(ptx=(6, 0), sm=70)
SEMANTICS: Final = dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), _MODERN)
RED_SEMANTICS: Final = dict.fromkeys(("relaxed", "release"), _MODERN)
_PASCAL: Final = gate(ptx=(5, 0), sm=60)
SCOPES: Final = {"cta": _PASCAL, "gpu": _PASCAL, "sys": _PASCAL, "cluster": gate(ptx=(7, 8), sm=90)}
ATOMIC_SPACES: Final = ("global", "shared")
_KEPLER: Final = gate(ptx=(3, 1), sm=32)
_FERMI_F32: Final = gate(ptx=(2, 0), sm=20)
_F64: Final = gate(ptx=(5, 0), sm=60)
_ATOMIC: Final = gate(ptx=(1, 2), sm=12)

ADDABLE: Final = {u32: None, s32: None, u64: _ATOMIC, f32: _FERMI_F32, f64: _F64}
ORDERABLE: Final = {u32: None, s32: None, u64: _KEPLER, s64: _KEPLER}
LOGICAL: Final = {b32: None, b64: _KEPLER}
EXCHANGED: Final = {b32: None, b64: _ATOMIC}
HALF_ADDABLE: Final = {
    f16x2: gate(ptx=(6, 2), sm=60),
    f16: gate(ptx=(6, 3), sm=70),
    bf16: gate(ptx=(7, 8), sm=90),
    bf16x2: gate(ptx=(7, 8), sm=90),
}


def _added(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    """old + b; f32 flushes subnormals in global memory only on some GPUs, so they are kept here."""
    if type.kind == "x":
        element = f16 if type is f16x2 else bf16
        pairs = zip(numeric.halves(old, element), numeric.halves(b, element), strict=True)
        return numeric.join(
            *(numeric.canonical_narrow(numeric.add_narrow(x, y, element)) for x, y in pairs)
        )
    if type.bits == 16:
        return numeric.canonical_narrow(numeric.add_narrow(old, b, type))
    if type is f32:
        return numeric.canonical(numeric.add_f32(old, b, "rn"))
    return numeric.add_f64(old, b, "rn") if type is f64 else np.add(old, b)


def _updated(op: str, type: ScalarType) -> Callable[[Lanes, Lanes], Lanes]:
    """The new value in memory from the old one and the operand."""
    updates: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
        "add": lambda old, b: _added(old, b, type),
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, b: np.broadcast_to(b, old.shape).astype(old.dtype),
        "inc": lambda old, b: np.where(old >= b, np.uint32(0), np.add(old, np.uint32(1))),
        "dec": lambda old, b: np.where((old == 0) | (old > b), b, np.subtract(old, np.uint32(1))),
    }
    return updates[op]


def _atomic(
    machine: Machine, space: str, addr: Lanes, type: ScalarType, op: str, *operands: Lanes
) -> Lanes:
    update = _exchanged_if_equal if op == "cas" else _updated(op, type)
    return machine.atomic(space, addr, type, update, operands)


def _exchanged_if_equal(old: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return np.where(old == b, c, old)


_OPERATIONS: Final[tuple[tuple[Any, Any], ...]] = (
    (("add",), ADDABLE),
    (("min", "max"), ORDERABLE),
    (("inc", "dec"), {u32: None}),
    (("and", "or", "xor"), LOGICAL),
)
_ATOM: Final[dict[str, Any]] = {"space": ATOMIC_SPACES, "sem": SEMANTICS, "scope": SCOPES}
_RED: Final[dict[str, Any]] = {"space": ATOMIC_SPACES, "sem": RED_SEMANTICS, "scope": SCOPES}


def _atom(
    machine: Machine, addr: Lanes, b: Lanes, *,
    sem: str | None, scope: str | None, space: str, op: str, type: ScalarType,
) -> Lanes:  # fmt: skip
    """d = the old value at addr, which becomes op(old, b) in one step (inc: 0 from b on; dec: b
    from 0 and above b).
    """
    del sem, scope
    return _atomic(machine, space, addr, type, op, b)


def _red(
    machine: Machine, addr: Lanes, b: Lanes, *,
    sem: str | None, scope: str | None, space: str, op: str, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    """The value at addr becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above
    b).
    """
    del sem, scope
    _atomic(machine, space, addr, type, op, b)
    return ()


for _ops, _types in (*_OPERATIONS, (("exch",), EXCHANGED)):
    inst(
        "atom{.sem}{.scope}.space.op.type d, [addr:u64], b", **_ATOM, op=_ops, type=_types,
        ptx=(1, 1), sm=11, effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: atom",
    )(_atom)  # fmt: skip

for _ops, _types in _OPERATIONS:
    inst(
        "red{.sem}{.scope}.space.op.type [addr:u64], b", **_RED, op=_ops, type=_types,
        ptx=(1, 2), sm=11, effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: red",
    )(_red)  # fmt: skip


@inst(
    "atom{.sem}{.scope}.space.add.noftz.type d, [addr:u64], b", **_ATOM, type=HALF_ADDABLE,
    effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: atom",
)  # fmt: skip
def atom_half(
    machine: Machine,
    addr: Lanes,
    b: Lanes,
    *,
    sem: str | None,
    scope: str | None,
    space: str,
    type: ScalarType,
) -> Lanes:
    """d = the old value at addr, which becomes old + b in one step (each half of a pair for
    itself).
    """
    del sem, scope
    return _atomic(machine, space, addr, type, "add", b)


@inst(
    "red{.sem}{.scope}.space.add.noftz.type [addr:u64], b", **_RED, type=HALF_ADDABLE,
    effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: red",
)  # fmt: skip
def red_half(
    machine: Machine,
    addr: Lanes,
    b: Lanes,
    *,
    sem: str | None,
    scope: str | None,
    space: str,
    type: ScalarType,
) -> tuple[()]:
    """The value at addr becomes old + b in one step (each half of a pair for itself)."""
    del sem, scope
    _atomic(machine, space, addr, type, "add", b)
    return ()


@inst(
    "atom{.sem}{.scope}.space.cas.type d, [addr:u64], b, c", name="atom_cas", **_ATOM,
    type={**EXCHANGED, b16: gate(ptx=(6, 3), sm=70)}, ptx=(1, 1), sm=11,
    effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: atom",
)  # fmt: skip
def atom_cas(
    machine: Machine, addr: Lanes, b: Lanes, c: Lanes, *,
    sem: str | None, scope: str | None, space: str, type: ScalarType,
) -> Lanes:  # fmt: skip
    """d = the old value at addr, which becomes c in one step if it was b."""
    del sem, scope
    return _atomic(machine, space, addr, type, "cas", b, c)


# ---------------------------------------- fences

_FENCE_SCOPES: Final = {"cta": None, "gpu": None, "sys": None, "cluster": gate(ptx=(7, 8), sm=90)}


@inst(
    "membar.level", level={"cta": None, "gl": None, "sys": gate(ptx=(2, 0), sm=20)}, ptx=(1, 4),
    effect=Effect.FENCE, section=f"{SYNCHRONIZATION}: membar",
)  # fmt: skip
def membar(machine: Machine, *, level: str) -> tuple[()]:
    """Order this thread's memory accesses before it against those after it, for the block, the GPU
    (gl) or the system.
    """
    machine.fence("gpu" if level == "gl" else level)
    return ()


@inst(
    "fence.sem.scope", sem=("acq_rel", "sc"), scope=_FENCE_SCOPES, ptx=(6, 0), sm=70,
    effect=Effect.FENCE, section=f"{SYNCHRONIZATION}: membar",
)  # fmt: skip
def fence(machine: Machine, *, sem: str, scope: str) -> tuple[()]:
    """Order this thread's memory accesses before it against those after it, for all threads of the
    scope.
    """
    del sem  # the interpreter's memory is sequentially consistent
    machine.fence(scope)
    return ()
