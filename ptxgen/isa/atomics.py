"""Atomic operations, reductions in memory, fences (PTX ISA, "Parallel Synchronization").

Lanes that access one address are served one after another, in rising order; where possible, all their results
are computed at once (`ptxgen.isa.atomic_scans`). The elements of a vector are updated separately, each in one
step, as the manual requires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric, numeric_f64
from ptxgen.isa.atomic_scans import scan_of, swapped
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.memory import CLUSTER, CTA, SYSTEM_128, canonical_space
from ptxgen.isa.spec import Effect, gate
from ptxgen.isa.undefined import moves
from ptxgen.types import TYPES, b16, b32, b64, b128, bf16, bf16x2, f16, f16x2, f32, f64, s32, s64, u32, u64

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.types import ScalarType

SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"

_VOLTA: Final = gate(ptx=(6, 0), sm=70)
SEMANTICS: Final = dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), _VOLTA)
RED_SEMANTICS: Final = dict.fromkeys(("relaxed", "release"), _VOLTA)
_PASCAL: Final = gate(ptx=(5, 0), sm=60)
SCOPES: Final = {"cta": _PASCAL, "gpu": _PASCAL, "sys": _PASCAL, "cluster": CLUSTER}
ATOMIC_SPACES: Final = {"global": None, "shared": None, "shared::cta": CTA, "shared::cluster": CLUSTER}
_KEPLER: Final = gate(ptx=(3, 1), sm=32)
_FERMI: Final = gate(ptx=(2, 0), sm=20)
_ATOMIC: Final = gate(ptx=(1, 2), sm=12)

ADDABLE: Final = {u32: None, s32: None, u64: _ATOMIC, f32: _FERMI, f64: _PASCAL}
ORDERABLE: Final = {u32: None, s32: None, u64: _KEPLER, s64: _KEPLER}
LOGICAL: Final = {b32: None, b64: _KEPLER}
EXCHANGED: Final = {b32: None, b64: _ATOMIC}
_WIDEST: Final = {b128: gate(ptx=(8, 3), sm=90)}
_SCOPES_128: Final = {**SCOPES, "sys": SYSTEM_128}
HALF_ADDABLE: Final = {
    f16x2: gate(ptx=(6, 2), sm=60),
    f16: gate(ptx=(6, 3), sm=70),
    bf16: gate(ptx=(7, 8), sm=90),
    bf16x2: gate(ptx=(7, 8), sm=90),
}

# ---------------------------------------- updates


def _added(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    """old + b. Only some GPUs flush f32 subnormals in global memory, so this sum keeps them."""
    if type.bits == 16:
        return numeric.canonical_narrow(numeric.add_narrow(old, b, type))
    if type is f32:
        return numeric.canonical(numeric.add_f32(old, b, "rn"))
    return numeric_f64.add_f64(old, b, "rn") if type is f64 else np.add(old, b)


def _smaller(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    if type.is_integer:
        return np.minimum(old, b)
    return numeric.canonical_narrow(numeric.minimum(old, b, nan=False))


def _larger(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    if type.is_integer:
        return np.maximum(old, b)
    return numeric.canonical_narrow(numeric.maximum(old, b, nan=False))


# The new value at an address from the old value, the operand and their type.
UPDATES: Final[dict[str, Callable[[Lanes, Lanes, ScalarType], Lanes]]] = {
    "add": _added,
    "min": _smaller,
    "max": _larger,
    "and": lambda old, b, _: np.bitwise_and(old, b),
    "or": lambda old, b, _: np.bitwise_or(old, b),
    "xor": lambda old, b, _: np.bitwise_xor(old, b),
    "exch": lambda old, b, _: np.broadcast_to(b, old.shape).astype(old.dtype),
    "inc": lambda old, b, _: np.where(old >= b, np.uint32(0), np.add(old, np.uint32(1))),
    "dec": lambda old, b, _: np.where((old == 0) | (old > b), b, np.subtract(old, np.uint32(1))),
}


def _updated(op: str, type: ScalarType) -> Callable[[Lanes, Lanes], Lanes]:
    """The function that gives the new value in memory from the old one and the operand; the two
    halves of a packed pair are updated separately.
    """
    update = UPDATES[op]
    if type.kind != "x":
        return lambda old, b: update(old, b, type)
    half = TYPES[type.name.removesuffix("x2")]

    def both(old: Lanes, b: Lanes) -> Lanes:
        pairs = zip(numeric.halves(old, half), numeric.halves(b, half), strict=True)
        return numeric.join(*(update(x, y, half) for x, y in pairs))

    return both


def _exchanged_if_equal(old: Lanes, b: Lanes, c: Lanes) -> Lanes:
    if old.dtype != b128.dtype:
        return np.where(old == b, c, old)
    words = np.broadcast_to(b, old.shape).copy().view(b64.dtype) == old.view(b64.dtype)
    return np.where(words.reshape(-1, 2).all(axis=1), c, old)


# ---------------------------------------- atom and red

_ATOM: Final = each("head d sem what", ("atom", "d, ", SEMANTICS, "d = the old value at addr, which"))
_BOTH: Final = _ATOM + each("head d sem what", ("red", "", RED_SEMANTICS, "The value at addr"))
# The address is in a state space or, without one, generic; with what either form needs.
_PLAIN: Final = each("where space ptx sm", (".space", ATOMIC_SPACES, (1, 1), 11), ("", None, (2, 0), 20))
# The types determine what the forms need.
_HALVES: Final = each("where space", (".space", ATOMIC_SPACES), ("", None))
_HINTED: Final = each(
    "where space hint policy ptx sm", ("{.space}", ("global",), ".L2::cache_hint", ", policy:b64", (7, 4), 80)
)
_SUM: Final = "old + b in one step (separately for each half of a pair)"
_IGNORES: Final = ("sem", "scope", "policy", "vec")


@inst(
    "<head>{.sem}{.scope}<where>.<operation><hint>.type <d>[addr:u64], b<policy>",
    times(
        each(
            "op type",
            (("add",), ADDABLE),
            (("min", "max"), ORDERABLE),
            (("inc", "dec"), {u32: None}),
            (("and", "or", "xor"), LOGICAL),
        ),
        _PLAIN + _HINTED,
        _BOTH,
    )
    + times(
        each("op type scope", (("exch",), EXCHANGED, SCOPES), (("exch",), _WIDEST, _SCOPES_128)),
        _PLAIN + _HINTED,
        _ATOM,
    )
    + times(
        each("operation op type becomes", ("add.noftz", "add", HALF_ADDABLE, _SUM)), _HALVES + _HINTED, _BOTH
    ),
    name="<head>",
    operation="op",
    hint="",
    policy="",
    scope=SCOPES,
    ignores=_IGNORES,
    becomes="op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b)",
    effect=Effect.ATOMIC,
    undefined=moves("b", "c"),
    section=f"{SYNCHRONIZATION}: <head>",
)
def atomic(
    machine: Machine, addr: Lanes, b: Lanes, *, head: str, space: str | None = None, op: str, type: ScalarType
) -> Any:
    """<what> becomes <becomes>."""
    update, scan = _updated(op, type), scan_of(op, type)
    old = machine.atomic(canonical_space(space), addr, type, update, (b,), scan=scan)
    return old if head == "atom" else ()


_MINMAX: Final = ("add", "min", "max")


@inst(
    "<head>{.sem}{.scope}{.space}.<operation><hint>.vec.type <d>[addr:u64], b*vec<policy>",
    each(
        "operation op vec type",
        ("op", ("add",), ("v2", "v4"), (f32,)),
        ("op.noftz", _MINMAX, ("v2", "v4", "v8"), (f16, bf16)),
        ("op.noftz", _MINMAX, ("v2", "v4"), (f16x2, bf16x2)),
    ),
    each("hint policy", ("", ""), (".L2::cache_hint", ", policy:b64")),
    each(
        "head d sem what",
        ("atom", "d*vec, ", SEMANTICS, "d = the old value at addr, which"),
        ("red", "", RED_SEMANTICS, "The value at addr"),
    ),
    name="<head>",
    space=("global",),
    scope=SCOPES,
    ignores=_IGNORES,
    ptx=(8, 1),
    sm=90,
    effect=Effect.ATOMIC,
    undefined=moves("b", "c"),
    section=f"{SYNCHRONIZATION}: <head>",
)
def atomic_vector(
    machine: Machine,
    addr: Lanes,
    b: tuple[Lanes, ...],
    *,
    head: str,
    space: str | None,
    op: str,
    type: ScalarType,
) -> tuple[Lanes, ...]:
    """Each element: <what> becomes op(old, b) in one step."""
    first = np.asarray(addr)
    old = tuple(
        atomic(
            machine,
            first + first.dtype.type(n * type.nbytes),
            element,
            head="atom",
            space=space,
            op=op,
            type=type,
        )
        for n, element in enumerate(b)
    )
    return old if head == "atom" else ()


@inst(
    "atom{.sem}{.scope}<where>.cas.type d, [addr:u64], b, c",
    _PLAIN,
    each("type scope", ({**EXCHANGED, b16: gate(ptx=(6, 3), sm=70)}, SCOPES), (_WIDEST, _SCOPES_128)),
    name="atom_cas",
    sem=SEMANTICS,
    ignores=_IGNORES,
    effect=Effect.ATOMIC,
    undefined=moves("b", "c"),
    section=f"{SYNCHRONIZATION}: atom",
)
def atom_cas(
    machine: Machine, addr: Lanes, b: Lanes, c: Lanes, *, space: str | None = None, type: ScalarType
) -> Lanes:
    """d = the old value at addr, which becomes c in one step if it was b."""
    update, scan = _exchanged_if_equal, None if type is b128 else swapped
    return machine.atomic(canonical_space(space), addr, type, update, (b, c), scan=scan)


# ---------------------------------------- fences

_FENCE_SCOPES: Final = {"cta": None, "gpu": None, "sys": None, "cluster": CLUSTER}


@inst(
    "membar.level",
    level={"cta": None, "gl": None, "sys": gate(ptx=(2, 0), sm=20)},
    ptx=(1, 4),
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def membar(machine: Machine, *, level: str) -> tuple[()]:
    """Order this thread's memory accesses before the instruction before those after it, for the
    block, the GPU (gl) or the system.
    """
    machine.fence("gpu" if level == "gl" else level)
    return ()


@inst(
    "fence<order>.scope",
    each("order", ".sem", ""),
    sem=("acq_rel", "sc", "acquire", "release"),
    scope=_FENCE_SCOPES,
    ignores=("sem",),
    ptx=(6, 0),
    sm=70,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence(machine: Machine, *, scope: str) -> tuple[()]:
    """Order this thread's memory accesses before the instruction before those after it, for all
    threads of the scope.
    """
    machine.fence(scope)  # the same for each order: the interpreter's memory is sequentially consistent
    return ()


@inst(
    "fence.<sem>.sync_restrict::<space>.cluster",
    each("sem space", ("acquire", "shared::cluster"), ("release", "shared::cta")),
    name="fence_<sem>_restricted",
    ptx=(8, 6),
    sm=90,
    effect=Effect.FENCE,
    section=f"{SYNCHRONIZATION}: membar",
)
def fence_restricted(machine: Machine) -> tuple[()]:
    """Order this thread's accesses before the instruction to the shared memory that the modifier
    names before those after it, for all threads of the cluster.
    """
    machine.fence("cluster")
    return ()
